"""`evenhand audit` as a person uses it: planted shortcuts, bad input, and the folder it writes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest
from planted import photos, saved

from evenhand.training.store import read_json

pandas = pytest.importorskip("pandas", reason="tables need pandas")
FILES = {"summary.json", "samples.csv", "weights.csv", "indices.npy", "curves.npz", "report.html"}


def samples(folder: Path) -> list[dict[str, str]]:
    with (folder / "samples.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", ["table", "text"])
def test_a_planted_shortcut_is_found_and_the_worst_group_gains(
    evenhand: Any, tmp_path: Path, kind: str
) -> None:
    frame = getattr(planted, kind)(0.95, num_samples=4000)
    file = saved(frame.drop(columns="swapped"), tmp_path / "data.csv")
    words = {"table": ("--label", "outcome", "--missing"), "text": ("--label", "topic", "--text", "message")}[
        kind
    ]
    code, out, err = evenhand(
        "audit", file, *words, "--group", "aligned", "--hide-group", "--out", tmp_path / "out", "--json"
    )
    assert code == 0, err
    summary = json.loads(out)
    assert summary == read_json(tmp_path / "out" / "summary.json")
    assert summary["judgement"]["advice"] == "retrain" and summary["ship"]["model"] == "balanced"
    named = summary["description"]["headline"]
    assert "line = " in named or "kind regards accounts" in named or "sent from phone" in named
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
    words = {"table": ("--label", "outcome", "--missing"), "text": ("--label", "topic", "--text", "message")}[
        kind
    ]
    code, out, _ = evenhand("audit", file, *words, "--out", tmp_path / "out")
    assert code == 0 and "Nothing found: no minority that balancing would help." in out
    assert (
        "0 samples are likely a minority" in out and "Ship the model trained on the data as collected" in out
    )


@pytest.mark.parametrize("kind", ["table", "text"])
def test_wrong_labels_land_in_the_second_list(evenhand: Any, tmp_path: Path, kind: str) -> None:
    frame = getattr(planted, kind)(0.5, seed=2, noise=0.05)
    file = saved(frame.drop(columns=["swapped", "aligned"]), tmp_path / "data.csv")
    words = {"table": ("--label", "outcome", "--missing"), "text": ("--label", "topic", "--text", "message")}[
        kind
    ]
    code, out, err = evenhand("audit", file, *words, "--out", tmp_path / "out")
    assert code == 0, err
    doubt = "looks like an ordinary sample of another class"
    assert doubt in read_json(tmp_path / "out" / "summary.json")["triage"]["notes"][0]
    assert doubt in out and doubt in (tmp_path / "out" / "report.html").read_text()
    rows = samples(tmp_path / "out")
    swapped = frame["swapped"].to_numpy() & np.array([row["split"] == "train" for row in rows])
    triage = np.array([row["triage"] for row in rows])
    second, first = (int((swapped & (triage == kind)).sum()) for kind in ("mislabelled", "minority"))
    assert second > 0.5 * swapped.sum() and second > 3 * first
    assert (swapped & (triage == "mislabelled")).sum() > 0.5 * (triage == "mislabelled").sum()
    assert read_json(tmp_path / "out" / "summary.json")["ship"]["model"] == "baseline"


def test_boosting_takes_the_history_from_the_one_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    from evenhand.audit.audit import run
    from evenhand.audit.estimators import FOLDS

    fits = []
    original = HistGradientBoostingClassifier.fit
    monkeypatch.setattr(
        HistGradientBoostingClassifier,
        "fit",
        lambda self, *a, **k: (fits.append(1), original(self, *a, **k))[1],
    )
    file = saved(planted.table(0.95, num_samples=400).drop(columns="swapped"), tmp_path / "t.csv")
    found = run(file, label="outcome", missing=True, epochs=10, out=tmp_path / "out").evidence
    # The baseline with its history, the balanced model, both for each fold, two that do not see the shortcut.
    assert len(fits) == 2 + 2 * FOLDS + 2
    assert found.losses.shape == (280, 10) and found.val_losses.shape == (60, 10)


def test_a_known_task_is_audited_by_name_and_continues(evenhand: Any, tmp_path: Path) -> None:
    words = ("audit", "digits_even_odd:p=0.95,limit=600", "--epochs", 8, "--out", tmp_path / "out", "-q")
    code, out, err = evenhand(*words)
    assert code == 0, err
    assert "Retrain: a minority is learned later" in out and "worst true group" in out
    assert "Shortcut: the property red alone predicts" in out  # the shortcut is the colour
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir() if file.is_file()}
    stages = {file: file.stat().st_mtime_ns for file in (tmp_path / "out" / "runs").rglob("last.ckpt")}
    assert evenhand(*words)[0] == 0
    assert stages == {
        file: file.stat().st_mtime_ns for file in (tmp_path / "out" / "runs").rglob("last.ckpt")
    }
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir() if file.is_file()}
    assert {"baseline.safetensors", "balanced.safetensors"} <= before.keys()


def test_a_folder_of_images_with_a_small_network(evenhand: Any, tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image", reason="images need pillow")
    photos(tmp_path / "photos")
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


def test_the_adult_table_is_left_alone_and_not_harmed(evenhand: Any, tmp_path: Path, data_root: Path) -> None:
    file = data_root / "adult" / "adult.data"
    if not file.is_file():
        pytest.skip("the Adult table is not here")
    words = ("--no-header", "--label", 14, "--group", 9, "--epochs", 50)
    code, out, err = evenhand("audit", file, *words, "--out", tmp_path / "out", "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert summary["judgement"]["advice"] == "nothing found" and summary["ship"]["model"] == "baseline"
    assert summary["models"]["baseline"]["test"]["accuracy"]["accuracy"] > 0.85
    names = {group["name"] for group in summary["models"]["baseline"]["test"]["groups"]}
    assert names == {"<=50K, Female", "<=50K, Male", ">50K, Female", ">50K, Male"}
