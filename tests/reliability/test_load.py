"""A bench of many runs: work that grows with their number, not with its square, and memory that does not grow."""

import io
import json
import sys
from pathlib import Path

import load
import pytest
from test_faults import needs_linux, script

from evenhand.bench import pack as records
from evenhand.bench.grid import PAPER, waves
from evenhand.bench.results import frame
from evenhand.bench.sweep import Agenda, Sweep, outline
from evenhand.report import tables


class Counted:
    """How many calls, of Python functions and built-in ones, something makes: its cost, whatever the clock says."""

    def __enter__(self) -> "Counted":
        self.calls = 0
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.setprofile(None)

    def _count(self, _frame: object, event: str, _argument: object) -> None:
        self.calls += event in ("call", "c_call")


def plan(runs: Path, seeds: int) -> None:
    agenda = Agenda(Sweep(runs, device="cpu", waves=[waves(load.TASK, PAPER, range(seeds), {})]))
    assert agenda.count("done") == len(agenda.entries) == 14 * seeds


STEPS = {
    "plan": plan,
    "table": lambda runs, seeds: tables.make("1", frame(records.load(runs))),
    "pack": lambda runs, seeds: records.pack(records.load(runs), runs.parent / "runs.zip"),
}


@pytest.mark.parametrize("step", STEPS)
def test_twice_as_many_runs_are_twice_as_much_work(tmp_path: Path, step: str) -> None:
    calls = []
    for seeds in (2, 6, 12):  # the first time, modules are loaded and fonts are found
        runs = tmp_path / str(seeds) / "runs"
        load.make(runs, 14 * seeds)
        with Counted() as counted:
            STEPS[step](runs, seeds)
        calls.append(counted.calls)
    assert calls[2] < 2.3 * calls[1]


def test_a_dry_run_finds_the_finished_runs_without_torch_and_without_data(tmp_path: Path) -> None:
    spec, runs = load.TASK, tmp_path / "runs"
    planned = waves(spec, PAPER, range(3), {})
    load.make(runs, 28)  # two seeds of three
    exact, found = (make(Sweep(runs, device="cpu", waves=[planned])) for make in (Agenda, outline))
    states = [(entry.planned, entry.state) for entry in exact.entries.values()]
    assert [(entry.planned, entry.state) for entry in found.entries.values()] == states
    assert found.count("done") == exact.count("done") == 8 and found.left() == exact.left()
    two = waves(f"{spec}:p=0.97", PAPER, [0, 1], {})  # p as it is by default
    assert outline(Sweep(runs, waves=[two])).count("done") == 28
    others = [
        Sweep(runs, device="cuda", waves=[two]),
        Sweep(runs, waves=[waves(f"{spec}:p=0.9", PAPER, [0, 1], {})]),
        Sweep(runs, waves=[waves(spec, PAPER, [0, 1], {"epochs": 3})]),
        Sweep(runs, waves=[waves(spec, PAPER, [2], {})]),
    ]
    assert [outline(other).count("done") for other in others] == [0] * 4
    for number, file in enumerate(sorted(runs.glob("*/jtt/*/config.json"))[:2]):
        config = json.loads(file.read_text())
        config.update([{"version": 99}, {"hyperparameters": {"upweight": 77}}][number])
        file.write_text(json.dumps(config))
        (file.parent / "checksums.json").unlink(missing_ok=True)
    assert outline(Sweep(runs, waves=[two])).count("done") == 26


@needs_linux
@pytest.mark.parametrize("done", [False, True])
def test_a_dry_run_of_a_thousand_runs_takes_little_time_and_memory(tmp_path: Path, done: bool) -> None:
    seeds = ",".join(map(str, range(72)))
    if done:
        load.make(tmp_path, 1000)
    cost = load.measure("bench", load.TASK, "--seeds", seeds, "--dry-run", "--runs", tmp_path)
    assert cost.busy < 5 and cost.megabytes < 400  # torch alone takes more memory than that


@needs_linux
def test_a_history_on_disk_takes_little_memory() -> None:
    done = script("big_history.py", "--samples", "200000", "--epochs", "20")
    assert done.returncode == 0, done.stderr
    assert "100.00% as made; 360000 rows after rebalancing" in done.stdout
    peak = float(done.stdout.split()[-1])
    assert 0 < peak < 5 * 200_000 * 20 * 4 / 2**20  # MB: five times the histories themselves
    assert io.StringIO(done.stdout).readline().startswith("200000 samples, 20 epochs: 15 MB")


@needs_linux
@pytest.mark.long
def test_many_fits_in_one_process_take_no_more_memory() -> None:
    done = script("many_fits.py", "--fits", "200")
    assert done.returncode == 0, done.stderr
    growth = float(done.stdout.split("fits: ")[1].split()[0])
    assert growth < 20, f"{growth} KB per fit"  # the weights, data and records of one fit take more
