"""`evenhand audit` as a person uses it: planted shortcuts, bad input, and the folder it writes."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest

from evenhand import cli
from evenhand.training.store import read_json

pandas = pytest.importorskip("pandas", reason="tables need pandas")
FILES = {"summary.json", "samples.csv", "weights.csv", "indices.npy", "curves.npz", "report.html"}


@pytest.fixture
def evenhand(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("EVENHAND_WEIGHTS", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["evenhand", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


def saved(frame: Any, file: Path) -> Path:
    frame.to_csv(file, index=False)
    return file


def samples(folder: Path) -> list[dict[str, str]]:
    with (folder / "samples.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", ["table", "text"])
def test_a_planted_shortcut_is_found_and_the_worst_group_gains(
    evenhand: Any, tmp_path: Path, kind: str
) -> None:
    frame = getattr(planted, kind)(0.95, num_samples=4000)
    file = saved(frame.drop(columns="swapped"), tmp_path / "data.csv")
    words = {"table": ("--label", "outcome"), "text": ("--label", "topic", "--text", "message")}[kind]
    code, out, err = evenhand(
        "audit", file, *words, "--group", "aligned", "--out", tmp_path / "out", "--json"
    )
    assert code == 0, err
    summary = json.loads(out)
    assert summary == read_json(tmp_path / "out" / "summary.json")
    assert summary["verdict"]["advice"] == "retrain" and summary["ship"]["model"] == "balanced"
    rows = samples(tmp_path / "out")
    listed = np.array([row["triage"] == "minority" for row in rows])
    train = np.array([row["split"] == "train" for row in rows])
    truth = (frame["aligned"] == "no").to_numpy() & train
    assert (listed & truth).sum() / listed.sum() > 0.8 and (listed & truth).sum() / truth.sum() > 0.5
    before, after = (summary["models"][name]["test"] for name in ("baseline", "balanced"))
    assert after["worst_group"]["accuracy"] > before["worst_group"]["accuracy"] + 0.05
    assert after["accuracy"]["accuracy"] > before["accuracy"]["accuracy"] - 0.03
    check_folder(tmp_path / "out", rows)


def check_folder(out: Path, rows: list[dict[str, str]]) -> None:
    """The files fit each other."""
    assert {file.name for file in out.iterdir()} >= FILES
    indices = np.load(out / "indices.npy", allow_pickle=False)
    with (out / "weights.csv").open(newline="") as file:
        weights = {row["id"]: float(row["weight"]) for row in csv.DictReader(file)}
    train = [row for row in rows if row["split"] == "train"]
    assert list(weights) == [row["id"] for row in train]
    assert {rows[index]["split"] for index in indices} == {"train"}
    assert len(indices) == pytest.approx(sum(weights.values()), abs=1)
    curves = np.load(out / "curves.npz", allow_pickle=False)
    assert [rows[index]["split"] for index in curves["rows"]] == ["train"] * len(train)
    first = rows[curves["rows"][0]]
    assert float(first["last_loss"]) == pytest.approx(float(curves["losses"][0, -1]), abs=2e-3)


@pytest.mark.parametrize("kind", ["table", "text"])
def test_without_bias_it_is_left_alone(evenhand: Any, tmp_path: Path, kind: str) -> None:
    frame = getattr(planted, kind)(0.5, seed=3)
    file = saved(frame.drop(columns=["swapped", "aligned"]), tmp_path / "data.csv")
    words = {"table": ("--label", "outcome"), "text": ("--label", "topic", "--text", "message")}[kind]
    code, out, _ = evenhand("audit", file, *words, "--out", tmp_path / "out")
    assert code == 0 and "Leave it: there is no sign of a minority" in out
    assert (
        "0 samples are likely a minority" in out and "Ship the model trained on the data as they are" in out
    )


@pytest.mark.parametrize("kind", ["table", "text"])
def test_wrong_labels_land_in_the_second_list(evenhand: Any, tmp_path: Path, kind: str) -> None:
    frame = getattr(planted, kind)(0.5, seed=2, noise=0.05)
    file = saved(frame.drop(columns=["swapped", "aligned"]), tmp_path / "data.csv")
    words = {"table": ("--label", "outcome"), "text": ("--label", "topic", "--text", "message")}[kind]
    code, _, err = evenhand("audit", file, *words, "--out", tmp_path / "out", "--json")
    assert code == 0, err
    rows = samples(tmp_path / "out")
    swapped = frame["swapped"].to_numpy() & np.array([row["split"] == "train" for row in rows])
    triage = np.array([row["triage"] for row in rows])
    second, first = (int((swapped & (triage == kind)).sum()) for kind in ("mislabelled", "minority"))
    assert second > 0.5 * swapped.sum() and second > 3 * first
    assert (swapped & (triage == "mislabelled")).sum() > 0.5 * (triage == "mislabelled").sum()
    assert read_json(tmp_path / "out" / "summary.json")["ship"]["model"] == "baseline"


def test_boosting_takes_the_history_from_the_one_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    from evenhand.audit import estimators
    from evenhand.tasks import table

    fits = []
    original = HistGradientBoostingClassifier.fit
    monkeypatch.setattr(
        HistGradientBoostingClassifier,
        "fit",
        lambda self, *a, **k: (fits.append(1), original(self, *a, **k))[1],
    )
    file = saved(planted.table(0.95, num_samples=400).drop(columns="swapped"), tmp_path / "t.csv")
    found = estimators.evidence(table.listing(file, label="outcome"), seed=0, epochs=10)
    assert len(fits) == 2 + estimators.FOLDS  # baseline with its history, balanced, and one for each fold
    assert found.losses.shape == (280, 10) and found.val_losses.shape == (60, 10)


def test_a_known_task_is_audited_by_name_and_continues(evenhand: Any, tmp_path: Path) -> None:
    words = ("audit", "digits_even_odd:p=0.95,limit=600", "--epochs", 8, "--out", tmp_path / "out", "-q")
    code, out, err = evenhand(*words)
    assert code == 0, err
    assert "Retrain: a minority is learned later" in out and "worst true group" in out
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir() if file.is_file()}
    stages = {file: file.stat().st_mtime_ns for file in (tmp_path / "out" / "runs").rglob("last.ckpt")}
    assert evenhand(*words)[0] == 0
    assert stages == {
        file: file.stat().st_mtime_ns for file in (tmp_path / "out" / "runs").rglob("last.ckpt")
    }
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir() if file.is_file()}
    assert {"baseline.safetensors", "balanced.safetensors"} <= before.keys()


def test_a_folder_of_images_with_a_small_network(evenhand: Any, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for label, name in enumerate(("dark", "light")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 100, (8, 8, 3)) + 120 * label
            image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / name / f"{number}.png")
    code, out, err = evenhand(
        "audit", tmp_path / "photos", "--epochs", 3, "--out", tmp_path / "out", "--json"
    )
    assert code == 0, err
    summary = json.loads(out)
    assert summary["training"]["model"] == "cnn" and summary["data"]["samples"] == {
        "train": 28,
        "val": 6,
        "test": 6,
    }
    assert summary["models"]["baseline"]["val"]["accuracy"]["accuracy"] >= 0.5
    html = (tmp_path / "out" / "report.html").read_text()
    assert "dark" in html and "light" in html


OWN = """
from sklearn.linear_model import LogisticRegression, SGDClassifier
from torch import nn
def stepwise(): return SGDClassifier(loss="log_loss", random_state=0)
def at_once(): return LogisticRegression()
def network(shape, num_classes): return nn.Linear(shape[0], num_classes)
"""


def test_a_model_of_your_own(evenhand: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ownmodels.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    frame = planted.table(0.9, num_samples=200).drop(columns=["swapped", "aligned"])
    words = ("audit", saved(frame, tmp_path / "t.csv"), "--label", "outcome", "--epochs", 3, "-q", "--json")
    for name, model in (("stepwise", "SGDClassifier"), ("network", "ownmodels:network")):
        code, out, err = evenhand(*words, "--model", f"ownmodels:{name}", "--out", tmp_path / name)
        assert code == 0, err
        assert json.loads(out)["training"]["model"] == model
    code, _, err = evenhand(*words, "--model", "ownmodels:absent", "--out", tmp_path / "bad")
    assert code == 2 and "cannot find the model 'ownmodels:absent'" in err and not (tmp_path / "bad").exists()


def bad_inputs(tmp: Path) -> dict[str, tuple[list[object], str]]:
    """What is wrong -> the words of the call, and what must be said."""
    good = planted.table(0.9, num_samples=60).drop(columns=["swapped", "aligned"])
    table = saved(good, tmp / "good.csv")
    (tmp / "empty").mkdir()
    for kind in ("a", "b"):
        (tmp / "broken" / kind).mkdir(parents=True)
        for number in range(6):
            (tmp / "broken" / kind / f"{number}.png").write_bytes(b"not an image")
    many = saved(
        pandas.DataFrame({"x": range(10_000), "y": [f"c{n}" for n in range(10_000)]}), tmp / "many.csv"
    )
    real = saved(good.assign(outcome=np.linspace(0, 1, 60)), tmp / "real.csv")
    one = saved(good.assign(outcome="same"), tmp / "one.csv")
    gone = saved(good.drop(columns="outcome").iloc[:, :0].assign(outcome=good["outcome"]), tmp / "bare.csv")
    (tmp / "t.xlsx").write_bytes(b"x")
    label = ["--label", "outcome"]
    return {
        "empty folder": ([tmp / "empty"], "one folder for each class"),
        "unreadable image": ([tmp / "broken"], "cannot be decoded"),
        "nothing there": ([tmp / "absent", *label], "there is no"),
        "no label": ([table], "a table needs --label.*length, width"),
        "label missing": ([table, "--label", "price"], "--label must name a column.*columns are length"),
        "one class": ([one, *label], "at least two classes"),
        "two rows": ([saved(good[:2], tmp / "two.csv"), *label], "at least"),
        "10,000 classes": ([many, "--label", "y"], "at most 1,000 classes.*10,000"),
        "continuous": ([real, *label], "holds quantities"),
        "no features": ([gone, *label], "at least one feature column"),
        "unknown format": ([tmp / "t.xlsx", *label], "whose name ends in"),
        "options for a folder": ([tmp / "empty", *label], "DATA is a folder"),
        "options for a task": (["digits", *label], "digits is a task"),
        "unknown model of a task": (["digits:limit=100", "--model", "nonsense"], "unknown model 'nonsense'"),
        "label as text": ([table, *label, "--text", "outcome"], "different columns, got 'outcome'"),
        "one epoch": ([table, *label, "--epochs", 1], "--epochs must be at least 2"),
        "out is a file": ([table, *label, "--out", table], "--out must be a folder"),
    }


CASES = [
    "empty folder", "unreadable image", "nothing there", "no label", "label missing", "one class", "two rows",
    "10,000 classes", "continuous", "no features", "unknown format", "options for a folder", "options for a task",
    "unknown model of a task", "label as text", "one epoch", "out is a file",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_a_sentence_and_leaves_nothing_behind(evenhand: Any, tmp_path: Path, case: str) -> None:
    words, message = bad_inputs(tmp_path)[case]
    given = words if "--out" in words else [*words, "--out", tmp_path / "out"]
    code, out, err = evenhand("audit", *given)
    assert code == 2 and out == ""
    assert len(err.split("\n")) <= 3 and err.strip().startswith("evenhand: ")  # rich ends its bar with a line
    assert re.search(message, err), err
    assert not (tmp_path / "out").exists()


def test_every_bad_input_is_tried(tmp_path: Path) -> None:
    assert set(CASES) == set(bad_inputs(tmp_path))


def test_the_adult_table_is_left_alone_and_not_harmed(evenhand: Any, tmp_path: Path, data_root: Path) -> None:
    file = data_root / "adult" / "adult.data"
    if not file.is_file():
        pytest.skip("the Adult table is not here")
    words = ("--no-header", "--label", 14, "--group", 9, "--epochs", 50)
    code, out, err = evenhand("audit", file, *words, "--out", tmp_path / "out", "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert summary["verdict"]["advice"] == "leave it" and summary["ship"]["model"] == "baseline"
    assert summary["models"]["baseline"]["test"]["accuracy"]["accuracy"] > 0.85
    names = {group["name"] for group in summary["models"]["baseline"]["test"]["groups"]}
    assert names == {"<=50K, Female", "<=50K, Male", ">50K, Female", ">50K, Male"}
