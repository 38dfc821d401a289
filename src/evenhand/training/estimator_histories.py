"""Every sample's loss history from one training of a scikit-learn classifier of any kind.

Boosting is trained once, as it would be anyway, and its rounds are replayed. Estimators with `partial_fit`
are trained one epoch at a time, those with `warm_start` one stage at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing
from sklearn.utils.class_weight import compute_class_weight

Array = npt.NDArray[Any]
Inputs = Sequence[Any]  # those that are trained on, then any others that are only looked at
Scores = Iterator[list[Array]]  # per point of the history: probabilities (samples, classes) of all inputs
Training = Callable[[Any, Inputs, Array, Array | None, int | None, int], Scores]

_FLOOR = 1e-7  # of a probability, so that no single loss exceeds 16.1 and outweighs all others
_MOST_POINTS = 100  # of a history, by default: epochs at most, or boosting rounds that are kept
_STAGES = 20  # of a warm start, by default; each is a call of fit
_TOLERANCE, _PATIENCE = 1e-4, 5  # where an estimator with partial_fit has no stopping rule of its own


def training_of(estimator: Any) -> Training | None:
    """Return the way in which this estimator's training can be recorded, if there is one."""
    makers = {kind.__module__.split(".")[0] for kind in type(estimator).__mro__}
    parameters = estimator.get_params() if hasattr(estimator, "get_params") else {}
    if "lightgbm" in makers:
        # A random forest's trees are averaged, not added up.
        return None if parameters.get("boosting_type") == "rf" else _lightgbm
    if "xgboost" in makers:
        return _xgboost
    if hasattr(estimator, "staged_predict_proba") or hasattr(estimator, "staged_decision_function"):
        return _staged
    if hasattr(estimator, "partial_fit"):
        return _epochs
    if "warm_start" in parameters and ("n_estimators" in parameters or "max_iter" in parameters):
        return _warm_start
    return None


def record(
    estimator: Any, x: Any, y: Array, weight: Array | None, *, epochs: int | None, seed: int
) -> npt.NDArray[np.float32]:
    """Train the estimator and give every sample's losses, (samples, epochs) float32."""
    training = training_of(estimator)
    assert training is not None
    position = np.unique(y, return_inverse=True)[1]
    columns = [losses_of(scores, position) for (scores,) in training(estimator, [x], y, weight, epochs, seed)]
    return np.stack(columns, axis=1)


def check(estimator: Any, *, record: bool) -> None:
    """Raise unless this is a classifier with scikit-learn's interface, and can be recorded if it must be."""
    if not hasattr(estimator, "get_params") or not is_classifier(estimator):
        raise ValueError(
            "estimator must be a classifier with scikit-learn's interface, such as LogisticRegression() or "
            f"HistGradientBoostingClassifier(), got {estimator!r}"
        )
    if record and training_of(estimator) is None:
        raise ValueError(
            "record needs a classifier that learns step by step (boosting, partial_fit or warm_start), got "
            f"{estimator!r}"
        )


def seeded(estimator: Any, seed: int) -> Any:
    """Return an unfitted copy of an estimator with the seed for each `random_state` that is None."""
    copied = clone(estimator)
    parameters = copied.get_params(deep=True).items()
    unset = [key for key, value in parameters if value is None and key.endswith("random_state")]
    return copied.set_params(**dict.fromkeys(unset, seed))


