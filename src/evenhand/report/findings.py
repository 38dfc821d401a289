"""What a method found in every class: two bundles of loss histories, and who is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.core.partition import Partition
from evenhand.report import figures, gallery
from evenhand.report.figures import Chart, Series
from evenhand.report.gallery import Gallery
from evenhand.report.study import Study
from evenhand.report.words import listed, percent
from evenhand.training.data import Task
from evenhand.training.record import Record

MOST_CLASSES = 12  # that get a section of their own; the others get a line in a table

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClassFinding:
    """One class: sizes, separation, loss histories, samples."""

    name: str
    majority: int
    minority: int
    separation: float
    repeated: int  # the size to which the minority was repeated
    bar: float  # the minority's share of the class, per cent
    repeated_bar: float
    chart: Chart | None  # None where the histories were not kept
    gallery: Gallery | None  # None where the data are not there
    truth: str  # how the minority compares with the true groups, where they are known
    groups: tuple[tuple[str, int, int], ...]  # (true group, how many in the minority, how many in the class)
    earlier: bool  # whether the smaller part has the lower losses: it is learned first, not late
    again: str  # how much of the minority other seeds find too


@dataclass(frozen=True)
class ClassLine:
    """One class of many: what fits into a line."""

    name: str
    majority: int
    minority: int
    separation: float
    sparks: tuple[str, str] | None  # paths of the mean loss of majority and minority


@dataclass(frozen=True)
class Findings:
    """A partition, class by class, the most clearly separated first."""

    title: str  # of the method
    seed: int
    classes: tuple[ClassFinding, ...]
    lines: tuple[ClassLine, ...]
    unsplit: tuple[tuple[str, str], ...]  # (class, why it was left alone)
    scored: bool  # whether true groups are shown
    strength: float  # of rebalancing; below 1, minorities are repeated less than until both parts are equal


def find(study: Study, task: Task | None, prefix: str, budget: int) -> Findings | None:
    """The findings of the study's main run; `budget` is in bytes, for all thumbnails."""
    record = study.found
    if record is None or (parts := record.partition) is None:
        return None
    names = class_names(record, parts, task)
    losses = histories(record, len(parts.labels))
    order = [int(i) for i in np.argsort(-parts.separation, kind="stable") if parts.sizes[i, 1] > 0]
    detailed, rest = order[:MOST_CLASSES], order[MOST_CLASSES:]
    others = [run for run in study.variant_of(record).records if run is not record]
    share = budget // max(1, len(detailed))
    return Findings(
        title=study.variant_of(record).title,
        seed=record.seed,
        classes=tuple(_finding(parts, i, names[i], losses, task, others, prefix, share) for i in detailed),
        lines=tuple(
            ClassLine(**_sizes(parts, i, names[i]), sparks=_sparks(losses, *_members(parts, i))) for i in rest
        ),
        unsplit=tuple(
            (names[i], parts.unsplit.get(label, "no minority"))
            for i, label in enumerate(parts.classes.tolist())
            if parts.sizes[i, 1] == 0
        ),
        scored=task is not None and task.train.group is not None and len(task.conflicting) > 0,
        strength=parts.strength,
    )


def _finding(
    parts: Partition,
    position: int,
    name: str,
    losses: npt.NDArray[Any] | None,
    task: Task | None,
    others: Sequence[Record],
    prefix: str,
    budget: int,
) -> ClassFinding:
    """One class in full."""
    majority, minority = _members(parts, position)
    chart, samples = None, None
    if task is not None:
        samples = gallery.pick(task, parts, majority, minority, class_name=name, budget=budget)
    if losses is not None:
        traced = [] if samples is None else samples.indices
        chart = _chart(f"{prefix}-class-{position}", name, losses, majority, minority, traced)
    truth, groups = _truth(task, majority, minority, name)
    repeated = int(parts.repeated_sizes[position])
    return ClassFinding(
        **_sizes(parts, position, name),
        repeated=repeated,
        bar=_share(len(minority), len(majority)),
        repeated_bar=_share(repeated, len(majority)),
        chart=chart,
        gallery=samples,
        truth=truth,
        groups=groups,
        earlier=losses is not None and _mean(losses, minority) < _mean(losses, majority),
        again=_again(minority, others),
    )


