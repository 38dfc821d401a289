"""TAB (Espinosa Zarlenga et al., ECCV 2024): cluster loss histories, rebalance, train again from scratch."""

from __future__ import annotations

from typing import Any

from torch import nn

from evenhand.core.partition import partition
from evenhand.core.rebalance import rebalance
from evenhand.training.run import Run

GRID: dict[str, list[Any]] = {}


def train(run: Run) -> nn.Module:
    """Neither hyperparameters nor groups: the loss histories say which samples are learned late."""
    identifier = run.fit("erm", stop="train")  # ERM's own training, until it has fitted the training set
    parts = partition(identifier.losses, run.train.y)
    balanced = rebalance(parts, seed=run.seed)
    run.found(parts, balanced)
    return run.fit("model", run.train.take(balanced)).model
