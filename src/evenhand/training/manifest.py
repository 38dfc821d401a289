"""Manifest: the SHA-256 of every file that is read back, by which a damaged file is noticed and named.

A finished run leaves its manifest in checksums.json. A checkpoint, and an array that is kept beside it, ends
with its own digest. The checkpoint also holds a digest of every epoch of the histories beside it.
"""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.training import store
from evenhand.training.store import Damaged, read_checked

NAME = "checksums.json"
METRICS, WEIGHTS = "metrics.json", "model.safetensors"
ARRAYS = ("partition.npz", "predictions.npz", "val_partition.npz")
RUN_FILES = ("config.json", "dynamics.json", WEIGHTS, *ARRAYS, "timing.json")
HISTORIES = ("losses", "hits", "val_losses", "val_hits")
STAGE_FILES = ("epochs.jsonl", *(f"{name}.npy" for name in HISTORIES))
KNOWN = (METRICS, *RUN_FILES, *STAGE_FILES)
SIZE = 32  # bytes of a digest
SCHEMA = {"files": {str: str}, "stages": {str: {str: str}}}


def digest(source: Path | bytes, epochs: int | None = None) -> str:
    """The SHA-256 of bytes, of a file, or of so many epochs of a history or a learning curve.

    A training may go on after a run has stopped. Its first epochs, and so their digest, stay as they are.
    """
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    if epochs is None:
        with source.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if source.suffix == ".npy":
        return joined(column_digests(source, epochs))
    return digest(b"\n".join(source.read_bytes().splitlines()[:epochs]))


def joined(columns: Iterable[str]) -> str:
    """The digest of a history whose epochs have these digests."""
    return digest("".join(columns).encode())


def column_digests(path: Path, end: int, start: int = 0) -> list[str]:
    """The digests of a history's columns from `start` to before `end`, or of as many as can be read."""
    try:
        history = np.load(path, mmap_mode="r", allow_pickle=False)
        columns = range(start, min(end, history.shape[1]))
        return [digest(np.ascontiguousarray(history[:, column]).tobytes())[:16] for column in columns]
    except Exception:  # numpy's parser of headers raises many kinds
        return []


def verify(path: Path, expected: str | None, epochs: int | None = None) -> None:
    """Raise Damaged unless a file has the digest that its manifest holds, if the manifest holds one."""
    if expected is None:
        return
    if not path.exists():
        raise Damaged(f"{path} should be there, but it is gone")
    if digest(path, epochs) != expected:
        raise Damaged(f"{path} is not as it was written: its checksum does not match")


def verified(folder: Path, name: str, files: Mapping[str, str]) -> Path:
    """The path of a file, or of a folder of files, that is as a manifest's `files` say.

    An empty manifest says nothing. Else a file that has another digest, that is gone, or that the manifest
    does not list raises Damaged.
    """
    path = folder / name
    if files and path.is_dir():
        there = {file.relative_to(folder).as_posix() for file in path.rglob("*") if file.is_file()}
        for each in sorted(there | {each for each in files if each.startswith(f"{name}/")}):
            verified(folder, each, files)
    elif files and name not in files and path.exists():
        raise Damaged(f"{path} is not in {NAME}: it was not there when the folder was finished")
    verify(path, files.get(name))
    return path


def damaged(
    folder: Path, expected: Mapping[str, str], epochs: int | None = None
) -> list[tuple[Path, Damaged]]:
    """Those of a folder's files, given with their digests, that are gone or damaged."""
    found = []
    for name, each in expected.items():
        try:
            verify(folder / name, each, epochs)
        except Damaged as error:
            found.append((folder / name, error))
    return found


def write_digested(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file followed by its digest; numpy, which reads what comes before it, need not know of it."""

    def digested() -> Iterator[bytes]:
        whole = hashlib.sha256()
        for part in parts:
            whole.update(part)
            yield part
        yield whole.digest()

    store.write_bytes(path, digested())


def verify_digested(path: Path) -> None:
    """Raise Damaged unless a file ends with the digest of all that comes before it."""
    content = np.memmap(path, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    if hashlib.sha256(content[:-SIZE].data).digest() != content[-SIZE:].tobytes():
        raise Damaged(f"{path} is not as it was written: its checksum does not match")


def is_intact(path: Path) -> bool:
    """Whether a file is there and ends with its digest; a damaged one is set aside."""
    try:
        verify_digested(path)
    except FileNotFoundError:
        return False
    except Damaged as error:
        store.set_aside(path, error)
        return False
    return True


def encode(files: Mapping[str, str], stages: Mapping[str, Mapping[str, str]]) -> bytes:
    """A manifest as it is written: digests of a run's files, and of what it saw of its trainings."""
    return store.json_bytes({"files": files, "stages": stages})


def seal(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write the manifest of files that a folder holds, or will hold, given as name -> content.

    A name is relative to the folder, with / between its parts. `read` and `verified` check such a folder.
    """
    store.write_bytes(folder / NAME, encode({name: digest(data) for name, data in contents.items()}, {}))


def write(folder: Path, metrics: bytes, stages: Mapping[str, tuple[Path, int]]) -> None:
    """Write the manifest of a run whose metrics.json, the last of its files, will hold `metrics`.

    `stages`: the folder of each training and the number of its epochs that the run has seen.
    """
    files = {name: digest(folder / name) for name in RUN_FILES if (folder / name).exists()}
    seen = {
        stage: {name: digest(place / name, epochs) for name in STAGE_FILES if (place / name).exists()}
        for stage, (place, epochs) in stages.items()
    }
    store.write_bytes(folder / NAME, encode({**files, METRICS: digest(metrics)}, seen))


def read(folder: Path, known: Collection[str] | None = KNOWN) -> dict[str, Any]:
    """A folder's manifest; an empty one for folders of earlier versions, which have none.

    `known`: the names that it may hold, so that a stranger's manifest opens no other file. None is for
    readers that open the files which they need, and no others.
    """
    if not (folder / NAME).exists():
        return {"files": {}, "stages": {}}
    content = read_checked(folder / NAME, SCHEMA, "the checksums of a run")
    names = {*content["files"], *(name for stage in content["stages"].values() for name in stage)}
    if known is not None and (unknown := names.difference(known)):
        named = reprlib.repr(sorted(unknown)[0])
        raise Damaged(f"{folder / NAME} should hold the checksums of a run, but it names {named}")
    return content
