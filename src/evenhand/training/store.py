"""Files that are whole or absent: atomic writes, JSON that fits a schema, claims of folders, manifests."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import reprlib
import socket
import sys
import threading
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from filelock import FileLock, Timeout

from evenhand.training import log

NUMBER, SHARE, COUNT = "a finite number", "a share between 0 and 1", "a number of samples"
# A type, None, NUMBER, SHARE, COUNT, [schema of each item], {key: schema}, {str: schema of each value}, or a
# tuple of alternatives.
Schema = Any
_LIMITS: dict[Any, tuple[Any, float, float]] = {  # schema -> types, least and largest value
    NUMBER: ((int, float), -sys.float_info.max, sys.float_info.max),
    SHARE: ((int, float), 0, 1),
    COUNT: (int, 1, 2**63 - 1),
    int: (int, -(2**63), 2**63 - 1),
}
LARGEST_INT = 2**64  # no number of ours is larger, and no conversion of one that is smaller overflows

_held = threading.local()  # the folders that each thread holds


class Damaged(ValueError):
    """A file of evenhand does not contain what was written to it."""


def write_bytes(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file by atomic rename: under its name there is the old content or the new, never a part.

    What is too long for memory can be given in parts.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _explain_refusal(temporary):
        file = temporary.open("wb")
    try:
        with file:
            size = sum(file.write(part) for part in ([data] if isinstance(data, bytes) else data))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        log.detail("wrote %s, %d bytes", path, size)
    finally:
        temporary.unlink(missing_ok=True)


REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST)


@contextlib.contextmanager
def _explain_refusal(path: Path) -> Iterator[None]:
    """Make the folder of a new file. Where the file cannot be made, the error names the folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        place = next(each for each in path.absolute().parents if os.access(each, os.F_OK))
        reason = error.strerror or error
        raise type(error)(f"{place} cannot be written to ({reason}); name another place") from error


def check_folder(place: str | Path, name: str) -> None:
    """Refuse a place where no folder can be, because it or something on the way to it is a file."""
    path = Path(place).absolute()
    if path.exists() and not path.is_dir():
        raise ValueError(f"{name} must be a folder, got the file {str(place)!r}; name another place")
    way = next(each for each in path.parents if each.exists())
    if not way.is_dir():
        raise ValueError(
            f"{name} must be a folder, but {way} on the way to {place} is a file; name another place"
        )


def json_bytes(content: Any) -> bytes:
    """Return JSON whose bytes depend on nothing but the content."""
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def write_json(path: Path, content: Any) -> None:
    """Write JSON by atomic rename."""
    write_bytes(path, json_bytes(content))


def read_json(path: Path) -> Any:
    """Read JSON of finite numbers, or raise Damaged with the name of the file."""
    return parse_json(path.read_bytes(), path)


def parse_json(data: bytes | str, source: object) -> Any:
    """Parse JSON that anybody may have written; `source` is the file that an error names.

    Raises Damaged for NaN, infinity, integers beyond 64 bits and nesting too deep, so that no reader has to.
    """
    try:
        return json.loads(data, parse_constant=_refuse, parse_float=_finite, parse_int=_bounded)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{source} should hold JSON, but it is damaged: {error}") from error


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{reprlib.repr(text)} is not a finite number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _bounded(text: str) -> int:
    number = int(text)
    return number if abs(number) < LARGEST_INT else _refuse(text)


def schema_error(content: Any, schema: Schema, where: str = "it") -> str:
    """Return a message on what does not fit the schema; empty if everything fits.

    >>> schema_error({"seed": "x"}, {"seed": int}), schema_error({"seed": 1, "more": 2}, {"seed": int})
    ("its 'seed' is not int", '')
    """
    if isinstance(schema, tuple):
        errors = [schema_error(content, alternative, where) for alternative in schema]
        return errors[-1] if all(errors) else ""
    if isinstance(schema, list):
        if not isinstance(content, list):
            return f"{where} is not a list"
        parts = [(each, schema[0], where) for each in content]
    elif isinstance(schema, dict):
        if not isinstance(content, dict):
            return f"{where} is not an object"
        if missing := [key for key in schema if key is not str and key not in content]:
            return f"{where} has no {missing[0]!r}"
        inside = "its" if where == "it" else where
        keys = content if str in schema else schema
        parts = [
            (content[key], schema.get(str, schema.get(key)), f"{inside} {reprlib.repr(key)}") for key in keys
        ]
    else:
        return "" if _fits(content, schema) else f"{where} is not {getattr(schema, '__name__', schema)}"
    return next((error for each in parts if (error := schema_error(*each))), "")


