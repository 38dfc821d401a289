"""Plan and Fit: a training that is asked for, and one that is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from evenhand.core import ranks
from evenhand.training.batches import Transform
from evenhand.training.checkpoint import Histories
from evenhand.training.data import Split, checksum
from evenhand.training.keys import Arithmetic, Description, describe_callable, is_named
from evenhand.training.objective import Objective, has_step, is_separable
from evenhand.training.plugins import definition
from evenhand.training.recipe import Recipe
from evenhand.training.store import Damaged

Factory = Callable[[], nn.Module]
Score = Callable[[Tensor, Split], float]  # (logits (samples, classes) float32 on the CPU, split) -> score


@dataclass(frozen=True)
class Fit:
    """A training as one of its stopping rules left it."""

    folder: Path
    epochs: int  # how many it had run when it was stopped
    seconds: float  # how long those took, whoever computed them
    load: Callable[[], tuple[nn.Module, dict[str, Any]]]
    snapshot: str  # the name of the rule, or of the epoch, that stopped it
    factory: Factory | None = None  # what makes its network, if not the recipe

    @cached_property
    def model(self) -> nn.Module:
        """The trained model; read when first asked for."""
        return self.load()[0]

    @property
    def objective_state(self) -> dict[str, Tensor]:
        """The state of the objective, an nn.Module, where the training was stopped.

        The objective that was given to `Run.fit` does not have it where the training was reused.
        """
        state: dict[str, Tensor] = self.load()[1]["objective"]
        return state

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
    score: Score | None
    environments: Tensor | None
    val: Split | None  # other validation samples than the run's
    model: Factory | None  # makes another network than the recipe's
    train_only: str | None  # "head": all other weights, and the batch statistics, stay as they are
    stop: str | int
    start: Fit | None
    recipe: Recipe
    arithmetic: Arithmetic
    shared: bool
    recorded: bool
    salt: int = 0  # of the weights it begins with

    @property
    def resolved_recipe(self) -> Recipe:
        """The recipe with nothing left to choose."""
        return self.recipe.replace(precision=self.arithmetic.precision, slices=self.arithmetic.slices)

    @property
    def rules(self) -> tuple[str, ...]:
        """The stopping rules that the training follows."""
        return ("val", "train") if self.shared else (self.stop,) if isinstance(self.stop, str) else ()

    @property
    def has_step(self) -> bool:
        """Whether the objective updates the weights itself."""
        return has_step(self.objective)

    @property
    def weights_only(self) -> bool:
        """Whether another training's weights are taken at the start, but not its optimiser."""
        return self.has_step or self.train_only is not None

    @property
    def needs_whole_batches(self) -> str:
        """What does not declare that a batch may be cut, in words; empty where both do."""
        if self.has_step:
            return (
                f"the objective {type(self.objective).__qualname__} has a step of its own for whole batches"
            )
        used = {"objective": self.objective, "transform": self.transform}
        for kind, each in used.items():
            if each is not None and not is_separable(each):
                name = getattr(each, "__qualname__", type(each).__qualname__)
                return f"the {kind} {name} does not declare that batches may be cut"
        return ""

    def is_named(self) -> bool:
        """Whether `dependencies` say all of what makes this training.

        Only of functions of this package, which mean the same whenever they are named. What a user's needs, a
        transform, a dataset, or where another training stood, may be anything.
        """
        given = [self.objective, self.model, self.score]
        ours = all(each is None or is_named(each) for each in given)
        arrays = is_array(self.split) and (self.val is None or is_array(self.val))
        return ours and arrays and self.transform is None and self.start is None

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

    def dependencies(self, storage: Callable[[Split], str]) -> dict[str, Any]:
        """What a training that is not plain ERM depends on, besides what its transform or objective holds.

        `storage` names the inputs of a split.
        """
        rows = (self.split.index, self.split.rows, self.split.copies, self.split.y)
        more = {
            "x": "" if (inputs := storage(self.split)) == "train" else inputs,
            "environments": "" if self.environments is None else checksum(self.environments),
            "val": "" if self.val is None else f"{storage(self.val)} {scored(self.val)}",
            "model": "" if self.model is None else Description(self.model).content,
            "score": "" if self.score is None else describe_callable(self.score),
            "train_only": self.train_only,
        }
        return {
            # Options that came later are named only where they are used, so that older keys still hold.
            **{name: value for name, value in more.items() if value},
            "rows": checksum(*rows),
            "groups": "" if self.split.group is None else checksum(self.split.group),
            "transform": "" if self.transform is None else definition(self.transform),
            "draw": "" if self.draw is None else checksum(self.draw),
            "choose": "" if self.choose is None else checksum(self.choose),
            "start": "" if self.start is None else f"{self.start.folder.name}@{self.start.snapshot}",
            "stop": self.stop,
            "salt": self.salt,
            "recorded": self.recorded,  # such a training is checked in every epoch
        }


def is_array(split: Split) -> bool:
    """Whether a checksum says all of the inputs; of a dataset, only some items are looked at."""
    return isinstance(split.x, (Tensor, np.ndarray))


def scored(split: Split) -> str:
    """What of validation samples, besides their inputs, decides when a training stops."""
    parts = (split.rows, split.y, *(part for part in (split.group, split.weight) if part is not None))
    return checksum(*parts)
