"""Multiaccuracy Boost (Kim et al., AIES 2019): correct logits where a regression predicts errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.methods._heads import on_device
from evenhand.training.models import PostHoc
from evenhand.training.run import Run

VERSION = 1
HELPS = "validation includes the minority; features predict errors"
GRID = {"rate": [0.1, 0.03, 0.3]}
PUBLISHED = "accuracy on held-out audit samples (MultiAccuracyBoost, Run.ipynb)"
COST = 1.05  # ERM, and features of the validation set
MOST = 5000  # validation samples that are audited
STEEP = 0.1  # below this probability the derivative of the loss goes on as a straight line


def train(
    run: Run, *, rate: float = 0.1, rounds: int = 100, threshold: float = 1e-4, ridge: float = 1.0
) -> nn.Module:
    """Train ERM, then audit it on validation samples, 70% for fits and 30% to judge them; L classes.

    [MA-1] The residual of a sample's label y is -g(p_y), of other classes g(p_y) / (L - 1). From p = 0.1 on,
    g(p) is 1 / p. Below, it is the tangent there.
    [MA-2] For each set of samples with one predicted class, then for all: regress residuals on features by
    ridge regression. h is its prediction times (L - 1) / L, which gives the paper's form for L = 2.
    [MA-3] Compare mean(h x (p - y)) on the set's judged samples with the threshold. If it is larger, subtract
    rate x h from the logits of the set, and start again with the first set.
    [MA-4] Stop after `rounds` corrections, or if no set passes; keep those with the best judged accuracy.
    """
    erm = run.fit("erm")
    order = np.random.default_rng([run.seed, 4]).permutation(len(run.val))[:MOST]
    audit = run.val.take(order)
    features, logits, labels = on_device(
        run, run.features(erm, audit), run.predict(erm.model, audit), audit.y
    )
    cut = round(0.7 * len(order))
    inputs, predicted = with_one(features), logits.argmax(1)
    truth, classes = F.one_hot(labels, run.num_classes), torch.arange(run.num_classes, device=run.device)
    sets: list[Any] = [
        *np.unique(predicted[:cut].cpu().numpy()).tolist(),
        slice(None),
    ]  # of predicted classes
    members = [torch.isin(predicted, classes[one]) for one in sets]
    regressions = [Ridge(inputs[:cut][one[:cut]], ridge) for one in members]
    table = best_table = inputs.new_zeros(run.num_classes, inputs.shape[1], run.num_classes)
    best = -1.0
    for _ in range(rounds + 1):
        now = corrected(logits, inputs, table)
        accuracy = float((now.argmax(1) == labels)[cut:].float().mean())
        best, best_table = max((best, best_table), (accuracy, table), key=lambda pair: pair[0])
        p = now.softmax(1)
        for one, member, regression in zip(sets, members, regressions, strict=True):
            fit = regression(residuals(p, labels)[:cut][member[:cut]]) * (1 - 1 / run.num_classes)
            judged = ((inputs @ fit) * (p - truth)).sum(1)[cut:][member[cut:]]
            if judged.mean() > threshold:  # not of an empty set
                table = table.clone()
                table[one] += rate * fit
                break
        else:
            break
    return PostHoc(erm.model, Correction(best_table))


def residuals(p: Tensor, labels: Tensor) -> Tensor:
    """[MA-1], (samples, classes)."""
    own = p.gather(1, labels[:, None])
    slope = torch.where(own >= STEEP, 1 / own.clamp(min=STEEP), (2 - own / STEEP) / STEEP)
    return (slope / (p.shape[1] - 1)).expand_as(p).scatter(1, labels[:, None], -slope)


class Ridge:
    """Ridge regression on inputs whose last column is one and has no penalty."""

    def __init__(self, inputs: Tensor, ridge: float) -> None:
        self.middle = inputs[:, :-1].mean(0)
        self.centred = inputs[:, :-1] - self.middle
        kernel = self.centred @ self.centred.T
        self.factor = torch.linalg.cholesky(kernel + ridge * torch.eye(len(inputs), device=inputs.device))

    def __call__(self, targets: Tensor) -> Tensor:
        """Coefficients (dimensions + 1, targets) for targets (samples, targets)."""
        mean = targets.mean(0, keepdim=True)
        weight = self.centred.T @ torch.cholesky_solve(targets - mean, self.factor)
        return torch.cat([weight, mean - self.middle[None] @ weight])


def with_one(features: Tensor) -> Tensor:
    return torch.cat([features, torch.ones_like(features[:, :1])], dim=1)


def corrected(logits: Tensor, inputs: Tensor, table: Tensor) -> Tensor:
    """Logits less the linear correction of their predicted class; table (classes, inputs, classes)."""
    changed = logits.clone()
    predicted = logits.argmax(1)
    for label in predicted.bincount().nonzero():
        rows = predicted == label
        changed[rows] -= inputs[rows] @ table[label[0]]
    return changed


class Correction(nn.Module):
    """All accepted corrections; those of one set add up."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, logits: Tensor, features: Tensor) -> Tensor:
        return corrected(logits, with_one(features), self.table)


def rebuild(network: Callable[[], nn.Module], tensors: Mapping[str, Tensor], num_classes: int) -> nn.Module:
    """The model of a record, whose weights are to be filled in."""
    return PostHoc(network(), Correction(torch.zeros_like(tensors["function.table"])))
