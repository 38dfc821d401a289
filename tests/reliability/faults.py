# ruff: noqa: PTH100, PTH112, PTH115 - what is replaced here are the functions of os that Path calls.
"""Faults at every place where a process touches the disk: a kill, an error, a write that stops half-way.

`watch(root)` counts the places; `watch(root, at=n, fault=name)` lets the n-th of them fail. A place is an
operation on a path below `root`: open for writing, write, flush, truncate, close, fsync, rename, unlink, mkdir.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FAULTS = ("SIGKILL", "torn write", "EIO", "ENOSPC", "MemoryError", "CUDA error")


class Injected(Exception):
    """Marks the errors below, so that one of ours is not taken for a real one."""


class InjectedOSError(OSError, Injected): ...


class InjectedMemoryError(MemoryError, Injected): ...


class InjectedRuntimeError(RuntimeError, Injected): ...


@dataclass
class Watch:
    """What has been touched, in order; the place number `at` gets the fault."""

    root: str
    at: int | None = None
    fault: str = ""
    points: list[tuple[str, str]] = field(default_factory=list)  # operation, kind of file

    def point(self, operation: str, path: str, half: Callable[[], None] | None = None) -> None:
        """Called before an operation; `half` does the first half of a write and gets it to the disk."""
        if not path.startswith(self.root):
            return
        self.points.append((operation, kind(path)))
        if len(self.points) - 1 == self.at:
            self._fail(half)

    def _fail(self, half: Callable[[], None] | None) -> None:
        if half is not None and self.fault in ("torn write", "ENOSPC"):  # a full disk takes a part
            half()
        if self.fault in ("SIGKILL", "torn write"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "MemoryError":
            raise InjectedMemoryError("no memory left")
        if self.fault == "CUDA error":
            raise InjectedRuntimeError("CUDA error: an illegal memory access was encountered")
        number = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}[self.fault]
        raise InjectedOSError(number, os.strerror(number))


def kind(path: str) -> str:
    """What sort of file a path is, whatever its folder, process and number.

    >>> kind("/a/.last.ckpt.123.tmp"), kind("/a/losses.npy.new"), kind("/a/0a1b2c3d4e5f-s0/claim")
    ('last.ckpt', 'losses.npy', 'claim')
    """
    name = path.rstrip("/").rsplit("/", 1)[-1]
    name = re.sub(r"^\.(.*)\.\d+\.tmp$", r"\1", name).removesuffix(".new")
    name = re.sub(r"-at\d+\.npy$", "-atN.npy", name)
    name = re.sub(r"^epoch-\d+", "epoch-N", name)
    return "folder" if "." not in name and name != "claim" else name


class _File:
    """A file open for writing, whose every operation is a place for a fault."""

    def __init__(self, file: Any, path: str, watch: Watch) -> None:
        self._file, self._path, self._watch = file, path, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def write(self, data: Any) -> Any:
        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._watch.point("write", self._path, half)
        return self._file.write(data)

    def flush(self) -> None:
        self._watch.point("flush", self._path)
        self._file.flush()

    def truncate(self, *size: int) -> Any:
        self._watch.point("truncate", self._path)
        return self._file.truncate(*size)

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            self._watch.point("close", self._path)
        finally:
            self._file.close()  # a close that fails has closed all the same


@contextlib.contextmanager
def watch(root: Path, at: int | None = None, fault: str = "") -> Iterator[Watch]:
    """Everything that happens below `root` inside the `with` block is counted, and may fail."""
    seen = Watch(str(root.resolve()), at, fault)
    real = {name: getattr(os, name) for name in ("replace", "unlink", "mkdir", "fsync", "open", "write")}
    opened = io.open

    def open_(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        writes = isinstance(file, str | os.PathLike) and any(letter in mode for letter in "wax+")
        if not writes or not os.path.abspath(file).startswith(seen.root):
            return opened(file, mode, *rest, **options)
        path = os.path.abspath(file)
        seen.point("open", path)
        return _File(opened(file, mode, *rest, **options), path, seen)

    def replace(source: Any, target: Any, **options: Any) -> None:
        seen.point("rename", os.path.abspath(target))
        real["replace"](source, target, **options)

    def unlink(path: Any, **options: Any) -> None:
        if os.path.lexists(path):
            seen.point("unlink", os.path.abspath(path))
        real["unlink"](path, **options)

    def mkdir(path: Any, *rest: Any, **options: Any) -> None:
        if not os.path.isdir(path):
            seen.point("mkdir", os.path.abspath(path))
        real["mkdir"](path, *rest, **options)

    def fsync(number: int) -> None:
        seen.point("fsync", os.readlink(f"/proc/self/fd/{number}"))
        real["fsync"](number)

    def os_open(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            seen.point("open", os.path.abspath(path))
        return real["open"](path, flags, *rest, **options)

    def os_write(number: int, data: bytes) -> int:
        path = os.readlink(f"/proc/self/fd/{number}")
        seen.point("write", path, lambda: real["write"](number, data[: len(data) // 2]))
        return real["write"](number, data)

    changed = {
        "open": os_open,
        "write": os_write,
        "replace": replace,
        "unlink": unlink,
        "mkdir": mkdir,
        "fsync": fsync,
    }
    io.open = builtins.open = open_  # type: ignore[assignment]
    for name, function in changed.items():
        setattr(os, name, function)
    try:
        yield seen
    finally:
        io.open = builtins.open = opened  # type: ignore[assignment]
        for name, function in real.items():
            setattr(os, name, function)
