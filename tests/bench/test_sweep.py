"""A bench as a whole, carried out in this process: waves, failures, deaths, claims, sharing."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from inline import bench, carry_out, metrics, predictions, run_inline

from evenhand.bench.grid import Planned
from evenhand.bench.results import frame, result
from evenhand.bench.sweep import Begun, Ended, Outcome, load, work
from evenhand.training.record import Record
from evenhand.training.store import claim


def test_the_second_wave_inherits_what_is_selected_for_erm(tmp_path: Path) -> None:
    agenda = bench(tmp_path, methods=["tab", "masktune", "erm"])
    assert {entry.planned.method for entry in agenda.entries.values()} == {"erm"}
    assert agenda.left() == 4 + 2 + 4 and len(agenda.expected()) == 6
    run_inline(agenda)
    assert agenda.left() == 0 and agenda.count("done") == 10
    erm = result(frame(agenda.records()), "erm")
    for record in agenda.records():
        if record.method != "erm":
            recipe = record.config["full_recipe"]
            assert {name: recipe[name] for name in ("lr", "weight_decay")} == erm.settings


def test_a_worker_may_begin_a_second_wave_before_its_parent_has_looked(tmp_path: Path) -> None:
    parent = bench(tmp_path, methods=["erm", "tab"], seeds=[0])
    worker = bench(tmp_path, methods=["erm", "tab"], seeds=[0])
    run_inline(worker)
    path = next(entry.path for entry in worker.entries.values() if entry.planned.method == "tab")
    assert path not in parent.entries
    entry = parent.note(Begun(path), None)
    assert entry is not None and entry.planned.method == "tab" and entry.state == "running"
    with pytest.raises(ValueError, match="which is not planned here"):
        parent.note(Begun(path.with_name("other-s0")), None)


def test_the_results_are_those_of_doing_every_run_by_itself(tmp_path: Path) -> None:
    runs = tmp_path / "bench"
    agenda = bench(runs, seeds=[0])
    run_inline(agenda)
    trainings = len(list(runs.glob("*/stages/*")))
    alone = 0
    for number, entry in enumerate(agenda.entries.values()):
        folder = tmp_path / "alone" / str(number)
        path = folder / entry.path.relative_to(runs)
        assert not carry_out(entry.planned, path, folder)
        assert (path / "metrics.json").read_bytes() == (entry.path / "metrics.json").read_bytes()
        shared, own = predictions(runs), predictions(folder)
        assert len(own) == 6 and all(np.array_equal(shared[name], own[name]) for name in own)
        alone += len(list(folder.glob("*/stages/*")))
    # ERM's candidates 2, G-DRO's 2, LfF's 2; TAB, JTT's 4 and MaskTune's 2 each train ERM and a model of their own.
    assert alone == (2 + 2 + 2 + 2 * (1 + 4 + 2))
    # Each shares ERM's training instead, and three of JTT's repeat no error, so they share a second one too.
    assert trainings == (2 + 2 + 2 + 1 + (4 - 2) + 2)


def test_a_finished_bench_is_not_done_again(tmp_path: Path) -> None:
    run_inline(bench(tmp_path, methods=["erm", "tab"], seeds=[0]))
    before = metrics(tmp_path)
    again = bench(tmp_path, methods=["erm", "tab"], seeds=[0])
    assert again.left() == 0
    assert run_inline(again) == [] and metrics(tmp_path) == before
    more = bench(tmp_path, methods=["erm", "tab"], seeds=[0, 1])
    assert {one.seed for one in run_inline(more)} == {1}


def test_a_failure_is_recorded_stops_nobody_and_is_tried_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (tmp_path / "broken").touch()
    agenda = bench(runs, methods=["mine.failing", "tab"], seeds=[0])
    run_inline(agenda)
    (failed,) = agenda.failures()
    failure = json.loads((failed.path / "failure.json").read_text())
    assert failure["error"] == "RuntimeError: the disk is full of water" == failed.error
    assert "in train" in failure["traceback"] and failure["time"] > 0
    assert agenda.count("done") == 1 + 2 + 1
    (tmp_path / "broken").unlink()
    again = bench(runs, methods=["mine.failing", "tab"], seeds=[0])
    assert len(run_inline(again)) == 1
    assert again.left() == 0 and not again.failures() and not list(runs.rglob("failure.json"))


def test_where_some_of_erm_fails_the_rest_is_selected_from_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenhand.methods import erm

    train = erm.train
    broken = {1e-2}

    def sometimes(run):
        if run.recipe.lr in broken:
            raise RuntimeError("no")
        return train(run)

    monkeypatch.setattr(erm, "train", sometimes)
    agenda = bench(tmp_path, methods=["tab"], seeds=[0])
    run_inline(agenda)
    assert agenda.count("done") == 2 and len(agenda.failures()) == 1
    assert any("selected from 1 of its 2 runs" in note for note in agenda.notes)
    (tab,) = [record for record in agenda.records() if record.method == "tab"]
    assert tab.config["full_recipe"]["lr"] == 1e-3

    broken |= {1e-3}
    agenda = bench(tmp_path / "none", methods=["tab"], seeds=[0])
    run_inline(agenda)
    assert len(agenda.failures()) == 2 and agenda.left() == 0
    assert any("all runs of erm failed" in note and "tab cannot run" in note for note in agenda.notes)


@pytest.mark.parametrize(("deaths", "fails"), [(2, False), (3, True)])
def test_a_run_whose_worker_dies_is_tried_twice_more(tmp_path: Path, deaths: int, fails: bool) -> None:
    agenda = bench(tmp_path, methods=["mine.fatal"], seeds=[0])
    (tmp_path / "deaths").write_text("0")
    assert len(run_inline(agenda, deaths=deaths)) == 3 and bool(agenda.failures()) == fails
    assert sum("tried again" in note for note in agenda.notes) == 2
    if fails:
        failure = json.loads((agenda.failures()[0].path / "failure.json").read_text())
        assert failure["error"] == "the worker process was killed"


def test_a_run_that_somebody_else_holds_is_left_to_them(tmp_path: Path) -> None:
    agenda = bench(tmp_path, methods=["erm"], seeds=[0])
    first, second = agenda.entries
    assert not first.exists()
    held = claim(first)
    with ThreadPoolExecutor(1) as other:  # a claim belongs to a thread
        other.submit(held.__enter__).result()
        worker = work(agenda.sweep)
        assert [next(worker), next(worker)] == [Begun(second), Outcome(second)]
        # Somebody else meanwhile finishes it, so nothing is left.
        other.submit(carry_out, agenda.entries[first].planned, first, tmp_path).result()
        other.submit(held.__exit__, None, None, None).result()
    assert list(worker) == [] and bench(tmp_path, methods=["erm"], seeds=[0]).left() == 0


def test_a_run_that_fails_in_two_benches_at_once_is_tried_once_in_each(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    one, two = (bench(tmp_path / "runs", methods=["mine.failing:lr=0.001"], seeds=[0]) for _ in "ab")
    workers = [work(agenda.sweep) for agenda in (one, two)]
    assert [len(list(worker)) for worker in workers] == [2, 2]
    assert [list(work(agenda.sweep)) for agenda in (one, two)] == [[], []]


def test_workers_that_end_before_a_run_are_not_started_for_ever(tmp_path: Path) -> None:
    agenda = bench(tmp_path, methods=["erm"], seeds=[0])
    with pytest.raises(RuntimeError, match="workers end before they start a run: no memory"):
        for _ in range(3):
            assert agenda.note(Ended("no memory"), None) is None


def test_a_worker_whose_machine_differs_is_an_error(tmp_path: Path) -> None:
    agenda = bench(tmp_path, methods=["erm"], seeds=[0])
    with pytest.raises(ValueError, match="which is not planned here, because its machine has another device"):
        agenda.note(Begun(tmp_path / "mine.tiny" / "erm" / "0123456789ab-s0"), None)


def test_no_run_begins_when_the_time_is_over(tmp_path: Path) -> None:
    agenda = bench(tmp_path, methods=["tab"], seeds=[0], end=0.0)
    assert run_inline(agenda) == [] and list(work(agenda.sweep)) == []
    assert agenda.left() == 3 and metrics(tmp_path) == {}


def test_any_list_of_runs_can_be_carried_out_once_each(tmp_path: Path) -> None:
    wanted = Planned("mine.tiny:size=10", "erm", {}, 0, {"epochs": 2, "patience": 50})
    planned = [wanted, wanted, Planned("mine.tiny", "erm", {}, 0, {"epochs": 1})]
    agenda = bench(tmp_path, specs=(), planned=planned)
    run_inline(agenda)
    tasks = [record.config["task"] for record in agenda.records()]
    assert tasks == ["mine.tiny-size10", "mine.tiny"]
    assert agenda.records()[0].config["full_recipe"]["patience"] == 50


def test_a_damaged_result_is_computed_again_and_that_is_said(tmp_path: Path) -> None:
    agenda = bench(tmp_path, methods=["erm"], seeds=[0])
    run_inline(agenda)
    path = next(iter(agenda.entries))
    stage = Record(path).stage("erm")
    (path / "metrics.json").unlink()
    (stage / "val.ckpt").write_bytes(b"half a checkpoint")
    again = bench(tmp_path, methods=["erm"], seeds=[0])
    run_inline(again)
    assert any("computed again" in note for note in again.notes)


def test_a_task_is_loaded_once_in_a_process() -> None:
    assert load("mine.tiny", None) is load("mine.tiny", None)
