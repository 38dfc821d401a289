"""Real worker processes: they share the work, may die, and never outlive who started them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from inline import bench, metrics, run_inline

from evenhand.bench.sweep import Local, launch

COMMAND = (sys.executable, "-m", "evenhand", "bench", "mine.tiny")


def test_workers_do_what_this_process_would_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    methods = ["mine.fatal", "erm", "tab"]
    (tmp_path / "deaths").write_text("0")
    run_inline(bench(tmp_path / "inline", methods=methods, seeds=[0]))
    (tmp_path / "deaths").write_text("1")
    agenda = bench(tmp_path / "local", methods=methods, seeds=[0])
    with Local(2) as engine:
        launch(agenda, engine)
    assert agenda.left() == 0 and not agenda.failures()
    (note,) = agenda.notes
    said = "mine.tiny mine.fatal lr=0.001 seed 0: the worker process was killed by signal 9"
    assert note == f"{said} (was there enough memory?); tried again"
    assert metrics(tmp_path / "local") == metrics(tmp_path / "inline") != {}


def test_a_worker_that_dies_too_often_is_said_in_a_line_and_its_words_are_kept(tmp_path: Path) -> None:
    agenda = bench(tmp_path, methods=["mine.spoken", "erm"], seeds=[0])
    with Local(1) as engine:
        launch(agenda, engine)
    (failed,) = agenda.failures()
    said = "the worker process ended with exit code 7: OSError: the disk is on fire"
    assert (
        failed.error == said
        and [note.endswith(f"{said}; tried again") for note in agenda.notes] == [True] * 2
    )
    kept = json.loads((failed.path / "failure.json").read_text())
    assert kept["error"] == said and "a harmless warning\nOSError" in kept["traceback"]


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def owners(runs: Path) -> set[int]:
    """The processes that hold folders now; a name may be gone, or half written, when it is read."""
    found = set()
    for path in runs.rglob("claim.owner"):
        with contextlib.suppress(OSError, ValueError):
            found.add(json.loads(path.read_text())["pid"])
    return found


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc to see whether a process lives")
def test_killed_and_restarted_it_ends_with_the_same_results_and_no_worker_goes_on(tmp_path: Path) -> None:
    words = ["--methods", "erm,tab", "--seeds", "0,1", "--device", "cpu", "--jobs", "2"]
    killed = [*COMMAND, *words, "--runs", str(tmp_path / "killed"), "--json"]
    for number, whole_group in ((1, False), (3, True)):
        process = subprocess.Popen(killed, start_new_session=True, stderr=subprocess.DEVNULL)
        while len(metrics(tmp_path / "killed")) < number:
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.02)
        workers = owners(tmp_path / "killed") - {process.pid}
        kill = os.killpg if whole_group else os.kill
        kill(process.pid, signal.SIGKILL)
        process.wait()
        end = time.monotonic() + 60
        while any(map(alive, workers)):
            assert time.monotonic() < end, f"workers {workers} live on after their bench was killed"
            time.sleep(0.05)
    # Two at once, as on two machines that share the folder: each leaves the other its runs.
    both = [subprocess.Popen(killed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(2)]
    answers = [json.loads(process.communicate()[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0] and answers[0] == answers[1]
    assert answers[0]["left"] == 0 and answers[0]["failed"] == [] and len(answers[0]["results"]) == 2
    run_inline(bench(tmp_path / "whole", methods=["erm", "tab"], seeds=[0, 1]))
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole") != {}


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc to see whether a process lives")
def test_a_worker_that_never_lets_go_of_the_interpreter_ends_with_its_killed_parent(tmp_path: Path) -> None:
    busy = tmp_path / "busy"
    command = [*COMMAND, "--methods", "mine.busy", "--seeds", "0", "--device", "cpu", "--runs", str(tmp_path)]
    process = subprocess.Popen(command, env={**os.environ, "BUSY": str(busy)}, stderr=subprocess.DEVNULL)
    while not busy.exists():
        assert process.poll() is None, "it ended before it was killed"
        time.sleep(0.05)
    worker = int(busy.read_text())
    assert alive(worker) and worker != process.pid
    process.kill()
    process.wait()
    end = time.monotonic() + 10
    while alive(worker):
        if time.monotonic() > end:
            os.kill(worker, signal.SIGKILL)
            pytest.fail("the worker lives on after its bench was killed")
        time.sleep(0.05)
