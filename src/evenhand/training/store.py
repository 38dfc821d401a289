"""Files that are either whole or absent: atomic writes, JSON that fits a schema, and claims of folders."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

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


_held = threading.local()  # the folders that each thread holds


class Damaged(ValueError):
    """A file of ours does not hold what was written to it."""


def write_bytes(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file by atomic rename: under its name there is the old content or the new, never a part.

    What is too long for memory can be given in parts.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    file = _opened(temporary, "wb")
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


def _opened(path: Path, mode: str) -> IO[Any]:
    """A new file, in a folder that is made for it; where none can be made, an error names the place."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open(mode)
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
    """JSON whose bytes depend on nothing but the content."""
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def write_json(path: Path, content: Any) -> None:
    """Write JSON by atomic rename."""
    write_bytes(path, json_bytes(content))


def read_json(path: Path) -> Any:
    """Read JSON, or say which file is damaged."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} should hold JSON, but it is damaged: {error}") from error


def schema_error(content: Any, schema: Schema, where: str = "it") -> str:
    """What in the content does not fit the schema, in words; empty where all of it fits.

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
        parts = [(content[key], schema.get(str, schema.get(key)), f"{inside} {key!r}") for key in keys]
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
    content: dict[str, Any] = read_json(path)
    if error := schema_error(content, schema):
        raise Damaged(f"{path} should hold {what}, but it does not: {error}; delete it and run again")
    return content


def set_aside(path: Path, reason: object) -> None:
    """Move a damaged file out of the way, so that it is neither trusted nor lost."""
    aside = path.with_name(f"{path.name}.damaged-{int(time.time())}")
    with contextlib.suppress(FileNotFoundError):  # another process has seen it first
        path.replace(aside)
    message = f"{reason}; kept as {aside.name}, and computed again"
    log.note("warning: %s", message)
    warnings.warn(message, stacklevel=2)


@contextlib.contextmanager
def claim(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a folder for this process; the kernel gives it up when the process dies, however it dies.

    Without `wait`, a folder that another process holds raises BlockingIOError that names the owner. A thread
    that holds the folder may claim it again inside.
    """
    held = _held.__dict__.setdefault("folders", set())
    if (place := folder.absolute()) in held:
        yield
        return
    with _opened(folder / "claim", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            file.seek(0)
            raise BlockingIOError(f"{folder} is held by another process: {file.read().strip()}") from error
        file.truncate(0)
        file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "time": int(time.time())}))
        file.flush()
        for orphan in folder.glob(".*.tmp"):  # only the holder writes here: its writer was killed
            orphan.unlink(missing_ok=True)
        held.add(place)
        try:
            yield
        finally:
            held.remove(place)
            file.truncate(0)
            fcntl.flock(file, fcntl.LOCK_UN)


def claimed(folder: Path) -> bool:
    """Whether another process, or another claim of this one, holds the folder now."""
    try:
        with (folder / "claim").open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False  # closing the file has given the lock up again
