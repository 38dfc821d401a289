"""TAB with a check: models trained without a fold say what they make of the samples in it."""

from __future__ import annotations

import numpy as np
from torch import nn

from evenhand.audit.evidence import balanced_without, folds
from evenhand.core.partition import partition, rebalance
from evenhand.training.run import Run
from evenhand.training.stage import Fit

VERSION = 2


def train(run: Run, *, num_folds: int = 2) -> nn.Module:
    """TAB's two trainings, then both again for each fold; what they say of the training samples is kept."""
    identifier = run.fit("erm", stop="train")
    parts = partition(identifier.losses, run.train.y)
    balanced = rebalance(parts, seed=run.seed)
    run.found(parts, balanced)
    fold = folds(parts, num_folds)
    keep_outputs(run, run.fit("erm"))
    for number in range(num_folds):
        rows = np.flatnonzero(fold != number)
        keep_outputs(run, run.fit(f"fold{number}", run.train.take(rows)))
        rows = balanced_without(parts, rows)
        keep_outputs(run, run.fit(f"balanced{number}", run.train.take(rows)))
    run.fit("erm", stop="train")  # the record names the stage as the identifier left it
    model = run.fit("model", run.train.take(balanced))
    keep_outputs(run, model)
    return model.model


def keep_outputs(run: Run, fit: Fit) -> None:
    """Keep a training's probabilities of the training samples beside it, (samples, classes) float32."""
    run.cached(fit, "outputs", lambda: run.predict(fit.model, run.train).softmax(1).numpy())
