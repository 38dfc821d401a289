"""Evidence from scikit-learn estimators: boosting on tables, a linear model on texts, or your own."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from evenhand.audit import portable
from evenhand.audit.evidence import PARTS, Evidence, balanced_without, folds
from evenhand.core.partition import Partition, partition, rebalance
from evenhand.tasks import table
from evenhand.tasks.samples import Samples
from evenhand.training import log
from evenhand.training.estimator_histories import losses_of, probabilities, training_of

FOLDS = 4
ROUNDS, EPOCHS = 100, 30
FEW_VALUES = 1_000_000  # rows times columns; up to these, more threads cost more than they save
LEAVES = 8  # of a tree: large trees learn exceptions by heart, so that late samples do not stand out

Make = Callable[[], Any]  # a fresh estimator


def evidence(
    data: Samples,
    *,
    seed: int,
    epochs: int | None,
    own: Make | None = None,
    show: log.Silent | None = None,
) -> Evidence:
    """Train on a table or on texts: the baseline and the balanced model, and both again for each fold."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    values = len(data.y) * (1 if data.frame is None else len(data.frame.columns))
    with threadpool_limits(1 if values <= FEW_VALUES else None), _Trainings(show, len(data.y)) as counted:
        return _evidence(data, seed, epochs, own, counted)


class _Trainings:
    """Shows the trainings of an audit as one bar: a finished training is one step of it."""

    def __init__(self, show: log.Silent | None, samples: int) -> None:
        self.show, self.samples, self.done = show or log.Silent(), samples, 0

    def __enter__(self) -> _Trainings:
        self.show.start("audit, one training an epoch", epochs=2 + 2 * FOLDS, samples=self.samples)
        return self

    def one_more(self) -> None:
        self.done += 1
        self.show.epoch({"epoch": self.done})

    def __exit__(self, *error: object) -> None:
        self.show.finish("trained" if error[0] is None else "stopped")


def _evidence(
    data: Samples, seed: int, epochs: int | None, own: Make | None, counted: _Trainings
) -> Evidence:
    transformer, make, name = _plan(data, seed, epochs, own)
    x, y, rows = _numbers(data, transformer)
    names = np.array(data.class_names)
    baseline, histories = _recorded(make(), x, y, names, epochs, seed)
    counted.one_more()
    parts = partition(histories["losses"], y["train"])
    balanced_rows = rebalance(parts, seed=seed)
    balanced = _fitted(make(), x["train"], y["train"], np.asarray(balanced_rows), names, epochs, seed)
    counted.one_more()
    unseen, unseen_balanced = _unseen(make, x["train"], y["train"], parts, names, epochs, seed, counted)
    models = {"baseline": baseline, "balanced": balanced}
    guesses = {
        key: {part: _probabilities(model, x[part], names).argmax(1) for part in PARTS}
        for key, model in models.items()
    }
    group = data.group
    return Evidence(
        class_names=data.class_names,
        y=y,
        parts=parts,
        balanced_rows=balanced_rows,
        baseline=guesses["baseline"],
        balanced=guesses["balanced"],
        unseen=unseen,
        unseen_balanced=unseen_balanced,
        group=None if group is None else {part: group[rows[part]] for part in PARTS},
        group_names=data.group_names,
        files={
            **{f"{key}.joblib": _joblib(transformer, model) for key, model in models.items()},
            **({} if own else _portable(data, transformer, models)),
        },
        about={
            "model": name,
            "epochs": histories["losses"].shape[1],
            "trainings": 2 + 2 * FOLDS,
        },
        **histories,
    )


