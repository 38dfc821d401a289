"""Classifiers of scikit-learn as stages: the same records as a network's, saved without a pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shortcut import shortcut_task
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from test_hooks import as_method
from test_run import make_run
from torch import nn

from evenhand import Task, execute
from evenhand.core import ranks
from evenhand.core.partition import partition, rebalance
from evenhand.integrations.prediction import predict
from evenhand.training import estimator as estimators
from evenhand.training.estimator import EstimatorStage
from evenhand.training.estimator_histories import probabilities
from evenhand.training.log import Silent
from evenhand.training.models import replace_head

SAVED = {
    "logistic": LogisticRegression(),
    "logistic in a pipeline": make_pipeline(StandardScaler(), LogisticRegression(C=0.1)),
    "one against all": SGDClassifier(loss="log_loss", max_iter=20, tol=None),
    "without probabilities": LinearSVC(),
    "ridge": RidgeClassifier(),
    "boosting": HistGradientBoostingClassifier(max_iter=8, min_samples_leaf=5),
}
HELD = {
    "forest": RandomForestClassifier(5),
    "older boosting": GradientBoostingClassifier(n_estimators=4),
    "bayes": GaussianNB(),
    "words": HistGradientBoostingClassifier(max_iter=4, categorical_features=[3], min_samples_leaf=5),
}


def flat(task: Task) -> np.ndarray:
    return task.test.x.flatten(1).double().numpy()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stages that are really trained from now on."""
    seen, train = [], EstimatorStage._trained

    def count(stage: EstimatorStage, look: Any) -> Any:
        seen.append(stage.name)
        return train(stage, look)

    monkeypatch.setattr(EstimatorStage, "_trained", count)
    return seen


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("name", SAVED)
def test_it_says_what_the_estimator_says_and_is_saved_without_a_pickle(
    name: str, num_classes: int, tmp_path: Path, trained: list[str]
) -> None:
    task = shortcut_task(num_classes)
    fit = make_run(task, tmp_path).fit_estimator(
        "model", SAVED[name], task.train.take(range(len(task.train)))
    )
    assert isinstance(fit.model, estimators.EstimatorModel) and not fit.model.unsaved
    from sklearn.base import clone

    reference = clone(SAVED[name]).set_params(
        **{key: 0 for key in SAVED[name].get_params() if key.endswith("random_state")}
    )
    reference.fit(task.train.x.flatten(1).double().numpy(), task.train.y.numpy())
    expected = np.log(probabilities(reference, flat(task)).clip(1e-7, 1))
    np.testing.assert_allclose(fit.predict_logits(task.test.x), expected, atol=1e-4)
    again = make_run(task, tmp_path).fit_estimator(
        "model", SAVED[name], task.train.take(range(len(task.train)))
    )
    np.testing.assert_array_equal(again.predict_logits(task.test.x), fit.predict_logits(task.test.x))
    assert trained == ["model"]


