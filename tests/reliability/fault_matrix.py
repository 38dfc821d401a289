"""Every fault at every place where a run or a bench touches the disk; prints the table of docs/reliability.md.

    python tests/reliability/fault_matrix.py                    # all of it
    python tests/reliability/fault_matrix.py --sample 60        # so many trials, drawn by --seed
    python tests/reliability/fault_matrix.py --only tab,bench

A trial: a process forked from this one, with torch loaded, is killed or gets an error at one place. Then every file under its
final name must be whole; the same is done again, without a fault, by a new process after a kill and by the
same process after an error; and everything on disk must be equal to the byte to what an undisturbed run leaves.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import torch  # noqa: E402
from faults import FAULTS, Injected, watch  # noqa: E402
from scenarios import SCENARIOS, Scenario, results, save_always, whole  # noqa: E402

from evenhand.training import execute  # noqa: E402


@dataclass
class Matrix:
    """Trials by (kind of file, operation, fault), and what went wrong."""

    trials: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)


def in_child(act: Callable[[], object]) -> tuple[int, str]:
    """Do something in a forked process; gives its status and what it had to say."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            answer = act()
            os.write(writer, json.dumps(answer).encode())
            status = 0
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-60000:])
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read().decode(errors="replace")
    return os.waitpid(child, 0)[1], said


def record(scenario: Scenario, root: Path) -> list[tuple[str, str]]:
    """Where an undisturbed run touches the disk; its files stay, to compare the others with."""
    with watch(root) as seen:
        scenario.act(root)
    return seen.points


def again(scenario: Scenario, root: Path) -> list[str]:
    """After a fault: what is not whole; then the same once more, which must not find anything damaged."""
    wrong = [f"not whole: {one}" for one in whole(root)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        scenario.act(root)
    return wrong + [f"warned: {one.message}" for one in said if "again" in str(one.message)]


def attempt(scenario: Scenario, root: Path, at: int, fault: str) -> list[str]:
    """In the child: the fault, and after an error the second time."""
    with watch(root, at, fault), contextlib.suppress(Injected):  # an error that was dealt with is as good
        scenario.act(root)
    return again(scenario, root)


def trial(scenario: Scenario, base: Path, root: Path, at: int, fault: str) -> list[str]:
    """One fault at one place; gives what was lost."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(base, root)
    status, said = in_child(lambda: attempt(scenario, root, at, fault))
    if fault in ("SIGKILL", "torn write"):
        if not os.WIFSIGNALED(status):
            return [f"was not killed: {said}"]
        status, said = in_child(lambda: again(scenario, root))
    return list(json.loads(said)) if status == 0 else [f"did not end well: {said}"]


def different(found: dict[str, bytes], wanted: dict[str, bytes]) -> list[str]:
    names = sorted(found.keys() ^ wanted.keys())
    return [f"{name}: only {'here' if name in found else 'in the undisturbed run'}" for name in names] + [
        f"{name} differs" for name in found.keys() & wanted.keys() if found[name] != wanted[name]
    ]


def plan(only: list[str], folder: Path) -> tuple[list[tuple[str, int, str]], dict[str, tuple]]:
    """All trials, and for every scenario: what was prepared, its places, what it should leave."""
    trials, known = [], {}
    for name in only:
        scenario, base, root = SCENARIOS[name], folder / f"{name}-base", folder / "trial"
        base.mkdir()
        scenario.prepare(base)
        for _ in range(2):  # what the first time loads and caches, every process forked later has
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(base, root)
            scenario.act(root)
        shutil.rmtree(root)
        shutil.copytree(base, root)
        status, said = in_child(lambda scenario=scenario, root=root: record(scenario, root))
        assert status == 0, said
        points = [(operation, kind) for operation, kind in json.loads(said)]
        known[name] = (base, points, results(root))
        for at, (operation, _) in enumerate(points):
            trials += [(name, at, fault) for fault in FAULTS if fault != "torn write" or operation == "write"]
    return trials, known


def carry_out(chosen: list[tuple[str, int, str]], known: dict[str, tuple], folder: Path) -> Matrix:
    matrix, begun = Matrix(), time.monotonic()
    for number, (name, at, fault) in enumerate(chosen, 1):
        base, points, wanted = known[name]
        operation, kind = points[at]
        lost = trial(SCENARIOS[name], base, folder / "trial", at, fault)
        lost = lost or different(results(folder / "trial"), wanted)
        matrix.trials[kind, operation, fault] += 1
        if lost:
            matrix.losses.append(f"{name}: {fault} at {at}, {operation} {kind}: {'; '.join(lost)[-2000:]}")
            print(matrix.losses[-1], file=sys.stderr, flush=True)
        if number % 200 == 0:
            rate = 60 * number / (time.monotonic() - begun)
            print(f"{number}/{len(chosen)}, {rate:.0f} a minute", file=sys.stderr, flush=True)
    return matrix


def table(matrix: Matrix, by: int, title: str) -> str:
    """Markdown: a row for every kind of file (0) or operation (1), a column for every fault."""
    lines = [f"| {title} | {' | '.join(FAULTS)} | trials |", "| --- |" + " ---: |" * (len(FAULTS) + 1)]
    for name in [*sorted({key[by] for key in matrix.trials}), "all"]:
        own = {key: count for key, count in matrix.trials.items() if name in (key[by], "all")}
        cells = [sum(count for key, count in own.items() if key[2] == fault) for fault in FAULTS]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} | {sum(cells)} |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", default=",".join(SCENARIOS), help="scenarios, with commas between")
    options.add_argument("--sample", type=int, help="so many of the trials")
    options.add_argument("--seed", type=int, default=0, help="of the sample")
    given = options.parse_args()
    torch.set_num_threads(1)
    save_always()
    execute._commit = lambda folder: ""  # a process for each run that the matrix need not start
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        trials, known = plan(given.only.split(","), Path(folder))
        gc.freeze()
        number = min(given.sample or len(trials), len(trials))
        chosen = sorted(random.Random(given.seed).sample(trials, number)) if given.sample else trials
        begun = time.monotonic()
        matrix = carry_out(chosen, known, Path(folder))
    seconds = time.monotonic() - begun
    print(table(matrix, 1, "operation"), "\n\n", table(matrix, 0, "file"), sep="")
    places = sum(len(points) for _, points, _ in known.values())
    print(f"\n{len(chosen)} trials at {places} places in {seconds:.0f} s; losses: {len(matrix.losses)}")
    sys.exit(1 if matrix.losses else 0)


if __name__ == "__main__":
    main()
