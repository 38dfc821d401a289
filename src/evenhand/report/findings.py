"""Findings: what a run's partition contains, class by class, as a page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.bench.results import Frame, title
from evenhand.core.partition import Partition
from evenhand.report import samples
from evenhand.report.document import line_plot, rounded, thinned
from evenhand.report.samples import Indices
from evenhand.report.words import listed, percent
from evenhand.training.data import Task
from evenhand.training.record import Record

MOST_LINES = 12  # groups or classes that are not folded away


def findings(record: Record, chosen: Frame, task: Task | None, budget: int) -> dict[str, Any]:
    """Return the partition of a run, class by class; `chosen` contains the method's runs with other seeds."""
    parts = record.partition
    assert parts is not None
    labels = parts.classes.tolist()
    scored = [str(part["name"]) for part in record.metrics["test"]["classes"]]
    names = scored if len(scored) == len(labels) else [f"class {label}" for label in labels]
    if task is not None:
        names = [task.class_names[int(label)] for label in labels]
    order = [int(i) for i in np.argsort(-parts.separation, kind="stable") if parts.sizes[i, 1] > 0]
    own = chosen[(chosen.method == record.method) & (chosen.seed != record.seed)]
    others = [(run.seed, run.partition) for run in own.record if run.partition is not None]
    losses = _histories(record, len(parts.labels))
    budget //= max(1, len(order[:MOST_LINES]))
    classes = [
        _class(parts, i, names[i], losses, task if place < MOST_LINES else None, others, budget)
        for place, i in enumerate(order)
    ]
    unsplit = [(i, label) for i, label in enumerate(labels) if parts.sizes[i, 1] == 0]
    return {
        "method": title(record.method),
        "seed": record.seed if len(own) else None,
        "classes": classes,  # the most clearly separated first
        "unsplit": [f"{names[i]} ({parts.unsplit.get(label, 'no minority')})" for i, label in unsplit],
        "scored": task is not None and task.train.group is not None and len(task.conflicting) > 0,
        "strength": parts.strength,  # of rebalancing; below 1, minorities stay smaller than majorities
    }


def _class(
    parts: Partition,
    position: int,
    name: str,
    losses: npt.NDArray[Any] | None,
    task: Task | None,
    others: Sequence[tuple[int, Partition]],
    budget: int,
) -> dict[str, Any]:
    """Return one class: loss histories and samples of its two parts, and a comparison with true groups."""
    own = parts.labels == parts.classes[position]
    majority, minority = np.flatnonzero(own & ~parts.minority), np.flatnonzero(own & parts.minority)
    shown = None if task is None else samples.gallery(task, parts, majority, minority, name, budget)
    plot, earlier, again = None, False, ""
    if losses is not None:
        members = {"majority": losses[majority], "minority": losses[minority]}
        bands = {kind: (kind, np.quantile(each, [0.1, 0.5, 0.9], axis=0)) for kind, each in members.items()}
        plot = line_plot(f"Loss of the class {name}", np.arange(1, losses.shape[1] + 1), bands, "log")
        traced = [] if shown is None else [each.index for each in (*shown.minority, *shown.majority)]
        kept = thinned(losses.shape[1])
        plot["samples"] = [rounded(np.asarray(losses[index], np.float64)[kept]) for index in traced]
        earlier = bool(members["minority"].mean() < members["majority"].mean())
    known = [(seed, other) for seed, other in others if len(other.minority) > minority.max(initial=-1)]
    if known:
        share = float(np.mean([other.minority[minority].mean() for _, other in known]))
        seeds = listed([str(seed) for seed, _ in known])
        again = f"With seed {seeds}, {percent(share, 0)} of them are in the minority too."
    truth, groups = _truth(task, majority, minority, name)
    return {
        "name": name,
        "majority": len(majority),
        "minority": len(minority),
        "repeated": int(parts.repeated_sizes[position]),  # size of the repeated minority
        "separation": float(parts.separation[position]),
        "plot": plot,
        "gallery": shown,
        "truth": truth,
        "groups": groups,
        "earlier": earlier,  # the smaller part has the lower losses
        "again": again,
    }


def _histories(record: Record, num_samples: int) -> npt.NDArray[Any] | None:
    """Return the loss histories from which the partition was made, (samples, epochs), if they were saved."""
    for stage in sorted(record.config["stages"], key=lambda name: (name != "erm", name)):
        losses = record.losses(stage)
        if losses is not None and losses.shape[0] == num_samples and losses.shape[1] > 0:
            return losses
    return None


def _truth(
    task: Task | None, majority: Indices, minority: Indices, class_name: str
) -> tuple[str, list[tuple[str, int, int]]]:
    """Return a sentence on the true groups, and (group, number in the minority, number in the class)."""
    if task is None or task.train.group is None or not task.group_names:
        return "", []
    group = task.train.group.numpy()
    inside, everywhere = (
        np.bincount(group[members], minlength=len(task.group_names))
        for members in (minority, np.concatenate([majority, minority]))
    )
    present = sorted(np.flatnonzero(everywhere), key=lambda g: (-inside[g], -everywhere[g]))[:6]
    groups = [
        (samples.short(task.group_names[g], class_name), int(inside[g]), int(everywhere[g])) for g in present
    ]
    if not task.conflicting:
        return "", groups
    hits, total = (int(counts[sorted(task.conflicting)].sum()) for counts in (inside, everywhere))
    return (
        f"{hits:,} of these {len(minority):,} are bias-conflicting, of {total:,} in the class.",
        groups,
    )