@pytest.mark.parametrize("name", HELD)
def test_what_cannot_be_saved_is_trained_again_when_it_is_asked_for(
    name: str, tiny: Task, tmp_path: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "words":
        tiny.train.x[:, 0, 0, 3] = (tiny.train.x[:, 0, 0, 3] > 0.5).float()
        tiny.val.x[:, 0, 0, 3] = tiny.test.x[:, 0, 0, 3] = 0
    first = make_run(tiny, tmp_path).fit_estimator("model", HELD[name])
    assert first.model.unsaved == type(HELD[name]).__name__ and trained == ["model"]
    again = make_run(tiny, tmp_path).fit_estimator("model", HELD[name])
    assert trained == ["model"]
    np.testing.assert_allclose(
        again.predict_logits(tiny.test.x), first.predict_logits(tiny.test.x), atol=1e-6
    )
    assert trained == ["model", "model"]

    def train(run: Any) -> nn.Module:
        return run.fit_estimator("model", HELD[name]).model

    record = execute(tiny, as_method(monkeypatch, train), runs=tmp_path / "runs", device="cpu", show=Silent())
    assert record.metrics["test"]["accuracy"] > 0.4 and not (record.path / "model.safetensors").exists()
    assert execute(tiny, "hooked.method", runs=tmp_path / "runs", device="cpu", show=Silent()) == record
    np.save(tmp_path / "x.npy", np.asarray(tiny.test.x))
    with pytest.raises(ValueError, match="which cannot be saved without a pickle"):
        predict(record.path, tmp_path / "x.npy", device="cpu")


def test_a_changed_setting_row_weight_or_seed_is_another_stage(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    weight = np.linspace(1, 2, 60)
    fits = [
        run.fit_estimator("model", LogisticRegression()),
        run.fit_estimator("model", LogisticRegression(C=2)),
        run.fit_estimator("model", LogisticRegression(), sample_weight=weight),
        run.fit_estimator("model", LogisticRegression(), sample_weight=weight[::-1]),
        run.fit_estimator("model", LogisticRegression(), run.train.take(range(40))),
        run.fit_estimator("other", LogisticRegression()),
        make_run(tiny, tmp_path, seed=1).fit_estimator("model", LogisticRegression()),
    ]
    assert len({fit.folder for fit in fits}) == len(fits)
    outputs = [fit.predict_logits(tiny.test.x) for fit in fits]
    assert not np.array_equal(outputs[2], outputs[3]) and not np.array_equal(outputs[0], outputs[4])


def test_the_version_of_the_library_is_in_the_key(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sklearn

    first = make_run(tiny, tmp_path).fit_estimator("model", LogisticRegression())
    monkeypatch.setattr(sklearn, "__version__", "0.0")
    assert make_run(tiny, tmp_path).fit_estimator("model", LogisticRegression()).folder != first.folder


@pytest.mark.parametrize(
    "estimator",
    [
        HistGradientBoostingClassifier(max_iter=6, min_samples_leaf=5),
        SGDClassifier(loss="log_loss"),
        LogisticRegression(warm_start=True),
        GradientBoostingClassifier(n_estimators=6),
    ],
    ids=lambda each: type(each).__name__,
)
def test_histories_are_those_of_a_network(estimator: Any, tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    fit = run.fit_estimator("erm", estimator, epochs=6)
    assert fit.recorded and fit.epochs == 6 and fit.losses.shape == (60, 6) and fit.val_hits.shape == (20, 6)
    rows = [json.loads(line) for line in (fit.folder / "epochs.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows] == pytest.approx(fit.losses.mean(0), rel=1e-5)
    assert rows[-1]["val_accuracy"] == pytest.approx(fit.val_hits[:, -1].mean())
    outputs = torch.from_numpy(fit.predict_logits(tiny.val.x))  # the last point is the model itself
    np.testing.assert_allclose(
        fit.val_losses[:, -1], -outputs.gather(1, tiny.val.y[:, None])[:, 0], atol=1e-4
    )
    assert run.fit_estimator("erm", estimator, epochs=6).folder == fit.folder


def test_a_damaged_history_is_made_again(tiny: Task, tmp_path: Path, trained: list[str]) -> None:
    estimator = HistGradientBoostingClassifier(max_iter=4, min_samples_leaf=5)
    fit = make_run(tiny, tmp_path).fit_estimator("erm", estimator)
    losses = fit.losses.copy()
    file = fit.folder / "losses.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.warns(UserWarning, match=r"losses.npy is not as it was written"):
        again = make_run(tiny, tmp_path).fit_estimator("erm", estimator)
    np.testing.assert_array_equal(again.losses, losses)
    assert trained == ["erm", "erm"]


def test_tab_on_boosting_leaves_a_record_that_predicts(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    from evenhand.report import page

    def train(run: Any) -> nn.Module:
        estimator = HistGradientBoostingClassifier(max_iter=10, max_depth=2, min_samples_leaf=3)
        identifier = run.fit_estimator("erm", estimator)
        parts = partition(identifier.losses, run.train.y)
        balanced = rebalance(parts, seed=run.seed)
        run.found(parts, balanced)
        return run.fit_estimator("model", estimator, run.train.take(balanced)).model

    record = execute(tiny, as_method(monkeypatch, train), runs=tmp_path, device="cpu", show=Silent())
    assert record.metrics["identification"]["share"] is not None and record.val_partition is not None
    assert record.losses("erm").shape == (60, 10) and len(record.epochs("model")) == 1
    np.save(tmp_path / "x.npy", np.asarray(tiny.test.x))
    found = predict(record.path, tmp_path / "x.npy", device="cpu")
    assert found.classes == [tiny.class_names[label] for label in record.predictions["test"]]
    assert (
        "found no minority in any class"
        in page.build([record], tmp_path / "page", load_task=lambda _: tiny).read_text()
    )
    (record.path / "metrics.json").unlink()
    execute(tiny, "hooked.method", runs=tmp_path, device="cpu", show=Silent())
    assert trained == ["erm", "model"]


def test_a_linear_estimator_becomes_the_head_of_a_network(tiny: Task, tmp_path: Path) -> None:
    task = shortcut_task(num_classes=3)
    for each in (tiny, task):
        run = make_run(each, tmp_path / str(each.num_classes))
        erm = run.fit("erm", stop=1)
        features, val = run.feature_split(erm, run.train), run.feature_split(erm, run.val)
        fit = run.fit_estimator(
            "head", make_pipeline(StandardScaler(), LogisticRegression()), features, val=val
        )
        model = replace_head(erm.model, fit.model.as_linear())
        expected = run.predict(fit.model, val)
        torch.testing.assert_close(run.predict(model, run.val).log_softmax(1), expected, atol=1e-3, rtol=1e-3)
    with pytest.raises(ValueError, match="only a linear model whose scores are logits"):
        run.fit_estimator("trees", SAVED["boosting"]).model.as_linear()


def test_a_class_without_samples_has_no_probability(tmp_path: Path) -> None:
    task = shortcut_task(num_classes=3)
    run = make_run(task, tmp_path)
    fit = run.fit_estimator("model", LogisticRegression(), run.train.take(np.flatnonzero(run.train.y != 1)))
    outputs = fit.predict_logits(task.test.x)
    assert outputs.shape == (30, 3) and (outputs[:, 1] == np.float32(np.log(1e-7))).all()
    with pytest.raises(ValueError, match="expected samples of all 3 classes, got 2"):
        fit.model.as_linear()


def test_what_is_refused(tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tiny, tmp_path)
    with pytest.raises(ValueError, match="estimator must be a classifier with scikit-learn's interface"):
        run.fit_estimator("model", nn.Linear(2, 2))
    with pytest.raises(ValueError, match="record needs a classifier that learns step by step"):
        run.fit_estimator("model", OneVsRestClassifier(LogisticRegression()), record=True)
    with pytest.raises(ValueError, match="sample_weight must hold one number for each of the 60 rows"):
        run.fit_estimator("model", LogisticRegression(), sample_weight=np.ones(3))
    monkeypatch.setattr(ranks, "count", lambda: 2)
    with pytest.raises(ValueError, match="trains an estimator, which one process does; run it without torch"):
        run.fit_estimator("model", LogisticRegression())
