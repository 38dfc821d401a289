"""Early stopping: when an accuracy has ceased to rise, and which weights are handed over then."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from evenhand.training.recipe import Recipe


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
        self.chosen = -math.inf  # the best accuracy by the weights of validation that choose

    def state(self) -> dict[str, Any]:
        rules = {name: asdict(rule) for name, rule in self.rules.items()}
        return {"rules": rules, "best": self.best, "chosen": self.chosen}

    def restore(self, state: dict[str, Any]) -> None:
        self.rules = {name: Rule(**values) for name, values in state["rules"].items()}
        self.best, self.chosen = state["best"], state.get("chosen", -math.inf)

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
        better = row["choice"] > self.chosen
        self.chosen = max(self.chosen, row["choice"])
        near: bool = row["choice"] >= self.chosen - row["choice_error"]
        return better if self.recipe.keep == "best" else near
