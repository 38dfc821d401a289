"""Histories: what a recorded training keeps of every sample and epoch, beside its checkpoints."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from evenhand.core import ranks
from evenhand.core.history import LossHistory
from evenhand.training.seal import HISTORIES as NAMES
from evenhand.training.store import set_aside


@dataclass
class Histories:
    """What a recorded training keeps of every epoch, (samples, epochs) each."""

    losses: LossHistory
    hits: LossHistory  # whether the sample was classified correctly
    val_losses: LossHistory
    val_hits: LossHistory
    _sums: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in NAMES})

    @property
    def sums(self) -> dict[str, list[str]]:
        """Name -> checksum of every epoch's column, all of which are on the disk then; for checkpoints.

        Only the first rank's are complete.
        """
        for name in NAMES:
            history: LossHistory = getattr(self, name)
            history.flush()
            if ranks.first() and history.path is not None:
                history.sync()
                known = self._sums[name]
                known += column_sums(history.path, history.num_epochs, len(known)) or []
        return self._sums

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
    def whole(folder: Path, epochs: int, sums: dict[str, list[str]] | None) -> bool:
        """Whether the histories in a folder hold what was recorded in so many epochs.

        A damaged one is set aside. Checkpoints of earlier versions have no checksums to compare with.
        """
        good = True
        for name in NAMES:
            path = folder / f"{name}.npy"
            if not path.exists():
                good = False
                continue
            found = column_sums(path, epochs)
            if found is None or (sums is not None and found != sums[name][:epochs]):
                good = False
                set_aside(path, f"{path} should hold the history of {epochs} epochs, but it is damaged")
        return good

    def restore(self, epochs: int, sums: dict[str, list[str]] | None) -> None:
        """Continue after so many epochs, whose checksums a checkpoint knows."""
        paths = {name: getattr(self, name).path for name in NAMES}
        self._sums = sums or {name: column_sums(path, epochs) or [] for name, path in paths.items()}
        self.truncate(epochs)

    def truncate(self, epochs: int) -> None:
        for name in NAMES:
            getattr(self, name).truncate(epochs)
            del self._sums[name][epochs:]

    def fetch(self) -> None:
        """While the device has work: let it copy what was recorded to the CPU, and write the last epoch."""
        for name in NAMES:
            getattr(self, name).fetch()

    def end_epoch(self) -> None:
        """End the epoch of all of them; it is written when the device has the next one's work."""
        for name in NAMES:
            getattr(self, name).end_epoch(wait=False)


def column_sums(path: Path, end: int, start: int = 0) -> list[str] | None:
    """The checksums of a history's columns from `start` to before `end`; None if it has not so many."""
    try:
        history = np.load(path, mmap_mode="r", allow_pickle=False)
        if history.ndim != 2 or history.shape[1] < end:
            return None
    except Exception:  # numpy's parser of headers raises many kinds
        return None
    columns = (np.ascontiguousarray(history[:, epoch]).view(np.uint8) for epoch in range(start, end))
    return [hashlib.sha256(column.data).hexdigest()[:16] for column in columns]
