"""Objectives: what a training minimizes, as a function of the model and a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.training.data import Batch

Objective = Callable[[Any, Batch], Tensor]  # (model, batch) -> scalar loss; one with state is an nn.Module
VERSION = 1  # of the objectives here; part of the keys of trainings that minimize one
T = TypeVar("T")


def separable(declared: T) -> T:
    """Declare that an objective or a transform treats each sample independently; usable as a decorator.

    - `declared`: a function or a class. An `nn.Module` may instead set the class attribute `separable =
      True`.

    The loss of a batch must be the mean of per-sample values, each of which depends on its sample alone. A
    transform must change each sample independently. The engine may then split a batch into slices or across
    ranks. Other objectives always get whole batches. Returns `declared` itself, and raises nothing.

    >>> is_separable(separable(lambda model, batch: model(batch.x).mean())), is_separable(print)
    (True, False)
    """
    declared.separable = True  # type: ignore[attr-defined]
    return declared


def is_separable(objective: object) -> bool:
    """Return whether an objective or a transform has declared that batches may be cut."""
    return getattr(objective, "separable", False) is True


def has_step(objective: object) -> bool:
    """Return whether an objective updates the weights itself, in `step(model, batch, optimizers) -> loss`."""
    return callable(getattr(objective, "step", None))


@contextlib.contextmanager
def left_as_it_was(objective: object) -> Iterator[None]:
    """Restore an objective's state after a training, so that one training never changes another.

    Whether a training was computed or reused, the object is the same afterwards, and the next stage that uses
    it begins alike.
    """
    modules = list(objective.modules()) if isinstance(objective, nn.Module) else []
    before = [
        (
            module,
            module.training,
            [(parameter, parameter.detach().clone()) for parameter in module.parameters(recurse=False)],
            {name: buffer.clone() for name, buffer in module.named_buffers(recurse=False)},
        )
        for module in modules
    ]
    try:
        yield
    finally:
        for module, training, parameters, buffers in before:
            module.training = training
            for parameter, value in parameters:
                parameter.data, parameter.grad = value, None
            module._buffers.update(buffers)


@separable
def cross_entropy(model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """Return the cross-entropy, the objective of empirical risk minimization."""
    return F.cross_entropy(model(batch.x), batch.y)


class Tap:
    """The model as an objective sees it; keeps the batch's outputs, so that losses are recorded for free.

    An objective may call the model several times. The outputs that count are those of the last pass whose
    input is the tensor `batch.x` itself.
    """

    def __init__(self, model: nn.Module, fast: Callable[[Tensor], Tensor], batch_size: int) -> None:
        self._model, self._fast, self._batch_size = model, fast, batch_size
        self.begin(None)

    def begin(self, x: Tensor | None) -> None:
        """Begin a step with this `batch.x`; the outputs of the last step are no longer needed."""
        self._x, self._fresh = x, True
        self._outputs: Tensor | None = None  # of the last pass of batch.x
        self._as_many: Tensor | None = None  # of the last pass of as many other rows

    def __call__(self, x: Tensor) -> Tensor:
        # The fast way is made for full batches, so that a small last batch never compiles anew, and for one
        # call a step, because the next would overwrite its outputs.
        fast = self._fresh and len(x) == self._batch_size and self._model.training
        outputs, self._fresh = (self._fast if fast else self._model)(x), False
        if x is self._x:
            self._outputs = outputs
        elif self._x is not None and len(x) == len(self._x):
            self._as_many = outputs
        return outputs

    def logits(self, *, recorded: bool) -> Tensor:
        """Return the outputs for the samples of the batch, (batch, classes).

        A training that is not `recorded` only counts correct samples. Where `batch.x` did not pass, it takes
        the last pass of as many rows, such as another view of them.
        """
        found = self._outputs if recorded or self._outputs is not None else self._as_many
        if found is None:
            wanted = "losses are recorded" if recorded else "training accuracy is counted"
            raise ValueError(
                f"{wanted}, but it is not known which outputs are the batch's, because the objective never "
                "calls model(batch.x); call it once, under torch.no_grad() if it is not trained on"
                + (", or fit without record" if recorded else "")
            )
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
