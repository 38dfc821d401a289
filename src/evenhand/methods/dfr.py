"""DFR (Kirichenko et al., ICLR 2023): refit ERM's last layer on group-balanced validation samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenhand.methods._heads import Head, even_subset, on_device, sparse_head, with_head
from evenhand.training.run import Run

VERSION = 1
HELPS = "validation samples have groups; ERM's features are good"
NEEDS_GROUPS = "val"
GRID: dict[str, list[Any]] = {}
PUBLISHED = "worst group of one half of validation (deep_feature_reweighting, dfr_evaluate_spurious.py)"
COST = 1.05  # ERM, and features of the validation set
STRENGTHS = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)  # of the authors' search on Waterbirds


def train(run: Run, *, retrains: int = 20, steps: int = 500) -> nn.Module:
    """Train ERM; then fit an L1 logistic regression on its features. Scores on validation are optimistic.

    [DFR-1] Features are standardized by their mean and deviation over the validation set.
    [DFR-2] A fit is of as many samples of every group as the smallest one has: `sparse_head`, [HEAD-2].
    [DFR-3] The strength is the one that has the best worst-group accuracy on one half of validation when it
    is fitted on the other.
    [DFR-4] Coefficients are the mean over `retrains` random subsets of the whole validation set.
    """
    group = run.val.group
    if group is None:
        raise ValueError(
            f"dfr needs the group of every validation sample, but task {run.task.name!r} has no groups; "
            "use a method that needs none, such as cb_llr"
        )
    erm = run.fit("erm")
    features, labels = on_device(run, run.features(erm, run.val), run.val.y)
    mean, deviation = features.mean(0), features.std(0).clamp(min=1e-6)
    x, groups = (features - mean) / deviation, group.numpy()

    def fitted(rows: np.ndarray, strength: float, number: int) -> Head:
        rows = rows[even_subset(groups[rows], run.seed, number)]
        return sparse_head(x[rows], labels[rows], run.num_classes, strength, steps)

    half, other = halves(groups, run.seed)
    scores = [
        worst_group(fitted(half, one, 0)(x[other]).argmax(1) == labels[other], groups[other])
        for one in STRENGTHS
    ]
    best = STRENGTHS[int(np.argmax(scores))]
    heads = [fitted(np.arange(len(groups)), best, 1 + number) for number in range(retrains)]
    weight = torch.stack([head.weight for head in heads]).mean(0) / deviation
    bias = torch.stack([head.bias for head in heads]).mean(0) - weight @ mean
    return with_head(erm.model, Head(weight, bias))


def halves(groups: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of two random halves, in which every group has as many samples, up to one."""
    order = np.random.default_rng([seed, 3]).permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    return np.sort(order[::2]), np.sort(order[1::2])


def worst_group(correct: Tensor, groups: np.ndarray) -> float:
    """The lowest accuracy of the groups that have samples."""
    right = correct.cpu().numpy()
    return min(float(right[groups == each].mean()) for each in np.unique(groups))
