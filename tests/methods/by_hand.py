"""Inputs whose losses are known by hand, and a Run that only notes what a method asks for."""

from __future__ import annotations

import math
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

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


class FeatureRun:
    """A Run whose network only hands its inputs on to its last layer, so that inputs are features.

    It notes what `fit` is asked for, and returns the network as it is.
    """

    def __init__(self, x: Tensor, y: list[int], head: nn.Linear, *, group: list[int] | None = None) -> None:
        split = Split(x, torch.tensor(y), group=None if group is None else torch.tensor(group))
        self.train = self.val = split
        self.network = nn.Sequential(nn.Identity(), head)
        self.num_classes, self.seed, self.device = head.out_features, 0, torch.device("cpu")
        self.recipe, self.task = Recipe(), SimpleNamespace(name="made")
        self.asked: list[dict[str, Any]] = []

    def fit(self, stage: str, split: Split | None = None, **given: Any) -> SimpleNamespace:
        self.asked.append({"stage": stage, "split": split, **given})
        return SimpleNamespace(model=self.network, epochs=20)

    def features(self, fit: Any, split: Split) -> np.ndarray:
        return split.x[split.rows].numpy()

    def predict(self, model: nn.Module, split: Split) -> Tensor:
        return model(split.x[split.rows]).detach()

    def hold_out(self, fraction: float) -> tuple[Split, Split]:
        """The last samples, instead of random ones of each class."""
        rows = np.arange(len(self.train))
        cut = len(rows) - round(fraction * len(rows))
        return self.train.take(rows[:cut]), self.train.take(rows[cut:])


def linear(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    """A linear layer with these weights."""
    layer = nn.Linear(len(weight[0]), len(weight))
    layer.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    return layer
