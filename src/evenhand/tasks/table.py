"""A CSV or Parquet table of your own: features, texts or image paths, and a column of labels."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from sklearn.base import BaseEstimator, TransformerMixin

from evenhand.tasks import folder
from evenhand.tasks.samples import TRAIN, Samples, encode, encode_classes, stratified_split
from evenhand.training.data import Task
from evenhand.training.recipe import Recipe

RECIPE = Recipe(model="mlp", epochs=40, batch_size=128, check_every=1)
MOST_WORDS = 2000  # of a bag of words that a network reads; the linear model of an audit reads all
MOST_VALUES = 50  # of a category that a network sees; rarer ones look alike
MOST_CODES = 250  # of a category that boosting sees, which can tell 255 apart
NEARLY_ALL = 0.9  # of a column's cells hold numbers or dates: then the others are mistakes
DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d")
IDENTIFIER = 0.5  # a column of words with more distinct values than this share of its rows names the rows
CSV_SUFFIXES = (".csv", ".tsv", ".txt", ".data", ".csv.gz", ".tsv.gz")
PARQUET_SUFFIXES = (".parquet", ".pq")
SUFFIXES = (*CSV_SUFFIXES, *PARQUET_SUFFIXES)
# Before pandas 3.1 the default parser may return the neighbor of the float that the text names.
_EXACT_FLOATS = {} if pandas.__version__ >= "3.1" else {"float_precision": "round_trip"}


def load(
    root: Path | None = None,
    *,
    path: str = "",
    label: str = "label",
    text: str = "",
    image: str = "",
    group: str = "",
    size: int = 32,
) -> Task:
    """Load the table at `path` as numbers for a small network, or with `image`, the images that it lists."""
    file = folder.located("table", root, path)
    data = read_table(file, label=label, text=text or None, image=image or None, group=group or None)
    return folder.task(data, size=size, name="table") if data.kind == "images" else task(data)


def read_table(
    source: Path | Any,
    *,
    label: str,
    text: str | None = None,
    image: str | None = None,
    group: str | None = None,
    header: bool = True,
    drop: Sequence[str] = (),
    hide_group: bool = False,
    missing: bool = False,
) -> Samples:
    """Read the table's labeled rows, check and clean the columns, and split the rows into three parts.

    source: A file, or a pandas DataFrame.
    drop: Columns that are left out.
    hide_group: Whether the group column is kept from the model. Else it is a feature as well.
    missing: Whether cells of a column of numbers that hold no number are gaps. Else they are refused.
    """
    if isinstance(source, pandas.DataFrame):
        frame, file = source.rename(columns=str).reset_index(drop=True), Path("the DataFrame")
        _check_names(frame.columns.tolist(), file)
    else:
        frame, file = read(source, header=header), source
    named = [("--label", label), ("--text", text), ("--image", image), ("--group", group)]
    for option, column in [*named, *(("--drop", column) for column in drop)]:
        if column is not None and column not in frame.columns:
            names = ", ".join(map(str, frame.columns[:40]))
            raise ValueError(
                f"{option} must name a column of {file}, got {column!r}; its columns are {names}"
            )
    if group is not None and group in (label, text, image):
        raise ValueError(f"--group must name a column of its own, got {group!r}, which is used already")
    if clash := {label, text, image, group} & set(drop):
        raise ValueError(f"--drop must name a column that nothing else names, got {clash.pop()!r}")
    if text is not None and image is not None:
        raise ValueError("give --text or --image, not both: one of them is what the model sees")
    notes: list[str] = []
    here = frame[label].notna()
    _check_not_continuous(frame.loc[here, label], label, file)
    if not here.all():
        notes.append(f"{int((~here).sum()):,} rows without a label were left out")
        frame = frame[here]
    y, class_names = encode_classes(as_names(frame[label]), f"the column {label!r} of {file}")
    attribute, attribute_names = (None, ()) if group is None else _attribute(frame[group])
    ids, content = [str(row) for row in frame.index], dict[str, Any]()
    if text is not None:
        content = {"kind": "text", "texts": as_text(frame[text])}
    elif image is not None:
        ids = as_text(frame[image])
        content = {"kind": "images", "files": folder.image_files(ids, file, image)}
    else:
        hidden = {label, *drop, *([group] if hide_group else [])}
        seen = frame[[name for name in frame.columns if name not in hidden]]
        content = {"kind": "table", "frame": cleaned(seen, notes, missing)}
        if group is not None:
            use = "also a feature of the model (--hide-group hides it)"
            notes.append(f"the group column {group!r} is {'kept from the model' if hide_group else use}")
    return Samples(
        ids=ids,
        y=y,
        class_names=class_names,
        split=stratified_split(y),
        attribute=attribute,
        attribute_names=attribute_names,
        notes=tuple(notes),
        reading={"header": header, "text": text, "image": image},
        **content,
    )


# The table's file.


def read(file: Path, *, header: bool = True) -> Any:
    """Read the table as a pandas frame; without a header its columns are called 0, 1, 2, …"""
    name = file.name.lower()
    if not file.is_file():
        raise ValueError(f"expected a table or a folder of class folders, but there is no {file}")
    if not name.endswith(SUFFIXES):
        raise ValueError(f"expected a table whose name ends in {', '.join(SUFFIXES)}, got {file.name!r}")
    try:
        frame, names = (_parquet if name.endswith(PARQUET_SUFFIXES) else _csv)(file, header)
    except ImportError as error:
        raise ImportError("reading Parquet needs pyarrow: pip install 'evenhand[table]'") from error
    except Exception as error:  # pandas and pyarrow raise many kinds
        raise ValueError(_unreadable(file, error)) from error
    _check_names(names, file)
    frame.columns = [str(column).strip() for column in frame.columns]
    if len(frame) == 0:
        raise ValueError(f"expected a table with rows, but {file} has none; name another file")
    return frame.reset_index(drop=True)


def _parquet(file: Path, header: bool) -> tuple[Any, list[str]]:
    from pyarrow import parquet

    content = parquet.read_table(file)
    content.validate(full=True)  # else what is damaged shows only when it is used
    return (frame := content.to_pandas()), [*frame.columns]


def _csv(file: Path, header: bool) -> tuple[Any, list[str]]:
    """Return the frame and the column names of the first line, since pandas renames duplicates."""
    form = {"sep": _separator(file), "skipinitialspace": True, **_EXACT_FLOATS}
    frame = pandas.read_csv(file, **form, header=0 if header else None, na_values=["?"], low_memory=False)
    if not header:
        return frame, [*frame.columns]
    first = pandas.read_csv(file, **form, header=None, nrows=1, dtype=str, keep_default_na=False)
    return frame, first.iloc[0].tolist()


def _check_names(names: Sequence[str], file: Path) -> None:
    counts = Counter(str(name).strip() for name in names)
    twice = [repr(name) for name, count in counts.items() if count > 1 and name]
    if twice:
        raise ValueError(
            f"expected columns of different names, but {file} has more than one called "
            f"{', '.join(twice[:5])}; rename or remove them, since a copy of the label would give it away"
        )


def _unreadable(file: Path, error: Exception) -> str:
    """Return the reason why the file cannot be read, without the reader's internals."""
    if isinstance(error, UnicodeDecodeError):
        return (
            f"expected a CSV in UTF-8, but {file} is in another encoding (Latin-1, perhaps); convert it, "
            f"such as with: iconv -f LATIN1 -t UTF-8 {file.name} > utf8.csv"
        )
    why = " ".join(str(error).replace("Error tokenizing data. C error: ", "").split())
    return f"{file} cannot be read as a table: {why}; is it damaged, or of another kind?"


