"""Kill a bench at random moments and show that it ends with the same results as one left alone.

    python tests/bench/kill_bench.py                       # a small version, a few minutes on two cores
    python tests/bench/kill_bench.py --whole               # evenhand bench digits_even_odd digits, as it is

Kills come with SIGKILL, in turn of the whole process group and of the parent alone. In the end every
metrics.json must be equal to the byte, and the printed tables must be the same text.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from inline import metrics

SMALL = ["--limit", "200", "--epochs", "4", "--seeds", "0,1"]


def main() -> None:
    """Run the bench alone, then with kills, and compare."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--whole", action="store_true", help="all samples, epochs and seeds")
    options.add_argument("--kills", type=int, default=5)
    options.add_argument("--seed", type=int, default=0, help="of the moments")
    options.add_argument("--folder", type=Path, help="where the runs are kept; a temporary one if none")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        compare(chosen.folder or Path(temporary), chosen.kills, random.Random(chosen.seed), chosen.whole)


def compare(folder: Path, kills: int, moments: random.Random, whole: bool) -> None:
    command = [sys.executable, "-m", "evenhand", "bench", "digits_even_odd", "digits", "--jobs", "2"]
    command += [] if whole else SMALL
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


def written(runs: Path) -> set[tuple[str, int]]:
    """The trainings' files, and when each was last written."""
    return {(str(path), path.stat().st_mtime_ns) for path in runs.glob("*/stages/*/epochs.jsonl")}


if __name__ == "__main__":
    main()
