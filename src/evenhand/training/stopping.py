"""Early stopping: when an accuracy no longer rises, and which weights are kept then; EMA of the weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from evenhand.training.recipe import Recipe

# What may be given up of the accuracy on all validation samples for the accuracy that chooses: so much, or
# its standard error, where that is more.
POINT = 0.01


@dataclass
class Rule:
    """Early stopping on one accuracy or score: no gain above delta in the last `patience` checks."""

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


@dataclass
class Check:
    """A look at validation: the sum of two accuracies, the plain one with its error, and the weights."""

    score: float
    accuracy: float
    error: float
    weights: dict[str, Tensor]


class Rules:
    """The rules that may stop a training, "val" or "train", each with the weights it would hand over."""

    def __init__(self, names: tuple[str, ...], recipe: Recipe) -> None:
        self.recipe = recipe
        self.rules = {name: Rule() for name in names}
        self.best: dict[str, dict[str, Tensor]] = {}  # rule -> weights, unless the recipe keeps the last
        self.checks: list[Check] = []  # those whose weights may still be handed over

    def state(self) -> dict[str, Any]:
        rules = {name: asdict(rule) for name, rule in self.rules.items()}
        checks = [vars(check) for check in self.checks]  # not asdict, which would copy the weights
        return {"rules": rules, "best": self.best, "checks": checks}

    def restore(self, state: dict[str, Any]) -> None:
        self.rules = {name: Rule(**values) for name, values in state["rules"].items()}
        self.best = state["best"]
        self.checks = [Check(**values) for values in state.get("checks", [])]

    def stopped(self, name: str) -> bool:
        return self.rules[name].stopped is not None

    def check(self, row: dict[str, Any], weights: Callable[[], dict[str, Tensor]]) -> list[str]:
        """Let every rule see an epoch's row; gives those that fire. `weights`: those after the epoch."""
        fired, end = [], row["epoch"] >= self.recipe.epochs
        for name, rule in self.rules.items():
            if rule.stopped is not None:
                continue
            accuracy = row["accuracy"] if name == "train" else row.get("score", row["val_accuracy"])
            due = name == "train" or row["epoch"] % self.recipe.check_every == 0 or end
            if due:
                self._keep(name, rule.check(accuracy, self.recipe), row, weights)
            if rule.waited >= self.recipe.patience or end:
                rule.stopped = row["epoch"]
                fired.append(name)
        return fired

    def _keep(
        self, name: str, gain: bool, row: dict[str, Any], weights: Callable[[], dict[str, Tensor]]
    ) -> None:
        """Keep the weights after a check if they may be handed over; `gain`: the rule calls them the best."""

        def copied() -> dict[str, Tensor]:
            return {key: value.detach().cpu().clone() for key, value in weights().items()}

        if self.recipe.keep == "best" and name == "val" and "choice" in row:
            score, accuracy = row["choice"] + row["val_accuracy"], row["val_accuracy"]
            self.best[name] = self._serving_both(Check(score, accuracy, row["val_error"], copied()))
        elif self.recipe.keep == "best" and gain:
            self.best[name] = copied()

    def _serving_both(self, new: Check) -> dict[str, Tensor]:
        """The weights of the check with the best sum of both accuracies, of those that gave up little.

        Of equal ones the one with more plain accuracy, and then the last.
        """
        # A later check that is as good in both respects will always do in place of an earlier one.
        earlier = [one for one in self.checks if one.score > new.score or one.accuracy > new.accuracy]
        top = max([*earlier, new], key=lambda check: check.accuracy)
        floor = top.accuracy - max(POINT, top.error)
        self.checks = [check for check in [*earlier, new] if check.accuracy >= floor]
        return max(self.checks, key=lambda check: (check.score, check.accuracy)).weights


class EMA:
    """A copy of a model whose weights are an exponential moving average over about so many `steps`.

    Until then, they are the plain mean over all steps taken. Running statistics are averaged in the same way.
    torch's `AveragedModel` does the same, but copies its counter to the device in every step.

    >>> weights = nn.Linear(1, 1, bias=False)
    >>> ema = EMA(weights, steps=2)
    >>> for value in (2.0, 4.0, 8.0):
    ...     _ = weights.weight.data.fill_(value)
    ...     ema.update(weights)
    >>> ema.module.weight.item()  # of 2 and 4 their mean, then half of the way to 8
    5.5
    """

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.module = copy.deepcopy(model).requires_grad_(False)
        self.steps, self.taken = max(steps, 1), 0  # how many, and how many there were

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take the weights after one more step; a launch for all weights of one type, and no wait."""
        self.taken += 1
        kinds: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
        parts = ([*each.parameters(), *each.buffers()] for each in (self.module, model))
        for average, value in zip(*parts, strict=True):
            kinds.setdefault(average.dtype, []).append((average, value))
        for kind, pairs in kinds.items():
            averages, values = map(list, zip(*pairs, strict=True))
            if kind.is_floating_point and self.taken > 1:
                torch._foreach_lerp_(averages, values, 1 / min(self.taken, self.steps))
            else:
                torch._foreach_copy_(averages, values)
