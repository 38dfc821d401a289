"""Average: the mean of the weights on a training's last stretch, which swings less than the weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


class Average:
    """A copy of a model whose weights are a moving average over about so many `steps` of the original.

    Until then, their plain mean over all steps taken. Running statistics are averaged in the same way.

    >>> weights = nn.Linear(1, 1, bias=False)
    >>> average = Average(weights, steps=2)
    >>> for value in (2.0, 4.0, 8.0):
    ...     _ = weights.weight.data.fill_(value)
    ...     average.update(weights)
    >>> average.model.weight.item()  # of 2 and 4 their mean, then half of the way to 8
    5.5
    """

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.steps, self.taken = max(steps, 1), 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Follow the model by one step."""
        self.taken += 1
        share = 1 / min(self.taken, self.steps)
        for own, new in zip(self.model.state_dict().values(), model.state_dict().values(), strict=True):
            if own.is_floating_point():
                own.lerp_(new, share)
            else:
                own.copy_(new)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {"model": self.model.state_dict(), "taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.model.load_state_dict(state["model"])
        self.taken = state["taken"]
