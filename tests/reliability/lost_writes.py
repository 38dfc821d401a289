# ruff: noqa: PTH100, PTH115 - what is replaced here are the functions of os that Path calls.
"""A disk that loses power: what was not synced is gone.

`losing(root)` notes what a disk would hold at every moment if the power failed then. The file system keeps the
order of its metadata, as ext4, XFS, Btrfs, APFS and NTFS do: names are made, renamed and removed in the order
of the calls. The data of a file are there only as of its last fsync.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenhand.training import store
from evenhand.training.checkpoint import Histories, load_checkpoint
from evenhand.training.record import damaged

Tree = dict[str, bytes]
FIRST = 64  # bytes of an unsynced change that may reach the disk without the rest


@dataclass
class Disk:
    """What is certain to be on the disk now, and what was at every moment before."""

    root: str
    certain: Tree = field(default_factory=dict)
    moments: list[Tree] = field(default_factory=list)

    def inside(self, path: Any) -> str | None:
        """The path below the root, or None for a path elsewhere."""
        full = os.path.abspath(os.fsdecode(path))
        return os.path.relpath(full, self.root) if full.startswith(self.root + os.sep) else None

    def note(self) -> None:
        """The power may fail now: all that is not synced is lost, or only its first bytes are not."""
        torn = dict(self.certain)
        for name, synced in self.certain.items():
            with contextlib.suppress(OSError):
                now = Path(self.root, name).read_bytes()
                if now != synced:
                    torn[name] = now[:FIRST] + synced[FIRST:].ljust(max(len(now) - FIRST, 0), b"\0")
        for tree in (dict(self.certain), torn):
            if tree not in self.moments[-2:]:
                self.moments.append(tree)


@contextlib.contextmanager
def losing(root: Path) -> Iterator[Disk]:
    """Everything that happens below `root` inside the `with` block is noted."""
    disk = Disk(str(root.resolve()))
    for path in root.rglob("*"):
        if path.is_file():
            disk.certain[str(path.relative_to(root))] = path.read_bytes()
    real = {name: getattr(os, name) for name in ("replace", "unlink", "fsync", "open")}
    opened = io.open

    def made(path: Any, empties: bool) -> None:
        name = disk.inside(path)
        if name is not None and (empties or name not in disk.certain):
            disk.certain[name] = b""
            disk.note()

    def open_(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        found = opened(file, mode, *rest, **options)
        if isinstance(file, str | os.PathLike) and any(letter in mode for letter in "wax+"):
            made(file, "w" in mode)
        return found

    def os_open(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        number: int = real["open"](path, flags, *rest, **options)
        if flags & (os.O_WRONLY | os.O_RDWR):
            made(path, bool(flags & os.O_TRUNC))
        return number

    def replace(source: Any, target: Any, **options: Any) -> None:
        disk.note()
        real["replace"](source, target, **options)
        old, new = disk.inside(source), disk.inside(target)
        if old is not None and new is not None:
            disk.certain[new] = disk.certain.pop(old)
            disk.note()

    def unlink(path: Any, **options: Any) -> None:
        real["unlink"](path, **options)
        if (name := disk.inside(path)) is not None and disk.certain.pop(name, None) is not None:
            disk.note()

    def fsync(number: int) -> None:
        disk.note()
        real["fsync"](number)
        path = os.readlink(f"/proc/self/fd/{number}")
        if (name := disk.inside(path)) is not None:
            disk.certain[name] = Path(path).read_bytes()
            disk.note()

    io.open = builtins.open = open_  # type: ignore[assignment]
    for name, function in {"open": os_open, "replace": replace, "unlink": unlink, "fsync": fsync}.items():
        setattr(os, name, function)
    try:
        yield disk
    finally:
        io.open = builtins.open = opened  # type: ignore[assignment]
        for name, function in real.items():
            setattr(os, name, function)


def materialize(tree: Tree, root: Path) -> None:
    """Make the folder that the disk holds when the power is back."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, content in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def broken_promises(root: Path) -> list[str]:
    """Checkpoints that know of an epoch which is not on the disk, and finished runs whose files are not."""
    wrong = []
    for path in sorted(root.rglob("*.ckpt")):
        state = load_checkpoint(path)
        known, epochs = state["histories"], state["epoch"]
        if known is not None and not Histories.whole(path.parent, epochs, known):
            wrong.append(f"{path.relative_to(root)} knows {epochs} epochs that the histories do not hold")
        curve = path.parent / "epochs.jsonl"
        rows = curve.read_bytes().count(b"\n") if curve.exists() else 0
        if rows < len(state["log"]):
            wrong.append(f"{path.relative_to(root)} knows {len(state['log'])} epochs, the curve {rows}")
    for path in sorted(root.rglob(store.METRICS)):
        wrong += [f"finished, but {error}" for _, error in damaged(path.parent, everything=True)]
    return wrong
