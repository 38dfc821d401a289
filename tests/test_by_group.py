"""Scores by group equal a loop, say what is not known, and are printed in every form."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import evenhand
from evenhand.cli import app
from evenhand.core.metrics import wilson_interval
from evenhand.report import render


@pytest.fixture
def frame() -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    y, race, sex = rng.integers(0, 2, 400), rng.choice(["A", "B", "C"], 400), rng.choice(["F", "M"], 400)
    probability = np.clip(0.5 + (y - 0.5) * np.where(race == "C", 0.2, 1.2) + rng.normal(0, 0.3, 400), 0, 1)
    return pandas.DataFrame({"y": y, "probability": probability, "race": race, "sex": sex})


def test_every_group_and_intersection_equals_a_loop(frame: pandas.DataFrame) -> None:
    found = evenhand.evaluate(frame, label="y", groups=["race", "sex"], least=1).frame.set_index("group")
    predicted = (frame["probability"] > 0.5).astype(int)
    confidence = np.maximum(frame["probability"], 1 - frame["probability"])
    count = 0
    for size in (1, 2, 3):
        for columns in itertools.combinations(("race", "sex", "y"), size):
            for values in itertools.product(*(sorted(set(frame[name])) for name in columns)):
                here = np.logical_and.reduce([frame[n] == v for n, v in zip(columns, values, strict=True)])
                name = ", ".join(f"{n} = {v}" for n, v in zip(columns, values, strict=True))
                row, hits = found.loc[name], (predicted == frame["y"])[here]
                assert row["samples"] == here.sum() and row["accuracy"] == pytest.approx(hits.mean())
                assert (row["low"], row["high"]) == wilson_interval(int(hits.sum()), len(hits))
                assert row["gap"] == pytest.approx(confidence[here].mean() - hits.mean())
                count += 1
    assert count == len(found)
    assert found["accuracy"].is_monotonic_increasing


def test_a_planted_group_is_the_worst_and_significant(frame: pandas.DataFrame) -> None:
    made = evenhand.evaluate(frame, label="y", groups=["race", "sex"])
    assert made.worst["below"] and "race = C" in made.worst["group"]
    single = made.frame.set_index("group").loc[["race = A", "race = B", "race = C"], "below"]
    assert single.tolist() == [False, False, True]
    even = frame.assign(probability=frame["y"] * 0.8 + 0.1)
    even.loc[::10, "probability"] = 0.5 - (frame["y"] - 0.5) * 0.2
    assert not evenhand.evaluate(even, label="y", groups=["race", "sex"]).frame["below"].any()


def test_the_interval_of_the_gap_covers_it_in_95_of_100_groups() -> None:
    rng, covered = np.random.default_rng(1), 0
    for _ in range(400):
        probability = rng.uniform(0.5, 1, 200)  # calibrated: the true gap is 0
        hit = rng.random(200) < probability
        made = evenhand.evaluate(
            {"y": np.ones(200, int), "predicted": hit.astype(int), "confidence": probability}, label="y"
        )
        covered += made.worst["gap_low"] <= 0 <= made.worst["gap_high"]
    assert 0.92 < covered / 400 < 0.98


def test_rows_of_unknown_group_or_label_are_named(frame: pandas.DataFrame) -> None:
    frame["race"] = frame["race"].astype(object)
    frame.loc[:99, "race"] = None
    frame["y"] = frame["y"].astype(float)
    frame.loc[395:, "y"] = np.nan
    made = evenhand.evaluate(frame, label="y", groups=["race", "sex"])
    rows = made.frame.set_index("group")["samples"]
    assert rows["race unknown"] == 100 and made.samples == 395
    assert rows[["race = A", "race = B", "race = C"]].sum() == 295
    assert sum(rows[name] for name in rows.index if name.startswith("sex") and "," not in name) == 395
    assert "5 rows without a label were left out" in made.notes
    assert {"y = 0", "y = 1"} <= set(rows.index), "whole numbers stay whole beside gaps"


def test_predictions_come_in_several_forms(frame: pandas.DataFrame, tmp_path: Path) -> None:
    expected = evenhand.evaluate(frame, label="y", groups=["race"]).frame
    p = frame["probability"]
    named = frame[["race"]].assign(
        y=np.where(frame["y"] == 1, "dog", "cat"), probability_dog=p, probability_cat=1 - p
    )
    hard = frame.assign(predicted=(p > 0.5).astype(float), confidence=np.maximum(p, 1 - p)).drop(
        columns="probability"
    )
    for other in (named, hard, hard.rename(columns={"predicted": "prediction"})):
        found = evenhand.evaluate(other, label="y", groups=["race"]).frame
        assert np.allclose(found[["accuracy", "gap"]], expected[["accuracy", "gap"]])
    without = evenhand.evaluate(hard.drop(columns="confidence"), label="y", groups=["race"])
    assert without.frame["gap"].isna().all() and without.frame["accuracy"].equals(expected["accuracy"])
    assert "overconfidence |" not in render.markdown(without.table())
    frame.to_csv(tmp_path / "p.csv", index=False)
    assert (
        evenhand.evaluate(tmp_path / "p.csv", label="y", groups=["race"])
        .frame["group"]
        .equals(expected["group"])
    )


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"label": "z"}, "expected a column 'z', but the columns are y, probability, race, sex"),
        ({}, {"groups": ["race", "race"]}, "groups must be different columns"),
        ({"probability": 1.5}, {}, "'probability' must hold probabilities between 0 and 1"),
        ({"y": np.arange(400) % 3}, {}, "needs two classes, but there are 3; give a column probability_"),
        ({"probability_0": 0.4, "probability_1": 0.4}, {}, "must add up to 1"),
        ({}, {"probability": "score"}, "expected a column of predicted classes .* or of probabilities"),
        ({}, {"least": 1000}, "no group has 1000 samples"),
        ({"y": None}, {}, "expected rows with a label"),
    ],
)
def test_mistakes_are_named(frame: pandas.DataFrame, change: dict, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evenhand.evaluate(frame.assign(**change), **{"label": "y", "groups": ["race"], **options})


def test_the_command_prints_and_writes_every_form(frame: pandas.DataFrame, tmp_path: Path) -> None:
    file = tmp_path / "predictions.csv"
    frame.to_csv(file, index=False)
    arguments = ["evaluate", str(file), "--label", "y", "--groups", "race,sex"]
    shown = CliRunner().invoke(app, [*arguments, "--most", "3"])
    assert shown.exit_code == 0 and "race = C" in shown.stdout and "more groups have a higher" in shown.stdout
    for name in ("t.md", "t.csv", "t.html", "t.json"):
        assert CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / name)]).exit_code == 0
    made = evenhand.evaluate(frame, label="y", groups=["race", "sex"])
    rows = json.loads((tmp_path / "t.json").read_text())["sections"][0]["rows"]
    assert [row["group"] for row in rows] == made.frame["group"].tolist()
    written = pandas.read_csv(tmp_path / "t.csv")
    assert np.allclose(written["95% interval low"], made.frame["low"])
    assert "<table" in (tmp_path / "t.html").read_text() and "<table" in made._repr_html_()


def test_the_plot_has_a_point_for_each_group(frame: pandas.DataFrame, tmp_path: Path) -> None:
    made = evenhand.evaluate(frame, label="y", groups=["race"])
    figure = made.plot(most=4)
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == made.frame["group"].head(4).tolist()[::-1]
    figure.savefig(tmp_path / "plot.png")
