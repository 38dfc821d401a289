"""Where data come from and lie: the root holds datasets as published, the cache what is made of them."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

DATA_SEED = 0  # splits and colours never depend on the training seed


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a task needs under the data root, and where it is published."""

    folder: str  # under the data root
    needs: tuple[str, ...]  # what must be there: patterns, with | between alternatives
    size: str
    licence: str
    url: str
    layout: str  # what the folder looks like when the data are in place

    def absent(self, root: Path) -> list[str]:
        """The needed things that are not there."""
        folder = root / self.folder
        return [
            need for need in self.needs if not any(any(folder.glob(pattern)) for pattern in need.split("|"))
        ]


@dataclass(frozen=True, kw_only=True)
class Paper:
    """What the paper's dataset table says of a task, and why ours may differ."""

    num_samples: int
    num_classes: int
    num_groups: int | None = None
    worst_group_percent: float | None = None
    shape: tuple[int, int, int] = (3, 224, 224)
    note: str = ""


def data_root(root: Path | str | None = None) -> Path:
    """The folder of the datasets: the argument, else `$EVENHAND_DATA`, else the user's data folder."""
    if root is not None:
        return Path(root).expanduser()
    given = os.environ.get("EVENHAND_DATA")
    return Path(given).expanduser() if given else Path(platformdirs.user_data_dir("evenhand"))


def cache_root() -> Path:
    """The folder of unpacked and decoded images: `$EVENHAND_CACHE`, else the user's cache folder."""
    given = os.environ.get("EVENHAND_CACHE")
    return Path(given).expanduser() if given else Path(platformdirs.user_cache_dir("evenhand"))


def text(file: Path) -> str:
    """The content of a list that came with a dataset, or an error that names it."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} must be text in UTF-8, but {error}; fetch it again") from error


def fields(file: Path, lines: list[str]) -> list[list[str]]:
    """The lines of a CSV file, each as its fields."""
    try:
        return list(csv.reader(lines))
    except csv.Error as error:
        raise ValueError(f"{file} must be a table with commas, but {error}; fetch it again") from error


def missing(task: str, what: Path) -> ValueError:
    """The error for data that are not there, with the way to get them."""
    return ValueError(
        f"{task} needs {what}, which is not there; `evenhand data fetch {task}` gets the data or says where "
        "to put them. The data folder is --data, else $EVENHAND_DATA, else the user's data folder"
    )