def class_names(record: Record, parts: Partition, task: Task | None) -> list[str]:
    """A name for every class of the partition: the task's, else the scorer's, else the label itself."""
    labels = parts.classes.tolist()
    if task is not None:
        return [task.class_names[int(label)] for label in labels]
    scored = [str(part["name"]) for part in record.metrics["test"]["classes"]]
    return scored if len(scored) == len(labels) else [f"class {label}" for label in labels]


def histories(record: Record, num_samples: int) -> npt.NDArray[Any] | None:
    """The (samples, epochs) loss histories that the partition was made from, if they were kept."""
    stages = sorted(record.config["stages"], key=lambda name: (name != "erm", name))
    for stage in stages:
        losses = record.losses(stage)
        if losses is not None and losses.shape[0] == num_samples and losses.shape[1] > 0:
            return losses
    return None


def _share(part: int, rest: int) -> float:
    """Of both together, per cent."""
    return round(100 * part / (part + rest), 2)


def _members(parts: Partition, position: int) -> tuple[Indices, Indices]:
    """Majority and minority of a class, in ascending order."""
    own = parts.labels == parts.classes[position]
    return np.flatnonzero(own & ~parts.minority), np.flatnonzero(own & parts.minority)


def _sizes(parts: Partition, position: int, name: str) -> dict[str, Any]:
    majority, minority = parts.sizes[position].tolist()
    separation = float(parts.separation[position])
    return {"name": name, "majority": majority, "minority": minority, "separation": separation}


def _chart(
    name: str,
    class_name: str,
    losses: npt.NDArray[Any],
    majority: Indices,
    minority: Indices,
    traced: list[int],
) -> Chart:
    series = []
    for label, members in (("majority", majority), ("minority", minority)):
        own = np.asarray(losses[members], dtype=np.float64)
        low, high = np.quantile(own, [0.1, 0.9], axis=0)
        series.append(Series(label, label, own.mean(0), low, high))
    epochs = np.arange(1, losses.shape[1] + 1)
    chart = figures.chart(name, f"Loss of the class {class_name}", epochs, series, height=230)
    shown = figures.thinned(len(epochs))
    chart.data["samples"] = (
        np.asarray(losses[traced], dtype=np.float64)[:, shown].round(2).tolist() if traced else []
    )
    return chart


def _mean(losses: npt.NDArray[Any], members: Indices) -> float:
    return float(np.asarray(losses[members], dtype=np.float64).mean())


def _sparks(losses: npt.NDArray[Any] | None, majority: Indices, minority: Indices) -> tuple[str, str] | None:
    if losses is None:
        return None
    means = [np.asarray(losses[members], dtype=np.float64).mean(0) for members in (majority, minority)]
    highest = float(max(mean.max() for mean in means))
    return figures.sparkline(means[0], highest), figures.sparkline(means[1], highest)


def _truth(
    task: Task | None, majority: Indices, minority: Indices, class_name: str
) -> tuple[str, tuple[tuple[str, int, int], ...]]:
    """How a class's minority compares with the true groups; for the reader, long after training."""
    if task is None or task.train.group is None or not task.group_names:
        return "", ()
    group = task.train.group.numpy()
    inside, everywhere = (
        np.bincount(group[members], minlength=len(task.group_names))
        for members in (minority, np.concatenate([majority, minority]))
    )
    present = sorted(np.flatnonzero(everywhere), key=lambda g: (-inside[g], -everywhere[g]))
    groups = tuple(
        (gallery.short(task.group_names[g], class_name), int(inside[g]), int(everywhere[g]))
        for g in present[:6]
    )
    if not task.conflicting:
        return "", groups
    conflicting = sorted(task.conflicting)
    hits, size, total = int(inside[conflicting].sum()), len(minority), int(everywhere[conflicting].sum())
    return f"{hits:,} of these {size:,} are bias-conflicting; the class has {total:,} of them in all.", groups


def _again(minority: Indices, others: Sequence[Record]) -> str:
    """How much of a minority the partitions of other seeds share."""
    known = [(run.seed, run.partition) for run in others if run.partition is not None]
    known = [(seed, parts) for seed, parts in known if len(parts.minority) > minority.max(initial=-1)]
    if not known:
        return ""
    shared = float(np.mean([parts.minority[minority].mean() for _, parts in known]))
    seeds = listed([str(seed) for seed, _ in known])
    return f"{percent(shared, 0)} of them are set apart with seed {seeds} too."
