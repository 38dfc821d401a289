"""Class balancing (LaBonte et al., NeurIPS 2024): ERM on balanced classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.training.data import Batch
from evenhand.training.objective import separable
from evenhand.training.run import Run

VERSION = 1
HELPS = "the rare group is in the rare class"
GRID = {"ratio": [2.0, 1.0, 4.0]}


def train(
    run: Run, *, balance: Literal["mixture", "drawn", "weighted"] = "mixture", ratio: float = 2.0
) -> nn.Module:
    """Balance n_c samples of each of L classes, N in all.

    [CB-1] balance "drawn": an epoch draws N samples with replacement, with chances proportional to 1 / n_c.
    [CB-2] balance "weighted": the loss of a sample of class c counts N / (L n_c) times.
    [CB-3] balance "mixture": keep a random min(n_c, `ratio` min n) of each class, then draw from these
    as in [CB-1]. A ratio of 1 is the balanced subset.
    """
    if ratio < 1:
        raise ValueError(f"ratio must be at least 1, got {ratio}")
    y = run.train.y
    if balance == "weighted":
        return run.fit("model", objective=Weighted(class_weights(y, run.num_classes))).model
    kept = run.train.take(subset(y.numpy(), ratio, run.seed)) if balance == "mixture" else run.train
    return run.fit("model", kept, draw=class_weights(kept.y, run.num_classes)[kept.y]).model


def class_weights(labels: Tensor, num_classes: int) -> Tensor:
    """N / (L n_c) of each class; a class without samples has any weight.

    >>> class_weights(torch.tensor([0, 0, 0, 1]), 2)
    tensor([0.6667, 2.0000])
    """
    counts = torch.bincount(labels, minlength=num_classes)
    return len(labels) / (num_classes * counts.clamp(min=1))


def subset(labels: np.ndarray, ratio: float, seed: int) -> np.ndarray:
    """Positions of a random subset in which no class has more than `ratio` times the smallest one's size."""
    most = round(ratio * np.unique(labels, return_counts=True)[1].min())
    order = np.random.default_rng([seed, 21]).permutation(len(labels))
    kept = [order[labels[order] == label][:most] for label in np.unique(labels)]
    return np.sort(np.concatenate(kept))


@separable
class Weighted(nn.Module):
    """The mean over samples of the loss times the weight of the class."""

    weights: Tensor  # (classes,)

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        losses = F.cross_entropy(model(batch.x), batch.y, reduction="none")
        return (self.weights[batch.y] * losses).mean()
