"""`evenhand.audit` in Python: what it takes, what it gives, and that it resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest

import evenhand
from evenhand.training.estimator import EstimatorStage
from evenhand.training.log import Silent

SHORT: dict[str, Any] = {"label": "outcome", "missing": True, "epochs": 10, "device": "cpu", "show": Silent()}


def frame() -> Any:
    return planted.table(0.95, num_samples=600).drop(columns=["aligned", "swapped"])


def test_a_dataframe_gives_an_audit_with_the_content_of_its_folder() -> None:
    table = frame()
    found = evenhand.audit(table, **SHORT)
    assert found.advice in ("retrain", "nothing found", "cannot tell") and found.report.is_file()
    assert len(found.samples) == len(table) and set(found.samples.split) == {"train", "val", "test"}
    assert found.samples["label"].tolist() == table["outcome"].tolist()
    assert set(found.samples["split"].to_numpy()[found.indices]) == {"train"}
    answers = found.models["baseline"].predict(table.drop(columns="outcome"), device="cpu")
    assert answers["class"].tolist() == found.samples["predicted_baseline"].tolist()
    again = evenhand.Audit.load(found.folder)
    assert (again.advice, again.ship, again.sentences) == (found.advice, found.ship, found.sentences)
    assert found.ship in found._repr_html_()
    with pytest.raises(ValueError, match="a DataFrame needs label"):
        evenhand.audit(table)
    with pytest.raises(ValueError, match="expected the folder of an audit"):
        evenhand.Audit.load(found.folder / "runs")


@pytest.mark.parametrize("stopped", [1, 5, 10])
def test_an_audit_that_was_interrupted_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: int
) -> None:
    evenhand.audit(frame(), out=tmp_path / "whole", **SHORT)
    train, calls = EstimatorStage._train, []

    def interrupted(stage: EstimatorStage) -> Any:
        calls.append(stage.name)
        if len(calls) == stopped:
            raise KeyboardInterrupt
        return train(stage)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(EstimatorStage, "_train", interrupted)
        evenhand.audit(frame(), out=tmp_path / "parts", **SHORT)
    assert not (tmp_path / "parts" / "summary.json").exists()
    evenhand.audit(frame(), out=tmp_path / "parts", **SHORT)
    whole, parts = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir() if file.is_file()}
        for name in ("whole", "parts")
    )
    assert whole == parts and np.load(tmp_path / "parts" / "indices.npy").size


def test_a_model_of_an_audit_is_the_same_when_it_is_read_back(tmp_path: Path) -> None:
    """Trees held in memory and trees as arrays give the same probabilities to the bit."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    from evenhand.training.estimator import from_arrays, softmax, tree_arrays

    rng = np.random.default_rng(0)
    x = np.c_[rng.integers(0, 5, 400), rng.normal(size=(400, 3))]
    y = (x[:, 1] + (x[:, 0] == 2) > 0.3).astype(int)
    trees = HistGradientBoostingClassifier(max_iter=20, categorical_features=[True, False, False, False])
    trees.fit(x, y)
    assert np.array_equal(softmax(trees._raw_predict(x)), from_arrays(tree_arrays(trees), x))
