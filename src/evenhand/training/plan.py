"""Plan and Fit: a training that is asked for, and one that is done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from evenhand.core import ranks
from evenhand.training.arithmetic import Arithmetic
from evenhand.training.batches import Transform
from evenhand.training.checkpoint import Histories
from evenhand.training.data import Split, checksum
from evenhand.training.objective import Objective, is_separable
from evenhand.training.plugins import definition
from evenhand.training.recipe import Recipe
from evenhand.training.store import Damaged


@dataclass(frozen=True)
class Fit:
    """A training as one of its stopping rules left it."""

    folder: Path
    epochs: int  # how many it had run when it was stopped
    seconds: float  # how long those took, whoever computed them
    load: Callable[[], tuple[nn.Module, dict[str, Any]]]

    @cached_property
    def model(self) -> nn.Module:
        """The trained model; read when first asked for."""
        return self.load()[0]

    @property
    def accuracy(self) -> float:
        """The best training accuracy of any epoch."""
        return max(float(row["accuracy"]) for row in self.load()[1]["log"])

    @property
    def recorded(self) -> bool:
        """Whether the training kept its histories."""
        return (self.folder / "losses.npy").exists()

    @property
    def losses(self) -> np.ndarray:
        """Loss histories of the training samples, (samples, epochs); only a recorded training has them."""
        return self._history("losses")

    @property
    def hits(self) -> np.ndarray:
        """Whether each sample was classified correctly when it was trained on, (samples, epochs) bool."""
        return self._history("hits")

    @property
    def val_losses(self) -> np.ndarray:
        """Losses of the validation samples after every epoch, (samples, epochs)."""
        return self._history("val_losses")

    @property
    def val_hits(self) -> np.ndarray:
        """Whether each validation sample was classified correctly, (samples, epochs) bool."""
        return self._history("val_hits")

    def _history(self, name: str) -> np.ndarray:
        history: np.ndarray = np.load(self.folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)
        if history.shape[1] < self.epochs:
            raise Damaged(
                f"{self.folder / name}.npy should hold {self.epochs} epochs, got {history.shape[1]}"
            )
        return history[:, : self.epochs]


@dataclass(frozen=True)
class Plan:
    """One call of `Run.fit`."""

    stage: str
    split: Split
    objective: Objective
    transform: Transform | None
    draw: Tensor | None
    choose: Tensor | None
    stop: str | int
    start: Fit | None
    recipe: Recipe
    arithmetic: Arithmetic
    shared: bool
    recorded: bool
    salt: int = 0  # of the weights it begins with

    @property
    def needs_whole_batches(self) -> str:
        """What does not declare that a batch may be cut, in words; empty where both do."""
        used = {"objective": self.objective, "transform": self.transform}
        for kind, each in used.items():
            if each is not None and not is_separable(each):
                return f"the {kind} {getattr(each, '__qualname__', type(each).__qualname__)}"
        return ""

    def is_named(self, data: object) -> bool:
        """Whether `dependencies` say all of what makes this training from `data`.

        Only of functions of this package, which mean the same whenever they are named. What a user's needs, a
        transform, a dataset, or where another training stood, may be anything.
        """
        module = getattr(self.objective, "__module__", "") or ""
        name = getattr(self.objective, "__qualname__", "")
        ours = (
            module.startswith("evenhand.") and getattr(sys.modules.get(module), name, None) is self.objective
        )
        plain = self.transform is None and self.start is None and self.split.x is data
        return ours and plain and isinstance(data, (Tensor, np.ndarray))

    @property
    def snapshot(self) -> str:
        return f"{self.stop}.ckpt" if isinstance(self.stop, str) else f"epoch-{self.stop}.ckpt"

    def lost(self, state: dict[str, Any]) -> bool:
        """Whether the rule has fired, so that its snapshot, which is not there, must once have been."""
        return isinstance(self.stop, str) and state["rules"][self.stop]["stopped"] is not None

    def has_history(self, folder: Path, state: dict[str, Any]) -> bool:
        """Whether a recorded training's histories are what they were when its checkpoint was written."""
        epochs, sums = state["epoch"], state["histories"]
        return not self.recorded or ranks.from_first(lambda: Histories.whole(folder, epochs, sums))

    def dependencies(self) -> dict[str, Any]:
        """What a training that is not plain ERM depends on, besides what its transform or objective holds."""
        rows = (self.split.index, self.split.rows, self.split.copies, self.split.y)
        return {
            "rows": checksum(*rows),
            "groups": "" if self.split.group is None else checksum(self.split.group),
            "transform": "" if self.transform is None else definition(self.transform),
            "draw": "" if self.draw is None else checksum(self.draw),
            "choose": "" if self.choose is None else checksum(self.choose),
            "start": "" if self.start is None else f"{self.start.folder.name}@{self.start.epochs}",
            "stop": self.stop,
            "salt": self.salt,
            "recorded": self.recorded,  # such a training is checked in every epoch
        }
