"""Inputs whose losses are known by hand, and a Run that only notes what a method asks for."""

from __future__ import annotations

import math
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from evenhand import Recipe, Split
from evenhand.training.data import Batch

LN2 = math.log(2)


def logits(*multiples: float) -> Tensor:
    """Outputs (samples, 2) whose cross-entropy for class 0 is this many times ln 2."""
    return torch.tensor([[0.0, math.log(2**multiple - 1)] for multiple in multiples], requires_grad=True)


def batch(x: Tensor, y: list[int] | None = None, **given: Any) -> Batch:
    rows = torch.arange(len(x))
    labels = torch.zeros(len(x), dtype=torch.int64) if y is None else torch.tensor(y)
    return Batch(x=x, y=labels, index=rows, row=rows, **given)


def identity(x: Tensor) -> Tensor:
    """A model whose outputs are its inputs."""
    return x


def close(actual: Any, expected: Any, rtol: float = 1e-5) -> None:
    actual, expected = (torch.as_tensor(each).detach().double() for each in (actual, expected))
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-6)


def asked(method: ModuleType, y: list[int], *, seed: int = 0, **settings: Any) -> dict[str, Any]:
    """What the only `fit` of a method asks the engine for."""
    found: dict[str, Any] = {}

    def fit(stage: str, split: Split | None = None, **given: Any) -> SimpleNamespace:
        assert not found, "one training"
        found.update(given, split=split)
        return SimpleNamespace(model=None)

    train = Split(torch.zeros(len(y), 1), torch.tensor(y))
    recipe = Recipe(batch_size=10, weight_decay=0.5)
    run = SimpleNamespace(train=train, num_classes=max(y) + 1, seed=seed, recipe=recipe, fit=fit)
    method.train(run, **settings)
    return found
