"""Training on environments that a method has inferred: Group DRO on class x environment, or even draws."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from evenhand.methods.gdro import WorstGroup
from evenhand.training.data import Split
from evenhand.training.run import Run

VERSION = 1  # part of the keys of trainings that use a function of this file

Then = Literal["gdro", "even"]


def robust(
    run: Run,
    environments: np.ndarray,
    then: Then,
    val_environments: np.ndarray | None = None,
    *,
    adjustment: float = 0.0,
) -> dict[str, Any]:
    """Return the arguments of `Run.fit` that train on the environments, whole numbers from 0, (samples,).

    [ENV-1] Groups are class x environment, and are drawn evenly: chances are proportional to 1 / group size.
    [ENV-2] then "gdro" minimizes Group DRO's objective on these groups, with `adjustment` / sqrt(group size)
    added to their losses for its weights; "even" minimizes plain cross-entropy.
    [ENV-3] With environments of the validation samples, the check is kept with the best sum of lowest and
    mean accuracy of a group. The mean decides while a small group is all wrong. No annotated group is read.
    """
    group, count = _groups(run.train.y, environments, int(environments.max()) + 1)
    run.found(_rare(run.train.y, environments))
    settings: dict[str, Any] = {"draw": 1 / count[group]}
    if then == "gdro":
        settings["environments"] = group
        settings["objective"] = WorstGroup(count, step_size=0.01, adjustment=adjustment)
    if val_environments is not None:
        val, _ = _groups(run.val.y, val_environments, int(val_environments.max()) + 1)
        settings["score"] = partial(worst_and_mean, group=val)
        settings["recipe"] = run.recipe.replace(keep="best")
    return settings


def worst_and_mean(logits: Tensor, split: Split, *, group: Tensor) -> float:
    """Return the lowest plus the mean accuracy of the groups that have samples, [ENV-3]."""
    correct, count = logits.argmax(1) == split.y, torch.bincount(group)
    right = torch.bincount(group, weights=correct.double(), minlength=len(count))
    accuracy = (right / count)[count > 0]
    return float(accuracy.min() + accuracy.mean())


def _groups(labels: Tensor, environments: np.ndarray, num: int) -> tuple[Tensor, Tensor]:
    """Return every sample's group, [ENV-1], and how many samples each group has."""
    group = labels * num + torch.from_numpy(environments.astype(np.int64))
    return group, torch.bincount(group, minlength=int(labels.max() + 1) * num)


def _rare(labels: Tensor, environments: np.ndarray) -> np.ndarray:
    """Return whether a sample is in another environment than most samples of its class, (samples,) bool."""
    rare = np.zeros(len(environments), dtype=bool)
    for label in np.unique(labels.numpy()):
        own = labels.numpy() == label
        rare |= own & (environments != np.bincount(environments[own]).argmax())
    return rare
