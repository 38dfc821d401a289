"""Labelled samples before any of them is read: their classes, groups and splits, and a Task made of them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand.training.data import Split, Task, checksum, training_weights

TRAIN, VAL, TEST = 0, 1, 2
DATA_SEED = 0
HELD_OUT = 0.15  # of every class, for validation, and as much for the test
MOST_CLASSES = 1000
LEAST = 5  # samples of a class: three to train on, one to validate and one to test with


def data_rng(stream: int) -> np.random.Generator:
    """A source of random numbers for splits and colours, which never depend on the training seed."""
    return np.random.default_rng([DATA_SEED, stream])


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Labelled samples before anything is decoded or trained."""

    kind: str = "images"  # or "table" or "text"
    y: np.ndarray  # (samples,) int64
    class_names: tuple[str, ...]
    split: np.ndarray  # (samples,) TRAIN, VAL or TEST
    ids: list[str] = field(default_factory=list)  # what a person calls each sample: a path, or a row's number
    files: list[Path] = field(default_factory=list)  # of images
    frame: Any = None  # of a table: its feature columns, cleaned, a row per sample
    texts: list[str] = field(default_factory=list)
    attribute: np.ndarray | None = None  # (samples,) int64: for scoring only
    attribute_names: tuple[str, ...] = ()
    conflicting: frozenset[int] = frozenset()  # the groups that break the shortcut
    notes: tuple[str, ...] = ()  # what was left out or changed, in sentences
    reading: dict[str, Any] = field(default_factory=dict)  # of a table: header, and which column is seen

    @property
    def group(self) -> np.ndarray | None:
        """Class times attribute, (samples,) int64; None without attributes."""
        return None if self.attribute is None else self.y * len(self.attribute_names) + self.attribute

    @property
    def group_names(self) -> tuple[str, ...]:
        return tuple(f"{name}, {value}" for name in self.class_names for value in self.attribute_names)

    def rows(self, part: int) -> np.ndarray:
        """Which samples are in this part, ascending."""
        return np.flatnonzero(self.split == part)

    def take(self, rows: np.ndarray) -> Samples:
        """The images or texts at these rows."""
        attribute = None if self.attribute is None else self.attribute[rows]
        files, texts, ids = (
            [each[row] for row in rows if each] for each in (self.files, self.texts, self.ids)
        )
        kept = replace(self, files=files, texts=texts, ids=ids, attribute=attribute)
        return replace(kept, y=self.y[rows], split=self.split[rows])

    def task(
        self,
        name: str,
        x: Tensor | np.ndarray,
        *identity: Tensor | np.ndarray | str,
        weighted: bool = False,
        **settings: Any,
    ) -> Task:
        """A Task whose inputs are the rows of `x`, in the order of the samples.

        identity: What the checksum depends on besides labels, splits and groups.
        weighted: Whether validation and test carry weights that restate them in the training groups'
            proportions.
        settings: Further fields of the Task.
        """
        y, group = torch.from_numpy(self.y), None if self.group is None else torch.from_numpy(self.group)
        rows = [torch.from_numpy(self.rows(part)) for part in (TRAIN, VAL, TEST)]
        train, *others = (Split(x, y[r], group=None if group is None else group[r], rows=r) for r in rows)
        val, test = (reweighted(split, train) if weighted else split for split in others)
        return Task(
            name=name,
            train=train,
            val=val,
            test=test,
            class_names=self.class_names,
            group_names=self.group_names,
            conflicting=self.conflicting,
            checksum=checksum(*identity, y, self.split, *([] if group is None else [group])),
            **settings,
        )


def read_rows(file: Path, most: int = -1) -> list[list[str]]:
    """The fields of every line: split at commas in a .csv, elsewhere at white space, at most `most` times."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        if file.suffix == ".csv":
            return list(csv.reader(lines))
        return [line.strip().split(None, most) for line in lines]
    except (UnicodeDecodeError, csv.Error) as error:
        kind = "a table with commas" if isinstance(error, csv.Error) else "text in UTF-8"
        raise ValueError(f"{file} must be {kind}, but {error}; fetch it again") from error


def read_columns(
    file: Path, rows: list[list[str]], columns: Mapping[str, Sequence[str]], header: list[str], start: int
) -> list[list[str]]:
    """The values of these columns, from row `start` on; raises ValueError where a line does not fit.

    `columns` maps names in the header to the allowed values. An empty sequence allows any value.
    """
    lacking = [name for name in columns if name not in header]
    if lacking:
        raise ValueError(
            f"{file} must have the columns {', '.join(filter(None, columns))}, "
            f"but has no {', '.join(lacking)}; it has {', '.join(filter(None, header))}"
        )
    places = {header.index(name): (name, allowed) for name, allowed in columns.items()}
    for line, row in enumerate(rows[start:], start=start + 1):
        if len(row) != len(header):
            raise ValueError(
                f"{file}, line {line}: expected {len(header)} fields, got {len(row)}; fetch it again"
            )
        for place, (name, allowed) in places.items():
            if allowed and row[place] not in allowed:
                raise ValueError(
                    f"{file}, line {line}: {name} must be one of {', '.join(allowed)}, got {row[place]!r}; "
                    "fetch it again"
                )
    return [[row[place] for row in rows[start:]] for place in places]


def encode(labels: Sequence[Any] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct labels, sorted, and which of them each sample has, (samples,) int64.

    >>> encode(["dog", "cat", "dog"])
    (array(['cat', 'dog'], dtype='<U3'), array([1, 0, 1]))
    """
    found, position = np.unique(np.asarray(labels), return_inverse=True)
    return found, position.reshape(-1).astype(np.int64)


