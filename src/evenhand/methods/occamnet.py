"""OccamNet (Shrestha et al., ECCV 2022): four exits; a sample leaves at the first sufficient one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.training.data import Batch, as_input
from evenhand.training.run import Run

VERSION = 1
HELPS = "easy samples need little of the network"
GRID = {"threshold": [0.2, 0.5], "suppression": [0.01, 0.1]}
COST_NOTE = "counted as one training; the exits make the network larger"
EXITS = 4
LATER_THRESHOLDS = (0.6, 0.7, 0.8)  # of exits 1 to 3
ENDS = (nn.AdaptiveAvgPool2d, nn.Flatten, nn.Dropout, nn.Linear)  # what follows the last map
AMPLIFY, OFFSET, BALANCE, TINY = 3.0, 0.1, 0.5, 1e-5


def train(run: Run, *, threshold: float = 0.5, suppression: float = 0.1) -> nn.Module:
    """Train all exits together, each on the samples that the gate before it passes on.

    - `threshold`: exit 0 stops learning which samples may leave once its accuracy is above this.
    - `suppression`: weight of the loss that keeps the class activation maps small.
    """
    shape = tuple(as_input(run.train.x[int(run.train.rows[0])]).shape)
    thresholds = (threshold, *LATER_THRESHOLDS)
    return run.fit(
        "model",
        model=lambda: with_exits(run.make_model(), shape, run.num_classes),
        objective=Exits(len(run.train), run.num_classes, thresholds, suppression=suppression),
        recipe=run.recipe.replace(compile="off"),  # the objective reads more of the network than its outputs
    ).model


def rebuild(network: Callable[[], nn.Module], tensors: Mapping[str, Tensor], num_classes: int) -> nn.Module:
    """The network with exits that `tensors` were saved from, made of the recipe's network."""
    ends, channels = tensors["places"].tolist()
    return OccamNet(layers_of(network()), ends, channels, num_classes)


def layers_of(network: nn.Module) -> list[nn.Module]:
    """The layers before the pooling or the classifier, in their order; sequences are taken apart."""
    layers: list[nn.Module] = []
    for part in network.children():
        inner = layers_of(part) if isinstance(part, nn.Sequential) else [part]
        if isinstance(part, ENDS) or not inner:
            break
        layers += inner
    return layers


def with_exits(network: nn.Module, shape: tuple[int, ...], num_classes: int) -> OccamNet:
    """A network with four exits, evenly along its blocks; it takes inputs (channels, height, width).

    A block ends where the resolution changes. Where it changes less than three times, as in the six-layer
    CNN, a block ends before every layer that has weights.
    """
    layers = layers_of(network)
    maps = map_shapes(network, layers, shape)
    if not maps:
        raise ValueError(
            "occamnet needs convolutions that follow each other, as in resnet18, mobilenet_v2, "
            f"efficientnet_b0 or cnn, got {type(network).__name__} for inputs of shape {shape}; choose "
            "another model or method"
        )
    last = len(layers) - 1
    ends = [place for place in range(last) if maps[place][2:] != maps[place + 1][2:]]
    if len(ends) + 1 < EXITS:
        ends = [place for place in range(last) if any(True for _ in layers[place + 1].parameters())]
    ends = [[*ends, last][math.ceil((len(ends) + 1) * number / EXITS) - 1] for number in range(1, EXITS + 1)]
    return OccamNet(layers, ends, [maps[end][1] for end in ends], num_classes)


@torch.no_grad()
def map_shapes(network: nn.Module, layers: list[nn.Module], shape: tuple[int, ...]) -> list[torch.Size]:
    """The shapes of the layers' outputs; none unless the network applies the layers one after the other."""
    found, maps = list[Tensor](), list[torch.Size]()
    if len(shape) != 3 or not layers or any(type(layer) is nn.LayerNorm for layer in layers):  # channels last
        return []
    x = torch.linspace(-1, 1, 2 * math.prod(shape)).view(2, *shape)
    hook = layers[-1].register_forward_hook(lambda layer, given, output: found.append(output.clone()))
    network.eval()(x)
    hook.remove()
    try:
        for layer in layers:
            x = layer(x)
            maps.append(x.shape)
    except (AssertionError, RuntimeError):  # a layer expects something else
        return []
    network.train()
    return maps if x.ndim == 4 and len(found) == 1 and torch.equal(found[0], x) else []


class OccamNet(nn.Module):
    """A network with four exits, of which 1 to 3 predict.

    [OCCAM-4] A sample gets the outputs of the first exit after exit 0 whose gate is at least 0.5, or of the
    last. No gradient of exit 0 reaches the network.
    """

    places: Tensor  # (2, exits): after which layer each exit stands, and how many channels it reads

    def __init__(
        self, layers: list[nn.Module], ends: list[int], channels: list[int], num_classes: int
    ) -> None:
        super().__init__()
        starts = [0, *(end + 1 for end in ends)]
        stages = [layers[start : end + 1] for start, end in zip(starts, ends, strict=False)]
        self.stages = nn.ModuleList(nn.Sequential(*stage) for stage in stages)
        self.exits = nn.ModuleList(Exit(width, num_classes) for width in channels)
        self.register_buffer("places", torch.tensor([ends, channels]))
        self.last: list[tuple[Tensor, Tensor]] = []  # what the exits gave for the last batch of a training

    def forward(self, x: Tensor) -> Tensor:
        given = []
        for number, (stage, leave) in enumerate(zip(self.stages, self.exits, strict=True)):
            x = stage(x)
            given.append(leave(x if number else x.detach()))
        self.last = given if self.training else []
        logits = torch.stack([maps.mean((2, 3)) for maps, _ in given[1:]], 1)
        leaves = torch.stack([gate for _, gate in given[1:]], 1) >= 0
        leaves[:, -1] = True
        return logits[torch.arange(len(x), device=x.device), leaves.int().argmax(1)]


