"""Workers that share one folder of runs, some of them killed; every run must be done once, and right.

    python tests/reliability/workers.py                                  # ten workers, 20 runs, 10 kills
    python tests/reliability/workers.py --workers 4 --runs 8 --kills 3

Every worker goes through all the runs in an order of its own. Whenever the log of what they do has grown by a few
lines, a random one of them is killed with SIGKILL, and another takes its place.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import torch  # noqa: E402
from scenarios import SETTINGS, results, tiny, whole  # noqa: E402

from evenhand.training import execute as execution  # noqa: E402
from evenhand.training.log import Silent  # noqa: E402

carry_out = execution._carry_out


def plan(number: int) -> list[tuple[str, int]]:
    return [(method, seed) for seed in range(number) for method in SETTINGS][:number]


def one_after_another(planned: list[tuple[str, int]], runs: Path, log: Path) -> None:
    """Do what is missing, noting when this process begins a run and when it ends one."""

    def noted(run: Any, *rest: Any) -> None:
        _note(log, "begin", run.path)
        carry_out(run, *rest)
        _note(log, "end", run.path)

    execution._carry_out = noted
    for method, seed in planned:
        execution.execute(tiny(), method, SETTINGS[method], seed=seed, runs=runs, device="cpu", show=Silent())


def _note(log: Path, what: str, path: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (json.dumps([what, f"{path.parent.name}/{path.name}", os.getpid()]) + "\n").encode())
    os.close(file)


def start(planned: list[tuple[str, int]], runs: Path, log: Path, seed: int) -> int:
    """A worker, forked from this process, which has torch loaded."""
    worker = os.fork()
    if worker:
        return worker
    status = 1
    try:
        one_after_another(random.Random(seed).sample(planned, len(planned)), runs, log)
        status = 0
    finally:
        os._exit(status)


def work(planned: list[tuple[str, int]], folder: Path, workers: int, kills: int, seed: int) -> list[int]:
    """Let workers do the plan and kill some; gives the processes that were killed."""
    chosen, log, killed = random.Random(seed), folder / "log", []
    log.touch()
    alive = {start(planned, folder / "runs", log, number) for number in range(workers)}
    seen = 0
    while alive:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended:
            alive.discard(ended)
            assert ended in killed or status == 0, f"worker {ended} ended with status {status}"
            continue
        lines = len(log.read_text().splitlines())
        if len(killed) < kills and lines > seen:
            seen = lines + chosen.randrange(max(1, 2 * len(planned) // kills))
            time.sleep(chosen.random() * 0.1)
            victim = chosen.choice(sorted(alive - set(killed)))
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)
            alive.add(start(planned, folder / "runs", log, workers + len(killed)))
        time.sleep(0.005)
    return killed


def judge(folder: Path, planned: list[tuple[str, int]], killed: list[int]) -> tuple[list[str], Counter[str]]:
    """What is wrong with the runs, and how often what happened."""
    notes = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    begun = {(run, worker) for what, run, worker in notes if what == "begin"}
    ended = [(run, worker) for what, run, worker in notes if what == "end"]
    retaken = {(run, worker) for run, worker in begun - set(ended) if worker in killed}
    wrong = [f"not whole: {one}" for one in whole(folder / "runs")]
    wrong += [f"{run} was begun and not ended by {worker}" for run, worker in begun - set(ended) - retaken]
    for run in {run for run, _ in begun}:
        # Killed between its last file and its note, a worker has done the run; then nobody does it again.
        times, cut = sum(one == run for one, _ in ended), sum(one == run for one, _ in retaken)
        if times > 1 or times + cut < 1:
            wrong.append(f"{run} was done {times} times")
    if len({run for run, _ in begun}) != len(planned):
        wrong.append(f"{len(planned)} runs were planned, {len({run for run, _ in begun})} begun")
    alone = folder / "alone"
    one_after_another(planned, alone / "runs", folder / "log-alone")
    found, wanted = results(folder / "runs"), results(alone / "runs")
    wrong += [
        f"{name} differs" for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)
    ]
    return wrong, Counter(runs=len(planned), killed=len(killed), ended=len(ended), retaken=len(retaken))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"workers": 10, "runs": 20, "kills": 10, "seed": 0}.items():
        options.add_argument(f"--{name}", type=int, default=default)
    given = options.parse_args()
    torch.set_num_threads(1)
    execution._commit = lambda folder: ""
    planned = plan(given.runs)
    with tempfile.TemporaryDirectory() as name:
        begun = time.monotonic()
        killed = work(planned, Path(name), given.workers, given.kills, given.seed)
        seconds = time.monotonic() - begun
        wrong, counts = judge(Path(name), planned, killed)
    print(*wrong, sep="\n")
    print(f"{given.workers} workers, {dict(counts)}, {seconds:.0f} s; wrong: {len(wrong)}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
