"""`evenhand predict` on an audit's folder: new data of every kind, and what it must refuse."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest
from planted import photos, saved
from safetensors.numpy import load_file, save_file

from evenhand.audit import portable

pandas = pytest.importorskip("pandas", reason="tables need pandas")


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def agree(evenhand: Any, out: Path, data: Path) -> None:
    """Both models say of the audit's own samples what samples.csv has; the recommended one is the default."""
    samples, said = table(out / "samples.csv"), {}
    for name in ("baseline", "balanced", None):
        words = () if name is None else ("--model", name)
        code, printed, err = evenhand(
            "predict", out, data, *words, "-o", out.parent / "p.csv", "--device", "cpu"
        )
        assert code == 0, err
        said[name] = table(out.parent / "p.csv")
        if name is not None:
            assert f"predictions by the {name} model" in printed
            found = {row["id"]: row["predicted"] for row in said[name]}
            assert found == {row["id"]: row[f"predicted_{name}"] for row in samples}
    ship = json.loads((out / "summary.json").read_text())["ship"]["model"]
    assert said[None] == said[ship] and 1 / 4 < float(said[None][0]["confidence"]) <= 1


def with_words(seed: int = 0) -> Any:
    """Three classes, rare words, gaps, truth values, whole numbers and dates."""
    rng = np.random.default_rng(seed)
    frame = planted.table(0.95, seed, num_samples=1500).drop(columns=["aligned", "swapped"])
    frame["outcome"] = np.where(rng.random(1500) < 0.2, "scrap", frame["outcome"])
    frame["supplier"] = [f"s{value}" for value in rng.zipf(1.3, 1500) % 400]
    frame.loc[rng.random(1500) < 0.1, "supplier"] = None
    frame["checked"] = rng.random(1500) < 0.5
    frame["count"] = rng.integers(0, 4, 1500)
    frame["day"] = pandas.to_datetime("2024-01-01") + pandas.to_timedelta(
        rng.integers(0, 300, 1500), unit="D"
    )
    return frame


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_of_numbers_and_words(evenhand: Any, tmp_path: Path, suffix: str) -> None:
    frame, file, out = with_words(), tmp_path / f"t.{suffix}", tmp_path / "out"
    frame.to_csv(file, index=False) if suffix == "csv" else frame.to_parquet(file)
    assert evenhand("audit", file, "--label", "outcome", "--missing", "--epochs", 8, "-o", out, "-q")[0] == 0
    agree(evenhand, out, file)
    odd = frame.drop(columns=["outcome"]).assign(supplier="never seen", more=1)
    odd["day"] = 0.0 if suffix == "parquet" else odd["day"]  # a file of dates gave days, a CSV of them words
    assert evenhand("predict", out, saved(odd, tmp_path / "odd.csv"), "-o", tmp_path / "q.csv")[0] == 0
    code, _, err = evenhand("predict", out, saved(odd.drop(columns="width"), tmp_path / "less.csv"))
    assert code == 2 and "1 of " in err and "are not there: 'width'" in err
    code, _, err = evenhand("predict", out, saved(odd.assign(width="wide"), tmp_path / "wide.csv"))
    assert code == 2 and "expected numbers in the column 'width', as in training" in err


def test_a_table_without_header(evenhand: Any, tmp_path: Path) -> None:
    frame = planted.table(0.9, num_samples=400).drop(columns=["aligned", "swapped"])
    file, out = tmp_path / "t.csv", tmp_path / "out"
    frame.to_csv(file, index=False, header=False)
    assert (
        evenhand("audit", file, "--no-header", "--label", 6, "--missing", "--epochs", 4, "-o", out, "-q")[0]
        == 0
    )
    agree(evenhand, out, file)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_texts(evenhand: Any, tmp_path: Path, num_classes: int) -> None:
    frame = planted.text(0.95, num_samples=600).drop(columns=["aligned", "swapped"])
    if num_classes == 3:
        frame.loc[::3, "topic"] = "other"
    file, out = saved(frame, tmp_path / "t.csv"), tmp_path / "out"
    words = ("--label", "topic", "--text", "message", "--epochs", 4, "-o", out, "-q")
    assert evenhand("audit", file, *words)[0] == 0
    agree(evenhand, out, file)
    code, _, err = evenhand("predict", out, saved(frame.drop(columns="message"), tmp_path / "no.csv"))
    assert code == 2 and "expected texts in the column 'message', as in the audit, but the columns" in err
    code, _, err = evenhand("predict", out, tmp_path)
    assert (
        code == 2 and "INPUT must be a table like the one that was audited, whose name ends in .csv, " in err
    )


