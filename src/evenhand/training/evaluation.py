"""Evaluation: a model's outputs and accuracies, and the scores and curves of a finished run.

`score` and `dynamics` read the true groups, those of the test set among them, which no method sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.core import ranks
from evenhand.core.metrics import wilson_interval
from evenhand.core.partition import Partition
from evenhand.training import sync
from evenhand.training.batches import Batches, batch_sizes
from evenhand.training.data import Split, Task
from evenhand.training.models import find_head, head_inputs
from evenhand.training.recipe import Recipe

if TYPE_CHECKING:
    from evenhand.training.stage import Fit


def autocast(recipe: Recipe, device: torch.device, **options: bool) -> torch.autocast:
    """bf16 arithmetic where the recipe asks for it."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.precision == "bf16", **options)


def eval_batch_size(recipe: Recipe) -> int:
    """How many samples are evaluated at a time."""
    return max(recipe.batch_size, 256)


@torch.no_grad()
def logits(model: nn.Module, batches: Batches, recipe: Recipe) -> Tensor:
    """The model's outputs for every row, in order and in evaluation mode: (samples, classes) float32.

    Ranks share the batches out among them, and all get all outputs.
    """
    model.eval()
    generator = torch.Generator(batches.source.device)
    num_rows = len(batches.split)
    sizes = batch_sizes(num_rows, batches.batch_size)
    shard, rows = sync.shard(sizes)
    outputs = []
    for batch in batches(torch.arange(num_rows)[rows], generator, sizes[shard]):
        with autocast(recipe, batches.source.device):
            outputs.append(model(batch.x).float())
    return sync.all_gather(torch.cat(outputs), rows, num_rows)


@torch.no_grad()
def features(model: nn.Module, batches: Batches, recipe: Recipe) -> Iterator[np.ndarray]:
    """What the model gives to its head for every row, in order and in evaluation mode, a few batches a time.

    (rows, dimensions) float32 each, so that features larger than memory can be written. Ranks share the
    batches out among them, and all get all features.
    """
    model.eval()
    device, head, start = batches.source.device, None, 0
    sizes, block = batch_sizes(len(batches.split), batches.batch_size), max(8, ranks.count())
    for first in range(0, len(sizes), block):
        part = sizes[first : first + block]
        shard, rows = sync.shard(part)
        order, found = torch.arange(start, start + sum(part))[rows], []
        for batch in batches(order, torch.Generator(device), part[shard]):
            head = head or find_head(model, batch.x)[1]
            with head_inputs(head) as kept, autocast(recipe, device):
                model(batch.x)
            found.append(kept[-1].float())
        yield sync.all_gather(torch.cat(found), rows, sum(part)).cpu().numpy()
        start += sum(part)


def evaluate(model: nn.Module, batches: Batches, recipe: Recipe) -> tuple[Tensor, Tensor, Tensor]:
    """Every sample's loss, whether it is classified correctly, and its outputs; the last on the device."""
    outputs = logits(model, batches, recipe)
    labels = batches.split.y.to(outputs.device)
    losses = F.cross_entropy(outputs, labels, reduction="none")
    return losses.cpu(), (outputs.argmax(1) == labels).cpu(), outputs


def weighted_mean(correct: Tensor, weight: Tensor | None) -> float:
    """Accuracy, each sample counting with its weight."""
    if weight is None:
        return correct.double().mean().item()
    return ((correct.double() * weight).sum() / weight.double().sum()).item()


def standard_error(correct: Tensor, weight: Tensor | None) -> float:
    """How far such an accuracy typically lies from that of other samples of the same kind.

    >>> standard_error(torch.tensor([True, True, False, False]), None)
    0.25
    """
    share = torch.ones(len(correct)).double() if weight is None else weight.double()
    # As if there were two more of the heaviest samples, one of them wrong: few that are right prove little.
    more, total = share.max(), share.sum()
    accuracy = ((share * correct).sum() + more) / (total + 2 * more)
    return ((accuracy * (1 - accuracy) * (share * share).sum()).sqrt() / total).item()


