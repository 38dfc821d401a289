"""Published datasets: where they are, how to get and unpack them, and whether they are intact.

`data_list`, `fetch`, `prepare` and `verify` are the commands `evenhand data …`.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import io
import lzma
import shutil
import stat
import struct
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenhand import tasks
from evenhand.tasks import cache_root, data_root
from evenhand.training import log, store

if TYPE_CHECKING:
    from evenhand.training.data import Task

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")
# An archive may unpack to 1 GiB, or to 30 times its own size if that is more.
LARGE, LARGE_RATIO = 1 << 30, 30
LARGEST_FILE = 1 << 28  # bytes that a gzipped file may unpack to; MNIST's largest has 47 million
DAMAGED = (  # what zipfile and tarfile raise for a damaged archive
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError),
    *(NotImplementedError, RuntimeError),  # an unknown compression, encryption
    *(UnicodeError, OverflowError),
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The data that a task needs under the data root, and where they are published."""

    folder: str  # under the data root
    needs: tuple[str, ...]  # what must be there: patterns, with | between alternatives
    size: str
    licence: str
    url: str
    layout: str  # what the folder looks like when the data are in place
    sha256: Mapping[str, str] = field(default_factory=dict)  # of each file's content, not gzipped
    mirrors: tuple[str, ...] = ()  # where these files can be downloaded, gzipped

    def absent(self, root: Path) -> list[str]:
        """Return the needed files and folders that are missing."""
        folder = root / self.folder
        return [
            need for need in self.needs if not any(any(folder.glob(pattern)) for pattern in need.split("|"))
        ]


@dataclass(frozen=True, kw_only=True)
class Paper:
    """The entry of a task in the paper's dataset table, and why ours may differ."""

    num_samples: int
    num_classes: int
    num_groups: int | None = None
    worst_group_percent: float | None = None
    shape: tuple[int, int, int] = (3, 224, 224)
    note: str = ""


def missing(task: str, what: Path) -> ValueError:
    """Return the error for missing data, which says how to get them."""
    return ValueError(
        f"{task} needs {what}, which is not there; `evenhand data fetch {task}` gets the data or says where "
        "to put them. The data folder is --data, else $EVENHAND_DATA, else the user's data folder"
    )


def find_file(task: str, folder: Path, name: str) -> Path:
    """Return the path of the file with this name, gzipped or not."""
    for file in (folder / f"{name}.gz", folder / name):
        if file.is_file():
            return file
    raise missing(task, folder / f"{name}.gz")


def content(file: Path) -> bytes:
    """Return the file's bytes, unzipped if its name ends in .gz."""
    data = file.read_bytes()
    return unzipped(data, str(file)) if file.suffix == ".gz" else data


