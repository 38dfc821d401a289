"""Two checkouts against each other, in turn on one machine: training, recording, two-means.

    python benchmarks/checkouts.py BEFORE AFTER [--data ROOT] [--rounds 2] [--samples 20000000]

BEFORE and AFTER are folders that hold `src` and `benchmarks`. Every measurement is a process of its own,
and the checkouts alternate, so that a machine that slows down slows both. With a GPU and --data the training
is cMNIST and the histories lie on the GPU; otherwise the training is the small digits.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

TRAINING = """
import json, sys, torch, training
from pathlib import Path
from evenhand import tasks
spec, root, epochs = ("cmnist", Path(sys.argv[1]), 40) if sys.argv[1] else ("digits", None, 4)
task, compiled = tasks.load(spec, root), training.OWN["ours"]
training.ours(task, 0, compiled, 2, recorded=True, validated=True)
found = {}
for name, recorded in (("training", False), ("recorded training", True)):
    options = {"recorded": recorded, "validated": True}
    short, long = (training.ours(task, 0, compiled, n, **options)[0] for n in (2, 2 + epochs))
    found[f"{name}, ms an epoch"] = 1000 * (long - short) / epochs
print(json.dumps(found))
"""

TWO_MEANS = """
import json, sys, tempfile, time, numpy as np, torch
from pathlib import Path
import evenhand, two_means, two_means_gpu
found = {}
def timed(name, *arguments):
    evenhand.partition(*arguments)
    begun = time.perf_counter()
    parts = evenhand.partition(*arguments)
    found[f"{name}, s"] = time.perf_counter() - begun
    found[f"{name}, minority"] = float(parts.minority.mean())
x, y = two_means.made(200_000, 20, 10)
timed("partition in memory", x, y)
with tempfile.TemporaryDirectory() as folder:
    np.save(Path(folder) / "losses.npy", two_means.made(3_000_000, 100, 10)[0])
    labels = two_means.made(3_000_000, 1, 10)[1]
    timed("partition of a mapped file", np.load(Path(folder) / "losses.npy", mmap_mode="r"), labels)
if torch.cuda.is_available():
    rows = int(sys.argv[2])
    losses = two_means_gpu.made(rows, torch.float16, "cuda")
    timed("partition on the GPU", losses, two_means_gpu.labels_of(rows, 10, "cuda"))
print(json.dumps(found))
"""


def measure(checkout: Path, script: str, arguments: list[str]) -> dict[str, float]:
    """What the script prints when it runs with a checkout's code."""
    root = checkout.resolve()
    paths = [str(root / "src"), str(root / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--samples", type=int, default=20_000_000)
    options = parser.parse_args()
    arguments = ["" if options.data is None else str(options.data.resolve()), str(options.samples)]
    values: dict[str, dict[str, list[float]]] = {}
    for number in range(options.rounds):
        order = [("before", options.before), ("after", options.after)]
        for side, checkout in order if number % 2 == 0 else reversed(order):
            for script in (TRAINING, TWO_MEANS):
                for name, value in measure(checkout, script, arguments).items():
                    values.setdefault(name, {}).setdefault(side, []).append(value)
    print("| measurement | before | after | after / before |\n| --- | --- | --- | --- |")
    for name, sides in values.items():
        shown = {side: ", ".join(f"{value:.4g}" for value in found) for side, found in sides.items()}
        ratio = statistics.median(sides["after"]) / statistics.median(sides["before"])
        print(f"| {name} | {shown['before']} | {shown['after']} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
