"""TAB (Espinosa Zarlenga et al., ECCV 2024): cluster loss histories, balance, train again from scratch."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from torch import nn

from evenhand.core.history import summarise
from evenhand.core.partition import Partition, partition, rebalance, sample_weights
from evenhand.training.run import Run

VERSION = 1
HELPS = "samples that contradict the shortcut are learned late"
GRID: dict[str, list[Any]] = {}
TRAININGS = 2
COST = 2.0  # the repeated set has at most 2 N samples


def train(
    run: Run, *, summary: Literal["none", "loss", "error"] = "none", balanced_epochs: bool = False
) -> nn.Module:
    """Neither hyperparameters nor groups: the loss histories say which samples are learned late.

    `summary`: split one number per sample instead of its history, the mean over epochs of its loss or of its
    probability of error. `balanced_epochs`: cheaper than the paper's repeated set. An epoch draws as many
    samples as there are, afresh each time, both clusters of a class being equally likely.
    """
    identifier = run.fit("erm", stop="train")  # ERM's own training, until it has fitted the training set
    histories = identifier.losses if summary == "none" else summarise(identifier.losses, summary)
    parts = partition(histories, run.train.y)
    balanced = rebalance(parts, seed=run.seed)
    run.found(parts, balanced)
    if balanced_epochs:
        return run.fit("model", draw=even_chances(parts)).model
    return run.fit("model", run.train.take(balanced)).model


def even_chances(parts: Partition, *, even_classes: bool = False) -> np.ndarray:
    """The chance of each sample to be drawn: a class keeps its share, its clusters halve it, (samples,).

    With a partition of a strength below 1 they divide it as its `sample_weights` say. With `even_classes`,
    all classes have the same share.
    """
    position, weights = np.searchsorted(parts.classes, parts.labels), sample_weights(parts)
    counts, totals = np.bincount(position), np.bincount(position, weights=weights)
    if even_classes:
        counts = np.full(len(counts), len(weights) / len(counts))
    chances: np.ndarray = weights * (counts / totals)[position] / len(weights)
    return chances
