"""Gallery: a few samples of a class's minority beside a few of its majority."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.core.partition import Partition
from evenhand.report import thumbnails
from evenhand.report.words import number
from evenhand.training.data import Task

MOST_MINORITY, MOST_MAJORITY = 24, 12
MOST_ROWS, MOST_COLUMNS = 8, 8  # of a table of values

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sample:
    """One sample as the page shows it."""

    index: int  # in the training split
    row: int  # its number on the page: in the user's dataset, of which the training split may be a part
    uri: str  # of its thumbnail, or empty
    values: tuple[str, ...]  # of its shown features, or empty
    group: str  # its true group within the class, or empty
    conflicting: bool


@dataclass(frozen=True)
class Gallery:
    """Samples to look at; `columns` is not empty when they are rows of a table."""

    minority: tuple[Sample, ...]
    majority: tuple[Sample, ...]
    columns: tuple[str, ...]
    pixelated: bool  # small pictures keep their pixels when enlarged
    note: str  # why there is nothing to see, or empty

    @property
    def indices(self) -> list[int]:
        """All samples in the order of the page, minority first."""
        return [sample.index for sample in (*self.minority, *self.majority)]


def pick(
    task: Task, parts: Partition, majority: Indices, minority: Indices, *, class_name: str, budget: int
) -> Gallery:
    """The minority's clearest samples, and majority samples from the most typical to the borderline."""
    first = thumbnails.sample(task.train, int(minority[0]))
    if not thumbnails.is_image(first) and first.ndim != 1:
        note = f"These samples have the shape {tuple(first.shape)} and cannot be drawn here."
        return Gallery((), (), (), False, note)
    pictures = first.ndim == 3
    most = (MOST_MINORITY, MOST_MAJORITY) if pictures else (MOST_ROWS, MOST_ROWS)
    clearest = minority[np.argsort(-parts.margin[minority], kind="stable")][: most[0]]
    typical = majority[np.argsort(parts.margin[majority], kind="stable")]
    spread = np.linspace(0, len(typical) - 1, min(most[1], len(typical))).round().astype(np.int64)
    chosen = [clearest, typical[spread]]
    if not pictures:
        columns = _telling_columns(task, majority, minority)
        rows = [tuple(_sample(task, int(i), class_name, columns=columns) for i in part) for part in chosen]
        return Gallery(rows[0], rows[1], tuple(f"feature {c}" for c in columns.tolist()), False, "")
    uris = thumbnails.data_uris([thumbnails.sample(task.train, int(i)) for part in chosen for i in part])
    shown, position = [], 0
    for part, share in zip(chosen, (2 / 3, 1 / 3), strict=True):
        own = uris[position : position + len(part)]
        position += len(part)
        fitting = int((np.cumsum([len(uri) for uri in own]) <= share * budget).sum())
        shown.append(
            tuple(
                _sample(task, int(index), class_name, uri=uri)
                for index, uri in zip(part[:fitting], own[:fitting], strict=True)
            )
        )
    return Gallery(shown[0], shown[1], (), max(first.shape[1:]) <= thumbnails.SMALL, "")


def short(group: str, class_name: str) -> str:
    """A group's name within its class.

    >>> short("odd, green", "odd"), short("blond men", "blond"), short("oddly", "odd")
    ('green', 'blond men', 'oddly')
    """
    rest = group.removeprefix(class_name)
    return rest.lstrip(" ,:;/|") or group if rest != group and rest[:1] in ",:;/|" else group


def _sample(
    task: Task, index: int, class_name: str, *, uri: str = "", columns: Indices | None = None
) -> Sample:
    group, conflicting = "", False
    if task.train.group is not None and task.group_names:
        number_of = int(task.train.group[index])
        group, conflicting = short(task.group_names[number_of], class_name), number_of in task.conflicting
    values: tuple[str, ...] = ()
    if columns is not None:
        features = thumbnails.sample(task.train, index)
        values = tuple(number(float(features[column])) for column in columns)
    row = index if task.train_rows is None else int(task.train_rows[index])
    return Sample(index, row, uri, values, group, conflicting)


def _telling_columns(task: Task, majority: Indices, minority: Indices) -> Indices:
    """The features in which the two differ most, by their means over their deviation; in their own order."""
    means, deviations = [], []
    for members in (majority, minority):
        some = members[np.linspace(0, len(members) - 1, min(500, len(members))).astype(np.int64)]
        values: npt.NDArray[Any] = np.stack([thumbnails.sample(task.train, int(i)) for i in some])
        means.append(values.astype(np.float64).mean(0))
        deviations.append(values.astype(np.float64).std(0))
    difference = np.abs(means[0] - means[1]) / np.maximum(deviations[0] + deviations[1], 1e-12)
    difference = np.nan_to_num(difference)
    best: Indices = np.sort(np.argsort(-difference, kind="stable")[:MOST_COLUMNS])
    return best