def _separator(file: Path) -> str:
    """Return the separator that fits the first line: comma, semicolon, tab or bar."""
    if ".tsv" in (name := file.name.lower()) or name.endswith(".gz"):
        return "\t" if ".tsv" in name else ","
    with file.open(encoding="utf-8", errors="replace") as lines:
        first = lines.readline()
    try:
        return csv.Sniffer().sniff(first, delimiters=",;\t|").delimiter
    except csv.Error:
        return ","


# The table's columns.


def _check_not_continuous(labels: Any, column: str, file: Path) -> None:
    values = labels.to_numpy()
    if values.dtype.kind != "f":
        return
    broken = values[np.isfinite(values) & (values != np.round(values))]
    if len(broken):
        raise ValueError(
            f"expected classes in the column {column!r} of {file}, but it holds quantities such as "
            f"{broken[0]:g} ({len(np.unique(values)):,} different ones); evenhand does not do regression: "
            "cut them into classes"
        )


def as_names(labels: Any) -> list[str]:
    """Convert labels to text; whole numbers that a missing value turned into 1.0 and 2.0 become 1 and 2."""
    values = labels.tolist()
    return [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v).strip() for v in values]


def as_text(values: Any, gap: str = "") -> list[str]:
    """Convert the values of a column to text, with `gap` for missing ones."""
    return [str(v) if known else gap for v, known in zip(values.tolist(), values.notna(), strict=True)]


