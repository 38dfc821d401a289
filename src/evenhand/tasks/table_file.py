"""A table's file: CSV or Parquet, read whole, or refused in a sentence that says what to do."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PANDAS_NEEDED = "tables need pandas and pyarrow: pip install 'evenhand[table]'"
CSV_SUFFIXES = (".csv", ".tsv", ".txt", ".data", ".csv.gz", ".tsv.gz")
PARQUET_SUFFIXES = (".parquet", ".pq")


def read(file: Path, *, header: bool = True) -> Any:
    """The table as a pandas frame; without a header its columns are called 0, 1, 2, …"""
    pandas_module()  # says that it is needed
    name = file.name.lower()
    known = (*CSV_SUFFIXES, *PARQUET_SUFFIXES)
    if not file.is_file():
        raise ValueError(f"expected a table or a folder of class folders, but there is no {file}")
    if not name.endswith(known):
        raise ValueError(f"expected a table whose name ends in {', '.join(known)}, got {file.name!r}")
    try:
        frame, names = _parquet(file) if name.endswith(PARQUET_SUFFIXES) else _csv(file, header)
    except Exception as error:  # pandas and pyarrow raise many kinds
        raise ValueError(_unreadable(file, error)) from error
    _check_names(names, file)
    frame.columns = [str(column).strip() for column in frame.columns]
    if len(frame) == 0:
        raise ValueError(f"expected a table with rows, but {file} has none; name another file")
    _check_names(frame.columns, file)
    return frame.reset_index(drop=True)


def _parquet(file: Path) -> tuple[Any, list[str]]:
    from pyarrow import parquet

    content = parquet.read_table(file)
    content.validate(full=True)  # else what is damaged shows only when it is used
    return content.to_pandas(), content.column_names


def _csv(file: Path, header: bool) -> tuple[Any, list[str]]:
    """The frame, and the names as they stand in the first line: pandas renames those that come twice."""
    pandas = pandas_module()
    form = {"sep": _separator(file), "skipinitialspace": True}
    names: list[str] = []
    if header:
        first = pandas.read_csv(file, **form, header=None, nrows=1, dtype=str, keep_default_na=False)
        names = first.iloc[0].tolist()
    frame = pandas.read_csv(file, **form, header=0 if header else None, na_values=["?"], low_memory=False)
    return frame, names


def _check_names(names: Sequence[str], file: Path) -> None:
    counts = Counter(str(name).strip() for name in names)
    twice = [repr(name) for name, count in counts.items() if count > 1 and name]
    if twice:
        raise ValueError(
            f"expected columns of different names, but {file} has more than one called "
            f"{', '.join(twice[:5])}; rename or remove them, since a copy of the label would give it away"
        )


def _unreadable(file: Path, error: Exception) -> str:
    """Why the file cannot be read, without the reader's internals."""
    if isinstance(error, UnicodeDecodeError):
        return (
            f"expected a CSV in UTF-8, but {file} is in another encoding (Latin-1, perhaps); convert it, "
            f"such as with: iconv -f LATIN1 -t UTF-8 {file.name} > utf8.csv"
        )
    ragged = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
    if ragged:
        expected, line, came = ragged.groups()
        return (
            f"expected {expected} fields in every line, but line {line} of {file} has {came}; "
            "mend that line, or put quotes around values that hold the separator"
        )
    why = " ".join(str(error).replace("Error tokenizing data. C error: ", "").split())
    return f"{file} cannot be read as a table: {why}; is it damaged, or of another kind?"


def _separator(file: Path) -> str:
    """Comma, semicolon, tab or bar, whichever the first line fits."""
    if ".tsv" in file.name.lower():
        return "\t"
    if file.name.lower().endswith(".gz"):
        return ","
    with file.open(encoding="utf-8", errors="replace") as lines:
        first = lines.readline()
    try:
        return csv.Sniffer().sniff(first, delimiters=",;\t|").delimiter
    except csv.Error:
        return ","


def pandas_module() -> Any:
    """pandas, which only tables need."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError(PANDAS_NEEDED) from error
    return pandas
