"""Last layers on the features of a trained network: what several methods share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.training.models import find_head, replace_head
from evenhand.training.run import Run

VERSION = 1  # part of the keys of trainings that use a function of this file


class Head(NamedTuple):
    """A linear last layer: weight (classes, dimensions) and bias (classes,)."""

    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)


def head_of(model: nn.Module) -> Head:
    """Return the last layer of a network, which must be linear and have a bias."""
    name, layer = find_head(model)
    if not isinstance(layer, nn.Linear) or layer.bias is None:
        raise ValueError(f"the last layer, {name}, must be an nn.Linear with a bias, got {layer}")
    return Head(layer.weight.detach().clone(), layer.bias.detach().clone())


def with_head(model: nn.Module, head: Head) -> nn.Module:
    """Return a copy of the network with this last layer."""
    num_classes, num_features = head.weight.shape
    layer = nn.Linear(num_features, num_classes, device=head.weight.device)
    layer.load_state_dict({"weight": head.weight, "bias": head.bias})
    return replace_head(model, layer)


def even_weights(labels: Tensor) -> Tensor:
    """Return weights that sum to one, and to the same over every class, (samples,).

    >>> even_weights(torch.tensor([0, 0, 0, 1]))
    tensor([0.1667, 0.1667, 0.1667, 0.5000])
    """
    counts = torch.bincount(labels)
    return 1 / (counts[labels] * (counts > 0).sum())


def even_subset(labels: np.ndarray, *seed: int) -> np.ndarray:
    """Return positions of as many random samples of every class, or group, as the smallest one has."""
    present, counts = np.unique(labels, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    return np.sort(np.concatenate([order[labels[order] == each][: counts.min()] for each in present]))


def on_device(run: Run, *arrays: np.ndarray | Tensor) -> list[Tensor]:
    """Return the arrays as tensors on the device of the run."""
    return [(torch.tensor(each) if isinstance(each, np.ndarray) else each).to(run.device) for each in arrays]


def descend(
    start: Head,
    features: Tensor,
    labels: Tensor,
    weights: Tensor,
    *,
    steps: int,
    lr: float,
    momentum: float = 0.0,
    pull: float = 0.0,
    most: float = float("inf"),
) -> Head:
    """Fit a last layer to weighted samples by full-batch gradient descent from another one.

    [HEAD-1] It minimizes the sum of w_i x cross-entropy_i + pull x |head - start|^2; a gradient's norm is
    at most `most`.
    """
    weight, bias = (each.clone().requires_grad_() for each in start)
    optimizer = torch.optim.SGD([weight, bias], lr=lr, momentum=momentum)
    for _ in range(steps):
        losses = F.cross_entropy(F.linear(features, weight, bias), labels, reduction="none")
        distance = (weight - start.weight).square().sum() + (bias - start.bias).square().sum()
        optimizer.zero_grad()
        torch.autograd.backward((weights * losses).sum() + pull * distance)
        nn.utils.clip_grad_norm_([weight, bias], most)
        optimizer.step()
    return Head(weight.detach(), bias.detach())


def sparse_head(features: Tensor, labels: Tensor, num_classes: int, strength: float, steps: int) -> Head:
    """Fit logistic regression with an L1 penalty, by accelerated proximal gradient descent (FISTA).

    [HEAD-2] It minimizes |weight|_1 + strength x the sum of cross-entropies; the bias has no penalty.
    """
    size, target = len(features), F.one_hot(labels, num_classes).float()
    inputs = torch.cat([features, features.new_ones(size, 1)], dim=1)
    # Cross-entropy's second derivative in the logits is at most 1/2.
    rate = 2 * size / torch.linalg.matrix_norm(inputs, 2).square()
    limit = rate / (strength * size) * torch.ones_like(inputs[:1])
    limit[:, -1] = 0
    head = ahead = inputs.new_zeros(num_classes, inputs.shape[1])
    momentum = 1.0
    for _ in range(steps):
        slope = ((inputs @ ahead.T).softmax(1) - target).T @ inputs / size
        moved = ahead - rate * slope
        moved = moved.sign() * (moved.abs() - limit).clamp(min=0)
        faster = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        head, ahead, momentum = moved, moved + (momentum - 1) / faster * (moved - head), faster
    return Head(head[:, :-1], head[:, -1])