def _attribute(values: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    names, position = encode(np.array(as_text(values, "missing"), dtype=str))
    if len(names) > 100:
        what = f"expected at most 100 different values in the group column {values.name!r}"
        raise ValueError(f"{what}, got {len(names):,}; cut it into fewer groups")
    return position, tuple(names.tolist())


def _plain(values: Any) -> Any:
    """Convert a column to floats, or to text if it holds words; no dates and no truth values remain."""
    if pandas.api.types.is_bool_dtype(values):
        return values.astype(float)
    if pandas.api.types.is_datetime64_any_dtype(values):
        return (values.dt.tz_localize(None) - pandas.Timestamp(0)) / pandas.Timedelta(days=1)
    if pandas.api.types.is_numeric_dtype(values):
        return values.astype(float).replace([np.inf, -np.inf], np.nan)
    known = values.notna()
    values = values.astype(object).where(known, np.nan)
    values[known] = values[known].map(str)
    return values


def parsed(words: Any) -> Any:
    """Parse a column of words as floats: numbers, also with a decimal comma, or dates as days since 1970.

    Cells that hold none of these are gaps. The reading with the fewest such cells counts.
    """
    distinct = pandas.Series(words.dropna().unique())  # a category repeats few words
    text = distinct.astype("string").str.strip()
    comma = text.where(text.str.fullmatch(r"[-+]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?").fillna(False))
    comma = comma.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
    readings = [pandas.to_numeric(each, errors="coerce") for each in (text, comma)]
    for form in DATES if text.str.contains(r"^\d{1,4}[-./]\d").fillna(False).mean() > 0.5 else ():
        dates = pandas.to_datetime(text, format=form, errors="coerce")
        readings.append((dates - pandas.Timestamp(0)) / pandas.Timedelta(days=1))
    best = max(readings, key=lambda reading: reading.notna().sum())
    best = best.astype("float64").replace([np.inf, -np.inf], np.nan)
    return words.map(dict(zip(distinct, best, strict=True))).astype(float)


def unparsed(words: Any, floats: Any) -> str:
    """List the cells of a column that hold no number; the result is empty if there are none."""
    bad = words[words.notna() & floats.isna()]
    cells = [f"row {row}: {str(value)[:40]!r}" for row, value in bad.head(10).items()]
    more = f", and {len(bad) - 10:,} more" if len(bad) > 10 else ""
    return ", ".join(cells) + more


def numbers(values: Any) -> Any:
    """Convert a column of new rows to floats, as the model expects."""
    plain = _plain(values)
    if plain.dtype != object:
        return plain
    floats = parsed(plain)
    if cells := unparsed(plain, floats):
        raise ValueError(f"expected numbers in the column {values.name!r}, as in training, got {cells}")
    return floats


def words(values: Any) -> Any:
    """Convert a column of new rows to words, as the model expects; 1.0 becomes the word 1."""
    plain = _plain(values)
    return plain.map(lambda v: v if isinstance(v, str) or v != v else str(int(v) if v.is_integer() else v))


def _understood(values: Any, notes: list[str], missing: bool) -> Any:
    """Convert a column of words to numbers if nearly all of its cells hold numbers or dates."""
    if values.dtype != object or not values.notna().any():
        return values
    floats = parsed(values)
    if floats.notna().sum() < NEARLY_ALL * values.notna().sum():
        return values
    if cells := unparsed(values, floats):
        if not missing:
            raise ValueError(
                f"expected numbers in the column {values.name!r}, but some cells hold none: {cells}; mend "
                "them, or add --missing, and they are gaps"
            )
        notes.append(f"cells of the column {values.name!r} that hold no number are gaps: {cells}")
    return floats


def cleaned(frame: Any, notes: list[str], missing: bool = False) -> Any:
    """Convert feature columns to numbers or words. Dates become days, and useless columns are left out."""
    columns: dict[str, Any] = {}
    useless: list[str] = []
    for name in frame.columns:
        values = _understood(_plain(frame[name]), notes, missing)
        distinct = values.nunique()
        words = values.dtype == object
        if distinct < 2 and not (distinct == 1 and values.isna().any()):
            useless.append(f"{name} ({'one value' if distinct else 'no values'})")
        elif words and distinct > max(MOST_VALUES, IDENTIFIER * len(values)):
            why = "an identifier or free text; for text use --text"
            useless.append(f"{name} ({distinct:,} different words: {why})")
        else:
            columns[name] = values
    if useless:
        notes.append(f"columns left out: {', '.join(useless)}")
    if not columns:
        raise ValueError(
            "expected at least one feature column besides label and group, but none is left: "
            f"{', '.join(useless[:5]) or 'there are no others'}; add columns that differ between rows"
        )
    result = pandas.DataFrame(columns)
    gaps = int(result.isna().to_numpy().sum())
    if gaps:
        notes.append(f"{gaps:,} of {result.size:,} feature values are missing; missing is a value of its own")
    return result


def word_columns(frame: Any) -> list[str]:
    """Return the columns that hold categories, not numbers."""
    return [name for name in frame.columns if frame[name].dtype == object]


def coded(words: Any, codes: dict[str, float], gap: float | None, unseen: float | None) -> np.ndarray:
    """Encode a column of words as numbers, (rows,) float64; None as a code is NaN."""
    unknown = np.nan if unseen is None else unseen
    known = words.notna()
    found = words.map(codes).astype(float).fillna(unknown).where(known, np.nan if gap is None else gap)
    return np.asarray(found, dtype=np.float64)


class WordCodes(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Encode words as numbers, as boosting takes categories.

    A gap has a code of its own. Words that occur once in training, and the rarest of very many, share a code.
    So does a word that training has not seen: it must not look like a gap. Where no word is rare, it is NaN.
    """

    def fit(self, frame: Any, y: Any = None) -> WordCodes:
        """Learn the codes of every column: `codes_` of words, `gaps_` and `unseen_`."""
        self.codes_, self.gaps_, self.unseen_ = list[dict[str, float]](), [], []
        for name in frame.columns:
            counts = frame[name].value_counts()
            kept = sorted(counts.index[counts > 1][:MOST_CODES])
            self.codes_.append({word: float(code) for code, word in enumerate(kept)})
            self.gaps_.append(float(len(kept)) if frame[name].isna().any() else None)
            rest = len(kept) + (self.gaps_[-1] is not None)  # no code is left out, as boosting counts them
            self.unseen_.append(float(rest) if len(counts) > len(kept) else None)
        return self

    def transform(self, frame: Any) -> np.ndarray:
        """Return the encoded columns, (rows, columns) float64."""
        every = zip(frame.columns, self.codes_, self.gaps_, self.unseen_, strict=True)
        columns = [coded(frame[name], codes, gap, unseen) for name, codes, gap, unseen in every]
        return np.stack(columns, axis=1) if columns else np.zeros((len(frame), 0))


def coded_columns(frame: Any) -> Any:
    """Return scikit-learn's transformer of a frame for boosting: codes of words, then plain numbers."""
    from sklearn.compose import ColumnTransformer

    words = word_columns(frame)
    numbers = [name for name in frame.columns if name not in words]
    return ColumnTransformer([("words", WordCodes(), words), ("numbers", "passthrough", numbers)])


def dense_columns(frame: Any) -> Any:
    """Return scikit-learn's transformer of a frame into numbers without gaps, all of similar scale."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    words = word_columns(frame)
    numbers = [name for name in frame.columns if name not in words]
    fill = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    codes = OneHotEncoder(
        max_categories=MOST_VALUES, handle_unknown="infrequent_if_exist", sparse_output=False
    )
    return ColumnTransformer(
        [("numbers", make_pipeline(fill, StandardScaler()), numbers), ("words", codes, words)]
    )


def bag_of_words(most: int | None = None) -> Any:
    """Return scikit-learn's TF-IDF of words that occur at least twice."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(sublinear_tf=True, min_df=2, max_features=most)


def fitted_words(vectorizer: Any, texts: list[str]) -> Any:
    """Return the texts as TF-IDF weights, or raise an error that says why they cannot be."""
    try:
        return vectorizer.fit_transform(texts)
    except ValueError as error:
        raise ValueError(
            f"expected texts that share words, but no word is in two of the {len(texts):,} training texts "
            f"({error}); is it the right column?"
        ) from error


def inputs(data: Samples) -> torch.Tensor:
    """Convert a table or texts to numbers, (samples, features) float32, scaled by the training rows."""
    train = data.rows(TRAIN)
    if data.kind == "text":
        vectorizer = bag_of_words(MOST_WORDS)
        fitted_words(vectorizer, [data.texts[row] for row in train])
        x = vectorizer.transform(data.texts).toarray()
    else:
        x = dense_columns(data.frame).fit(data.frame.iloc[train]).transform(data.frame)
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))


def task(data: Samples) -> Task:
    """Return a table or texts as a Task for a small network."""
    return tensor_task(data, inputs(data))


def tensor_task(data: Samples, x: torch.Tensor) -> Task:
    """Return a Task whose inputs are rows of numbers, (samples, features) float32."""
    return data.task("table", x, x, *data.class_names, recipe=RECIPE)
