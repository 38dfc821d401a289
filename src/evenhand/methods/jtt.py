"""JTT, Just Train Twice (Liu et al., ICML 2021): train briefly, upweight the errors, train again."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from torch import nn

from evenhand.core.partition import Balanced
from evenhand.training.run import Run

VERSION = 1
HELPS = "an early model errs on the minority; settings can be tuned"
GRID: dict[str, list[Any]] = {
    "identifier_epochs": [1, 5, 10, 25, 50],
    "upweight": [10, 25, 50, 100, "ratio"],
}
TRAININGS = 2
COST_NOTE = "counted as N samples an epoch; the errors that it repeats come on top"


def train(
    run: Run, *, identifier_epochs: int = 50, upweight: int | Literal["ratio"] = 25, appended: bool = False
) -> nn.Module:
    """Repeat what ERM got wrong in its epoch `identifier_epochs`, at the moment it was trained on it.

    An error is included `upweight` times in all, or, with "ratio", as often as there are correct samples
    to an error. `appended`: the official code appends `upweight` copies, one appearance more.
    A recipe with fewer epochs than `identifier_epochs` ends the first training too.
    """
    if identifier_epochs < 1:
        raise ValueError(f"identifier_epochs must be at least 1, got {identifier_epochs}")
    identifier_epochs = min(identifier_epochs, run.recipe.epochs)
    identifier = run.fit("erm", stop=identifier_epochs)
    errors = np.flatnonzero(~np.asarray(identifier.hits[:, identifier_epochs - 1]))
    times = appearances(len(errors), len(run.train), upweight, appended)
    indices = np.concatenate([np.arange(len(run.train)), np.tile(errors, times - 1)])
    return run.fit("model", run.train.take(Balanced(indices, num_original=len(run.train)))).model


def appearances(num_errors: int, num_samples: int, upweight: int | str, appended: bool) -> int:
    """How often the new training set contains each error.

    >>> appearances(3, 10, 25, False), appearances(3, 10, 25, True), appearances(3, 10, "ratio", False)
    (25, 26, 2)
    """
    if upweight == "ratio":
        return max(1, (num_samples - num_errors) // max(num_errors, 1))
    if isinstance(upweight, bool) or not isinstance(upweight, int) or upweight < 1:
        raise ValueError(f"upweight must be a whole number of at least 1, or 'ratio', got {upweight!r}")
    return upweight + 1 if appended else upweight