def unzipped(data: bytes, origin: str) -> bytes:
    """Unzip gzipped bytes, or raise an error that names where they came from."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            found = file.read(LARGEST_FILE + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{origin} cannot be unzipped ({error}); it is damaged or cut short: fetch it again"
        ) from error
    if len(found) > LARGEST_FILE:
        raise ValueError(f"{origin} unpacks to more than {LARGEST_FILE:,} bytes: do not use it")
    return found


# Archives. They are unpacked into the cache, never into the data root, completely or not at all.


def find_folder(task: str, source: Source, root: Path | None, name: str) -> Path:
    """Return the folder that holds `name`, in the data root or in its unpacked archives."""
    folder = data_root(root) / source.folder
    for found in (*folder.glob(name), *sorted(folder.glob(f"*/{name}"))):
        return found.parent
    archives = sorted(file for file in folder.glob("*") if file.name.endswith(SUFFIXES))
    if not archives:
        raise missing(task, folder / name)
    unpacked = unpack(task, archives)
    for depth in ("", "*/", "*/*/"):
        for found in sorted(unpacked.glob(depth + name)):
            return found.parent
    names = ", ".join(archive.name for archive in archives)
    raise ValueError(
        f"{task} needs {name}, which is not in {names} of {folder}; the layout is\n{source.layout}"
    )


def unpack(task: str, archives: list[Path]) -> Path:
    """Unpack archives into the cache and return the folder; the same content is unpacked only once."""
    digests = "\n".join(f"{archive.suffix} {store.digest(archive)}" for archive in archives)
    place = cache_root() / "unpacked" / f"{task}-{store.digest(digests.encode())[:32]}"
    target, complete = place / "content", place / "complete.json"
    with store.claim(place):
        if complete.is_file():
            log.detail("reused what %d archives unpacked to in %s", len(archives), target)
            return target
        shutil.rmtree(target, ignore_errors=True)  # what an interrupted unpacking left
        target.mkdir()
        try:
            for archive in archives:
                _extract(archive, target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        store.write_json(complete, [archive.name for archive in archives])  # last: now all is there
    return target


def _extract(archive: Path, target: Path) -> None:
    """Unpack files and folders that stay inside the target, up to a limit on the number of bytes."""
    limit, size = max(LARGE, LARGE_RATIO * archive.stat().st_size), 0

    def unsafe(what: object) -> ValueError:
        return ValueError(f"{archive} holds an unsafe entry ({what}); nothing was unpacked: do not use it")

    def check(name: str, num_bytes: int, leads_out: bool) -> None:
        nonlocal size
        size += num_bytes
        if leads_out:
            raise unsafe(repr(name))
        if size > limit:
            raise ValueError(
                f"{archive} would unpack to more than {limit:,} bytes; nothing was unpacked: do not use it, "
                "or unpack it yourself"
            )

    def plain(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        check(member.name, member.size, member.issym() or member.islnk())  # no dataset needs links
        safe = tarfile.data_filter(member, path)
        return None if safe is None else safe.replace(mode=None, deep=False)  # type: ignore[arg-type]

    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as zipped:
                for entry in zipped.infolist():
                    path = Path(entry.filename)
                    outside = not entry.filename or path.is_absolute() or ".." in path.parts
                    link = stat.S_ISLNK(entry.external_attr >> 16)
                    check(entry.filename, entry.file_size, outside or link)
                for entry in zipped.infolist():
                    zipped.extract(entry, target)
        elif not hasattr(tarfile, "data_filter"):
            raise ValueError(
                f"unpacking {archive} safely needs Python 3.11.4 or newer; or unpack it yourself"
            )
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(target, filter=plain)
    except tarfile.FilterError as error:
        raise unsafe(error) from error
    except (*DAMAGED, OSError) as error:
        # A damaged archive makes zipfile seek to nowhere; any other trouble is the disk's.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise ValueError(
            f"{archive} cannot be unpacked ({error}); it is damaged or cut short: fetch it again"
        ) from error


# The commands `evenhand data list` and `evenhand data fetch`.


@dataclass(frozen=True)
class Listed:
    """One line of `evenhand data list`."""

    task: str
    present: bool
    absent: tuple[str, ...]  # what is missing, as patterns under `folder`
    folder: Path | None  # None where nothing is needed
    size: str
    licence: str
    url: str


@dataclass(frozen=True)
class Fetched:
    """A description of what `fetch` did, and whether the task's data are in place now."""

    messages: tuple[str, ...]
    present: bool


def data_list(root: Path | str | None = None) -> list[Listed]:
    """List every task's data: size, license, origin, and whether they are in the data root."""
    where, lines = data_root(root), []
    for name in tasks.names():
        module = tasks.module(name)
        if not hasattr(module, "SOURCE"):
            continue  # a task about the user's own data
        source: Source | None = module.SOURCE
        if source is None:
            lines.append(Listed(name, True, (), None, "none", "BSD-3-Clause", "bundled with scikit-learn"))
        else:
            absent, folder = tuple(source.absent(where)), where / source.folder
            lines.append(Listed(name, not absent, absent, folder, source.size, source.licence, source.url))
    return lines


def fetch(task: str, root: Path | str | None = None) -> Fetched:
    """Download a task's data where that is possible; else say where to get them and where to put them."""
    name, _ = tasks.parse(task)
    source = getattr(tasks.module(name), "SOURCE", None)
    if not isinstance(source, Source):
        return Fetched((f"{name} needs no download",), present=True)
    where = data_root(root)
    folder = where / source.folder
    wanted = [file for file in source.sha256 if not _is_sound(folder, source, file)]
    if not wanted and not source.absent(where):
        return Fetched((f"the data of {name} are in {folder} already",), present=True)
    if wanted:
        found = {file: _download(source, file) for file in wanted}  # all of them, before any is written
        for file, data in found.items():
            for old in (folder / file, folder / f"{file}.gz"):
                if old.exists():
                    store.set_aside(old, f"{old} does not have the published checksum")
            store.write_bytes(folder / f"{file}.gz", data)
        return Fetched(tuple(f"wrote {folder / file}.gz" for file in found), present=True)
    return Fetched(
        (
            f"{name} must be fetched by you ({source.size}; {source.licence}):",
            source.url,
            f"Place it under {where} like this:",
            source.layout,
            f"Then check it: evenhand data verify {name}",
        ),
        present=False,
    )


def _is_sound(folder: Path, source: Source, name: str) -> bool:
    try:
        return _sha256(content(find_file("", folder, name))) == source.sha256[name]
    except ValueError:
        return False


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _download(source: Source, name: str) -> bytes:
    """Download the gzipped file from the first mirror that has it whole."""
    problems = []
    for mirror in source.mirrors:
        try:
            with urllib.request.urlopen(f"{mirror}{name}.gz", timeout=60) as answer:
                data: bytes = answer.read()
            if _sha256(unzipped(data, "the download")) == source.sha256[name]:
                return data
            problems.append(f"{mirror}: the download does not have the published checksum")
        except (OSError, ValueError, http.client.HTTPException) as error:
            problems.append(f"{mirror}: {error}")
    raise ValueError(
        f"{name}.gz could not be fetched ({'; '.join(problems)}); place the files yourself:\n{source.layout}"
    )