def _fits(content: Any, schema: Schema) -> bool:
    if schema in _LIMITS:
        types, least, largest = _LIMITS[schema]
        return isinstance(content, types) and not isinstance(content, bool) and least <= content <= largest
    return content is None if schema is None else isinstance(content, schema)


def read_checked(path: Path, schema: Schema, what: str) -> dict[str, Any]:
    """Read JSON that fits the schema; anything else raises Damaged."""
    return check_json(path.read_bytes(), path, schema, what)


def check_json(data: bytes, path: Path, schema: Schema, what: str) -> dict[str, Any]:
    """Parse and check JSON; records, audits and model folders are all read through this function."""
    content: dict[str, Any] = parse_json(data, path)
    if error := schema_error(content, schema):
        raise Damaged(f"{path} should hold {what}, but it does not: {error}; delete it and run again")
    return content


def set_aside(path: Path, reason: object) -> None:
    """Rename a damaged file, so that it is neither used nor lost."""
    aside = path.with_name(f"{path.name}.damaged-{int(time.time())}")
    with contextlib.suppress(FileNotFoundError):  # another process has seen it first
        path.replace(aside)
    message = f"{reason}; kept as {aside.name}, and computed again"
    log.note("warning: %s", message)
    warnings.warn(message, stacklevel=2)


def _lock(folder: Path) -> FileLock:
    """Return the lock of a folder: the kernel's, where the platform has such locks."""
    return FileLock(folder / "claim", poll_interval=0.1, thread_local=False)  # any thread may release it


