"""What `evenhand data prepare` and `verify` do: decode, count the groups, compare with the paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evenhand import tasks
from evenhand.tasks import images, mnist, source
from evenhand.training.data import Split, Task


@dataclass(frozen=True)
class Check:
    """One fact: what was expected, what was found, and whether a difference is an error or has a reason."""

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
    """What is in a task's data, and how it compares with the paper's dataset table."""

    task: str
    checks: tuple[Check, ...]
    groups: tuple[Group, ...]  # without groups, the classes
    kind: str = "group"  # or "class"
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged; a difference to the paper is no damage."""
        return all(check.state != "damaged" for check in self.checks)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.table import Table

        table = Table(self.kind, "train", "share", "val", "test", title=self.task)
        shown = self.groups if len(self.groups) <= 24 else summarised(self.groups)
        for group in shown:
            name = f"{group.name} (conflicting)" if group.conflicting else group.name
            table.add_row(name, f"{group.train:,}", f"{group.share:.2%}", f"{group.val:,}", f"{group.test:,}")
        yield table
        facts = Table("check", "expected", "found", "")
        for check in self.checks:
            facts.add_row(check.name, check.expected, check.found, check.state)
        yield facts
        if self.note:
            yield f"Note: {self.note}."


def summarised(groups: tuple[Group, ...]) -> list[Group]:
    """A long table cut to its extremes: the largest and the smallest groups."""
    ranked = sorted(groups, key=lambda group: -group.train)
    return [*ranked[:10], *ranked[-10:]]


def prepare(task: str, root: Path | str | None = None) -> Report:
    """Unpack and decode whatever the task needs, so that runs start at once; says what there is now."""
    return _report(tasks.load(task, source.data_root(root)), ())


def verify(task: str, root: Path | str | None = None) -> Report:
    """Read everything that the task needs, and compare it with its checksums and with the paper."""
    where = source.data_root(root)
    loaded = tasks.load(task, where)
    module = tasks.module(tasks.parse(task)[0])
    checks: tuple[Check, ...] = ()
    if getattr(module, "SOURCE", None) is mnist.SOURCE:
        checks = tuple(_mnist_check(where / mnist.FOLDER, name) for name in mnist.FILES)
    elif isinstance(loaded.train.x, np.memmap):
        checks = (_pixels_check(loaded.train.x),)
    return _report(loaded, checks)


def _mnist_check(folder: Path, name: str) -> Check:
    file, _ = mnist.read(folder, name)
    found = mnist.digest(mnist.content(file))
    expected = mnist.FILES[name]
    return Check(file.name, expected[:12], found[:12], "ok" if found == expected else "damaged")


def _pixels_check(pixels: np.memmap[Any, Any]) -> Check:
    folder = Path(str(pixels.filename)).parent
    damaged = images.damaged_chunks(images.Decoded(pixels, "", folder))
    if damaged:
        what = f"chunks {damaged[:3]} differ; delete {folder} and prepare again"
        return Check("decoded pixels", "as when decoded", what, "damaged")
    return Check("decoded pixels", "as when decoded", f"{len(pixels):,} images", "ok")


def _report(task: Task, checks: tuple[Check, ...]) -> Report:
    module = tasks.module(tasks.parse(task.spec)[0])
    paper: source.Paper | None = getattr(module, "PAPER", None)
    groups, kind = group_table(task), "group" if task.group_names else "class"
    checks += (Check("checksum", "", task.checksum, "ok"),)
    if paper is None:
        return Report(task.spec, checks, groups, kind)
    compared = tuple(_compare(task, groups, paper))
    note = paper.note if any(check.state == "differs" for check in compared) else ""
    return Report(task.spec, checks + compared, groups, kind, note)


def _compare(task: Task, groups: tuple[Group, ...], paper: source.Paper) -> Iterator[Check]:
    """The columns of the paper's dataset table: N, the shape, L, k and the worst group's share."""
    shape = tuple(task.train.x[0].shape)
    known = len(groups) if task.group_names else None
    facts: list[tuple[str, str, str]] = [
        ("N", f"{paper.num_samples:,}", f"{len(task.train):,}"),
        ("features", str(paper.shape), str(shape)),
        ("L", str(paper.num_classes), str(task.num_classes)),
    ]
    if paper.num_groups is not None:
        facts.append(("k", str(paper.num_groups), "no groups" if known is None else str(known)))
    if paper.worst_group_percent is not None:
        worst = 100 * min(group.share for group in groups)
        facts.append(("worst group", f"{paper.worst_group_percent:.2f} %", f"{worst:.2f} %"))
    for name, expected, found in facts:
        yield Check(f"{name} (paper)", expected, found, "ok" if expected == found else "differs")


def group_table(task: Task) -> tuple[Group, ...]:
    """How many samples each group has in each split; without groups, each class."""
    names = task.group_names or task.class_names

    def counts(split: Split) -> list[int]:
        numbers = split.y if split.group is None else split.group
        return [int(count) for count in torch.bincount(numbers, minlength=len(names))]

    rows = zip(names, counts(task.train), counts(task.val), counts(task.test), strict=True)
    total = len(task.train)
    return tuple(
        Group(name, train, train / total, val, test, bool(task.group_names) and number in task.conflicting)
        for number, (name, train, val, test) in enumerate(rows)
    )