def encode_classes(labels: Sequence[str], what: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Each sample's class as a number, and the classes' names, sorted; refuses what cannot be learned.

    >>> y, names = encode_classes(["cat", "dog"] * 5, "the folder")
    >>> y[:3].tolist(), names
    ([0, 1, 0], ('cat', 'dog'))
    """
    found, y = encode(np.array(labels, dtype=str))
    names, counts = found.tolist(), np.bincount(y, minlength=len(found))
    if len(names) < 2:
        seen = f"one, {names[0]!r}" if names else "none"
        raise ValueError(
            f"expected at least two classes, but {what} has {seen}; there is nothing to tell apart, so add "
            "samples of another class"
        )
    if len(names) > MOST_CLASSES:
        raise ValueError(
            f"expected at most {MOST_CLASSES:,} classes, but {what} has {len(names):,} "
            f"in {len(y):,} samples; is it an identifier or a quantity? Group its values into classes first"
        )
    if (counts < LEAST).any():
        rare = [f"{names[i]!r} ({counts[i]})" for i in np.flatnonzero(counts < LEAST)[:5]]
        raise ValueError(
            f"expected at least {LEAST} samples of every class, but {what} has fewer of "
            f"{int((counts < LEAST).sum())} of its {len(names)}: {', '.join(rare)}; "
            "add samples, merge rare classes or leave them out"
        )
    return y, tuple(names)


def stratified_split(y: np.ndarray) -> np.ndarray:
    """Every class's samples as 70% training, 15% validation and 15% test; the same on every call.

    >>> np.bincount(stratified_split(np.repeat([0, 1], [100, 10]))).tolist()
    [76, 17, 17]
    """
    split, rng = np.full(len(y), TRAIN, dtype=np.int64), data_rng(21)
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        count = max(round(HELD_OUT * len(members)), 1)
        split[members[:count]] = VAL
        split[members[count : 2 * count]] = TEST
    return split


def completed_split(y: np.ndarray, given: np.ndarray) -> np.ndarray:
    """A given division into train, val and test, in which a part that is absent is taken from training."""
    split, train = given.copy(), np.flatnonzero(given == TRAIN)
    fresh = stratified_split(y[train])
    for part in (VAL, TEST):
        if not (given == part).any():
            split[train[fresh == part]] = part
    return split


def rare_cells(data: Samples) -> frozenset[int]:
    """The groups with under half of the training samples that independent attributes would give them.

    There is at least one: the group that falls shortest.
    """
    assert data.attribute is not None
    cells, train = np.zeros((len(data.class_names), len(data.attribute_names))), data.rows(TRAIN)
    np.add.at(cells, (data.y[train], data.attribute[train]), 1)
    expected = np.outer(cells.sum(1), cells.sum(0)) / max(cells.sum(), 1)
    ratio = (cells / np.maximum(expected, 1e-9)).ravel()
    return frozenset({int(ratio.argmin()), *np.flatnonzero(ratio < 0.5).tolist()})


def reweighted(split: Split, train: Split) -> Split:
    """The split with weights that restate it in the training groups' proportions, where there are groups."""
    if split.group is None or train.group is None:
        return split
    num_groups = int(torch.cat([train.group, split.group]).max()) + 1
    return replace(split, weight=training_weights(train.group, split.group, num_groups))


def limited(task: Task, limit: int) -> Task:
    """At most `limit` samples of each split; classes and groups keep their shares as far as possible.

    Every class keeps at least one sample where the limit allows it. Weights are made again, from the
    training samples that are left.
    """
    if limit < task.num_classes:
        raise ValueError(f"limit must allow one sample of each of {task.num_classes} classes, got {limit}")
    train, *others = (_smaller(split, limit) for split in (task.train, task.val, task.test))
    val, test = (split if split.weight is None else reweighted(split, train) for split in others)
    digest = checksum(task.checksum, f"limit={limit}")
    return replace(task, train=train, val=val, test=test, checksum=digest)


def _smaller(split: Split, limit: int) -> Split:
    if len(split) <= limit:
        return split
    y = split.y.numpy()
    group = y if split.group is None else split.group.numpy()
    rng, chosen = np.random.default_rng(0), []
    labels, counts = np.unique(y, return_counts=True)
    for label, wanted in zip(labels, shares(counts, limit), strict=True):
        present, sizes = np.unique(group[y == label], return_counts=True)
        for number, keep in zip(present, shares(sizes, int(wanted)), strict=True):
            members = np.flatnonzero((y == label) & (group == number))
            chosen.append(rng.permutation(members)[:keep])
    smaller = split.take(np.sort(np.concatenate(chosen)))
    return replace(smaller, index=torch.arange(len(smaller)))


def shares(counts: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers in the proportions of `counts` that add up to `total`, each at least 1 if possible.

    >>> shares(np.array([970, 30]), 10).tolist()
    [9, 1]
    """
    total = min(total, int(counts.sum()))
    exact = counts * (total / counts.sum())
    whole: np.ndarray = np.floor(exact).astype(np.int64)
    if total >= len(counts):
        whole = np.maximum(whole, 1)
    while (rest := total - whole.sum()) != 0:  # ends: each step moves one sample towards the total
        if rest > 0:
            whole[np.argmax(np.where(whole < counts, exact - whole, -np.inf))] += 1
        else:
            whole[np.argmax(np.where(whole > 1, whole - exact, -np.inf))] -= 1
    return whole