# The commands `evenhand data prepare` and `evenhand data verify`.


@dataclass(frozen=True)
class Check:
    """One check: the expected and the found value, and whether a difference is an error."""

    name: str
    expected: str
    found: str
    state: str  # "ok", "differs" (explained, as by another p or a subsample) or "damaged"


@dataclass(frozen=True)
class Group:
    """One line of the group table; without groups, one class."""

    name: str
    train: int
    share: float  # of the training samples
    val: int
    test: int
    conflicting: bool


@dataclass(frozen=True)
class Report:
    """A description of a task's data, compared with the paper's dataset table."""

    task: str
    checks: tuple[Check, ...]
    groups: tuple[Group, ...]  # without groups, the classes
    kind: str = "group"  # or "class"
    note: str = ""

    @property
    def ok(self) -> bool:
        """Return whether nothing is damaged; a difference from the paper is not damage."""
        return all(check.state != "damaged" for check in self.checks)


def prepare(task: str, root: Path | str | None = None) -> Report:
    """Unpack and decode the task's data, so that runs start at once; returns a report."""
    return _report(tasks.load(task, data_root(root)), [])


def verify(task: str, root: Path | str | None = None) -> Report:
    """Read everything that the task needs, and compare it with its checksums and with the paper."""
    name, where = tasks.parse(task)[0], data_root(root)
    loaded, checks = tasks.load(task, where), []
    source = getattr(tasks.module(name), "SOURCE", None)
    if isinstance(source, Source):
        for each, expected in source.sha256.items():
            file = find_file(name, where / source.folder, each)
            checks.append(_check(file.name, expected[:12], _sha256(content(file))[:12], "damaged"))
    if isinstance(loaded.train.x, np.memmap):
        checks.append(_pixels_check(loaded.train.x))
    return _report(loaded, checks)


def _check(name: str, expected: str, found: str, otherwise: str) -> Check:
    return Check(name, expected, found, "ok" if expected == found else otherwise)


def _pixels_check(pixels: np.memmap[Any, Any]) -> Check:
    from evenhand.tasks import samples  # loads torch, without which archives can be unpacked

    folder = Path(str(pixels.filename)).parent
    damaged = samples.damaged_chunks(samples.Decoded(pixels, "", folder))
    if damaged:
        what = f"chunks {damaged[:3]} differ; delete {folder} and prepare again"
        return Check("decoded pixels", "as when decoded", what, "damaged")
    return Check("decoded pixels", "as when decoded", f"{len(pixels):,} images", "ok")


def _report(task: Task, checks: list[Check]) -> Report:
    paper: Paper | None = getattr(tasks.module(tasks.parse(task.spec)[0]), "PAPER", None)
    groups, kind = group_table(task), "group" if task.group_names else "class"
    checks = [*checks, Check("checksum", "", task.checksum, "ok")]
    compared = [] if paper is None else _compare(task, groups, paper)
    differs = any(check.state == "differs" for check in compared)
    note = paper.note if paper is not None and differs else ""
    return Report(task.spec, (*checks, *compared), groups, kind, note)


def _compare(task: Task, groups: tuple[Group, ...], paper: Paper) -> list[Check]:
    """Compare the columns of the paper's dataset table: N, the shape, L, k and the worst group's share."""
    facts = [
        ("N", f"{paper.num_samples:,}", f"{len(task.train):,}"),
        ("features", str(paper.shape), str(tuple(task.train.x[0].shape))),
        ("L", str(paper.num_classes), str(task.num_classes)),
    ]
    if paper.num_groups is not None:
        facts.append(("k", str(paper.num_groups), str(len(groups)) if task.group_names else "no groups"))
    if paper.worst_group_percent is not None:
        worst = 100 * min(group.share for group in groups)
        facts.append(("worst group", f"{paper.worst_group_percent:.2f} %", f"{worst:.2f} %"))
    return [_check(f"{name} (paper)", expected, found, "differs") for name, expected, found in facts]


def group_table(task: Task) -> tuple[Group, ...]:
    """Count the samples of each group in each split; without groups, those of each class."""
    names = task.group_names or task.class_names
    counts = [
        np.bincount((split.y if split.group is None else split.group).numpy(), minlength=len(names)).tolist()
        for split in (task.train, task.val, task.test)
    ]
    return tuple(
        Group(name, train, train / len(task.train), val, test, number in task.conflicting)
        for number, (name, train, val, test) in enumerate(zip(names, *counts, strict=True))
    )
