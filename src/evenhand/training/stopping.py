"""Early stopping: when an accuracy has ceased to rise, and which weights are handed over then."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from evenhand.training.recipe import Recipe

# What may be given up of the accuracy on all validation samples for the accuracy that chooses: so much, or
# its standard error, where that is more.
POINT = 0.01


@dataclass
class Rule:
    """Early stopping on one accuracy: no gain above delta in the last `patience` checks."""

    best: float = -math.inf
    waited: int = 0
    stopped: int | None = None  # the epoch at which it fired

    def check(self, accuracy: float, recipe: Recipe) -> bool:
        """Take one more accuracy; True when it is a gain."""
        if accuracy > self.best + recipe.delta:
            self.best, self.waited = accuracy, 0
            return True
        self.waited += 1
        return False


class Rules:
    """The rules that may stop a training, "val" or "train", each with the weights it would hand over."""

    def __init__(self, names: tuple[str, ...], recipe: Recipe) -> None:
        self.recipe = recipe
        self.rules = {name: Rule() for name in names}
        self.best: dict[str, dict[str, Tensor]] = {}  # rule -> weights, unless the recipe keeps the last
        self.checks: list[tuple[float, float]] = []  # by the weights that choose, and plain
        self.kept = -math.inf  # the plain accuracy of what is kept

    def state(self) -> dict[str, Any]:
        rules = {name: asdict(rule) for name, rule in self.rules.items()}
        return {"rules": rules, "best": self.best, "checks": self.checks, "kept": self.kept}

    def restore(self, state: dict[str, Any]) -> None:
        self.rules = {name: Rule(**values) for name, values in state["rules"].items()}
        self.best = state["best"]
        self.checks, self.kept = list(state.get("checks", [])), state.get("kept", -math.inf)

    def stopped(self, name: str) -> bool:
        return self.rules[name].stopped is not None

    def check(self, row: dict[str, Any], weights: Callable[[], dict[str, Tensor]]) -> list[str]:
        """Let every rule see an epoch's row; gives those that fire. `weights`: those after the epoch."""
        fired, end = [], row["epoch"] >= self.recipe.epochs
        for name, rule in self.rules.items():
            if rule.stopped is not None:
                continue
            accuracy = row["accuracy"] if name == "train" else row["val_accuracy"]
            due = name == "train" or row["epoch"] % self.recipe.check_every == 0 or end
            if due and self._keeps(rule.check(accuracy, self.recipe), row if name == "val" else {}):
                self.best[name] = {key: value.detach().cpu().clone() for key, value in weights().items()}
            if rule.waited >= self.recipe.patience or end:
                rule.stopped = row["epoch"]
                fired.append(name)
        return fired

    def _keeps(self, gain: bool, row: dict[str, Any]) -> bool:
        """Whether the weights are to be kept, until others are; `gain`: the rule calls them the best."""
        if self.recipe.keep == "last" or "choice" not in row:
            return gain and self.recipe.keep == "best"
        chosen = max((choice for choice, _ in self.checks), default=-math.inf)
        self.checks.append((row["choice"], row["val_accuracy"]))
        if self.recipe.keep == "best":
            return bool(row["choice"] > chosen)
        floor = max(accuracy for _, accuracy in self.checks) - max(POINT, row["val_error"])
        chosen = max(choice for choice, accuracy in self.checks if accuracy >= floor)
        near = row["val_accuracy"] >= floor and row["choice"] >= chosen - row["choice_error"]
        if near or self.kept < floor:
            self.kept = row["val_accuracy"]
            return True
        return False
