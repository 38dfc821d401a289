"""Mini-batch TAB (Espinosa Zarlenga et al., ECCV 2024): TAB with scikit-learn's mini-batch k-means."""

from __future__ import annotations

from typing import Any

from sklearn.cluster import MiniBatchKMeans
from torch import nn

from evenhand.core.partition import partition, rebalance
from evenhand.training.run import Run

VERSION = 1
HELPS = "as TAB; full k-means is too slow"
GRID: dict[str, list[Any]] = {}
TRAININGS = 2
COST = 2.0  # the repeated set has at most 2 N samples


def train(run: Run, *, reassignment_ratio: float = 1e-5) -> nn.Module:
    """TAB; the small ratio lets small clusters live, all else is scikit-learn's default."""
    identifier = run.fit("erm", stop="train")
    kmeans = MiniBatchKMeans(2, reassignment_ratio=reassignment_ratio, random_state=run.seed)
    parts = partition(identifier.losses, run.train.y, cluster=kmeans.fit_predict)
    balanced = rebalance(parts, seed=run.seed)
    run.found(parts, balanced)
    return run.fit("model", run.train.take(balanced)).model
