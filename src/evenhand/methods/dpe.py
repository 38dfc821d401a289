"""DPE (To et al., ICML 2025): diverse class prototypes, fitted on balanced validation samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.methods._heads import even_subset, on_device
from evenhand.training.models import PostHoc
from evenhand.training.run import Run

VERSION = 1
HELPS = "validation has many small groups; ERM's features are good"
GRID = {"diversity": [1e5, 1e4, 1e6]}
PUBLISHED = "worst group of validation, for every head (dpe4subpop, src/dpe/core.py)"
COST = 1.1  # ERM, and its heads on features of the validation set


def train(
    run: Run,
    *,
    num_heads: int = 15,
    diversity: float = 1e5,
    sharpness: float = 30.0,
    head_epochs: int = 20,
    head_lr: float = 1e-3,
    batch_size: int = 64,
) -> nn.Module:
    """Train ERM; then one head after another on its features. Scores on validation are optimistic.

    [DPE-1] Logits of a head are -|scale| x the distance of features and prototypes, both of unit length;
    features are standardized within each sample before. It has one prototype a class.
    [DPE-2] A head minimizes cross-entropy of `sharpness` x logits + 10 x the mean squared length of its
    prototypes + c_t x the mean over classes of |mean covariance with the class's earlier unit prototypes|.
    [DPE-3] c_t = diversity / (1 + 0.05 t) for head t = 0, 1, …
    [DPE-4] Each head has a random subset of validation in which all classes are equally frequent. Its last
    weights are kept: the authors keep the best epoch by true groups.
    [DPE-5] The prediction is the mean of the heads' probabilities.
    """
    erm = run.fit("erm")
    features, labels = on_device(run, run.features(erm, run.val), run.val.y)
    unit = standardised(features)
    earlier, scales = unit.new_zeros(0, run.num_classes, unit.shape[1]), []
    for number in range(num_heads):
        rows = torch.from_numpy(even_subset(run.val.y.numpy(), run.seed, 17, number)).to(run.device)
        generator = torch.Generator().manual_seed(1000 * run.seed + number)
        # Of unit length, as a small validation set has too few steps for the penalty to make them shorter.
        start = F.normalize(torch.randn(earlier.shape[1:], generator=generator), dim=1).to(run.device)
        prototypes, scale = start.requires_grad_(), torch.ones((), device=run.device, requires_grad=True)
        optimizer = torch.optim.SGD([prototypes, scale], lr=head_lr, momentum=0.9)
        weight = diversity / (1 + 0.05 * number)
        for _ in range(head_epochs):
            order = rows[torch.randperm(len(rows), generator=generator).to(run.device)]
            for part in torch.split(order, batch_size):
                logits = sharpness * distances(unit[part], prototypes[None], scale[None])[0]
                loss = F.cross_entropy(logits, labels[part])
                loss = loss + 10 * prototypes.square().sum(1).mean() + weight * overlap(prototypes, earlier)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
        earlier = torch.cat([earlier, F.normalize(prototypes.detach(), dim=1)[None]])
        scales.append(scale.detach())
    return PostHoc(erm.model, Ensemble(earlier, torch.stack(scales)))


def standardised(features: Tensor) -> Tensor:
    """Features with mean 0 within each sample, and of unit length."""
    return F.normalize(features - features.mean(1, keepdim=True), dim=1)


def distances(unit: Tensor, prototypes: Tensor, scale: Tensor) -> Tensor:
    """[DPE-1], (heads, samples, classes), for prototypes (heads, classes, dimensions)."""
    similarity = torch.einsum("nd,hcd->hnc", unit, F.normalize(prototypes, dim=2))
    return -scale.abs()[:, None, None] * (2 - 2 * similarity).clamp(min=1e-12).sqrt()


def overlap(prototypes: Tensor, earlier: Tensor) -> Tensor:
    """The mean over classes of |mean over earlier heads of the covariance of two unit prototypes|."""
    if not len(earlier):
        return prototypes.new_zeros(())
    own, others = F.normalize(prototypes, dim=1), earlier.mean(0)
    centred = (own - own.mean(1, keepdim=True)) * (others - others.mean(1, keepdim=True))
    return centred.mean(1).abs().mean()


class Ensemble(nn.Module):
    """[DPE-5] as a function of features."""

    prototypes: Tensor  # (heads, classes, dimensions)
    scale: Tensor  # (heads,)

    def __init__(self, prototypes: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("prototypes", prototypes)
        self.register_buffer("scale", scale)

    def forward(self, logits: Tensor, features: Tensor) -> Tensor:
        each = distances(standardised(features), self.prototypes, self.scale).softmax(2)
        return each.mean(0).clamp(min=1e-30).log()


def rebuild(network: Callable[[], nn.Module], tensors: Mapping[str, Tensor], num_classes: int) -> nn.Module:
    """The model of a record, whose weights are to be filled in."""
    parts = (torch.zeros_like(tensors[f"function.{name}"]) for name in ("prototypes", "scale"))
    return PostHoc(network(), Ensemble(*parts))