@pytest.mark.parametrize("listed", [False, True])
def test_images_in_folders_and_in_tables(evenhand: Any, tmp_path: Path, listed: bool) -> None:
    pytest.importorskip("PIL.Image", reason="images need pillow")
    folder, out = photos(tmp_path / "photos"), tmp_path / "out"
    paths = [f"photos/{name}/{number}.png" for name in ("dark", "light") for number in range(20)]
    frame = pandas.DataFrame({"path": paths, "kind": [path.split("/")[1] for path in paths]})
    data = saved(frame, tmp_path / "t.csv") if listed else folder
    words = ("--label", "kind", "--image", "path") if listed else ()
    code, _, err = evenhand("audit", data, *words, "--epochs", 3, "-o", out, "-q", "--device", "cpu")
    assert code == 0, err
    agree(evenhand, out, data)
    one = folder / "dark" / "3.png"
    assert evenhand("predict", out, one, "-o", tmp_path / "one.csv")[0] == 0
    assert [row["id"] for row in table(tmp_path / "one.csv")] == ["3.png"]
    if listed:
        code, _, err = evenhand("predict", out, saved(frame.assign(path="no.png"), tmp_path / "no.csv"))
        assert code == 2 and "40 of 40 paths in the column 'path' lead nowhere" in err


