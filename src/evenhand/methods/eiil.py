"""EIIL (Creager et al., ICML 2021): infer two environments in which a reference model is least invariant."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from evenhand.methods._environments import Then, robust
from evenhand.training.run import Run

VERSION = 1
HELPS = "an early model relies on the shortcut alone"
GRID = {"reference_epochs": [1, 2, 5]}
COST = 1.1  # the reference is ERM's first epochs
TRAININGS = 2


def train(
    run: Run, *, reference_epochs: int = 1, steps: int = 10_000, lr_weights: float = 1e-3, then: Then = "gdro"
) -> nn.Module:
    """Infer environments from an early model's logits z, then train robustly on class x environment.

    [EIIL-1] The slope of a sample's loss l in a scale s of its logits, at s = 1: sum of p_k z_k - z_y.
    [EIIL-2] Soft environments w = sigmoid(v), v ~ N(0, 1), maximize the mean of the squares of mean(w slope)
    and mean((1 - w) slope), by Adam.
    [EIIL-3] The environment of a sample is 1 where w > 1/2.
    """
    if reference_epochs < 1 or steps < 1:
        raise ValueError(f"reference_epochs and steps must be at least 1, got {reference_epochs} and {steps}")
    reference = run.fit("erm", stop=min(reference_epochs, run.recipe.epochs))
    logits = run.predict(reference.model, run.train)
    start = torch.randn(len(run.train), generator=torch.Generator().manual_seed(run.seed))
    weights = soft_environments(slopes(logits, run.train.y), start, steps=steps, lr=lr_weights)
    environments: np.ndarray = (weights > 0.5).numpy().astype(np.int64)
    return run.fit("model", **robust(run, environments, then)).model


def slopes(logits: Tensor, labels: Tensor) -> Tensor:
    """[EIIL-1], (samples,)."""
    expected = (logits.softmax(1) * logits).sum(1)
    return expected - logits.gather(1, labels[:, None])[:, 0]


def soft_environments(slope: Tensor, start: Tensor, *, steps: int, lr: float) -> Tensor:
    """[EIIL-2], (samples,) between 0 and 1."""
    free = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([free], lr=lr)
    for _ in range(steps):
        weights = free.sigmoid()
        penalty = (weights * slope).mean().square() + ((1 - weights) * slope).mean().square()
        optimizer.zero_grad()
        torch.autograd.backward(-penalty / 2)
        optimizer.step()
    return free.detach().sigmoid()
