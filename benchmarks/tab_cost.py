"""What every method costs over one ERM training, at equal epochs: ratios from one run, with TAB's breakdown.

    python benchmarks/tab_cost.py --data ROOT [--task cmnist] [--epochs 20]
    python benchmarks/tab_cost.py --smoke

Early stopping is off, so that epochs are equal; each method works in a folder of its own, so that nothing is
shared. By arithmetic TAB costs 1 + 2 (its set has 2N samples, less where a cluster is half a class), with
balanced epochs of N draws 1 + 1; its first training is also the ERM baseline.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import common

from evenhand import Task, execute, tasks
from evenhand.training.log import Silent

METHODS = {
    "erm": ("erm", {}),
    "tab": ("tab", {}),
    "tab, balanced epochs": ("tab", {"balanced_epochs": True}),
    "tab, one number per sample": ("tab", {"summary": "error"}),
    "jtt (T=5, 25 times)": ("jtt", {"identifier_epochs": 5, "upweight": 25}),
    "lff": ("lff", {}),
    "gdro": ("gdro", {}),
    "masktune": ("masktune", {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--task", default="cmnist")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    task = tasks.load("digits" if options.smoke else options.task, options.data)
    epochs = 2 if options.smoke else options.epochs
    print(common.machine(), f"; {task.name}, {epochs} epochs")
    timed(task, "erm", {}, 1)  # what is done once in a process
    rows, erm = [], 0.0
    for name, (method, settings) in METHODS.items():
        took, stages = timed(task, method, settings, epochs)
        erm = erm or took
        rest = took - sum(stages.values())
        parts = [
            *(f"{stage} {100 * t / took:.0f}%" for stage, t in stages.items()),
            f"rest {100 * rest / took:.0f}%",
        ]
        rows.append((name, f"{took:.2f}", f"{took / erm:.2f}", ", ".join(parts)))
    common.table(["method", "seconds", "over ERM", "of which"], rows)


def timed(
    task: Task, method: str, settings: dict[str, object], epochs: int
) -> tuple[float, dict[str, float]]:
    """Seconds of one run from nothing, and those of its trainings."""
    recipe = task.recipe.replace(epochs=epochs, patience=10**6)
    with tempfile.TemporaryDirectory() as folder:
        common.finish()
        begun = time.perf_counter()
        record = execute(task, method, settings, recipe=recipe, runs=folder, show=Silent())
        took = time.perf_counter() - begun
        return took, dict(record.timing["stages"])


if __name__ == "__main__":
    main()
