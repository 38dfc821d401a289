"""`evenhand bench`, `pack` and `unpack` as a person or a script calls them."""

import json
import sys
from pathlib import Path

import pytest
from made_bench import write

from evenhand import cli
from evenhand.bench.pack import pack


@pytest.fixture
def evenhand(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["evenhand", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


def test_a_dry_run_counts_runs_and_epochs_and_does_nothing(evenhand, tmp_path: Path) -> None:
    words = ("bench", "mine.tiny", "--dry-run", "--runs", tmp_path / "runs", "--seeds", "0,1,2")
    code, out, _ = evenhand(*words, "--json")
    plan = {line["method"]: line for line in json.loads(out)["plan"]}
    assert code == 0 and not (tmp_path / "runs").exists()
    assert {name: line["runs"] for name, line in plan.items()} == {
        "erm": 6,
        "gdro": 6,
        "tab": 3,
        "lff": 6,
        "jtt": 12,
        "masktune": 6,
    }
    assert plan["jtt"]["candidates"] == 4 and plan["jtt"]["seeds"] == 3 and plan["jtt"]["done"] == 0
    assert plan["erm"]["epochs"] == 6 * 4 and plan["lff"]["epochs"] == 6 * 4 * 2  # the recipe has 4 epochs
    code, out, _ = evenhand(*words, "--epochs", 2)
    assert code == 0 and " 39 " in out and "the second wave depends on the selection of erm" in out


def test_a_bench_its_files_and_what_a_second_call_does(evenhand, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = (
        "bench",
        "mine.tiny:size=10",
        "--methods",
        "erm,tab,mine.failing",
        "--seeds",
        "0",
        "--runs",
        runs,
    )
    (tmp_path / "broken").touch()
    code, out, err = evenhand(*words, "--device", "cpu", "--jobs", 2)
    assert code == 1 and "4/5" in err and "WGA" in err and "lr=0.001" in out
    assert "failed: mine.tiny:size=10 mine.failing lr=0.001 seed 0: RuntimeError: the disk is full" in err
    assert "failure.json" in err
    (tmp_path / "broken").unlink()
    code, out, err = evenhand(*words, "--device", "cpu", "--json", "--quiet")
    answer = json.loads(out)
    assert code == 0 and err == "" and answer["failed"] == [] and answer["left"] == 0
    rows = {row["method"]: row for row in answer["results"]}
    assert list(rows) == ["erm", "tab", "mine.failing"] and rows["erm"]["candidates"] == 2
    assert all(0 <= row["wga"] <= 1 and 0 <= row["mms"] <= 1 and row["seeds"] == 1 for row in rows.values())
    code, out, _ = evenhand(*words, "--device", "cpu", "--dry-run", "--json")
    assert all(line["done"] == line["runs"] and not line["epochs"] for line in json.loads(out)["plan"])

    code, out, _ = evenhand("pack", "--runs", runs, "-o", tmp_path / "small.zip")
    assert code == 0 and "5 runs in" in out
    code, out, _ = evenhand("unpack", tmp_path / "small.zip", "--runs", tmp_path / "elsewhere")
    assert code == 0 and "5 runs added" in out
    code, out, _ = evenhand("unpack", tmp_path / "small.zip", "--runs", tmp_path / "elsewhere")
    assert code == 0 and "0 runs added" in out and "5 already there" in out


def test_unpacking_says_that_records_are_older(evenhand, tmp_path: Path) -> None:
    pack([write(tmp_path, "erm", seed=s, older=True) for s in (0, 1)], tmp_path / "old.zip")
    code, out, _ = evenhand("unpack", tmp_path / "old.zip", "--runs", tmp_path / "elsewhere")
    assert code == 0 and "2 runs added" in out and "2 of them are older records" in out


def test_a_field_of_the_recipe_is_set_for_all_runs(evenhand, tmp_path: Path) -> None:
    words = ("--methods", "erm", "--seeds", "0", "--runs", tmp_path, "--set", "batch_size=8", "--quiet")
    code, _, _ = evenhand("bench", "mine.tiny:size=10", *words, "--set", "patience=1", "--device", "cpu")
    configs = [json.loads(path.read_bytes()) for path in tmp_path.glob("*/erm/*/config.json")]
    assert code == 0 and len(configs) == 2
    assert {(config["recipe"]["batch_size"], config["recipe"]["patience"]) for config in configs} == {(8, 1)}
    assert evenhand("table", "1", "--runs", tmp_path, "--format", "md")[0] == 0


def test_without_a_search_every_method_is_run_once_with_what_is_asked(evenhand, tmp_path: Path) -> None:
    methods = "erm,tab,tab:summary=loss,balanced_epochs=true"
    words = ("bench", "mine.tiny:size=10", "--no-search", "--methods", methods, "--seeds", "0,1")
    code, out, _ = evenhand(*words, "--runs", tmp_path, "--device", "cpu", "--quiet")
    assert code == 0 and "summary=loss" in out and "Variants" in out
    configs = [json.loads(path.read_bytes()) for path in tmp_path.glob("*/*/*/config.json")]
    assert len(configs) == 6
    told = {"summary": "loss", "balanced_epochs": True}
    assert sorted(config["hyperparameters"] == told for config in configs) == [False] * 4 + [True] * 2


def test_when_the_time_is_over_what_is_left_is_said(evenhand, tmp_path: Path) -> None:
    code, _, err = evenhand("bench", "mine.tiny", "--minutes", 0, "--runs", tmp_path / "runs")
    assert code == 0 and "39 runs are left; repeat the command to continue" in err


def test_a_figure_says_what_is_run(evenhand, tmp_path: Path) -> None:
    words = ("--figure", "correlation", "--dry-run", "--json", "--runs", tmp_path)
    _, out, _ = evenhand("bench", "--task", "digits", *words)
    plan = json.loads(out)["plan"]
    assert {line["method"] for line in plan} == {"erm", "tab", "eta_tab", "minibatch_tab"}
    assert "digits:p=0.95" in {line["task"] for line in plan}
    _, out, _ = evenhand("bench", "digits", "--limit", 100, "--figure", "selection", *words[2:])
    plan = json.loads(out)["plan"]
    assert {line["task"] for line in plan} == {"digits:limit=100"} and "jtt" in {
        line["method"] for line in plan
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench"], "give at least one task"),
        (["bench", "mine.tiny", "--seeds", "0,x"], "--seeds must be integers below 2"),
        (["bench", "mine.tiny", "--methods", "tab:summary=loss"], "add --no-search"),
        (["bench", "mine.tiny", "--methods", "jt"], "unknown method 'jt'"),
        (["bench", "digit"], "unknown task 'digit'"),
        (["bench", "mine.tiny", "--set", "speed=1"], "a recipe has no 'speed'; it has"),
        (["bench", "mine.tiny", "--set", "speed"], "expected name=value, got 'speed'"),
        (["bench", "mine.tiny", "--set", "model=cmn"], "unknown model 'cmn'; known models are cnn"),
        (["bench", "mine.tiny", "--set", "model=no.module:make"], "cannot find the model 'no.module:make'"),
        (["bench", "mine.plain", "--figure", "training"], "but mine.plain does not mark any; use a task"),
        (["bench", "digits", "--figure", "cost", "--methods", "erm"], "omit --methods and --no-search"),
        (["bench", "digits", "--figure", "cost", "--no-search"], "omit --methods and --no-search"),
        (
            ["bench", "digits", "--set", "lr=0.1"],
            "so lr=0.1 would be ignored; --methods erm:lr=VALUE",
        ),
        (["bench", "digits", "--methods", "tab", "--set", "weight_decay=1"], "so weight_decay=1 would be"),
        (["bench", "digits", "--epochs", "3", "--set", "epochs=5"], "set the same field; give only one"),
        (["pack", "--runs", "nowhere"], "nowhere must be a runs folder or a packed .zip file"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(evenhand, words: list[str], message: str) -> None:
    code, _, err = evenhand(*words)
    assert code == 2 and message in err and len(err.strip().splitlines()) == 1