# -- a finished run -----------------------------------------------------------------------------------


def score(split: Split, predictions: npt.NDArray[np.int64], task: Task) -> dict[str, Any]:
    """Accuracies of one split; where there are no groups, the worst class stands for the worst group."""
    correct = predictions == split.y.numpy()
    classes = _parts(correct, split.y.numpy(), task.class_names)
    groups = None if split.group is None else _parts(correct, split.group.numpy(), task.group_names)
    worst = min(groups or classes, key=lambda part: part["accuracy"])
    weight = None if split.weight is None else split.weight.double().numpy()
    return {
        "wga": worst["accuracy"],
        "wga_interval": worst["interval"],
        "wga_over": "classes" if groups is None else "groups",
        "worst_group": worst["name"],
        "worst_class": min(part["accuracy"] for part in classes),
        "accuracy": float(correct.mean()),
        "accuracy_weighted": float(np.average(correct, weights=weight)),
        "accuracy_balanced": float(np.mean([part["accuracy"] for part in groups or classes])),
        "groups": groups,
        "classes": classes,
    }


def _parts(
    correct: npt.NDArray[np.bool_], part: npt.NDArray[np.int64], names: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Accuracy, size and 95% interval of every group (or class) that has samples."""
    counts = np.bincount(part, minlength=len(names))
    hits = np.bincount(part, weights=correct, minlength=len(names)).astype(int)
    return [
        {
            "name": names[i],
            "count": int(counts[i]),
            "accuracy": hits[i] / counts[i],
            "interval": list(wilson_interval(int(hits[i]), int(counts[i]))),
        }
        for i in np.flatnonzero(counts)
    ]


def dynamics(fits: Mapping[str, Fit], partition: Partition | None, task: Task) -> dict[str, Any] | None:
    """Curves of every recorded training and the make-up of the clusters; None where nothing conflicts.

    For tables and figures only.
    """
    if not has_conflicts(task):
        return None
    stages = {
        name: {
            "train": _curves(fit.hits, fit.losses, task.train, task),
            "val": _curves(fit.val_hits, fit.val_losses, task.val, task),
        }
        for name, fit in sorted(fits.items())
        if fit.recorded
    }
    return {"stages": stages, "clusters": [] if partition is None else _clusters(partition, task)}


def has_conflicts(task: Task) -> bool:
    """Whether it is known which training and validation samples break the shortcut."""
    return task.train.group is not None and task.val.group is not None and bool(task.conflicting)


def _curves(hits: np.ndarray, losses: np.ndarray, split: Split, task: Task) -> dict[str, Any]:
    """Accuracy and mean loss of aligned and of conflicting samples after every epoch."""
    conflicting = _conflicting(split, task)
    return {
        name: {
            "count": int(rows.sum()),
            "accuracy": hits[rows].mean(axis=0, dtype=np.float64).tolist() if rows.any() else [],
            "loss": losses[rows].mean(axis=0, dtype=np.float64).tolist() if rows.any() else [],
        }
        for name, rows in (("aligned", ~conflicting), ("conflicting", conflicting))
    }


def _clusters(partition: Partition, task: Task) -> list[dict[str, Any]]:
    """Size of each class's clusters, and how many of their samples conflict."""
    conflicting = _conflicting(task.train, task)
    cells = []
    for label in partition.classes.tolist():
        for cluster in ("majority", "minority"):
            rows = (partition.labels == label) & (partition.minority == (cluster == "minority"))
            cells.append(
                {
                    "class": task.class_names[int(label)],
                    "cluster": cluster,
                    "size": int(rows.sum()),
                    "conflicting": int((rows & conflicting).sum()),
                }
            )
    return cells


def _conflicting(split: Split, task: Task) -> np.ndarray:
    assert split.group is not None
    conflicting: np.ndarray = np.isin(split.group.numpy(), sorted(task.conflicting))
    return conflicting
