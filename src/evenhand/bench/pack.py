"""Pack: read records from folders and packed files, and carry them from one machine to another."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.core.arrays import read_arrays
from evenhand.tasks import datasets
from evenhand.training import log, store
from evenhand.training.record import Record, find, is_finished
from evenhand.training.store import check_folder, claim, write_bytes

# metrics.json last: unpacked in this order, its existence means that the run is complete.
SMALL = ("config.json", "dynamics.json", "timing.json", "metrics.json")


def load(*sources: str | Path) -> list[Record]:
    """Return every finished run in runs folders and packed .zip files. The first copy of a run counts."""
    found: dict[tuple[str, ...], Record] = {}
    for source in map(Path, sources):
        if not source.exists():
            raise ValueError(f"{source} must be a runs folder or a packed .zip file, but it does not exist")
        records = list(find(source if source.is_dir() else _content(source)))
        if not records:
            raise ValueError(
                f"{source} holds no finished run; make some with: evenhand bench digits_even_odd --runs DIR"
            )
        log.detail("found %d finished runs in %s", len(records), source)
        for record in records:
            found.setdefault(record.path.parts[-3:], record)
    return list(found.values())


def pack(records: Iterable[Record], out: str | Path, *, failures: Iterable[Path] = ()) -> None:
    """Write one small .zip in the layout of a runs folder. The same records give the same bytes.

    It omits weights, checkpoints, histories, training partitions and the confidences of predictions.
    """
    entries: dict[str, bytes] = {}
    for record in records:
        entries.update(_entries(record))
    for failure in failures:
        entries["/".join(failure.parts[-4:])] = failure.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        for name in sorted(entries):
            info = zipfile.ZipInfo(name)  # dated 1980, whatever the clock says
            info.compress_type, info.create_system, info.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
            zipped.writestr(info, entries[name], compresslevel=9)
    write_bytes(Path(out), buffer.getvalue())


def unpack(file: str | Path, runs: str | Path) -> tuple[int, int]:
    """Add packed runs to a runs folder, and return how many were added and how many were already there."""
    added = kept = 0
    check_folder(runs, "--runs")
    for record in load(_zip(Path(file))):
        target = Path(runs, *record.path.parts[-3:])
        with claim(target):
            if is_finished(target):
                kept += 1
                continue
            for name, content in sorted(_entries(record).items(), key=lambda entry: _last(entry[0])):
                path = Path(runs, name)
                if path.is_relative_to(target):
                    write_bytes(path, content)
                elif not path.exists():  # a stage may be further along here, or still running
                    with contextlib.suppress(BlockingIOError), claim(path.parent, wait=False):
                        write_bytes(path, content)
            added += 1
    return added, kept


def _last(name: str) -> tuple[bool, str]:
    return name.endswith("/metrics.json"), name


def _entries(record: Record) -> dict[str, bytes]:
    """Return the packed files of a run: name in the archive -> content."""
    folder = "/".join(record.path.parts[-3:])
    entries = {}
    for name in SMALL:
        if (path := record.path / name).exists():
            entries[f"{folder}/{name}"] = record.file(name).read_bytes()
    for name, keep in (("predictions.npz", ("val", "test")), ("val_partition.npz", None)):
        if (path := record.path / name).exists():
            entries[f"{folder}/{name}"] = _smaller(record.file(name), keep)
    digests = {Path(name).name: store.digest(data) for name, data in entries.items()}
    entries[f"{folder}/{store.MANIFEST}"] = store.manifest_bytes(digests, {})
    for stage, value in record.config["stages"].items():
        if Path(value["folder"]).name != value["folder"]:  # records may come from strangers
            raise ValueError(
                f"{record.path / 'config.json'} names an unsafe folder, {value['folder']!r}: do not use it"
            )
        if (path := record.stage(stage) / "epochs.jsonl").exists():
            entries["/".join(path.parts[-4:])] = path.read_bytes()
    return entries


def _smaller(path: Path, keep: tuple[str, ...] | None) -> bytes:
    """Return an .npz with only these arrays. Margins only color a page, so they have half precision."""
    found = read_arrays(path, "a run's arrays")
    arrays: dict[str, Any] = {name: array for name, array in found.items() if keep is None or name in keep}
    if "margin" in arrays:
        arrays["margin"] = arrays["margin"].astype(np.float16)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _content(file: Path) -> Path:
    """Return the cache folder with the content of a packed file."""
    return datasets.unpack(_zip(file).stem, [file])


def _zip(file: Path) -> Path:
    if not file.is_file() or file.suffix != ".zip":
        raise ValueError(f"{file} must be a .zip file written by `evenhand pack`")
    return file
