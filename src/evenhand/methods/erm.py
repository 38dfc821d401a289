"""ERM: plain empirical risk minimization, the baseline of all comparisons."""

from __future__ import annotations

from torch import nn

from evenhand.training.run import Run

VERSION = 1
HELPS = "there is no shortcut, or it may be used"
GRID = {"lr": [1e-3, 1e-4], "weight_decay": [0.0, 1e-4, 1e-2, 1.0]}


def train(run: Run) -> nn.Module:
    """Minimise the mean loss over the training set."""
    return run.fit("erm").model
