"""PGI, predictive group invariance (Ahmed et al., ICLR 2021): equal predictions in both parts of a class."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from evenhand.methods._environments import worst_and_mean
from evenhand.training.data import Batch, fixed_randomness
from evenhand.training.models import find_head
from evenhand.training.run import Run

VERSION = 1
HELPS = "one early epoch shows the minority; batches are large"
GRID = {"penalty": [1.0, 5.0, 20.0, 50.0]}
TRAININGS = 2
COST_NOTE = "counted as one training; the first epoch and small nets on its features come on top"
WIDTH, TEMPERATURE, STEPS, STEP_SIZE, AT_ONCE = 64, 10.0, 100, 1e-4, 512  # of the partition nets
SMALLEST = 8  # a class of fewer samples stays whole
TINY = 1e-12


def train(run: Run, *, penalty: float = 5.0, ramp: int = 5) -> nn.Module:
    """Divide every class after one epoch, then go on with a penalty on unlike predictions of its two parts.

    `penalty`: its weight, which rises over the first `ramp` epochs.
    """
    first = run.fit("erm", stop=1)
    features, val_features = (run.features(first, split) for split in (run.train, run.val))
    logits = run.predict(first.model, run.train)
    parts = run.cached(
        first,
        "pgi-parts",
        lambda: divide(features, val_features, logits, run.train.y, run.val.y, run.seed),
    )
    minority, val_minority = np.split(parts, [len(run.train)])
    run.found(minority)
    steps = ramp * -(-len(run.train) // run.recipe.batch_size)
    return run.fit(
        "model",
        objective=Invariance(penalty, steps),
        environments=minority.astype(np.int64),
        start=first,
        score=partial(worst_and_mean, group=2 * run.val.y + torch.from_numpy(val_minority)),
        recipe=run.recipe.replace(keep="best", patience=run.recipe.epochs),
    ).model


def divide(
    train: np.ndarray, val: np.ndarray, logits: Tensor, labels: Tensor, val_labels: Tensor, seed: int
) -> np.ndarray:
    """Which samples are in their class's part with the higher loss, (training + validation samples,) bool.

    `train` and `val` are features, `logits` the outputs for the training samples.
    [PGI-5] Every class has a net, whose sign divides it. The part with the higher mean loss is the minority.
    """
    losses = F.cross_entropy(logits, labels, reduction="none")
    minority, val_minority = (torch.zeros(len(y), dtype=torch.bool) for y in (labels, val_labels))
    with fixed_randomness(seed):
        for label in labels.unique():
            own, val_own = labels == label, val_labels == label
            if own.sum() >= SMALLEST:
                given, val_given = map(torch.from_numpy, (train[own.numpy()], val[val_own.numpy()]))
                net = partition_net(given, logits[own], labels[own])
                part, val_part = net(given) > 0, net(val_given) > 0
                if part.any() and not part.all():
                    first = losses[own][part].mean() >= losses[own][~part].mean()
                    minority[own], val_minority[val_own] = part == first, val_part == first
    return torch.cat([minority, val_minority]).numpy()


def partition_net(features: Tensor, logits: Tensor, labels: Tensor) -> nn.Module:
    """A net that divides one class softly: a = (1 + tanh(net(features) / T)) / 2, trained for [PGI-3]."""
    sizes = [features.shape[1], WIDTH, WIDTH // 2, WIDTH // 3]
    layers: list[nn.Module] = []
    for wide, narrow in itertools.pairwise(sizes):
        layers += [spectral_norm(nn.Linear(wide, narrow)), nn.LayerNorm(narrow), nn.ReLU()]
    net = nn.Sequential(*layers, spectral_norm(nn.Linear(sizes[-1], 1, bias=False)), nn.Flatten(0))
    optimizer = torch.optim.Adam(net.parameters(), lr=STEP_SIZE)
    for _ in range(STEPS):
        rows = torch.randperm(len(features))[:AT_ONCE]
        parts = (1 + torch.tanh(net(features[rows]) / TEMPERATURE)) / 2
        optimizer.zero_grad()
        (-contrast(parts, logits[rows], labels[rows]) / 2).backward()
        optimizer.step()
    return net.eval().requires_grad_(False)


def contrast(parts: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """What a division of samples into a and 1 - a is to maximize.

    [PGI-3] R1 + R2 + 10 (G1 + G2). R is the mean loss of a part. G is the squared norm of its gradient with
    respect to factors of the logits, one for each class, at 1.
    """
    losses = F.cross_entropy(logits, labels, reduction="none")
    # The gradient of a loss with respect to the factor of a class is (softmax - label) x logit.
    slopes = (logits.softmax(1) - F.one_hot(labels, logits.shape[1])) * logits
    total = torch.zeros(())
    for part in (parts, 1 - parts):
        share = part / part.sum()
        total = total + share @ losses + 10 * ((share @ slopes) ** 2).sum()
    return total


class Invariance(nn.Module):
    """Cross-entropy that is even between the parts, and a penalty that reaches the features alone.

    - [PGI-1] half of the mean loss of the majorities + half of that of the minorities
    - [PGI-2] penalty x min(1, steps / ramp) x `unlike`, whose gradient does not reach the last layer
    """

    def __init__(self, penalty: float, ramp: int) -> None:
        super().__init__()
        self.penalty, self.ramp = penalty, ramp

    def parameter_groups(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        head = list(find_head(model)[1].parameters())
        known = {id(parameter) for parameter in head}
        return {"features": [each for each in model.parameters() if id(each) not in known], "head": head}

    def step(self, model: Any, batch: Batch, optimizers: dict[str, Any]) -> Tensor:
        assert batch.environment is not None
        logits = model(batch.x)
        member = batch.environment == torch.arange(2, device=logits.device)[:, None]  # (parts, batch)
        losses = F.cross_entropy(logits, batch.y, reduction="none")
        loss = ((member * losses).sum(1) / member.sum(1).clamp(min=1)).mean()
        weight = self.penalty * min(1.0, (batch.step + 1) / self.ramp)
        total = loss + weight * unlike(logits, batch.y, batch.environment)
        for name, optimizer in optimizers.items():
            own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            gradients = torch.autograd.grad(loss if name == "head" else total, own, retain_graph=True)
            for parameter, gradient in zip(own, gradients, strict=True):
                parameter.grad = gradient
        for optimizer in optimizers.values():
            optimizer.step()
        return loss.detach()


def unlike(logits: Tensor, labels: Tensor, minority: Tensor) -> Tensor:
    """How unlike the mean predictions of each class's two parts are; a class with one part here adds nothing.

    [PGI-4] Sum over classes of the mean over outputs k of p1_k log(p1_k / p0_k). p1 is the mean softmax of
    the minority and p0 that of the majority, both between 1e-12 and 1 - 1e-12.
    """
    cell = 2 * labels + minority
    cells = torch.arange(2 * logits.shape[1], device=logits.device)
    member = (cell == cells[:, None]).float()  # (cells, batch)
    sizes = member.sum(1)
    means = (member @ logits.float().softmax(1) / sizes.clamp(min=1)[:, None]).clamp(TINY, 1 - TINY)
    majority, other = means.view(-1, 2, logits.shape[1]).unbind(1)
    both = (sizes.view(-1, 2) > 0).all(1)
    return ((other * (other / majority).log()).mean(1) * both).sum()