@contextlib.contextmanager
def claim(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a folder for this process; the kernel releases it when the process dies, however it dies.

    Without `wait`, a folder that another process holds raises BlockingIOError that names the owner. A thread
    that holds the folder may claim it again inside.
    """
    held = _held.__dict__.setdefault("folders", set())
    if (place := folder.absolute()) in held:
        yield
        return
    lock, owner = _lock(folder), folder / "claim.owner"
    try:
        with _explain_refusal(owner):
            lock.acquire(timeout=-1 if wait else 0)
    except Timeout as error:
        raise BlockingIOError(f"{folder} is held by another process: {_named_owner(owner)}") from error
    with contextlib.ExitStack() as stack:
        stack.callback(lock.release)
        stack.callback(owner.unlink, missing_ok=True)
        held.add(place)
        stack.callback(held.remove, place)
        # The name of the owner has a file of its own: not every platform lets others read a locked file.
        about = {"host": socket.gethostname(), "pid": os.getpid(), "time": int(time.time())}
        owner.write_text(json.dumps(about))
        for orphan in folder.glob(".*.tmp"):  # only the holder writes here: its writer was killed
            orphan.unlink(missing_ok=True)
        yield


def _named_owner(owner: Path) -> str:
    try:
        return owner.read_text(errors="replace")[:200].strip()
    except OSError:
        return "it has not said which"


def claimed(folder: Path) -> bool:
    """Return whether another process, or another claim of this one, holds the folder now."""
    if folder.absolute() in _held.__dict__.get("folders", ()):
        return True
    if not (folder / "claim").exists():
        return False
    try:
        with _lock(folder).acquire(timeout=0):
            return False
    except Timeout:
        return True


# -- manifests -------------------------------------------------------------------------------------------

# A manifest holds the SHA-256 of every file that is read back, so that damage is noticed and the file named.
# A finished run leaves its manifest in checksums.json. A checkpoint, and an array that is kept beside it,
# ends with its own digest. The checkpoint also holds a digest of every epoch of the histories beside it.
MANIFEST = "checksums.json"
METRICS, WEIGHTS = "metrics.json", "model.safetensors"
ARRAYS = ("partition.npz", "predictions.npz", "val_partition.npz")
RUN_FILES = ("config.json", "dynamics.json", WEIGHTS, *ARRAYS, "timing.json")
HISTORIES = ("losses", "hits", "val_losses", "val_hits")
STAGE_FILES = ("epochs.jsonl", *(f"{name}.npy" for name in HISTORIES))
KNOWN = (METRICS, *RUN_FILES, *STAGE_FILES)
DIGEST_SIZE = 32  # bytes of a digest
MANIFEST_SCHEMA = {"files": {str: str}, "stages": {str: {str: str}}}


def digest(source: Path | bytes, epochs: int | None = None) -> str:
    """Return the SHA-256 of bytes, of a file, or of so many epochs of a history or a learning curve.

    A training may go on after a run has stopped. Its first epochs, and so their digest, stay as they are.
    """
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    if epochs is None:
        with source.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if source.suffix == ".npy":
        return joined_digest(column_digests(source, epochs))
    return digest(b"\n".join(source.read_bytes().splitlines()[:epochs]))


def joined_digest(columns: Iterable[str]) -> str:
    """Return the digest of a history whose epochs have these digests."""
    return digest("".join(columns).encode())


def column_digests(path: Path, end: int, start: int = 0) -> list[str]:
    """Return the digests of a history's columns from `start` to before `end`, as far as readable."""
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
    """Return the path of a file, or of a folder of files, that is as a manifest's `files` say.

    An empty manifest says nothing. Else a file that has another digest, that is gone, or that the manifest
    does not list raises Damaged.
    """
    path = folder / name
    if files and path.is_dir():
        there = {file.relative_to(folder).as_posix() for file in path.rglob("*") if file.is_file()}
        for each in sorted(there | {each for each in files if each.startswith(f"{name}/")}):
            verified(folder, each, files)
    elif files and name not in files and path.exists():
        raise Damaged(f"{path} is not in {MANIFEST}: it was not there when the folder was finished")
    verify(path, files.get(name))
    return path


def find_damaged(
    folder: Path, expected: Mapping[str, str], epochs: int | None = None
) -> list[tuple[Path, Damaged]]:
    """Return those of a folder's files, given with their digests, that are missing or damaged."""
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

    write_bytes(path, digested())


def verify_digested(path: Path) -> None:
    """Raise Damaged unless a file ends with the digest of all that comes before it."""
    content = np.memmap(path, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    if hashlib.sha256(content[:-DIGEST_SIZE].data).digest() != content[-DIGEST_SIZE:].tobytes():
        raise Damaged(f"{path} is not as it was written: its checksum does not match")


def is_intact(path: Path) -> bool:
    """Return whether a file is there and ends with its digest; a damaged one is set aside."""
    try:
        verify_digested(path)
    except FileNotFoundError:
        return False
    except Damaged as error:
        set_aside(path, error)
        return False
    return True


def manifest_bytes(files: Mapping[str, str], stages: Mapping[str, Mapping[str, str]]) -> bytes:
    """Return a manifest as JSON, with digests of a run's files and of the epochs that it used."""
    return json_bytes({"files": files, "stages": stages})


def write_manifest(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write the manifest of files that a folder holds, or will hold, given as name -> content.

    A name is relative to the folder, with / between its parts. `read` and `verified` check such a folder.
    """
    files = {name: digest(data) for name, data in contents.items()}
    write_bytes(folder / MANIFEST, manifest_bytes(files, {}))


def write_run_manifest(folder: Path, metrics: bytes, stages: Mapping[str, tuple[Path, int]]) -> None:
    """Write the manifest of a run whose metrics.json, the last of its files, will hold `metrics`.

    `stages`: the folder of each training and the number of its epochs that the run has seen.
    """
    files = {name: digest(folder / name) for name in RUN_FILES if (folder / name).exists()}
    seen = {
        stage: {name: digest(place / name, epochs) for name in STAGE_FILES if (place / name).exists()}
        for stage, (place, epochs) in stages.items()
    }
    write_bytes(folder / MANIFEST, manifest_bytes({**files, METRICS: digest(metrics)}, seen))


def read_manifest(folder: Path, known: Collection[str] | None = KNOWN) -> dict[str, Any]:
    """Return a folder's manifest, or an empty one for folders of earlier versions.

    `known`: the names that it may hold, so that a stranger's manifest opens no other file. None is for
    readers that open the files which they need, and no others.
    """
    if not (folder / MANIFEST).exists():
        return {"files": {}, "stages": {}}
    content = read_checked(folder / MANIFEST, MANIFEST_SCHEMA, "the checksums of a run")
    names = {*content["files"], *(name for stage in content["stages"].values() for name in stage)}
    if known is not None and (unknown := names.difference(known)):
        named = reprlib.repr(sorted(unknown)[0])
        raise Damaged(f"{folder / MANIFEST} should hold the checksums of a run, but it names {named}")
    return content
