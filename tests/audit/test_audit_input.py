"""`evenhand audit` with models of one's own, and with what it must refuse before anything is trained."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest
from planted import photos, saved

from evenhand.audit import portable
from evenhand.audit.audit import check_place
from evenhand.tasks.table import WordCodes, parsed

pandas = pytest.importorskip("pandas", reason="tables need pandas")
pytest.importorskip("PIL.Image", reason="images need pillow")
OWN = """
from sklearn.linear_model import LogisticRegression, SGDClassifier
from torch import nn
def stepwise(): return SGDClassifier(loss="log_loss", random_state=0)
def at_once(): return LogisticRegression()
def network(shape, num_classes):
    assert shape != (1,)
    return nn.Linear(shape[0], num_classes)
def bare(): return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
def full(*, num_classes, shape): return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] ** 2 * 3, num_classes))
def raises(shape): raise KeyError("weights")
def narrow(): return nn.Sequential(nn.Flatten(), nn.Linear(192, 1))
def misfit(): return nn.Sequential(nn.Flatten(), nn.Linear(7, 2))
def number(): return 3
def needs(width): return nn.Linear(width, 2)
"""


@pytest.mark.parametrize("name", ["bare", "full"])
def test_a_network_of_your_own_for_images(
    evenhand: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "ownnets.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("audit", photos(tmp_path / "photos"), "--model", f"ownnets:{name}", "--epochs", 2, "--json")
    code, out, err = evenhand(*words, "--out", tmp_path / "out")
    assert code == 0, err
    assert json.loads(out)["training"]["model"] == f"ownnets:{name}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "cannot be made: KeyError: 'weights'; expected a function that takes shape"),
        ("needs", "cannot be made: TypeError: .*width"),
        ("narrow", r"one output per class, \(2, 2\) for two samples, got shape \(2, 1\)"),
        ("misfit", r"cannot take two samples of shape \(3, 8, 8\)"),
        ("number", "must be a torch.nn.Module, got int"),
    ],
)
def test_a_network_that_cannot_be_trained_is_refused_before(
    evenhand: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    (tmp_path / "badnets.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("audit", photos(tmp_path / "photos"), "--model", f"badnets:{name}", "--epochs", 2, "-q")
    code, _, err = evenhand(*words, "--out", tmp_path / "out")
    assert code == 2 and re.search(message, err), err
    assert not (tmp_path / "out").exists()


def test_an_estimator_whose_function_raises_is_refused(
    evenhand: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "badtables.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    table = saved(
        planted.table(0.9, num_samples=60).drop(columns=["swapped", "aligned"]).fillna(0.0),
        tmp_path / "t.csv",
    )
    words = ("audit", table, "--label", "outcome", "--model", "badtables:raises", "--out", tmp_path / "out")
    code, _, err = evenhand(*words)
    assert code == 2 and "cannot be made: KeyError: 'weights'" in err and not (tmp_path / "out").exists()


def test_a_model_of_your_own(evenhand: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ownmodels.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    frame = planted.table(0.9, num_samples=200).drop(columns=["swapped", "aligned"]).fillna(0.0)
    words = ("audit", saved(frame, tmp_path / "t.csv"), "--label", "outcome", "--epochs", 3, "-q", "--json")
    for name, model in (("stepwise", "SGDClassifier"), ("network", "ownmodels:network")):
        code, out, err = evenhand(*words, "--model", f"ownmodels:{name}", "--out", tmp_path / name)
        assert code == 0, err
        assert json.loads(out)["training"]["model"] == model
    code, _, err = evenhand(*words, "--model", "ownmodels:absent", "--out", tmp_path / "bad")
    assert code == 2 and "cannot find the model 'ownmodels:absent'" in err and not (tmp_path / "bad").exists()


def bad_inputs(tmp: Path) -> dict[str, tuple[list[object], str]]:
    """What is wrong -> the words of the call, and what must be said."""
    good = planted.table(0.9, num_samples=60).drop(columns=["swapped", "aligned"]).fillna(0.0)
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
    (tmp / "mine").mkdir()
    (tmp / "mine" / "summary.json").write_text('{"mine": 1}')
    photos(tmp / "parts" / "train", ("a", "b"), 6)
    photos(tmp / "parts" / "val", ("a", "c"), 6)
    (tmp / "twice.csv").write_text("y,f,y\n" + "1,2,1\n2,1,2\n" * 10)
    label = ["--label", "outcome"]
    return {
        "empty folder": (
            [tmp / "empty"],
            "one folder for each class.*holds no images; put them there or name another",
        ),
        "unreadable image": (
            [tmp / "broken"],
            r"12 of 12 images cannot be read: a/0\.png .*b/5\.png .*--skip-bad",
        ),
        "nothing there": ([tmp / "absent", *label], "there is no"),
        "no label": ([table], "a table needs --label.*length, width"),
        "label missing": ([table, "--label", "price"], "--label must name a column.*columns are length"),
        "one class": ([one, *label], "at least two classes.*has one, 'same'; .*add samples of another class"),
        "NaN features": (
            [saved(good.assign(length=[np.nan, *good["length"][1:]]), tmp / "nan.csv"), *label],
            r"the column 'length'.* has gaps, NaN or infinite values \(1 of 60, the first in row .*--missing",
        ),
        "infinite features": (
            [saved(good.assign(width=[*good["width"][:-1], np.inf]), tmp / "inf.csv"), *label],
            "the column 'width'.* has gaps, NaN or infinite values",
        ),
        "two rows": ([saved(good[:2], tmp / "two.csv"), *label], "at least"),
        "10,000 classes": ([many, "--label", "y"], "at most 1,000 classes.*10,000"),
        "continuous": ([real, *label], "holds quantities"),
        "no features": ([gone, *label], "at least one feature column"),
        "unknown format": ([tmp / "t.xlsx", *label], "whose name ends in"),
        "options for a folder": ([tmp / "empty", *label], "DATA is a folder"),
        "options for a task": (["digits", *label], "digits is a task"),
        "unknown model of a task": (["digits:limit=100", "--model", "nonsense"], "unknown model 'nonsense'"),
        "label as text": ([table, *label, "--text", "outcome"], "different columns, got 'outcome'"),
        "label as group": ([table, *label, "--group", "outcome"], "--group must name a column of its own"),
        "size of a table": ([table, *label, "--size", 32], "about your own images, but .* a table of feat"),
        "frozen table": ([table, *label, "--frozen"], "about your own images, but .* a table of features"),
        "frozen task": (["digits:limit=100", "--fine-tune"], "but digits:limit=100 is a task by name"),
        "frozen without weights": ([tmp / "parts" / "train", "--frozen"], "about a pretrained backbone"),
        "one epoch": ([table, *label, "--epochs", 1], "--epochs must be at least 2"),
        "out is a file": ([table, *label, "--out", table], "--out must be a folder"),
        "out below a file": (
            [table, *label, "--out", table / "x" / "y"],
            "good.csv on the way to .* is a file",
        ),
        "out holds other files": (
            [table, *label, "--out", tmp / "mine"],
            "or an earlier audit's, but .* holds other files such as summary.json; name another folder",
        ),
        "unknown device": ([table, *label, "--device", "gpu9"], "device must be auto.*got 'gpu9'"),
        "class only in val": ([tmp / "parts"], r"fewer of 'c' \(0\); add images to train"),
        "columns of one name": ([tmp / "twice.csv", "--label", "y"], "more than one called 'y'"),
    }


CASES = [
    "empty folder", "unreadable image", "nothing there", "no label", "label missing", "one class", "two rows",
    "NaN features", "infinite features",
    "10,000 classes", "continuous", "no features", "unknown format", "options for a folder", "options for a task",
    "unknown model of a task", "label as text", "label as group", "size of a table", "frozen table", "frozen task",
    "frozen without weights", "one epoch", "out is a file",
    "out below a file", "out holds other files", "unknown device", "class only in val", "columns of one name",
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


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **named: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(
        ValueError, match=r"can be written, but .* cannot \(Read-only file system\); name another"
    ):
        check_place(tmp_path / "new" / "folder")


def table_of(tmp: Path, **columns: object) -> Path:
    """A sound table of sixty rows with further columns."""
    frame = planted.table(0.9, num_samples=60).drop(columns=["swapped", "aligned"]).fillna(0.0)
    return saved(frame.assign(**columns), tmp / "t.csv")


def test_the_folder_of_other_data_and_one_in_use_are_refused(evenhand: Any, tmp_path: Path) -> None:
    from evenhand.training.store import claim

    words = ("--label", "outcome", "--epochs", 3, "-q", "--out", tmp_path / "out")
    assert evenhand("audit", table_of(tmp_path), *words)[0] == 0
    other = saved(pandas.read_csv(tmp_path / "t.csv").iloc[:50], tmp_path / "other.csv")
    code, _, err = evenhand("audit", other, *words)
    assert code == 2 and "holds the audit of" in err and "name another folder" in err
    same = saved(pandas.read_csv(tmp_path / "t.csv"), tmp_path / "copy.csv")
    assert evenhand("audit", same, *words)[0] == 0
    with claim(tmp_path / "out"):
        done = subprocess.run(
            [sys.executable, "-m", "evenhand", "audit", same, *map(str, words)],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 2 and "is held by another process" in done.stderr, done.stderr


def test_a_model_that_is_not_as_it_was_written_is_refused(evenhand: Any, tmp_path: Path) -> None:
    out, table = tmp_path / "out", table_of(tmp_path)
    assert evenhand("audit", table, "--label", "outcome", "--epochs", 3, "-q", "--out", out)[0] == 0
    assert evenhand("predict", out, table, "-o", tmp_path / "p.csv")[0] == 0
    model = out / "baseline.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"x")
    code, _, err = evenhand("predict", out, table, "--model", "baseline")
    assert code == 2 and "is not as it was written" in err
    assert evenhand("predict", out, table, "--model", "balanced", "-o", tmp_path / "p.csv")[0] == 0


def test_bad_images_are_left_out_on_request_and_all_are_named(evenhand: Any, tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    for name in ("dark/3", "light/7"):
        (tmp_path / "photos" / f"{name}.png").write_bytes(b"no image")
    words = ("audit", tmp_path / "photos", "--epochs", 2, "-q", "--json", "--out", tmp_path / "out")
    code, _, err = evenhand(*words)
    assert code == 2 and "2 of 40 images cannot be read: dark/3.png" in err and "light/7.png" in err
    code, out, err = evenhand(*words, "--skip-bad")
    assert code == 0, err
    summary = json.loads(out)
    assert sum(summary["data"]["samples"].values()) == 38 and "light/7.png" in summary["data"]["notes"][0]


def test_a_column_is_dropped_and_a_group_is_a_feature_unless_hidden(evenhand: Any, tmp_path: Path) -> None:
    table = table_of(tmp_path)
    words = ("audit", table, "--label", "outcome", "--group", "line", "--epochs", 3, "-q", "--json")
    notes = {}
    for name, more in {"seen": (), "hidden": ("--hide-group",), "dropped": ("--drop", "shift")}.items():
        code, out, err = evenhand(*words, *more, "--out", tmp_path / name)
        assert code == 0, err
        notes[name] = " ".join(json.loads(out)["data"]["notes"])
        about = portable.read(tmp_path / name / "baseline.safetensors").about
        assert ("line" in about["words"]) == (name != "hidden")
        assert ("shift" in about["words"]) == (name != "dropped")
    assert "'line' is also a feature of the model (--hide-group hides it)" in notes["seen"]
    assert "'line' is kept from the model" in notes["hidden"]
    code, _, err = evenhand(*words, "--drop", "absent", "--out", tmp_path / "bad")
    assert code == 2 and "--drop must name a column" in err
    code, _, err = evenhand(*words, "--drop", "line", "--out", tmp_path / "bad")
    assert code == 2 and "--drop must name a column that nothing else names, got 'line'" in err


def test_dates_and_decimal_commas_are_numbers_and_bad_cells_are_named(evenhand: Any, tmp_path: Path) -> None:
    price = [f"{number},5" for number in range(60)]
    day = [f"{1 + number % 28:02d}.03.2024" for number in range(60)]
    age = [str(number) for number in range(58)] + ["abc", "12x"]
    words = ("--label", "outcome", "--epochs", 3, "-q", "--json", "--out", tmp_path / "out")
    code, _, err = evenhand("audit", table_of(tmp_path, age=age), *words)
    assert code == 2 and "'age', but some cells hold none: row 58: 'abc', row 59: '12x'; mend them" in err
    code, out, err = evenhand("audit", table_of(tmp_path, price=price, day=day, age=age), *words, "--missing")
    assert code == 0, err
    assert (
        "cells of the column 'age' that hold no number are gaps: row 58: 'abc'"
        in json.loads(out)["data"]["notes"][0]
    )
    about = portable.read(tmp_path / "out" / "baseline.safetensors").about
    assert {"price", "day", "age"} <= set(about["numbers"])
    new = table_of(tmp_path, price=price, day=day, age=[str(number) for number in range(60)])
    assert evenhand("predict", tmp_path / "out", new, "-o", tmp_path / "p.csv")[0] == 0
    code, _, err = evenhand("predict", tmp_path / "out", table_of(tmp_path, price=price, day=day, age=age))
    assert code == 2 and "row 58: 'abc'" in err


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "2.5", "-3e2"], [1, 2.5, -300]),
        (["1,5", "1.234,5", "2"], [1.5, 1234.5, 2]),
        (["1970-01-03", "1970-01-01", "x"], [2, 0, np.nan]),
        (["03.01.1970", "01.02.1970", "05.01.1970"], [2, 31, 4]),
    ],
)
def test_cells_as_numbers(cells: list[str], expected: list[float]) -> None:
    assert parsed(pandas.Series(cells, dtype=object)).tolist() == pytest.approx(expected, nan_ok=True)


def test_a_word_that_training_has_not_seen_is_no_gap() -> None:
    # A gap means class 1. The other words are rare, so that most of those held out are new.
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 2000)
    words = np.where(y == 1, None, np.array([f"w{n}" for n in range(2000)])[rng.integers(0, 1500, 2000)])
    frame = pandas.DataFrame({"code": words})
    codes = WordCodes().fit(frame[:1400])
    coded = codes.transform(frame[1400:])[:, 0]
    gaps = pandas.isna(words[1400:])
    assert (coded[gaps] == codes.gaps_[0]).all() and not (coded[~gaps] == codes.gaps_[0]).any()
    assert not np.isnan(coded).any() and (coded == codes.unseen_[0]).mean() > 0.1
    common = WordCodes().fit(pandas.DataFrame({"code": ["a", "b"] * 5}))
    assert (
        common.gaps_ == common.unseen_ == [None]
        and np.isnan(common.transform(pandas.DataFrame({"code": ["c", None]}))).all()
    )


def test_a_new_an_empty_and_an_interrupted_audits_folder_are_taken(tmp_path: Path) -> None:
    check_place(tmp_path / "new" / "folder")
    check_place(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "baseline.joblib").touch()
    check_place(tmp_path)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"holds other files such as thesis\.tex"):
        check_place(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {"runs", "baseline.joblib", "thesis.tex"}


@pytest.mark.parametrize("earlier", [False, True])
def test_an_audit_of_a_table_that_was_killed_while_it_wrote_is_done_again(
    evenhand: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    from evenhand.training import store

    table = saved(
        planted.table(0.9, num_samples=60).drop(columns=["swapped", "aligned"]).fillna(0.0),
        tmp_path / "t.csv",
    )
    words = ("audit", table, "--label", "outcome", "--epochs", 3, "--out", tmp_path / "out")
    if earlier:
        assert evenhand(*words)[0] == 0
    written: list[str] = []

    def killed(path: Path, data: bytes) -> None:
        if len(written) == 4:
            raise SystemExit(137)
        written.append(path.name)
        store.write_bytes(path, data)

    with monkeypatch.context() as patched:
        patched.setattr("evenhand.audit.audit.write_bytes", killed)
        evenhand(*words)
    names = {each.name for each in (tmp_path / "out").iterdir()}
    assert set(written) <= names and "summary.json" not in names
    assert evenhand(*words)[0] == 0 and (tmp_path / "out" / "summary.json").is_file()
    assert not [each.name for each in (tmp_path / "out").iterdir() if each.name.startswith(".")]


def test_a_page_that_cannot_be_made_leaves_no_file(
    evenhand: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(done: object) -> bytes:
        raise ValueError("no page")

    monkeypatch.setattr("evenhand.audit.page.told", fail)
    table = saved(
        planted.table(0.9, num_samples=60).drop(columns=["swapped", "aligned"]).fillna(0.0),
        tmp_path / "t.csv",
    )
    code, _, err = evenhand("audit", table, "--label", "outcome", "--epochs", 3, "--out", tmp_path / "out")
    assert code == 2 and "no page" in err
    # What was trained is kept, so that the same command goes on from there.
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"runs", "claim"}


def test_every_bad_input_is_tried(tmp_path: Path) -> None:
    assert set(CASES) == set(bad_inputs(tmp_path))
