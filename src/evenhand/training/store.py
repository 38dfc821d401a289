"""Files that are either whole or absent: atomic writes, checkpoints with a checksum, claims."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import socket
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import torch

from evenhand.core import ranks
from evenhand.training import journal

_MAGIC = b"evenhand1\n"


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
        journal.detail("wrote %s, %d bytes", path, size)
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


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write nested dictionaries of tensors and plain values, preceded by their checksum."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    write_bytes(path, _MAGIC + hashlib.sha256(payload).digest() + payload)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; one that was cut short or changed raises Damaged."""
    return _parse(_payload(path))


def load_for_all(path: Path) -> dict[str, Any] | None:
    """A checkpoint as the first rank reads it, for all of them; None where there is none.

    A damaged one is set aside, as if it had never been written.
    """
    data = None
    if ranks.first() and path.exists():
        try:
            data = _payload(path)
        except Damaged as error:
            set_aside(path, error)
    data = ranks.bytes_from_first(data)
    return None if data is None else _parse(data)


def _payload(path: Path) -> bytes:
    data = path.read_bytes()
    head = len(_MAGIC) + 32
    if not data.startswith(_MAGIC) or hashlib.sha256(data[head:]).digest() != data[len(_MAGIC) : head]:
        raise Damaged(f"{path} should be a checkpoint of evenhand, but its checksum does not match")
    return data[head:]


def _parse(payload: bytes) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # its checksum was right, so somebody made it so; torch raises many kinds
        raise Damaged(f"a checkpoint holds what torch does not load safely: {error}") from error
    if not isinstance(state, dict):
        raise Damaged(f"a checkpoint should hold a dictionary, got {type(state).__name__}")
    return state


def write_sealed(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file followed by its checksum; who reads the data, as numpy does, need not know of it."""

    def sealed() -> Iterator[bytes]:
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
            yield part
        yield digest.digest()

    write_bytes(path, sealed())


def is_sealed(path: Path) -> bool:
    """Whether a file is there and holds what `write_sealed` was given; a damaged one is set aside."""
    if not path.exists():
        return False
    digest, left = hashlib.sha256(), path.stat().st_size - 32
    with path.open("rb") as file:
        while left > 0 and (part := file.read(min(left, 1 << 24))):
            digest.update(part)
            left -= len(part)
        if file.read() == digest.digest():
            return True
    set_aside(path, f"{path} should end with its checksum, but it does not match")
    return False


def set_aside(path: Path, reason: object) -> None:
    """Move a damaged file out of the way, so that it is neither trusted nor lost."""
    aside = path.with_name(f"{path.name}.damaged-{int(time.time())}")
    with contextlib.suppress(FileNotFoundError):  # another process has seen it first
        path.replace(aside)
    message = f"{reason}; kept as {aside.name}, and computed again"
    journal.note("warning: %s", message)
    warnings.warn(message, stacklevel=2)


@contextlib.contextmanager
def claim(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a folder for this process; the kernel gives it up when the process dies, however it dies.

    Without `wait`, a folder that another process holds raises BlockingIOError that names the owner.
    """
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
        try:
            yield
        finally:
            file.truncate(0)
            fcntl.flock(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def claim_together(folder: Path) -> Iterator[None]:
    """Hold a folder for all ranks of one training: the first takes the claim, the others wait for it."""
    with claim(folder) if ranks.first() else contextlib.nullcontext():
        ranks.barrier()
        yield
        ranks.barrier()  # what one rank writes last, the others may read when they leave


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


def keep_curve(folder: Path, log: list[dict[str, Any]]) -> None:
    """Write the learning curve that a checkpoint knows, unless the one on disk begins with it."""
    path, curve = folder / "epochs.jsonl", curve_bytes(log)
    if path.exists() and not path.read_bytes().startswith(curve):
        set_aside(path, f"{path} should hold the learning curve of {len(log)} epochs, but it is damaged")
    if not path.exists():
        write_bytes(path, curve)


def curve_bytes(log: list[dict[str, Any]]) -> bytes:
    """A learning curve as it is written: a line of JSON for each epoch."""
    return "".join(json.dumps(row) + "\n" for row in log).encode()
