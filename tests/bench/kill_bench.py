"""Kill a bench at random moments and show that it ends with the same results as an undisturbed one.

    python tests/bench/kill_bench.py                # 84 runs of few samples and epochs, a few minutes on two cores
    python tests/bench/kill_bench.py --whole        # the same runs with all samples and epochs
    python tests/bench/kill_bench.py --ray          # also under Ray, with a killed worker

The process group and the parent alone are killed in turn with SIGKILL; under Ray, one worker process. In the
end every metrics.json must be the same to the byte, and the printed tables must be the same text.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from inline import metrics

SMALL = ["--limit", "200", "--epochs", "4"]


def main() -> None:
    """Run the bench alone, then with kills, and compare."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--whole", action="store_true", help="all samples and epochs")
    options.add_argument("--kills", type=int, default=5)
    options.add_argument("--seed", type=int, default=0, help="of the moments")
    options.add_argument("--ray", action="store_true", help="also under Ray, with a killed worker")
    options.add_argument("--folder", type=Path, help="folder of the runs; a temporary one if omitted")
    chosen = options.parse_args()
    command = [sys.executable, "-m", "evenhand", "bench", "digits_even_odd", "digits", "--jobs", "2"]
    command += [] if chosen.whole else SMALL
    with tempfile.TemporaryDirectory() as temporary:
        folder, moments = chosen.folder or Path(temporary), random.Random(chosen.seed)
        table = compare(command, folder, chosen.kills, moments)
        if chosen.ray:
            under_ray(command, folder, moments, table)


def compare(command: list[str], folder: Path, kills: int, moments: random.Random) -> str:
    """Run the bench alone and with kills; returns the table that both print."""
    begun = time.monotonic()
    alone = subprocess.run(
        [*command, "--runs", folder / "alone"], check=True, stdout=subprocess.PIPE, text=True
    )
    seconds = time.monotonic() - begun
    number_of_runs = len(metrics(folder / "alone"))
    print(f"left alone: {seconds:.0f} s, {number_of_runs} runs", flush=True)
    killed = [*command, "--runs", folder / "killed", "--quiet"]
    # By what is done and not by the clock: a machine that is busy now may be idle later.
    for number, enough in enumerate(sorted(moments.sample(range(number_of_runs - 4), kills))):
        seen = written(folder / "killed")
        process = subprocess.Popen(killed, start_new_session=True, stdout=subprocess.DEVNULL)
        while written(folder / "killed") == seen or len(metrics(folder / "killed")) < enough:
            assert process.poll() is None, "the bench ended before it was killed"
            time.sleep(0.02)
        time.sleep(moments.uniform(0, 2) * seconds / number_of_runs)
        group = number % 2 == 0
        (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
        done, what = len(metrics(folder / "killed")), "group" if group else "parent"
        print(f"kill {number + 1} ({what}), {done} runs done", flush=True)
    last = subprocess.run(killed, check=True, stdout=subprocess.PIPE, text=True)
    assert metrics(folder / "killed") == metrics(folder / "alone"), "the results differ"
    assert last.stdout == alone.stdout, f"the tables differ:\n{alone.stdout}\n{last.stdout}"
    print(f"same {len(metrics(folder / 'killed'))} results to the byte, and the same table:\n{last.stdout}")
    return last.stdout


def under_ray(command: list[str], folder: Path, moments: random.Random, table: str) -> None:
    """Run the bench under Ray, kill one of its workers, and compare."""
    ray = [*command, "--runs", folder / "ray", "--engine", "ray"]
    process = subprocess.Popen(ray, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    enough = moments.randrange(len(metrics(folder / "alone")) // 2)
    while len(metrics(folder / "ray")) < enough or not (workers := working(process.pid)):
        assert process.poll() is None, "the bench ended before its worker was killed"
        time.sleep(0.05)
    os.kill(workers[0], signal.SIGKILL)
    print(f"killed a worker of Ray, {len(metrics(folder / 'ray'))} runs done", flush=True)
    out, notes = process.communicate()
    assert process.returncode == 0 and "tried again" in notes, notes[-2000:]
    assert metrics(folder / "ray") == metrics(folder / "alone"), "the results differ"
    assert out == table, f"the tables differ:\n{table}\n{out}"
    print(f"Ray: same {len(metrics(folder / 'ray'))} results to the byte, and the same table")


def working(pid: int) -> list[int]:
    """The worker processes of Ray that descend from a process and are executing a task."""
    parents, names = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            names[int(entry.name)] = (entry / "cmdline").read_bytes()

    def descends(one: int) -> bool:
        return one == pid or (one in parents and descends(parents[one]))

    return [one for one, name in names.items() if name.startswith(b"ray::work") and descends(one)]


def written(runs: Path) -> set[tuple[str, int]]:
    """The trainings' files, and when each was last written."""
    return {(str(path), path.stat().st_mtime_ns) for path in runs.glob("*/stages/*/epochs.jsonl")}


if __name__ == "__main__":
    main()