def _numbers(
    data: Samples, transformer: Any
) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs, labels and row numbers of every part; the transformer learns from the training part alone."""
    rows = {part: data.rows(number) for number, part in enumerate(PARTS)}
    raw: dict[str, Any] = {part: _pick(data, rows[part]) for part in PARTS}
    if data.kind == "text":
        table.fitted_words(transformer, raw["train"])
    else:
        transformer.fit(raw["train"])
    x = {part: transformer.transform(raw[part]) for part in PARTS}
    return x, {part: data.y[rows[part]] for part in PARTS}, rows


def _pick(data: Samples, rows: np.ndarray) -> Any:
    return [data.texts[row] for row in rows] if data.kind == "text" else data.frame.iloc[rows]


def _unseen(
    make: Make,
    x: Any,
    y: np.ndarray,
    parts: Partition,
    names: np.ndarray,
    epochs: int | None,
    seed: int,
    counted: _Trainings,
) -> np.ndarray:
    """Probabilities of every training sample by two models that have not seen it, (2, samples, classes)."""
    unseen = np.zeros((2, len(y), len(names)), dtype=np.float32)
    fold = folds(parts, FOLDS)
    for number in range(FOLDS):
        kept = np.flatnonzero(fold != number)
        for each, rows in zip(unseen, (kept, balanced_without(parts, kept)), strict=True):
            model = _fitted(make(), x, y, rows, names, epochs, seed)
            each[fold == number] = _probabilities(model, x[fold == number], names)
            counted.one_more()
    return unseen


def _plan(data: Samples, seed: int, epochs: int | None, own: Make | None) -> tuple[Any, Make, str]:
    """What turns samples into numbers, what makes a fresh estimator, and what it is called."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import SGDClassifier

    if own is not None:
        if training_of(own()) is None:
            raise ValueError(
                "the estimator of --model must learn step by step (boosting, partial_fit or warm_start), "
                f"so that its loss histories can be seen; got {type(own()).__name__}"
            )
        transformer = table.bag_of_words() if data.kind == "text" else table.dense_columns(data.frame)
        return transformer, own, type(own()).__name__
    if data.kind == "text":
        # A small constant rate: an adaptive one learns everything within its first epoch.
        settings = {"loss": "log_loss", "alpha": 1e-5, "learning_rate": "constant", "eta0": 0.1}
        return table.bag_of_words(), lambda: SGDClassifier(**settings, random_state=seed), "linear on TF-IDF"
    words = table.word_columns(data.frame)
    numbers = len(data.frame.columns) - len(words)
    mask = [True] * len(words) + [False] * numbers  # scikit-learn itself moves them to the front

    def boosting() -> Any:
        return HistGradientBoostingClassifier(
            max_iter=epochs or ROUNDS,
            max_leaf_nodes=LEAVES,
            early_stopping=False,
            categorical_features=mask,
            random_state=seed,
        )

    return _codes(data.frame), boosting, "gradient boosting"


def _codes(frame: Any) -> Any:
    """Numbers as they are, words as numbers of their values; boosting knows what to do with gaps."""
    from sklearn.compose import ColumnTransformer

    words = table.word_columns(frame)
    numbers = [name for name in frame.columns if name not in words]
    return ColumnTransformer([("words", table.WordCodes(), words), ("numbers", "passthrough", numbers)])


def _recorded(
    estimator: Any,
    x: dict[str, Any],
    y: dict[str, np.ndarray],
    names: np.ndarray,
    epochs: int | None,
    seed: int,
) -> tuple[Any, dict[str, np.ndarray]]:
    """Train once; the losses of training and validation samples at every step of it."""
    training = training_of(estimator)
    assert training is not None
    steps = epochs if hasattr(estimator, "staged_predict_proba") else epochs or EPOCHS
    losses, hits, val_losses = [], [], []
    inputs = [x["train"], x["val"]]
    for scores, val_scores in training(estimator, inputs, names[y["train"]], None, steps, seed):
        losses.append(losses_of(scores, y["train"]))
        hits.append(scores.argmax(1) == y["train"])
        val_losses.append(losses_of(val_scores, y["val"]))
    return estimator, {
        "losses": np.stack(losses, 1),
        "hits": np.stack(hits, 1),
        "val_losses": np.stack(val_losses, 1),
    }


def _fitted(
    estimator: Any, x: Any, y: np.ndarray, rows: np.ndarray, names: np.ndarray, epochs: int | None, seed: int
) -> Any:
    """Train on these rows, copies included, for as long as the baseline was."""
    if hasattr(estimator, "staged_predict_proba") or not hasattr(estimator, "partial_fit"):
        return estimator.fit(x[rows], names[y[rows]])
    training = training_of(estimator)
    assert training is not None
    for _ in training(estimator, [x[rows]], names[y[rows]], None, epochs or EPOCHS, seed):
        pass
    return estimator


def _probabilities(model: Any, x: Any, names: np.ndarray) -> np.ndarray:
    """(samples, classes) in the order of `names`; a class that a fold lacks has none."""
    given = probabilities(model, x)
    result = np.zeros((len(given), len(names)), dtype=np.float32)
    result[:, np.searchsorted(names, model.classes_)] = given
    return result


def _portable(data: Samples, transformer: Any, models: dict[str, Any]) -> dict[str, bytes]:
    """The same models as arrays, which `evenhand predict` reads."""
    pack = portable.linear_bytes if data.kind == "text" else portable.boosting_bytes
    return {f"{key}.safetensors": pack(transformer, model, data.class_names) for key, model in models.items()}


def _joblib(transformer: Any, model: Any) -> bytes:
    """A scikit-learn pipeline for the user's own programs; evenhand itself never reads it back."""
    import joblib  # type: ignore[import-untyped]
    from sklearn.pipeline import make_pipeline

    buffer = io.BytesIO()
    joblib.dump(make_pipeline(transformer, model), buffer)
    return buffer.getvalue()
