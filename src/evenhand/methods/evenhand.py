"""Evenhand: balance by a biased model's errors, keep the checkpoint that serves both parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from evenhand.core.history import summarise
from evenhand.core.partition import Partition, partition, rebalance
from evenhand.methods.class_balanced import class_weights
from evenhand.methods.tab import even_chances
from evenhand.training.data import Batch, Split
from evenhand.training.objective import separable
from evenhand.training.run import Run

VERSION = 4
HELPS = "as TAB, and nothing can be tuned"
GRID: dict[str, list[Any]] = {}
TRAININGS = 2
COST = 2.0  # the repeated set has at most 2 N samples
Q = 0.7  # of the generalized cross-entropy, as in the papers that introduced it and used it to seek bias
EVEN_SPREAD = 0.75  # of the squares of evenly spread numbers, a cut in the middle explains so much
HALF_WAY = 0.5  # the strength of rebalancing by a split that explains no more


def train(
    run: Run,
    *,
    identifier: Literal["confident", "erm"] = "confident",
    summary: Literal["error", "loss", "history"] = "error",
    split: Literal["clear", "full", "any"] = "clear",
    draw: Literal["repeated", "fresh"] = "repeated",
    average: bool = True,
    keep: Literal["best", "last"] = "best",
    form: Literal["auto", "network", "head"] = "auto",
) -> nn.Module:
    """Train as TAB does, without groups or hyperparameters. Each argument takes one ingredient away.

    - `identifier`: the first training minimizes the generalized cross-entropy ("confident"), or is ERM's.
    - `summary`: split by the mean probability of error, by the mean loss, or by the whole history.
    - `split`: balance only clear splits in full; or all that more than one sample shows; or any.
    - `draw`: TAB's repeated set, or fresh draws with half as many samples per epoch.
    - `average`: an exponential moving average of the weights over about one epoch.
    - `keep`: the check with the best sum of plain and part-balanced validation accuracy, or the last. Checks
      that lose more than a point of plain accuracy, or its standard error if larger, do not count.
    - `form`: "head" is for a head on embeddings (`last_layer`), "network" for everything else.

    A training that has learned nothing restarts with other weights.
    """
    if form == "head" or (form == "auto" and on_embeddings(run)):
        return last_layer(run)
    if identifier == "erm":
        first = run.fit(identifier, stop="train")  # the training that ERM and TAB share
    else:
        objective = generalised_cross_entropy
        first = run.fit("identifier", objective=objective, stop="train", record=True, again=True)
    kind: Literal["error", "loss"] = "loss" if summary == "loss" else "error"
    numbers, val_numbers = summarise(first.losses, kind), summarise(first.val_losses, kind)
    parts = partition(first.losses if summary == "history" else numbers, run.train.y)
    if summary == "error" and split != "any":
        parts = as_far_as_clear(parts, numbers)
    if split == "full":
        parts = dataclasses.replace(parts, strength=1.0)
    balanced = rebalance(parts, seed=run.seed)
    run.found(parts, balanced, val=partition(val_numbers, run.val.y))
    minority = joined(parts, numbers, val_numbers, run.val.y)
    return run.fit(
        "model",
        run.train.take(balanced) if draw == "repeated" else None,
        draw=even_chances(parts) if draw == "fresh" else None,
        choose=None if keep == "last" else even_weights(run.val.y, minority, parts.strength),
        recipe=run.recipe.replace(keep=keep, average=average),
        again=True,
    ).model


def on_embeddings(run: Run) -> bool:
    """Whether the model is a head of ours on standardized vectors."""
    vectors = isinstance(run.train.x, (Tensor, np.ndarray)) and run.train.x.ndim == 2
    return vectors and run.task.mean is not None and run.task.make_model is None


def last_layer(run: Run) -> nn.Module:
    """The form for heads on embeddings: even classes and even parts in each epoch, and in the choice of one.

    A head learns within a few passes and cannot learn single samples by heart as a network does, so an epoch
    has N fresh draws, and weights are not averaged. Classes are drawn evenly in both trainings: otherwise the
    head of uneven classes calls a whole class rare (docs/method.md). The second training keeps the check that
    has the best mean accuracy over the parts of all classes.
    """
    objective = EvenClasses(class_weights(run.train.y, run.num_classes))
    first = run.fit("identifier", objective=objective, stop="train", record=True)
    numbers, val_numbers = summarise(first.losses, "error"), summarise(first.val_losses, "error")
    parts = as_far_as_clear(partition(numbers, run.train.y), numbers)
    run.found(parts)
    minority = torch.from_numpy(joined(parts, numbers, val_numbers, run.val.y))
    chances = even_chances(parts, even_classes=True)
    return run.fit("model", draw=chances, score=EvenParts(2 * run.val.y + minority)).model


@separable
class EvenClasses(nn.Module):
    """The mean over samples of the generalized cross-entropy times the weight of the class."""

    weights: Tensor  # (classes,)

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        return (self.weights[batch.y] * unlikeliness(model(batch.x), batch.y)).mean() / Q


class EvenParts:
    """The mean accuracy over cells of validation samples, (samples,): the parts of all classes."""

    def __init__(self, cells: Tensor) -> None:
        self.cells = cells

    def __call__(self, logits: Tensor, val: Split) -> float:
        hits, counts = (logits.argmax(1) == val.y).float(), torch.bincount(self.cells)
        sums = torch.bincount(self.cells, weights=hits, minlength=len(counts))
        return float((sums[counts > 0] / counts[counts > 0]).mean())


@separable
def generalised_cross_entropy(model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """(1 - p^q) / q of the probability p of the label: a sample's gradient is p^q times cross-entropy's.

    A sample that the model finds impossible has a small gradient, so the model learns the easiest pattern
    (Zhang and Sabuncu, NeurIPS 2018). Nam et al. (NeurIPS 2020) use it to find bias.
    """
    return unlikeliness(model(batch.x), batch.y).mean() / Q


def unlikeliness(logits: Tensor, y: Tensor) -> Tensor:
    """1 - p^q of each sample, (samples,)."""
    log_p = logits.float().log_softmax(1).gather(1, y[:, None])[:, 0]
    return -torch.expm1(Q * log_p)


def as_far_as_clear(parts: Partition, numbers: np.ndarray) -> Partition:
    """Keep a class whole if its split shows only one outlier; balance partially if no split is clear.

    A split explains a part of a class's sum of squares. Probabilities of error lie between 0 and 1, so a
    single sample explains less than 1. Cuts through evenly spread numbers explain 3/4. If all splits
    together explain no more, the samples may only differ in difficulty. Minorities are then repeated to the
    geometric mean of both sizes.
    """
    position = np.searchsorted(parts.classes, parts.labels)
    counts = np.bincount(position)
    means = np.bincount(position, weights=numbers) / counts
    total = np.bincount(position, weights=(numbers - means[position]) ** 2)
    explained, split = parts.separation * total, parts.sizes[:, 1] > 0
    alone = split & (explained <= 1)
    kept = split & ~alone
    clear = explained[kept].sum() > EVEN_SPREAD * total[kept].sum()
    reasons = dict.fromkeys(parts.classes[alone].tolist(), "split no clearer than by one odd sample")
    whole = alone[position]
    return dataclasses.replace(
        parts,
        minority=parts.minority & ~whole,
        sizes=np.where(alone[:, None], np.stack([counts, 0 * counts], 1), parts.sizes),
        separation=np.where(alone, 0.0, parts.separation),
        margin=np.where(whole, np.float32(0), parts.margin),
        unsplit={**parts.unsplit, **reasons},
        strength=1.0 if clear or not kept.any() else HALF_WAY,
    )


def joined(parts: Partition, numbers: np.ndarray, other: np.ndarray, labels: Tensor) -> np.ndarray:
    """Which of other samples, (others,), are nearer to their class's minority than to its majority."""
    y, minority = labels.numpy(), np.zeros(len(other), dtype=bool)
    for label in parts.classes[parts.sizes[:, 1] > 0]:
        own = parts.labels == label
        far = abs(other - numbers[own & ~parts.minority].mean())
        near = abs(other - numbers[own & parts.minority].mean())
        minority |= (y == label) & (near < far)
    return minority


def even_weights(labels: Tensor, minority: np.ndarray, strength: float = 1.0) -> Tensor:
    """Weights of samples, (samples,), under which the two parts of a class count the same.

    With a strength below 1 they are taken to that power, and a class in two parts then counts a little less
    than one that is whole.
    """
    y = labels.numpy()
    cell = 2 * y + minority
    sizes = np.bincount(cell, minlength=2 * int(y.max()) + 2).reshape(-1, 2)  # (classes, 2)
    pieces = np.count_nonzero(sizes, axis=1)
    weight = sizes.sum(axis=1)[y] / pieces[y] / sizes.reshape(-1)[cell]
    return torch.from_numpy((weight**strength).astype(np.float32))
