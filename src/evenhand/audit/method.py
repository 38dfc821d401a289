"""Train TAB with cross-validation: models that were trained without a fold predict its samples."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from evenhand.audit.evidence import balanced_without, folds
from evenhand.core.partition import partition, rebalance, sample_weights
from evenhand.training.data import Split
from evenhand.training.estimator import SparseRows, balances_by_weight
from evenhand.training.estimator_histories import learns_by_steps
from evenhand.training.models import call_own, own_function
from evenhand.training.run import Run
from evenhand.training.stage import Fit

VERSION = 3
ROUNDS, EPOCHS = 100, 30
LEAVES = 8  # of a tree: large trees learn exceptions by heart, so that late samples do not stand out


def train(
    run: Run,
    *,
    num_folds: int = 2,
    estimator: str = "",
    num_categories: int = 0,
    epochs: int = 0,
    without: str = "",
) -> nn.Module:
    """Run TAB's two trainings, repeat both without each fold, and return the balanced model.

    num_folds: With 0, only the model of the data as collected is trained.
    estimator: "boosting", "linear" or module:function, instead of the recipe's network.
    num_categories: How many of the first columns hold categories.
    epochs: Rounds of boosting, or epochs; 0 is the estimator's own number.
    without: Features, as numbers with commas, that two further estimators do not see. Each is trained on half
        of the samples and predicts the other half.
    """
    fit: Any = run.fit
    by_weight, stop = False, {"stop": "train"}
    if estimator:
        made = make(estimator, run, num_categories, epochs)
        points = epochs or (EPOCHS if learns_by_steps(made) else None)
        fit = partial(run.fit_estimator, estimator=made, epochs=points)
        by_weight, stop = balances_by_weight(made), {}
    identifier = fit("erm", **stop)
    if num_folds == 0:
        first_model: nn.Module = identifier.model
        return first_model
    parts = partition(identifier.losses, run.train.y)
    balanced, weights = rebalance(parts, seed=run.seed), sample_weights(parts)
    run.found(parts, balanced)
    fold = folds(parts, num_folds)
    first = identifier if estimator else fit("erm")
    keep_outputs(run, first, np.arange(len(fold)))
    for number in range(num_folds):
        rows, held_out = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        keep_outputs(run, fit(f"fold{number}", split=run.train.take(rows)), held_out)
        if by_weight:
            second = fit(f"balanced{number}", split=run.train.take(rows), sample_weight=weights[rows])
        else:
            second = fit(f"balanced{number}", split=run.train.take(balanced_without(parts, rows)))
        keep_outputs(run, second, held_out)
    if without:
        blind = without_features(run.train, [int(column) for column in without.split(",")])
        for half in (0, 1):
            rows, held_out = np.flatnonzero(fold % 2 != half), np.flatnonzero(fold % 2 == half)
            trained = fit(f"without{half}", split=blind.take(rows))
            run.cached(trained, "outputs", partial(outputs, run, trained, blind.take(held_out)))
    fit("erm", **stop)  # the record names the stage as the identifier left it
    if by_weight:
        model = fit("model", split=run.train, sample_weight=weights)
    else:
        model = fit("model", split=run.train.take(balanced))
    keep_outputs(run, model, np.arange(len(fold)))
    balanced_model: nn.Module = model.model
    return balanced_model


def keep_outputs(run: Run, fit: Fit, rows: np.ndarray) -> None:
    """Keep a training's probabilities of these training samples beside it, (rows, classes) float32."""
    run.cached(fit, "outputs", partial(outputs, run, fit, run.train.take(rows)))


def outputs(run: Run, fit: Fit, split: Split) -> np.ndarray:
    """Return a training's probabilities of these samples, (samples, classes) float32."""
    return np.asarray(run.predict(fit.model, split).softmax(1).numpy())


def without_features(split: Split, columns: list[int]) -> Split:
    """Return the same samples with these features set to zero."""
    if isinstance(split.x, SparseRows):
        keep = np.ones(split.x.matrix.shape[1])
        keep[columns] = 0
        return dataclasses.replace(split, x=SparseRows(split.x.matrix.multiply(keep)))
    x = torch.as_tensor(split.x).clone()
    x[:, columns] = 0
    return dataclasses.replace(split, x=x)


def make(name: str, run: Run, num_categories: int = 0, epochs: int = 0) -> Any:
    """Return a fresh estimator whose random state is the run's seed."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import SGDClassifier

    if name == "linear":
        # A small constant rate: an adaptive one learns everything within its first epoch.
        return SGDClassifier(
            loss="log_loss",
            alpha=1e-5,
            learning_rate="constant",
            eta0=0.1,
            max_iter=epochs or EPOCHS,
            tol=None,
        )
    num_features = len(run.train.x[0])
    if name == "boosting":
        return HistGradientBoostingClassifier(
            max_iter=epochs or ROUNDS,
            max_leaf_nodes=LEAVES,
            early_stopping=False,
            categorical_features=[column < num_categories for column in range(num_features)],
        )
    return call_own(name, own_function(name), (num_features,), run.num_classes)
