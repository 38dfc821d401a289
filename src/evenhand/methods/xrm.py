"""XRM (Pezeshki et al., ICML 2024): twin nets flip labels to their mistakes; both then show who is rare."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.methods._environments import Then, robust
from evenhand.training.data import Batch, Split
from evenhand.training.run import Run

VERSION = 1
GRID: dict[str, list[Any]] = {}
COST = 3.0  # two nets, then the model


def train(run: Run, *, steps: int = 5_000, then: Then = "gdro") -> nn.Module:
    """Train twin nets on one random half each, without early stopping; then train on what they find.

    [XRM-1] Each twin minimises the sum over classes of the mean loss of the class in its own half.
    [XRM-2] In every step a label becomes, for good, what the held-out twin predicts, with probability
    (p_max - 1 / L) L / (L - 1), where p_max is that twin's highest probability and L the number of classes.
    [XRM-3] A sample's environment is 1 where either twin is wrong about the original label, also of
    validation samples, whose environments then choose the check.
    """
    _, half = run.hold_out(0.5)
    objective = Twins(run.make_model(salt=1), run.train.y, half.index, run.num_classes)
    epochs = math.ceil(steps / math.ceil(len(run.train) / run.recipe.batch_size))
    twins = run.fit("twins", objective=objective, stop=min(epochs, run.recipe.epochs))
    other = run.make_model(salt=1)
    state = twins.objective_state
    other.load_state_dict({key.removeprefix("twin."): state[key] for key in state if key.startswith("twin.")})

    def mistakes(split: Split) -> np.ndarray:
        wrong = [run.predict(model, split).argmax(1) != split.y for model in (twins.model, other)]
        return (wrong[0] | wrong[1]).numpy().astype(np.int64)

    return run.fit("model", **robust(run, mistakes(run.train), then, mistakes(run.val))).model


class Twins(nn.Module):
    """[XRM-1] for the model and its twin, each of which has half of the samples; labels flip by [XRM-2]."""

    labels: Tensor  # (samples,) as they are now
    side: Tensor  # (samples,) 0: the model trains on it, 1: the twin does

    def __init__(self, twin: nn.Module, labels: Tensor, half: Tensor, num_classes: int) -> None:
        super().__init__()
        self.twin, self.num_classes = twin, num_classes
        self.register_buffer("labels", labels.clone())
        self.register_buffer("side", torch.zeros_like(labels).index_fill(0, half, 1), persistent=False)

    def forward(self, model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        outputs = torch.stack([model(batch.x), self.twin(batch.x)]).float()  # (2, batch, classes)
        side, rows = self.side[batch.index], torch.arange(len(batch.y), device=outputs.device)
        labels = self.labels[batch.index]
        losses = F.cross_entropy(outputs[side, rows], labels, reduction="none")
        cell = side * self.num_classes + labels
        count = torch.bincount(cell, minlength=2 * self.num_classes)
        self._flip(batch.index, outputs[1 - side, rows].detach().softmax(1))
        return (losses / count[cell]).sum()

    def _flip(self, index: Tensor, held_out: Tensor) -> None:
        """Replace labels by the held-out twin's predictions, the more likely the surer that twin is."""
        surest, predicted = held_out.max(1)
        chance = (surest - 1 / self.num_classes) * self.num_classes / (self.num_classes - 1)
        flips = torch.rand_like(chance) < chance
        self.labels[index] = torch.where(flips, predicted, self.labels[index])
