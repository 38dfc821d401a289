"""eta-TAB (Espinosa Zarlenga et al., ECCV 2024): TAB with rotated, shifted and blurred copies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from evenhand.core.partition import partition, rebalance
from evenhand.training.augment import ETA
from evenhand.training.batches import Transform
from evenhand.training.data import Batch, Split
from evenhand.training.objective import separable
from evenhand.training.run import Run

VERSION = 1
HELPS = "as TAB, and few samples are repeated often"
GRID: dict[str, list[Any]] = {}
TRAININGS = 2
COST = 2.0  # the repeated set has at most 2 N samples


def train(run: Run, *, once: bool = True) -> nn.Module:
    """TAB; a copy looks the same in every epoch (`once`, as in the paper), or different in each."""
    identifier = run.fit("erm", stop="train")
    parts = partition(identifier.losses, run.train.y)
    balanced = rebalance(parts, seed=run.seed)
    run.found(parts, balanced)
    rows = run.train.take(balanced)
    return run.fit("model", rows, transform=changing_copies(rows, run.seed, run.device, once=once)).model


def changing_copies(rows: Split, seed: int, device: torch.device, *, once: bool) -> Transform:
    """Transform the drawn copies at random, and leave the samples themselves as they are."""
    copies = rows.copies.to(device)
    drawn = ETA.sample(len(rows), torch.Generator().manual_seed(seed), device)

    @separable
    def transform(x: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        changed = ETA.apply(x, drawn[batch.row]) if once else ETA(x, generator)
        return torch.where(copies[batch.row].view(-1, 1, 1, 1), changed, x)

    return transform
