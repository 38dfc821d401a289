"""Runs give the golden numbers, whether they are interrupted, and by however many ranks."""

from pathlib import Path

import golden_runs as golden
import pytest
import torch
from golden_runs import Case

COMMAND = "python tests/golden/make.py"
EVERY = [case for method in golden.METHODS for case in golden.cases(method)]
SHORT = [case for case in EVERY if case.task == "photos" and case.plain and case.world_size == 1]


def named(case: Case) -> str:
    return f"{case.method} {case.name}"


def check(case: Case, runs: Path) -> None:
    golden_file = golden.read(case.method)
    kept = golden_file.get("runs", {}).get(case.name)
    assert kept is not None, f"no golden numbers of {named(case)}: run {COMMAND} {case.method}"
    libraries = golden.libraries_of(case.method)
    if libraries != golden_file["libraries"]:
        pytest.skip(f"the numbers were recorded with {golden_file['libraries']}, here are {libraries}")
    found = case.numbers(runs)
    moved = "\n  ".join(golden.differences(kept, found))
    assert not moved, (
        f"numbers of {case.method} changed: raise VERSION in methods/{case.method}.py and run "
        f"{COMMAND} {case.method}; if the engine's numerics changed, raise NUMERICS and run {COMMAND} "
        f"--numerics\n{case.name}\n  {moved}"
    )
    assert golden_file["version"] == golden.version_of(case.method), f"run {COMMAND} {case.method}"
    assert golden_file["numerics"] == golden.numerics_version(), f"run {COMMAND} --numerics"
    key = golden.keys(case.execute(runs))
    assert golden.read("keys").get(named(case)) == key, (
        f"the key of {named(case)} changed, so that older records are no longer found; "
        f"if that is intended, run {COMMAND} --keys"
    )


@pytest.mark.parametrize("case", SHORT, ids=named)
def test_every_method_gives_the_golden_numbers(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in EVERY if case not in SHORT], ids=named)
def test_every_setting_gives_the_golden_numbers(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_the_golden_files_are_those_of_the_methods() -> None:
    assert {path.stem for path in (golden.HERE / "metrics").glob("*.json")} == set(golden.METHODS)
    assert golden.read("keys").keys() == {named(case) for case in EVERY}, f"run {COMMAND}"


def test_the_learning_rate_falls_in_a_golden_run_of_every_method() -> None:
    """Else the schedule would not be tested."""
    for method in golden.METHODS:
        runs = golden.read(method)["runs"].values()
        stages = [stage for run in runs for stage in run["stages"].values()]
        assert any(curves["lr"][-1] < curves["lr"][0] for curves in stages), method


def test_keys_tell_the_golden_runs_apart() -> None:
    runs = [key["run"] for name, key in golden.read("keys").items() if "two ranks" not in name]
    assert len(set(runs)) == len(runs)


def interrupted(method: str, task: str, folder: Path) -> None:
    """A run that was interrupted in every stage leaves the bytes of one that was not."""
    case, whole = Case(method, task), golden.Epochs()
    expected = case.execute(folder / "whole", whole)
    found, rest = golden.execute_interrupted(case, folder / "interrupted")
    long = {name for name, epochs in expected.metrics["epochs"].items() if epochs > golden.INTERRUPTED}
    assert rest.interrupted == long, "every long stage must have been interrupted"
    assert rest.count == whole.count, "an epoch before the checkpoint must not be computed again"
    assert golden.files(found) == golden.files(expected)


@pytest.mark.parametrize("method", ["tab", "evenhand"])
def test_an_interrupted_run_leaves_the_same_bytes(method: str, tmp_path: Path) -> None:
    interrupted(method, "photos", tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("method", golden.METHODS)
@pytest.mark.parametrize("task", ["digits", "photos"])
def test_every_interrupted_run_leaves_the_same_bytes(method: str, task: str, tmp_path: Path) -> None:
    interrupted(method, task, tmp_path)


@pytest.mark.long
def test_two_ranks_give_the_golden_numbers_of_one_process(tmp_path: Path) -> None:
    """The digits are not augmented, so the ranks compute the same up to rounding."""
    record = Case("tab", "digits", world_size=2).execute_together(tmp_path)
    assert record.config["versions"]["ranks"] == "2"
    assert not list(golden.differences(golden.read("tab")["runs"]["digits"], golden.numbers(record)))


@pytest.mark.parametrize("path, change", [("loss/3", 2e-4), ("lr/0", 1e-5), ("sizes/0/1", 0.1), ("wga", 0.2)])
def test_a_change_beyond_the_tolerance_is_seen(path: str, change: float) -> None:
    assert list(golden.differences(0.5, 0.5 * (1 + change), f"/stages/erm/{path}"))
    assert not list(golden.differences(0.5, 0.5 * (1 + 1e-7), f"/stages/erm/{path}"))
    assert list(golden.differences([0.5, 0.5], [0.5], f"/stages/erm/{path}"))


torch.set_num_threads(1)
