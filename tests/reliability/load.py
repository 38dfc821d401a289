"""A bench of 2,000 finished runs, and how long and how much memory each command takes on it.

    python tests/reliability/load.py                  # prints the table of docs/reliability.md
    python tests/reliability/load.py --runs 500

The records are made without training, in the folders in which the bench looks for them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

TASK = "digits_even_odd"


def make(runs: Path, number: int) -> int:
    """Write at least so many finished runs of the paper's methods on a task; gives the number of seeds."""
    import made_bench
    import torch

    from evenhand.bench.grid import PAPER, waves
    from evenhand.bench.sweep import load
    from evenhand.training.keys import identify

    task, cpu, written, seed = load(TASK, None), torch.device("cpu"), 0, 0
    while written < number:
        wave = waves(task.spec, PAPER, [seed], {})
        for one in [*wave.first, *wave.second({"lr": 1e-3, "weight_decay": 0.0})]:
            recipe = task.recipe.replace(**one.changes)
            identity = identify(task, one.method, one.settings, recipe, cpu)
            record = made_bench.write(
                runs, one.method, identity.settings, seed=seed, task=task.name, spec=task.spec,
                recipe=identity.recipe, data=task.checksum, pseudo=one.method == "tab",
                wga=0.9 if one.settings.get("lr") == 1e-3 and not one.settings.get("weight_decay") else 0.5,
                val=0.9 if one.settings.get("lr") == 1e-3 and not one.settings.get("weight_decay") else 0.5,
                dynamics=made_bench.curves(20, seed), content=identity.content,
            )  # fmt: skip
            assert record.path == identity.folder(runs, seed)
            written += 1
        seed += 1
    return seed


@dataclass(frozen=True)
class Cost:
    """What one command took."""

    seconds: float
    busy: float  # seconds of a processor, whatever else the machine does
    megabytes: float  # at its peak, with torch and all else that it loads


def measure(*words: str | Path) -> Cost:
    """Run a command of evenhand in a process of its own."""
    code = (
        "import sys, time; from evenhand.cli import main; sys.argv[0] = 'evenhand'\n"
        "try: main()\n"
        "finally:\n"
        # Not ru_maxrss, which begins with the memory of the process that has started this one.
        "    peak = open('/proc/self/status').read().split('VmHWM:')[1].split()[0]\n"
        "    print('used', peak, time.process_time(), file=sys.stderr)"
    )
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)
    seconds = time.monotonic() - begun
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))} failed:\n{done.stderr}")
    used = next(line for line in done.stderr.splitlines()[::-1] if line.startswith("used "))
    _, peak, busy = used.split()
    return Cost(seconds, float(busy), int(peak) / 1024)


def commands(folder: Path, seeds: int) -> dict[str, list[str | Path]]:
    runs = folder / "runs"
    each = ",".join(map(str, range(seeds)))
    return {
        "table methods, which reads no run": ["table", "methods"],
        "bench --dry-run, nothing done": ["bench", TASK, "--seeds", each, "--dry-run", "--device", "cpu",
                                          "--runs", folder / "none"],
        "bench --dry-run, all done": ["bench", TASK, "--seeds", each, "--dry-run", "--device", "cpu",
                                      "--runs", runs],
        "bench, all done": ["bench", TASK, "--seeds", each, "--device", "cpu", "--quiet", "--runs", runs],
        "table 1": ["table", "1", "--runs", runs],
        "report": ["report", "--runs", runs, "--out", folder / "report.html"],
        "pack": ["pack", "--runs", runs, "--out", folder / "runs.zip"],
        "table 1, packed": ["table", "1", "--runs", folder / "runs.zip"],
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=2000)
    number = options.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seeds = make(folder / "runs", number)
        count = len(list((folder / "runs").glob("*/*/*/metrics.json")))
        print(f"{count} runs, {seeds} seeds\n\n| command | processor seconds | seconds | peak memory |")
        print("| --- | ---: | ---: | ---: |")
        for title, words in commands(folder, seeds).items():
            cost = measure(*words)
            print(f"| {title} | {cost.busy:.1f} | {cost.seconds:.1f} | {cost.megabytes:.0f} MB |", flush=True)


if __name__ == "__main__":
    main()
