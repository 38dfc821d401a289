"""CVaR-DRO (Levy et al., NeurIPS 2020): minimize the mean loss of the worst fraction of each batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.training.data import Batch
from evenhand.training.run import Run

VERSION = 1
HELPS = "rare groups have high losses; labels are clean"
GRID = {"alpha": [0.1, 0.02, 0.2, 0.5]}


def train(
    run: Run, *, alpha: float = 0.1, form: Literal["batch", "kl", "dual"] = "batch", reg: float = 0.01
) -> nn.Module:
    """Weigh the m losses v of a batch so that the share `alpha` with the highest losses counts.

    [CVaR-1] form "batch": the floor(alpha m) largest losses weigh 1 / (alpha m), the next one has the rest.
    [CVaR-2] form "kl": w = min(exp((v - eta) / reg), 1 / alpha) / m, where eta makes the sum of w one.
    [CVaR-3] form "dual": eta + mean(max(v - eta, 0)) / alpha, where eta is learned beside the network.
    The weights of the first two carry no gradient.
    """
    if not 1 / run.recipe.batch_size <= alpha <= 1 or reg <= 0:
        raise ValueError(
            f"alpha must hold at least one of the {run.recipe.batch_size} samples of a batch and be at most "
            f"1, and reg must be positive, got alpha={alpha} and reg={reg}"
        )
    if form == "dual":
        return run.fit("model", objective=Dual(alpha, math.log(run.num_classes))).model
    weigh = partial(regularised, reg=reg) if form == "kl" else worst_share
    return run.fit("model", objective=partial(weighted_loss, weigh=partial(weigh, alpha=alpha))).model


def weighted_loss(
    model: Callable[[Tensor], Tensor], batch: Batch, *, weigh: Callable[[Tensor], Tensor]
) -> Tensor:
    """The sum of the batch's losses, weighed by themselves."""
    losses = F.cross_entropy(model(batch.x), batch.y, reduction="none")
    return (weigh(losses.detach()) * losses).sum()


def worst_share(losses: Tensor, *, alpha: float) -> Tensor:
    """The weights of [CVaR-1].

    >>> worst_share(torch.tensor([3.0, 1.0, 4.0, 2.0]), alpha=0.375)
    tensor([0.3333, 0.0000, 0.6667, 0.0000])
    """
    size = alpha * len(losses)
    rank = losses.argsort(descending=True).argsort()
    return (1 - rank / size).clamp(0, min(1 / size, 1))


def regularised(losses: Tensor, *, alpha: float, reg: float) -> Tensor:
    """The weights of [CVaR-2]; eta by bisection between two bounds of it."""
    scaled = losses.double() / reg
    low = scaled.min() + math.log(alpha)  # all weights are at their limit, and sum to 1 / alpha
    high = scaled.logsumexp(0) - math.log(len(losses))  # without a limit they sum to 1
    for _ in range(60):
        middle = (low + high) / 2
        too_small = (scaled - middle).exp().clamp(max=1 / alpha).mean() < 1
        low, high = torch.where(too_small, low, middle), torch.where(too_small, middle, high)
    return ((scaled - low).exp().clamp(max=1 / alpha) / len(losses)).float()


class Dual(nn.Module):
    """[CVaR-3]; eta begins at the loss of a guess."""

    def __init__(self, alpha: float, guess: float) -> None:
        super().__init__()
        self.alpha, self.eta = alpha, nn.Parameter(torch.tensor(guess))

    def forward(self, model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        losses = F.cross_entropy(model(batch.x), batch.y, reduction="none")
        loss: Tensor = self.eta + (losses - self.eta).relu().mean() / self.alpha
        return loss
