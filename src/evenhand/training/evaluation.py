"""What a model says of samples: outputs, losses and accuracies, in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.core import ranks
from evenhand.training import sync
from evenhand.training.batches import Batches, batch_sizes
from evenhand.training.models import find_head, head_inputs
from evenhand.training.recipe import Recipe


def autocast(recipe: Recipe, device: torch.device, **options: bool) -> torch.autocast:
    """bf16 arithmetic where the recipe asks for it."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.precision == "bf16", **options)


@torch.no_grad()
def logits(model: nn.Module, batches: Batches, recipe: Recipe) -> Tensor:
    """The model's outputs for every row, in order and in evaluation mode: (samples, classes) float32.

    Ranks share the batches out among them, and all get all outputs.
    """
    model.eval()
    generator = torch.Generator(batches.source.device)
    num_rows = len(batches.split)
    sizes = batch_sizes(num_rows, batches.batch_size)
    own, rows = sync.dealt(sizes)
    outputs = []
    for batch in batches(torch.arange(num_rows)[rows], generator, sizes[own]):
        with autocast(recipe, batches.source.device):
            outputs.append(model(batch.x).float())
    return sync.gathered(torch.cat(outputs), rows, num_rows)


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
        own, rows = sync.dealt(part)
        order, found = torch.arange(start, start + sum(part))[rows], []
        for batch in batches(order, torch.Generator(device), part[own]):
            head = head or find_head(model, batch.x)[1]
            with head_inputs(head) as kept, autocast(recipe, device):
                model(batch.x)
            found.append(kept[-1].float())
        yield sync.gathered(torch.cat(found), rows, sum(part)).cpu().numpy()
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