def test_a_frozen_backbone_is_a_whole_network(
    evenhand: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, models = pytest.importorskip("torch"), pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    torch.save(models.mobilenet_v3_small().state_dict(), tmp_path / "mobilenet_v3_small-1.pth")
    monkeypatch.setenv("EVENHAND_WEIGHTS", str(tmp_path))
    folder, out = photos(tmp_path / "photos"), tmp_path / "out"
    words = ("--frozen", "--size", 32, "--epochs", 3, "-o", out, "-q", "--device", "cpu")
    code, _, err = evenhand("audit", folder, *words)
    assert code == 0, err
    agree(evenhand, out, folder)


def test_another_kind_of_model_replaces_the_earlier_audits(evenhand: Any, tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image", reason="images need pillow")
    out = tmp_path / "out"
    frame = planted.table(0.9, num_samples=200).drop(columns=["aligned", "swapped"])
    file = saved(frame, tmp_path / "t.csv")
    words = ("--label", "outcome", "--missing", "--epochs", 3, "-o", out, "-q")
    assert evenhand("audit", file, *words)[0] == 0
    assert portable.read(out / "baseline.safetensors").about["kind"] == "trees"
    assert evenhand("audit", file, *words, "--model", "mlp")[0] == 0
    assert portable.read(out / "baseline.safetensors").about["kind"] == "network"
    code, _, err = evenhand("predict", out, file)
    assert code == 2 and "the audit's model mlp reads numbers that were made of a table's columns" in err


OWN = """
from sklearn.linear_model import SGDClassifier
from torch import nn
def estimator(): return SGDClassifier(loss="log_loss", random_state=0)
def network(shape, num_classes): return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] ** 2 * 3, num_classes))
"""


def test_models_of_your_own_are_refused_with_what_to_do(
    evenhand: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ownpredict.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    frame = planted.table(0.9, num_samples=200).drop(columns=["aligned", "swapped"])
    file, out = saved(frame, tmp_path / "t.csv"), tmp_path / "out"
    words = (
        "--label",
        "outcome",
        "--missing",
        "--epochs",
        3,
        "-o",
        out,
        "-q",
        "--model",
        "ownpredict:estimator",
    )
    assert evenhand("audit", file, *words)[0] == 0
    code, _, err = evenhand("predict", out, file, "--model", "balanced")
    assert (
        code == 2 and "use it in Python: joblib.load('" in err and "balanced.joblib').predict(table)" in err
    )
    folder, out = photos(tmp_path / "photos"), tmp_path / "images"
    words = ("--epochs", 2, "-o", out, "-q", "--model", "ownpredict:network")
    assert evenhand("audit", folder, *words)[0] == 0
    code, _, err = evenhand("predict", out, folder)
    assert code == 2 and "was trained with a model of your own; load its " in err


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from evenhand.audit.audit import run

    place = tmp_path_factory.mktemp("audited")
    frame = planted.table(0.9, num_samples=200).drop(columns=["aligned", "swapped"])
    file = saved(frame, place / "t.csv")
    run(str(file), label="outcome", missing=True, out=place / "out", epochs=3)
    return place / "out", file


def test_what_a_stranger_wrote_is_refused_in_a_sentence(evenhand: Any, tmp_path: Path, audited: Any) -> None:
    import shutil

    source, file = audited
    out = tmp_path / "out"
    shutil.copytree(source, out)
    (out / "checksums.json").unlink()  # a stranger would write one that fits
    model, summary = out / "baseline.safetensors", out / "summary.json"
    arrays, about = load_file(model), portable.read(model).about

    def said(message: str) -> None:
        code, printed, err = evenhand("predict", out, file, "--model", "baseline", "-o", tmp_path / "p.csv")
        assert code == 2 and printed == "" and message in err and "Traceback" not in err, err
        assert not (tmp_path / "p.csv").exists()

    def store(arrays: dict[str, np.ndarray], about: Any) -> None:
        save_file(arrays, model, {portable.ABOUT: json.dumps(about)})

    store({**arrays, "left": arrays["left"] + 10**6, "right": arrays["right"] + 10**6}, about)
    said("should hold whole trees")
    store({name: array for name, array in arrays.items() if name != "roots"}, about)
    said("should hold 'roots' as int64 with 1 dimensions")
    store({**arrays, "start": np.zeros(0)}, about)
    said("should hold 'start' with one number for every class")
    store({**arrays, "leaf": arrays["leaf"].astype(np.float32)}, about)
    said("should hold 'leaf' as int64 with 1 dimensions")
    store({**arrays, "value": arrays["value"] * np.nan}, about)
    said("should give 2 probabilities per sample, but it gives 2 numbers, not all finite")
    save_file(arrays, model, {portable.ABOUT: "[" * 200_000})
    said("should hold JSON, but it is damaged")
    store(arrays, {**about, "words": {"supplier": {"s1": 10**400}}})
    said("is not a finite number")
    store(arrays, {**about, "words": 3})
    said("should say which columns the model takes")
    store(arrays, {**about, "kind": "pickle"})
    said("a model of an unknown kind, 'pickle'")
    store(arrays, {"kind": "trees"})
    said("does not say what the model takes")
    store(arrays, {"kind": "network", "classes": ["a", "b"], "model": "os:system"})
    said("a model of your own")
    model.write_bytes(b"none")
    said("cannot be read")
    model.unlink()
    said("expected a model 'baseline'")
    summary.write_text("{}")
    said("should be an audit's")
    summary.write_text("{")
    said("should be the folder of an audit")


def test_a_flipped_bit_in_an_audits_models_is_noticed(evenhand: Any, tmp_path: Path, audited: Any) -> None:
    """Of 40 flips, none may give predictions: 8 gave other ones when the models had no checksums."""
    import shutil

    source, file = audited
    shutil.copytree(source, tmp_path / "out")
    model = tmp_path / "out" / "baseline.safetensors"
    whole = model.read_bytes()
    for place in np.random.default_rng(0).integers(0, 8 * len(whole), 40).tolist():
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        model.write_bytes(flipped)
        code, _, err = evenhand(
            "predict", tmp_path / "out", file, "--model", "baseline", "-o", tmp_path / "p"
        )
        assert code == 2 and "baseline.safetensors is not as it was written" in err
    model.write_bytes(whole)
    assert evenhand("predict", tmp_path / "out", file, "-o", tmp_path / "p")[0] == 0
    (tmp_path / "out" / "summary.json").write_bytes((source / "summary.json").read_bytes() + b" ")
    code, _, err = evenhand("predict", tmp_path / "out", file, "-o", tmp_path / "p")
    assert code == 2 and "summary.json is not as it was written" in err


def test_only_an_audit_has_two_models(evenhand: Any, tmp_path: Path, audited: Any) -> None:
    code, _, err = evenhand("predict", tmp_path, audited[1], "--model", "balanced")
    assert code == 2 and "--model selects one of the two models of an audit" in err
    code, _, err = evenhand("predict", audited[0], audited[1], "--model", "best")
    assert code == 2 and "'best'" in err and "baseline" in err


def test_trees_that_run_in_circles_come_to_an_end(tmp_path: Path, audited: Any) -> None:
    model = tmp_path / "m.safetensors"
    file = portable.read(audited[0] / "baseline.safetensors")
    arrays = {**file.arrays, "left": file.arrays["left"] * 0, "right": file.arrays["right"] * 0}
    save_file(arrays, model, {portable.ABOUT: json.dumps(file.about)})
    frame = planted.table(0.9, num_samples=5)
    assert portable.boosting_probabilities(portable.read(model), frame).shape == (5, 2)
