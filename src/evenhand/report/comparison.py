"""The methods side by side: one row each, and their accuracy on every group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenhand.report.study import Study, Variant
from evenhand.report.words import count, duration, listed, percent, points, spread
from evenhand.training.record import Record

MOST_GROUPS = 12  # in sight; with a few more than that, all


@dataclass(frozen=True)
class Row:
    """One line of the comparison: a variant, or one of its seeds."""

    label: str
    settings: str
    needs_groups: bool
    seeds: str
    mark: int
    worst: str
    interval: str
    worst_names: str
    weighted: str
    balanced: str
    identified: str
    purity: str
    share: str
    epochs: str
    time: str


@dataclass(frozen=True)
class Mark:
    """One variant's accuracy on one group; positions in per cent of the axis."""

    label: str
    kind: int  # colour and shape
    x: float
    low: float
    high: float
    text: str
    interval: str


@dataclass(frozen=True)
class GroupRow:
    name: str
    count: int
    marks: tuple[Mark, ...]
    change: str  # from the first variant to the second, or empty


@dataclass(frozen=True)
class Groups:
    """Accuracy of every group, the worst ones first."""

    over: str
    legend: tuple[tuple[int, str], ...]  # (mark, variant)
    rows: tuple[GroupRow, ...]
    rest: tuple[GroupRow, ...]
    privileged: str  # the methods that train with the groups, or empty
    whiskers: str  # what the lines around the marks are


def rows(study: Study) -> list[tuple[Row, list[Row]]]:
    """Every variant, each with a row per seed where it has several."""
    listing = []
    for variant in study.variants:
        each = [_row(variant, [record]) for record in variant.records] if len(variant.records) > 1 else []
        listing.append((_row(variant, variant.records), each))
    return listing


def _row(variant: Variant, records: Sequence[Record]) -> Row:
    own = Variant(variant.method, variant.settings, tuple(records), variant.mark)
    names = dict.fromkeys(str(run.metrics["test"]["worst_group"]) for run in records)
    low, high = records[0].metrics["test"]["wga_interval"]
    interval = f"{percent(low)} to {percent(high)}" if len(records) == 1 else f"{len(records)} seeds"
    stages = [run.metrics.get("epochs", {}) for run in records]
    times = [time for run in records if (time := seconds(run)) is not None]
    return Row(
        label=variant.title,
        settings=", ".join(f"{name}={value}" for name, value in variant.settings.items()),
        needs_groups=variant.needs_groups,
        seeds=", ".join(str(run.seed) for run in records),
        mark=variant.mark,
        worst=spread(own.values("wga")),
        interval=interval,
        worst_names=" · ".join(names) if len(names) <= 2 else count(len(names), "different one"),
        weighted=spread(own.values("accuracy_weighted")),
        balanced=spread(own.values("accuracy_balanced")),
        identified=spread(own.identification("identified")),
        purity=spread(own.identification("purity")),
        share=spread(own.identification("share")),
        epochs=_epochs(stages),
        time=duration(float(np.mean(times)) if times else None),
    )


def _epochs(runs: Sequence[dict[str, int]]) -> str:
    """Epochs of every training, `15 + 30`; means where seeds differ."""
    if not runs or not runs[0]:
        return "–"
    means = [np.mean([run[stage] for run in runs if stage in run]) for stage in runs[0]]
    return " + ".join(f"{mean:.0f}" for mean in means)


def seconds(record: Record) -> float | None:
    """How long all trainings of a run take when nothing is shared with other runs."""
    try:
        return float(record.timing["unshared"])
    except (FileNotFoundError, KeyError):
        return None  # packed records may come without timings


def groups(study: Study) -> Groups:
    """Every group's accuracy under one variant of each method; classes where no groups are known."""
    shown = study.comparable
    tables = [_accuracies(variant, study.over) for variant in shown]
    names = list(dict.fromkeys(name for table in tables for name in table))
    all_rows = [_group_row(name, shown, tables) for name in names]
    all_rows.sort(key=lambda row: min(mark.x for mark in row.marks))
    most = MOST_GROUPS if len(all_rows) > MOST_GROUPS + 4 else len(all_rows)
    several = max(len(variant.records) for variant in shown) > 1
    return Groups(
        over=study.over,
        legend=tuple((variant.mark, variant.label) for variant in shown),
        rows=tuple(all_rows[:most]),
        rest=tuple(all_rows[most:]),
        privileged=listed([v.title for v in shown if v.needs_groups]),
        whiskers="the range over seeds" if several else "95% intervals",
    )


def _accuracies(variant: Variant, over: str) -> dict[str, list[dict[str, Any]]]:
    """Group name -> its scores, one per seed."""
    table: dict[str, list[dict[str, Any]]] = {}
    for record in variant.records:
        test = record.metrics["test"]
        for part in (test["groups"] if over == "group" else None) or test["classes"]:
            table.setdefault(str(part["name"]), []).append(part)
    return table


def _group_row(
    name: str, shown: Sequence[Variant], tables: Sequence[dict[str, list[dict[str, Any]]]]
) -> GroupRow:
    marks, means = [], []
    for variant, table in zip(shown, tables, strict=True):
        scores = table.get(name, [])
        if not scores:
            continue
        values = [float(score["accuracy"]) for score in scores]
        low, high = scores[0]["interval"] if len(scores) == 1 else (min(values), max(values))
        means.append(float(np.mean(values)))
        marks.append(
            Mark(
                label=variant.label,
                kind=variant.mark,
                x=round(100 * means[-1], 2),
                low=round(100 * float(low), 2),
                high=round(100 * float(high), 2),
                text=percent(means[-1]),
                interval=f"{percent(float(low))} to {percent(float(high))}",
            )
        )
    size = max(int(score["count"]) for table in tables for score in table.get(name, []))
    change = points(means[1] - means[0]) if len(shown) == 2 and len(means) == 2 else ""
    return GroupRow(name, size, tuple(marks), change)
