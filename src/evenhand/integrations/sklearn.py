"""TabClassifier: TAB for any scikit-learn classifier whose losses can be recorded during training.

from evenhand.integrations.sklearn import TabClassifier
model = TabClassifier(HistGradientBoostingClassifier(), random_state=0).fit(x, y)
model.predict(new), model.baseline_.predict(new), model.partition_.minority
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone, is_classifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, assert_all_finite, check_random_state, indexable
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d

from evenhand.core.partition import Partition, partition, rebalance, sample_weights
from evenhand.training.estimator import balances_by_weight
from evenhand.training.estimator_histories import record, seeded, takes_weights, training_of

Array = npt.NDArray[Any]


def _final_has(name: str) -> Callable[[TabClassifier], bool]:
    """Whether the fitted estimator, or the given one before `fit`, has this method."""
    return lambda self: hasattr(self.estimator_ if hasattr(self, "estimator_") else self._given(), name)


class TabClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that is trained twice, the second time with late-learned samples balanced.

    The first training records the loss of every sample. Gradient boosting (scikit-learn, LightGBM, XGBoost)
    records it after each round, `partial_fit` after each epoch, and `warm_start` after each stage. The loss
    histories of each class are split into two clusters. The second training is a plain `fit` of a clone, in
    which both clusters of a class have the same total weight. The loss is the negative log probability of the
    sample's class. If the estimator has no `predict_proba`, its decision values are used as logits.

    Compare the result with `baseline_` before use. If the model learns the cause as early as the shortcut,
    the late samples are only the hard ones, and the second training can reduce accuracy.

    Parameters
    ----------
    estimator : the classifier, or a Pipeline that ends in one. The transformers of a Pipeline are fitted
        once, on the original data, and shared by both trainings. None:
        HistGradientBoostingClassifier(max_depth=3).
    epochs : the length of a loss history. Boosting keeps at most this many rounds (None: 100). With
        `partial_fit` it is the number of epochs (None: the estimator's max_iter, at most 100, with early
        stopping). With `warm_start` it is the number of stages (None: 20).
    rebalance : "weights" increases the weights of minority samples, and "indices" repeats their rows. "auto"
        uses indices if the estimator has `partial_fit` or its fit takes no weights, else weights. With
        `partial_fit`, a weight of 20 would make a step 20 times as long.
    random_state : seeds the shuffling, the repetition, and each `random_state` of the estimator that is None.

    Attributes
    ----------
    estimator_ : the estimator of the second training. It makes the predictions.
    baseline_ : the estimator of the first training.
    partition_ : the evenhand.Partition of the training samples.
    histories_ : (samples, epochs) float32 losses. Set it to None to free the memory.
    sample_weight_ : (samples,) the weight of each sample in the second training.
    classes_ : (classes,) the labels.
    n_features_in_, feature_names_in_ : those of the estimator, if it has them.

    The `sample_weight` of `fit` is used in both trainings, but not in the clustering. Rows with weight zero
    are left out, also of `partition_`, `histories_` and `sample_weight_`. XGBoost needs the labels 0, 1, …

    >>> from sklearn.datasets import make_classification
    >>> x, y = make_classification(random_state=0)
    >>> model = TabClassifier(random_state=0).fit(x, y)
    >>> model.histories_.shape, model.partition_.minority.shape
    ((100, 100), (100,))
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        epochs: int | None = None,
        rebalance: Literal["auto", "weights", "indices"] = "auto",
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.epochs = epochs
        self.rebalance = rebalance
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train, cluster the loss histories, and train again on the balanced set.

        `X`: (samples, features) or what the estimator takes. `y`: (samples,). `sample_weight`: (samples,) or
        None. Returns the classifier itself. Raises ValueError for an estimator whose losses cannot be
        recorded, for fewer than two classes, and for settings that do not fit the estimator.
        """
        X, y, weight = _checked(X, y, sample_weight)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        pipeline = self._prepared(seed)
        by_weight = self._by_weight(_last(pipeline), weight is not None)
        pipeline, inputs = _fit_transformers(pipeline, X, y)
        first, second = _last(pipeline), clone(_last(pipeline))

        self.histories_ = record(first, inputs, y, weight, epochs=self.epochs, seed=seed)
        self.partition_ = partition(self.histories_, y if y.dtype.kind in "iubU" else y.astype(str))
        _warn_of_unsplit(self.partition_)

        own = np.ones(len(y)) if weight is None else weight
        if by_weight:
            self.sample_weight_ = own * sample_weights(self.partition_)
            second.fit(inputs, y, sample_weight=self.sample_weight_)
        else:
            rows = rebalance(self.partition_, seed=seed).indices
            self.sample_weight_ = own * np.bincount(rows, minlength=len(y))
            given = {} if weight is None else {"sample_weight": weight[rows]}
            second.fit(_safe_indexing(inputs, rows), y[rows], **given)
        self.baseline_, self.estimator_ = pipeline, _with_last(pipeline, second)
        self.classes_ = np.unique(y)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def predict(self, X: Any) -> Array:
        """Return the predicted class of each row, (rows,)."""
        check_is_fitted(self, "estimator_")
        return np.asarray(self.estimator_.predict(X))

    @available_if(_final_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, (rows, classes)."""
        check_is_fitted(self, "estimator_")
        return np.asarray(self.estimator_.predict_proba(X))

    @available_if(_final_has("predict_log_proba"))  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Array:
        """Return the log probability of each class, (rows, classes)."""
        check_is_fitted(self, "estimator_")
        return np.asarray(self.estimator_.predict_log_proba(X))

    @available_if(_final_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Array:
        """Return the estimator's decision values, (rows,) or (rows, classes)."""
        check_is_fitted(self, "estimator_")
        return np.asarray(self.estimator_.decision_function(X))

    def _given(self) -> Any:
        # Deeper trees memorize the minority in the first training, and weights then change little.
        return HistGradientBoostingClassifier(max_depth=3) if self.estimator is None else self.estimator

    def _prepared(self, seed: int) -> Any:
        """Return a seeded clone of the estimator; raise ValueError if its losses cannot be recorded."""
        given = self._given()
        if not hasattr(given, "get_params") or not is_classifier(given) or training_of(_last(given)) is None:
            raise ValueError(
                "estimator must be a classifier whose losses can be recorded while it learns: one with "
                "partial_fit, with warm_start and n_estimators or max_iter, or gradient boosting "
                "(scikit-learn, LightGBM, XGBoost), or a Pipeline that ends in one; "
                f"got {given!r}. Take such a classifier; a search goes around TabClassifier, not inside it"
            )
        return seeded(given, seed)

    def _by_weight(self, last: Any, weighted: bool) -> bool:
        """Return whether to balance by weights; raise ValueError for settings that contradict each other."""
        name, possible = type(last).__name__, takes_weights(last)
        if self.rebalance not in ("auto", "weights", "indices"):
            raise ValueError(f"rebalance must be 'auto', 'weights' or 'indices', got {self.rebalance!r}")
        if self.epochs is not None and self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, or None for the estimator's own, got {self.epochs}")
        if weighted and not possible:
            raise ValueError(f"sample_weight must be None for {name}, whose training takes no sample weights")
        if self.rebalance == "weights" and not possible:
            raise ValueError(
                f"rebalance must be 'indices' for {name}, whose training takes no sample weights"
            )
        if self.rebalance == "auto":
            return balances_by_weight(last)
        return self.rebalance == "weights"

    def __sklearn_tags__(self) -> Any:
        """Copy the tags of the estimator (scikit-learn 1.6 and newer)."""
        from sklearn.utils import get_tags

        tags, own = super().__sklearn_tags__(), get_tags(self._given())
        tags.input_tags = own.input_tags
        tags.classifier_tags.multi_class = own.classifier_tags.multi_class
        tags.classifier_tags.poor_score = own.classifier_tags.poor_score
        tags.non_deterministic = own.non_deterministic
        return tags

    def _more_tags(self) -> dict[str, Any]:
        """Copy the tags of the estimator (scikit-learn 1.4 and 1.5)."""
        from sklearn.utils._tags import _safe_tags

        return {**_safe_tags(self._given()), "multilabel": False, "multioutput": False}


def _checked(x: Any, y: Any, sample_weight: Any) -> tuple[Any, Array, Array | None]:
    """Check labels and weights, and drop rows with weight zero. The estimator itself checks the features."""
    if y is None:
        raise ValueError("TabClassifier requires y to be passed, but the target y is None")
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    x, y = indexable(x, y)
    weight = None
    if sample_weight is not None:
        weight = _check_sample_weight(sample_weight, x, dtype=np.float64)
        if (weight < 0).any() or not weight.any():
            raise ValueError(
                "sample_weight must not be negative, and some must be positive, got "
                + ("only zeros: all rows would be left out" if not weight.any() else f"{weight.min():g}")
            )
        if not weight.all():
            rows = np.flatnonzero(weight)
            x, y, weight = _safe_indexing(x, rows), y[rows], weight[rows]
    if len(y) and (y == y[0]).all():
        raise ValueError(f"y must hold at least two classes, got 1 class: {y[0]!r}")
    return x, y, weight


def _last(estimator: Any) -> Any:
    return estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator


def _with_last(estimator: Any, last: Any) -> Any:
    """Return the pipeline with its fitted transformers and a new last step."""
    if not isinstance(estimator, Pipeline):
        return last
    changed = clone(estimator)
    changed.steps = [*estimator.steps[:-1], (estimator.steps[-1][0], last)]
    return changed


def _fit_transformers(estimator: Any, x: Any, y: Array) -> tuple[Any, Any]:
    """Fit all steps but the last; return the pipeline and the transformed rows."""
    if not isinstance(estimator, Pipeline) or len(estimator.steps) == 1:
        return estimator, x
    transformers = estimator[:-1]
    inputs = transformers.fit_transform(x, y)
    estimator.steps = [*transformers.steps, estimator.steps[-1]]
    return estimator, inputs


def _warn_of_unsplit(parts: Partition) -> None:
    if parts.unsplit:
        shown = "; ".join(f"{label!r}: {reason}" for label, reason in list(parts.unsplit.items())[:5])
        warnings.warn(
            f"{len(parts.unsplit)} of {len(parts.classes)} classes were left as they are, since their loss "
            f"histories could not be split ({shown}). An estimator that learns more, or in more epochs, may "
            "tell their samples apart",
            UserWarning,
            stacklevel=3,
        )
