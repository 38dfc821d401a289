"""Early stopping: when an accuracy has ceased to rise."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        self.waited += self.best >= recipe.above
        return False
