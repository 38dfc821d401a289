"""Objectives: what a training minimises, as a function of the model and a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.training.data import Batch

Objective = Callable[[Any, Batch], Tensor]  # (model, batch) -> scalar loss; one with state is an nn.Module


def cross_entropy(model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """The objective of empirical risk minimisation."""
    return F.cross_entropy(model(batch.x), batch.y)


class Tap:
    """The model as an objective sees it; remembers the logits, so that losses are recorded for free."""

    def __init__(self, model: nn.Module, fast: Callable[[Tensor], Tensor], batch_size: int) -> None:
        self._model, self._fast, self._batch_size = model, fast, batch_size
        self.logits: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        # The compiled model only ever sees full batches, so a small last batch never recompiles.
        self.logits = self._fast(x) if len(x) == self._batch_size else self._model(x)
        return self.logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
