"""Histories: what a recorded training keeps of every sample and epoch, beside its checkpoints."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from evenhand.core import ranks
from evenhand.core.history import LossHistory
from evenhand.training.store import set_aside


@dataclass
class Histories:
    """What a recorded training keeps of every epoch, (samples, epochs) each."""

    losses: LossHistory
    hits: LossHistory  # whether the sample was classified correctly
    val_losses: LossHistory
    val_hits: LossHistory

    @classmethod
    def open(cls, folder: Path, num_train: int, num_val: int) -> Histories:
        def history(name: str, num_samples: int, dtype: torch.dtype = torch.float32) -> LossHistory:
            path = folder / f"{name}.npy"

            def check() -> None:
                try:
                    LossHistory(num_samples, path=path, dtype=dtype)
                except ValueError as error:
                    set_aside(path, error)

            ranks.from_first(check)
            return LossHistory(num_samples, path=path, dtype=dtype, across_ranks=True)

        return cls(
            history("losses", num_train),
            history("hits", num_train, torch.bool),
            history("val_losses", num_val),
            history("val_hits", num_val, torch.bool),
        )

    @staticmethod
    def recorded(folder: Path) -> int:
        """How many epochs the histories in a folder have; none if one of them is not there or damaged."""
        epochs: list[int] = []
        for name in NAMES:
            try:
                history = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError):
                return 0
            epochs.append(int(history.shape[-1]))
        return min(epochs)

    def truncate(self, epochs: int) -> None:
        for name in NAMES:
            getattr(self, name).truncate(epochs)

    def end_epoch(self) -> None:
        for name in NAMES:
            getattr(self, name).end_epoch()


NAMES = tuple(field.name for field in dataclasses.fields(Histories))
