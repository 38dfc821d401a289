"""ERM-RandAug (Espinosa Zarlenga et al., ECCV 2024): ERM on randomly rotated, shifted and blurred images."""

from __future__ import annotations

from typing import Any

from torch import nn

from evenhand.training.augment import ETA
from evenhand.training.objective import separable
from evenhand.training.run import Run

VERSION = 1
HELPS = "position, angle or sharpness is the shortcut"
GRID: dict[str, list[Any]] = {}


def train(run: Run) -> nn.Module:
    """What eta-TAB does to its copies, done to every sample, afresh each epoch."""
    return run.fit("model", transform=separable(lambda x, batch, generator: ETA(x, generator))).model
