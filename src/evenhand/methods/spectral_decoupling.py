"""Spectral decoupling (Pezeshki et al., NeurIPS 2021): penalize large logits instead of large weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.training.data import Batch
from evenhand.training.objective import separable
from evenhand.training.run import Run

VERSION = 1
HELPS = "one strong feature suppresses others"
GRID = {"strength": [0.1, 0.01, 0.001]}


def train(
    run: Run,
    *,
    strength: float = 0.1,
    penalty: Literal["logits", "targets", "true_logit"] = "logits",
    targets: str = "0.44,2.5",
    after: int = 0,
) -> nn.Module:
    """Cross-entropy plus a penalty on the logits z, (classes,), of every sample; weight decay is off.

    [SD-1] penalty "logits": strength / 2 x sum of z_k^2, as in the paper.
    [SD-2] penalty "targets": strength / 2 x sum of (z_k - g_y)^2, where `targets` lists g of every class.
    The default is the authors' for CelebA (not blond, blond).
    [SD-3] penalty "true_logit": strength / 2 x z_y^2, as in later comparisons.
    [SD-4] `after`: plain cross-entropy for so many steps, then strength x (cross-entropy + the squares
    without the factor 1/2), as the authors did on colored MNIST (450 steps, strength 2e-5, lr 1e-4).
    """
    if strength < 0:
        raise ValueError(f"strength must not be negative, got {strength}")
    goals = torch.zeros(run.num_classes)
    if penalty == "targets":
        goals = torch.tensor([float(text) for text in targets.split(",")])
        if len(goals) != run.num_classes:
            raise ValueError(f"targets must list {run.num_classes} numbers, one a class, got {targets!r}")
    objective = Decoupled(strength, goals, only_true=penalty == "true_logit", after=after)
    return run.fit("model", objective=objective, recipe=run.recipe.replace(weight_decay=0.0)).model


@separable
class Decoupled(nn.Module):
    """Cross-entropy plus strength / 2 x the squared distance of the logits to their class's goal."""

    goals: Tensor  # (classes,)

    def __init__(self, strength: float, goals: Tensor, *, only_true: bool, after: int) -> None:
        super().__init__()
        self.strength, self.only_true, self.after = strength, only_true, after
        self.register_buffer("goals", goals, persistent=False)

    def forward(self, model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        logits = model(batch.x).float()
        penalised = logits.gather(1, batch.y[:, None]) if self.only_true else logits
        squares = (penalised - self.goals[batch.y][:, None]).square().sum(1)
        loss = F.cross_entropy(logits, batch.y)
        if batch.step < self.after:
            return loss
        return (
            self.strength * (loss + squares.mean())
            if self.after
            else loss + self.strength / 2 * squares.mean()
        )