class Exit(nn.Module):
    """Class activation maps, (batch, classes, height, width), whose means are logits; a gate, (batch,)."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        narrow = max(channels // 4, 1)
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, narrow, 3, padding=1),
            nn.BatchNorm2d(narrow),
            nn.ReLU(),
            nn.Conv2d(narrow, channels, 3, padding=1),
            nn.ReLU(),
        )
        self.maps = nn.Conv2d(channels, num_classes, 1)
        self.gate = nn.Sequential(
            nn.Linear(channels, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.convolutions(x)
        return self.maps(x).float(), self.gate(x.detach().mean((2, 3))).float()


class Exits(nn.Module):
    """The sum over the exits of three losses: `suppress`, the gate's, and the weighted cross-entropy.

    - [OCCAM-2] cross-entropy between the gate and "this exit classifies the sample correctly". The outcome is
      renewed in the first epoch, and while the exit's accuracy of the epoch, the mean over classes, is at
      most its threshold. Samples that leave are weighted by (their number / the larger number)^-0.5, and so
      are those that stay.
    - [OCCAM-3] cross-entropy x (w / the largest w of this epoch + 0.1). For exit 0, w is p^3 of the
      probability p of the label. For the others, w is 1 - the gate before them.
    """

    leaves: (
        Tensor  # (exits, samples): the outcomes that the gates learn; a buffer, so that checkpoints carry it
    )
    hits: Tensor  # (exits, classes) of this epoch, as all below
    seen: Tensor  # (classes,)
    largest: Tensor  # (exits,)

    def __init__(
        self, num_samples: int, num_classes: int, thresholds: tuple[float, ...], *, suppression: float
    ) -> None:
        super().__init__()
        self.thresholds, self.suppression, self._epoch = thresholds, suppression, -1
        self.register_buffer("leaves", torch.zeros(EXITS, num_samples))
        for name, shape in (("hits", (EXITS, num_classes)), ("seen", (num_classes,)), ("largest", (EXITS,))):
            self.register_buffer(name, torch.zeros(shape), persistent=False)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        self._count(batch)
        model(batch.x)
        total, before = torch.zeros((), device=batch.y.device), None
        exits: Any = model.last
        for number, (maps, gate) in enumerate(exits):
            logits = maps.mean((2, 3))
            total = total + self.suppression * suppress(maps, batch.y)
            total = total + self._gate_loss(number, gate, logits, batch)
            total = total + self._weighted_loss(number, before, logits, batch.y)
            before = gate.detach()
        return total

    def _count(self, batch: Batch) -> None:
        if batch.epoch != self._epoch:
            self._epoch = batch.epoch
            for each in (self.hits, self.seen, self.largest):
                each.zero_()
        self.seen += torch.bincount(batch.y, minlength=len(self.seen))

    def _gate_loss(self, number: int, gate: Tensor, logits: Tensor, batch: Batch) -> Tensor:
        correct = (logits.argmax(1) == batch.y).float()
        self.hits[number] += torch.bincount(batch.y, correct, minlength=len(self.seen))
        accuracy = (self.hits[number] / self.seen.clamp(min=1)).sum() / (self.seen > 0).sum()
        renew = (accuracy <= self.thresholds[number]) | (batch.epoch == 0)
        target = torch.where(renew, correct, self.leaves[number, batch.index])
        self.leaves[number, batch.index] = target
        counts = torch.stack([(1 - target).sum(), target.sum()])
        weight = (counts / counts.max() + TINY) ** -BALANCE
        losses = F.binary_cross_entropy_with_logits(gate, target, reduction="none")
        return (weight[target.long()] * losses).mean()

    def _weighted_loss(self, number: int, before: Tensor | None, logits: Tensor, labels: Tensor) -> Tensor:
        losses = F.cross_entropy(logits, labels, reduction="none")
        weight = torch.exp(-AMPLIFY * losses.detach()) if before is None else 1 - before.sigmoid()
        self.largest[number] = torch.maximum(self.largest[number], weight.max())
        return ((weight / (self.largest[number] + TINY) + OFFSET) * losses).mean()


def suppress(maps: Tensor, labels: Tensor) -> Tensor:
    """How far class activation maps are from saying nothing where the label's map is small.

    [OCCAM-1] Mean over all cells of KL(uniform || softmax over classes). Cells in which the label's map is
    above its mean count as zero.
    """
    label = maps.gather(1, labels[:, None, None, None].expand(-1, 1, *maps.shape[2:]))
    low = label <= label.mean((2, 3), keepdim=True)
    uneven = -maps.log_softmax(1).mean(1, keepdim=True) - math.log(maps.shape[1])
    return (low * uneven).mean()
