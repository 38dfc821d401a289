"""Two checkouts against each other, in turn on one machine: training, recording, two-means, a large file.

    python benchmarks/checkouts.py BEFORE AFTER [--data ROOT] [--rounds 3] [--samples 20000000]

BEFORE and AFTER are folders that hold `src` and `benchmarks`. Every round starts new processes, and the
checkouts alternate, so that a machine that slows down slows both. On a CPU the times are processor
time, which other programs change little. With a GPU and --data the training is cMNIST, the histories lie on
the GPU, and the times are of the clock; otherwise the training is the small digits. The last measurement
reads a file of 2 GB in a process that may use 1.5 GiB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

SHARED = """
import json, resource, sys, tempfile, time, numpy as np, torch
from pathlib import Path
import common, evenhand
now = time.perf_counter if torch.cuda.is_available() else time.process_time
found = {}
def timed(work):
    common.finish()
    begun = now()
    work()
    common.finish()
    return now() - begun
"""

TRAINING = """
import training
from evenhand import tasks
spec, root, epochs = ("cmnist", Path(sys.argv[1]), 40) if sys.argv[1] else ("digits", None, 4)
task, compiled = tasks.load(spec, root), training.OWN["ours"]
training.ours(task, 0, compiled, 2, recorded=True, validated=True)
for name, recorded in (("training", False), ("recorded training", True)):
    options = {"recorded": recorded, "validated": True}
    short, long = (timed(lambda: training.ours(task, 0, compiled, n, **options)) for n in (2, 2 + epochs))
    found[f"{name}, ms an epoch"] = 1000 * (long - short) / epochs
"""

HISTORY = """
from evenhand.core.history import LossHistory
samples, size = 48_000, 2048
losses = torch.rand(samples, device="cuda" if torch.cuda.is_available() else "cpu")
def record(history):
    for index in torch.randperm(samples, device=losses.device).split(size):
        history.record(index, losses[index])
    history.end_epoch(wait=False)
with tempfile.TemporaryDirectory() as folder:
    for name, path in (("memory", None), ("a file", Path(folder) / "losses.npy")):
        history = LossHistory(samples, path=path)
        record(history)
        found[f"recording 48,000 losses in {name}, ms"] = 1000 * min(
            timed(lambda: record(history)) for _ in range(30)
        )
        history.flush()
"""

TWO_MEANS = """
import scaling, two_means, two_means_gpu
def split(name, *arguments):
    parts = []
    seconds = [timed(lambda: parts.append(evenhand.partition(*arguments))) for _ in range(4)]
    found[f"{name}, s"] = min(seconds)
    found[f"{name}, minority"] = float(parts[0].minority.mean())
x, y = two_means.made(200_000, 20, 10)
split("partition in memory", x, y)
for module in [*sys.modules.values()]:
    if module.__name__.startswith("evenhand.core.") and hasattr(module, "STREAMED"):
        module.STREAMED = 0  # read the file in blocks, though it would fit
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "losses.npy"
    scaling.write(path, 500_000, 100)
    split("partition of a mapped file", np.load(path, mmap_mode="r"), scaling.made_labels(500_000))
if torch.cuda.is_available():
    rows = int(sys.argv[2])
    losses = two_means_gpu.made(rows, torch.float16, "cuda")
    split("partition on the GPU", losses, two_means_gpu.labels_of(rows, 10, "cuda"))
"""

SCALING = """
import scaling
samples, epochs = 5_000_000, 100
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "losses.npy"
    scaling.write(path, samples, epochs)
    labels, losses = scaling.made_labels(samples), np.load(path, mmap_mode="r")
    resource.setrlimit(resource.RLIMIT_DATA, (3 << 29, 3 << 29))
    with common.Peak() as peak:
        found["partition of 2 GB in 1.5 GiB, s"] = timed(lambda: evenhand.partition(losses, labels))
    found["its memory beyond the inputs, MiB"] = peak.anonymous
"""


def measure(checkout: Path, script: str, arguments: list[str]) -> dict[str, float]:
    """What the script prints when it runs with a checkout's code."""
    root = checkout.resolve()
    paths = [str(root / "src"), str(root / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", f"{SHARED}{script}print(json.dumps(found))", *arguments],
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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=20_000_000)
    options = parser.parse_args()
    arguments = ["" if options.data is None else str(options.data.resolve()), str(options.samples)]
    values: dict[str, dict[str, list[float]]] = {}
    for number in range(options.rounds):
        order = [("before", options.before), ("after", options.after)]
        for side, checkout in order if number % 2 == 0 else reversed(order):
            for script in (TRAINING + HISTORY + TWO_MEANS, SCALING):
                for name, value in measure(checkout, script, arguments).items():
                    values.setdefault(name, {}).setdefault(side, []).append(value)
    print("| measurement | before | after | after / before |\n| --- | --- | --- | --- |")
    for name, sides in values.items():
        shown = {side: ", ".join(f"{value:.4g}" for value in found) for side, found in sides.items()}
        ratio = statistics.median(sides["after"]) / statistics.median(sides["before"])
        print(f"| {name} | {shown['before']} | {shown['after']} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