def losses_of(probabilities: Array, position: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return the negative log probability of each sample's class, (samples,); `position`: its column.

    >>> [f"{loss:.2f}" for loss in losses_of(np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([0, 1]))]
    ['0.69', '0.22']
    """
    likelihood = probabilities[np.arange(len(position)), position]
    losses: npt.NDArray[np.float32] = -np.log(np.clip(likelihood, _FLOOR, 1)).astype(np.float32)
    return losses


def softmax(values: Array) -> Array:
    """Return probabilities, (samples, classes), of decision values; values (samples,) are log odds."""
    if values.ndim == 1 or values.shape[1] == 1:
        values = np.stack([np.zeros(len(values)), values.reshape(-1)], axis=1)
    values = np.exp(values - values.max(axis=1, keepdims=True))
    probabilities: Array = values / values.sum(axis=1, keepdims=True)
    return probabilities


def probabilities(estimator: Any, x: Any) -> Array:
    """Return the estimator's class probabilities, or its decision values as logits if it has none."""
    if hasattr(estimator, "predict_proba"):
        return np.asarray(estimator.predict_proba(x))
    return softmax(np.asarray(estimator.decision_function(x)))


def fit(estimator: Any, x: Any, y: Array, weight: Array | None) -> None:
    """Train at once, with weights if there are any."""
    estimator.fit(x, y) if weight is None else estimator.fit(x, y, sample_weight=weight)


def _points(count: int, most: int) -> list[int]:
    """Return at most so many of 1 … count, evenly spread, including the last."""
    return [int(point) for point in np.unique(np.linspace(1, count, min(count, most)).round())]


def _staged(
    estimator: Any, inputs: Inputs, y: Array, weight: Array | None, epochs: int | None, seed: int
) -> Scores:
    """Fit scikit-learn's boosting once, and yield its predictions after its rounds."""
    fit(estimator, inputs[0], y, weight)
    rounds = getattr(estimator, "n_iter_", None) or len(estimator.estimators_)
    keep = set(_points(int(rounds), epochs or _MOST_POINTS))
    direct = hasattr(estimator, "staged_predict_proba")
    stages = [
        estimator.staged_predict_proba(x) if direct else map(softmax, estimator.staged_decision_function(x))
        for x in inputs
    ]
    for number, scores in enumerate(zip(*stages, strict=True), start=1):
        if number in keep:
            yield [*scores]


def _lightgbm(
    estimator: Any, inputs: Inputs, y: Array, weight: Array | None, epochs: int | None, seed: int
) -> Scores:
    """Fit once, then add up the trees, each of which is evaluated once."""
    fit(estimator, inputs[0], y, weight)
    first, totals = 0, [0.0] * len(inputs)
    rounds = estimator.best_iteration_ or estimator.booster_.current_iteration()
    for point in _points(rounds, epochs or _MOST_POINTS):
        window = {"start_iteration": first, "num_iteration": point - first}
        added = [estimator.predict_proba(x, raw_score=True, **window) for x in inputs]
        first, totals = point, [total + more for total, more in zip(totals, added, strict=True)]
        yield [softmax(np.asarray(total)) for total in totals]


def _xgboost(
    estimator: Any, inputs: Inputs, y: Array, weight: Array | None, epochs: int | None, seed: int
) -> Scores:
    """Fit once, then add the trees to the margin, each of which is evaluated once."""
    fit(estimator, inputs[0], y, weight)
    first, margins = 0, [None] * len(inputs)
    for point in _points(estimator.get_booster().num_boosted_rounds(), epochs or _MOST_POINTS):
        margins = [
            estimator.predict(x, output_margin=True, base_margin=margin, iteration_range=(first, point))
            for x, margin in zip(inputs, margins, strict=True)
        ]
        first = point
        yield [softmax(np.asarray(margin)) for margin in margins]


def _epochs(
    estimator: Any, inputs: Inputs, y: Array, weight: Array | None, epochs: int | None, seed: int
) -> Scores:
    """Call `partial_fit` once an epoch on shuffled rows; without `epochs`, until the loss stops falling."""
    classes, position = np.unique(y, return_inverse=True)
    settings = _prepare_for_epochs(estimator, classes, y)
    most = epochs or min(settings.get("max_iter") or _MOST_POINTS, _MOST_POINTS)
    tolerance = settings.get("tol") or _TOLERANCE
    patience = settings.get("n_iter_no_change") or _PATIENCE
    best, stale = np.inf, 0
    for epoch in range(most):
        order = np.random.default_rng([seed, epoch]).permutation(len(y))
        given = {} if weight is None else {"sample_weight": weight[order]}
        estimator.partial_fit(
            _safe_indexing(inputs[0], order),
            y[order],
            **({"classes": classes} if epoch == 0 else {}),
            **given,
        )
        scores = [probabilities(estimator, x) for x in inputs]
        yield scores
        mean = float(np.average(losses_of(scores[0], position), weights=weight))
        stale = 0 if mean < best - tolerance else stale + 1
        best = min(best, mean)
        if epochs is None and stale >= patience:
            break
    estimator.set_params(
        **{name: settings[name] for name in ("early_stopping", "class_weight") if name in settings}
    )


def _prepare_for_epochs(estimator: Any, classes: Array, y: Array) -> dict[str, Any]:
    """Translate settings that `partial_fit` refuses; returns the original parameters."""
    settings: dict[str, Any] = estimator.get_params()
    if settings.get("early_stopping") is True:
        estimator.set_params(early_stopping=False)
    if settings.get("class_weight") == "balanced":
        values = compute_class_weight("balanced", classes=classes, y=y)
        estimator.set_params(class_weight=dict(zip(classes.tolist(), values.tolist(), strict=True)))
    return settings


def _warm_start(
    estimator: Any, inputs: Inputs, y: Array, weight: Array | None, epochs: int | None, seed: int
) -> Scores:
    """Add a few trees or iterations at every stage; the last stage has all iterations to converge."""
    settings = estimator.get_params()
    name = "n_estimators" if "n_estimators" in settings else "max_iter"
    most = settings[name] if isinstance(settings[name], int) and settings[name] > 0 else _MOST_POINTS
    points = _points(most, epochs or _STAGES)
    # What is counted anew in every call of fit, against what is counted from the start.
    steps = points if name == "n_estimators" else [*np.diff([0, *points[:-1]]).tolist(), settings[name]]
    for number, step in enumerate(steps, start=1):
        estimator.set_params(**{"warm_start": True, name: step})
        with warnings.catch_warnings():
            if number < len(steps):
                warnings.simplefilter("ignore", ConvergenceWarning)  # a stage is not meant to converge
            fit(estimator, inputs[0], y, weight)
        yield [probabilities(estimator, x) for x in inputs]
    estimator.set_params(warm_start=settings["warm_start"])


def learns_by_steps(estimator: Any) -> bool:
    """Return whether it is trained by `partial_fit`, one epoch at a time."""
    return training_of(estimator) is _epochs


def takes_weights(estimator: Any) -> bool:
    """Return whether both of its trainings, the recorded one and the second, take sample weights."""
    recorded = estimator.partial_fit if learns_by_steps(estimator) else estimator.fit
    return all("sample_weight" in signature(train).parameters for train in (recorded, estimator.fit))
