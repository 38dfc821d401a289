"""Objectives: what a training minimises, as a function of the model and a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.training.data import Batch

Objective = Callable[[Any, Batch], Tensor]  # (model, batch) -> scalar loss; one with state is an nn.Module
T = TypeVar("T")


def separable(declared: T) -> T:
    """Declare that an objective or a transform treats every sample by itself, so that batches may be cut.

    Of an objective: the loss of a batch is the mean over its samples of something that depends on that
    sample alone. Of a transform: each sample is changed by itself. The engine then may cut a batch into
    slices and share it out among ranks. What does not declare it gets whole batches.

    It decorates a function or a class; an `nn.Module` may instead set the class attribute `separable = True`.

    >>> is_separable(separable(lambda model, batch: model(batch.x).mean())), is_separable(print)
    (True, False)
    """
    declared.separable = True  # type: ignore[attr-defined]
    return declared


def is_separable(objective: object) -> bool:
    """Whether an objective or a transform has declared that batches may be cut."""
    return getattr(objective, "separable", False) is True


@separable
def cross_entropy(model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """The objective of empirical risk minimisation."""
    return F.cross_entropy(model(batch.x), batch.y)


class Tap:
    """The model as an objective sees it; remembers the logits, so that losses are recorded for free."""

    def __init__(self, model: nn.Module, fast: Callable[[Tensor], Tensor], batch_size: int) -> None:
        self._model, self._fast, self._batch_size = model, fast, batch_size
        self._fresh = True
        self.logits: Tensor

    def begin(self) -> None:
        """A new step: the outputs of the last one are no longer needed."""
        self._fresh = True

    def __call__(self, x: Tensor) -> Tensor:
        # The fast way is made for full batches, so that a small last batch never compiles anew, and for one
        # call a step, because the next would overwrite its outputs.
        fast = self._fresh and len(x) == self._batch_size and self._model.training
        self.logits, self._fresh = (self._fast if fast else self._model)(x), False
        return self.logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
