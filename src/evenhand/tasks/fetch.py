"""What `evenhand data list` and `fetch` do: which data are needed and here, and how to get the rest."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenhand import tasks
from evenhand.tasks import mnist, source
from evenhand.training import store
from evenhand.training.models import VISION_NEEDED


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


def fetch(task: str, root: Path | str | None = None) -> Fetched:
    """Get a task's data where they may be had freely; else say where to get them and where to put them."""
    name, _ = tasks.parse(task)
    origin: source.Source | None = getattr(tasks.module(name), "SOURCE", None)
    if origin is None:
        return Fetched((f"{name} needs no download",), present=True)
    where = source.data_root(root)
    folder = where / origin.folder
    if origin is mnist.SOURCE:
        return fetch_mnist(folder)
    if not origin.absent(where):
        return Fetched((f"the data of {name} are in {folder} already",), present=True)
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


def fetch_mnist(folder: Path) -> Fetched:
    """Put those files of MNIST into the folder that are missing or damaged there, each checked and whole."""
    wanted = [name for name in mnist.FILES if not _in_place(folder, name)]
    if not wanted:
        return Fetched((f"MNIST is in {folder} already",), present=True)
    found = {name: _from_mirror(name) for name in wanted}
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
        f"{name}.gz could not be fetched ({'; '.join(problems)}); place the files yourself:\n"
        f"{mnist.SOURCE.layout}"
    )
