"""Archives in the data root are unpacked into the cache, never beside themselves, wholly or not at all."""

from __future__ import annotations

import errno
import hashlib
import lzma
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from evenhand.tasks import source
from evenhand.training import journal, store

LARGE, LARGE_RATIO = 1 << 30, 30  # bytes that any archive may unpack to, and times the size of a larger one
DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    NotImplementedError,  # a compression that there is not
    RuntimeError,  # encryption
    UnicodeError,
    struct.error,
    OverflowError,
)
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")


def folder_with(task: str, where: source.Source, root: Path | None, name: str) -> Path:
    """The folder that holds `name`, a file or folder: in the data root, or in what its archives unpack to."""
    folder = source.data_root(root) / where.folder
    for found in (*folder.glob(name), *sorted(folder.glob(f"*/{name}"))):
        return found.parent
    archives = sorted(file for file in folder.glob("*") if file.name.endswith(SUFFIXES))
    if archives:
        unpacked = unpack(task, archives)
        for depth in ("", "*/", "*/*/"):
            for found in sorted(unpacked.glob(depth + name)):
                return found.parent
        names = ", ".join(archive.name for archive in archives)
        raise ValueError(
            f"{task} needs {name}, which is not in {names} of {folder}; the layout is\n{where.layout}"
        )
    raise source.missing(task, folder / name)


def unpack(task: str, archives: list[Path]) -> Path:
    """The folder in the cache with the content of all these archives; done once for each version of them."""
    stamp = hashlib.sha256()
    for archive in archives:
        state = archive.stat()
        stamp.update(f"{archive.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    place = source.cache_root() / "unpacked" / f"{task}-{stamp.hexdigest()[:12]}"
    content, done = place / "content", place / "complete.json"
    with store.claim(place):
        if done.is_file():
            journal.detail("reused what %d archives unpacked to in %s", len(archives), content)
            return content
        shutil.rmtree(content, ignore_errors=True)  # what an interrupted unpacking left
        content.mkdir()
        try:
            for archive in archives:
                _extract(archive, content)
        except BaseException:
            shutil.rmtree(content, ignore_errors=True)
            raise
        store.write_json(done, [archive.name for archive in archives])  # last: its existence means complete
    return content


def _extract(archive: Path, target: Path) -> None:
    """Unpack without following any name out of the target folder, and no more than is sensible."""
    most = max(LARGE, LARGE_RATIO * archive.stat().st_size)
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as zipped:
                _bounded(archive, sum(entry.file_size for entry in zipped.infolist()), most)
                for entry in _inside(zipped.namelist(), archive):
                    zipped.extract(entry, target)
        else:
            if not hasattr(tarfile, "data_filter"):
                raise ValueError(
                    f"unpacking {archive} safely needs Python 3.11.4 or newer; or unpack it yourself"
                )
            with tarfile.open(archive) as tar:
                tar.extractall(target, filter=_plain_files(archive, most))
    except tarfile.FilterError as error:
        raise ValueError(
            f"{archive} holds an unsafe entry ({error}); nothing was unpacked: do not use it"
        ) from error
    except (*DAMAGED, OSError) as error:
        # A damaged archive makes zipfile seek to nowhere; any other trouble is the disk's.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise ValueError(
            f"{archive} cannot be unpacked ({error}); it is damaged or cut short: fetch it again"
        ) from error


def _plain_files(archive: Path, most: int) -> Callable[[tarfile.TarInfo, str], tarfile.TarInfo | None]:
    """What of a tar is unpacked: files and folders that stay inside, up to so many bytes, under our umask."""
    size = 0

    def keep(member: tarfile.TarInfo, target: str) -> tarfile.TarInfo | None:
        nonlocal size
        size += member.size
        _bounded(archive, size, most)
        if member.issym() or member.islnk():  # no dataset needs them, and they lead elsewhere
            raise ValueError(
                f"{archive} holds an unsafe entry (the link {member.name!r}); nothing was unpacked: "
                "do not use it"
            )
        safe = tarfile.data_filter(member, target)
        return None if safe is None else safe.replace(mode=None, deep=False)  # type: ignore[arg-type]

    return keep


def _bounded(archive: Path, size: int, most: int) -> None:
    if size > most:
        raise ValueError(
            f"{archive} would unpack to more than {most:,} bytes; nothing was unpacked: do not use it, or "
            "unpack it yourself"
        )


def _inside(names: list[str], archive: Path) -> Iterator[str]:
    for name in names:
        if not name or Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(
                f"{archive} holds an unsafe entry ({name!r}); nothing was unpacked: do not use it"
            )
    yield from names
