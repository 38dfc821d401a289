"""Scores of a finished run: the only place that reads the groups of the test set."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.core.metrics import wilson_interval
from evenhand.training.data import Split, Task


def score(split: Split, predictions: npt.NDArray[np.int64], task: Task) -> dict[str, Any]:
    """Accuracies of one split; where there are no groups, the worst class stands for the worst group."""
    correct = predictions == split.y.numpy()
    classes = _parts(correct, split.y.numpy(), task.class_names)
    groups = None if split.group is None else _parts(correct, split.group.numpy(), task.group_names)
    worst = min(groups or classes, key=lambda part: part["accuracy"])
    weight = None if split.weight is None else split.weight.double().numpy()
    return {
        "wga": worst["accuracy"],
        "wga_interval": worst["interval"],
        "wga_over": "classes" if groups is None else "groups",
        "worst_group": worst["name"],
        "worst_class": min(part["accuracy"] for part in classes),
        "accuracy": float(correct.mean()),
        "accuracy_weighted": float(np.average(correct, weights=weight)),
        "accuracy_balanced": float(np.mean([part["accuracy"] for part in groups or classes])),
        "groups": groups,
        "classes": classes,
    }


def _parts(
    correct: npt.NDArray[np.bool_], part: npt.NDArray[np.int64], names: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Accuracy, size and 95% interval of every group (or class) that has samples."""
    counts = np.bincount(part, minlength=len(names))
    hits = np.bincount(part, weights=correct, minlength=len(names)).astype(int)
    return [
        {
            "name": names[i],
            "count": int(counts[i]),
            "accuracy": hits[i] / counts[i],
            "interval": list(wilson_interval(int(hits[i]), int(counts[i]))),
        }
        for i in np.flatnonzero(counts)
    ]
