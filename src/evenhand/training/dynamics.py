"""Dynamics: how samples that follow the shortcut and samples that break it were learned, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evenhand.core.partition import Partition
from evenhand.training.data import Split, Task
from evenhand.training.plan import Fit


def dynamics(fits: Mapping[str, Fit], partition: Partition | None, task: Task) -> dict[str, Any] | None:
    """Curves of every recorded training and the make-up of the clusters; None where nothing conflicts.

    For tables and figures only: this reads the true groups, which no method sees.
    """
    if not has_conflicts(task):
        return None
    stages = {
        name: {
            "train": _curves(fit.hits, fit.losses, task.train, task),
            "val": _curves(fit.val_hits, fit.val_losses, task.val, task),
        }
        for name, fit in sorted(fits.items())
        if fit.recorded
    }
    return {"stages": stages, "clusters": [] if partition is None else _clusters(partition, task)}


def has_conflicts(task: Task) -> bool:
    """Whether it is known which training and validation samples break the shortcut."""
    return task.train.group is not None and task.val.group is not None and bool(task.conflicting)


def _curves(hits: np.ndarray, losses: np.ndarray, split: Split, task: Task) -> dict[str, Any]:
    """Accuracy and mean loss of aligned and of conflicting samples after every epoch."""
    conflicting = _conflicting(split, task)
    return {
        name: {
            "count": int(rows.sum()),
            "accuracy": hits[rows].mean(axis=0, dtype=np.float64).tolist() if rows.any() else [],
            "loss": losses[rows].mean(axis=0, dtype=np.float64).tolist() if rows.any() else [],
        }
        for name, rows in (("aligned", ~conflicting), ("conflicting", conflicting))
    }


def _clusters(partition: Partition, task: Task) -> list[dict[str, Any]]:
    """Size of each class's clusters, and how many of their samples conflict."""
    conflicting = _conflicting(task.train, task)
    cells = []
    for label in partition.classes.tolist():
        for cluster in ("majority", "minority"):
            rows = (partition.labels == label) & (partition.minority == (cluster == "minority"))
            cells.append(
                {
                    "class": task.class_names[int(label)],
                    "cluster": cluster,
                    "size": int(rows.sum()),
                    "conflicting": int((rows & conflicting).sum()),
                }
            )
    return cells


def _conflicting(split: Split, task: Task) -> np.ndarray:
    assert split.group is not None
    conflicting: np.ndarray = np.isin(split.group.numpy(), sorted(task.conflicting))
    return conflicting
