"""XRM (Pezeshki et al., ICML 2024): twin networks relabel their mistakes; their errors define the groups."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.methods._environments import Then, robust
from evenhand.training.data import Batch, Split
from evenhand.training.run import Run
from evenhand.training.stage import Fit

VERSION = 1
HELPS = "the shortcut is easier than the rule; labels are clean"
GRID: dict[str, list[Any]] = {}
PUBLISHED = "worst inferred group of validation (XRM, main.py)"
COST = 3.0  # two nets, then the model
TRAININGS = 2


def train(
    run: Run,
    *,
    twins: Literal["auto", "networks", "linear"] = "auto",
    steps: int = 5_000,
    then: Then = "gdro",
) -> nn.Module:
    """Train twin nets on one random half each, without early stopping; then train on what they find.

    `twins`: networks like the model, or linear layers on features of the pretrained network, as the authors'
    for images; "auto" takes these where the recipe has weights to start from.
    [XRM-1] Each twin minimizes the sum over classes of the mean loss of the class in its own half.
    [XRM-2] In every step a label becomes, for good, what the held-out twin predicts, with probability
    (p_max - 1 / L) L / (L - 1), where p_max is that twin's highest probability and L the number of classes.
    [XRM-3] A sample's environment is 1 where either twin is wrong about the original label, also of
    validation samples, whose environments then choose the check.
    [XRM-4] Of several learning rates of linear twins, the one is taken that flips most labels and leaves
    every class in both environments, if any does.
    """
    splits, make, rates = (run.train, run.val), None, [1.0]
    if twins == "linear" or (twins == "auto" and run.recipe.weights is not None):
        network, rates = run.make_model(), [1.0, 10.0, 0.1]
        splits = run.feature_split(network, run.train), run.feature_split(network, run.val)
        make = partial(zeros, splits[0].x.shape[1], run.num_classes)  # type: ignore[union-attr]
    half = run.hold_out(0.5)[1].index
    epochs = math.ceil(steps / math.ceil(len(run.train) / run.recipe.batch_size))
    found: list[tuple[bool, float, list[np.ndarray], Fit]] = []
    for rate in rates:
        other = run.make_model(salt=1) if make is None else make()
        fit = run.fit(
            "twins",
            splits[0],
            objective=Twins(other, run.train.y, half, run.num_classes),
            model=make,
            val=splits[1],
            stop=min(epochs, run.recipe.epochs) if make is None else epochs,
            recipe=run.recipe.replace(lr=rate * run.recipe.lr),
        )
        state = fit.objective_state
        other.load_state_dict({key[5:]: state[key] for key in state if key.startswith("twin.")})
        wrong = [mistakes(run, (fit.model, other), split) for split in splits]
        both = all(is_split(each, split.y) for each, split in zip(wrong, splits, strict=True))
        flipped = float((state["labels"].cpu() != run.train.y).float().mean())
        found.append((both, flipped, wrong, fit))
    *_, (train, val), best = max(found, key=lambda each: each[:2])
    run.stages["twins"] = replace(best, seconds=sum(fit.seconds for *_, fit in found))
    return run.fit("model", **robust(run, train, then, val)).model


def zeros(num_features: int, num_classes: int) -> nn.Linear:
    """A linear layer that begins at zero."""
    layer = nn.Linear(num_features, num_classes)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def mistakes(run: Run, nets: tuple[nn.Module, nn.Module], split: Split) -> np.ndarray:
    """[XRM-3], (samples,) 0 or 1."""
    first, second = (run.predict(net, split).argmax(1) != split.y for net in nets)
    return (first | second).numpy().astype(np.int64)


def is_split(environments: np.ndarray, labels: Tensor) -> bool:
    """Whether every class has samples in both environments."""
    y = labels.numpy()
    return all(len(np.unique(environments[y == label])) == 2 for label in np.unique(y))


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
