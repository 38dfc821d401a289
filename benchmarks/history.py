"""What recording costs: an epoch of the engine with and without it, as a ratio from one run.

    python benchmarks/history.py [--data ROOT] [--smoke]

First a plain loop: epochs with and without `LossHistory` alternate, so that a noisy machine is equally noisy
to both. Then the engine, as every method uses it: whole trainings alternate, both validate after each epoch,
and one of them keeps losses and hits of all training and validation samples in files.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import torch
import training

from evenhand import Task, tasks
from evenhand.core.history import LossHistory
from evenhand.training.models import make_model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    print(common.machine())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)  # as `execute` does for batches as small as those of the digits
    spec = "digits" if options.smoke or options.data is None else "cmnist"
    task = tasks.load(spec, options.data)
    size = task.recipe.batch_size
    x = torch.as_tensor(task.train.x)[task.train.rows].to(device)
    y = task.train.y.to(device)
    model = make_model("cnn", shape=tuple(x.shape[1:]), num_classes=task.num_classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), fused=device.type == "cuda" or None)
    pairs = 3 if options.smoke else 12 if device.type == "cuda" else 40
    with tempfile.TemporaryDirectory() as folder:
        history = LossHistory(len(y), path=Path(folder) / "losses.npy")
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * pairs + 2):
            recorded = number % 2 == 0
            common.finish()
            begun = time.perf_counter()
            epoch(model, optimizer, x, y, size, history if recorded else None)
            common.finish()
            if number > 1:
                times[recorded].append(time.perf_counter() - begun)
    without = statistics.median(times[False])
    more = statistics.median(a - b for a, b in zip(times[True], times[False], strict=True))  # of neighbours
    own = alone(len(y), size, device)
    plain, kept, calls = engine(task, *((1, 2, 1) if options.smoke else (5, 45, 3)))
    print(f"\n{spec}, {len(y):,} samples, batches of {size}, six-layer CNN, {device.type}")
    common.table(
        ["", "milliseconds an epoch", "share"],
        [
            ("without recording", f"{1000 * without:.1f}", ""),
            ("with recording", f"{1000 * (without + more):.1f}", f"{100 * more / without:+.2f}%"),
            ("the recording by itself", f"{1000 * own:.2f}", f"{100 * own / without:.2f}%"),
            ("the engine, not recorded", f"{1000 * plain:.1f}", ""),
            ("the engine, recorded", f"{1000 * kept:.1f}", f"{100 * (kept / plain - 1):+.2f}%"),
            ("its calls that record", f"{1000 * calls:.2f}", f"{100 * calls / plain:.2f}%"),
        ],
    )


def epoch(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    x: torch.Tensor,
    y: torch.Tensor,
    size: int,
    history: LossHistory | None,
) -> None:
    """One pass over the data; the per-sample losses are computed either way, as the mean needs them."""
    for index in torch.randperm(len(y), device=y.device).split(size):
        inputs = x[index].float() / 255 if x.dtype == torch.uint8 else x[index]
        losses = torch.nn.functional.cross_entropy(model(inputs), y[index], reduction="none")
        if history is not None:
            history.record(index, losses.detach())
        optimizer.zero_grad(set_to_none=True)
        losses.mean().backward()
        optimizer.step()
    if history is not None:
        history.end_epoch(wait=False)  # as the engine does


def engine(task: Task, short: int, long: int, pairs: int) -> tuple[float, float, float]:
    """Seconds an epoch, not recorded and recorded: of long trainings less short ones; and of the calls."""
    times: dict[tuple[bool, int], list[float]] = {}
    watched = Watch()
    for number in range(pairs + 1):
        for epochs, recorded in ((long, False), (long, True), (short, True), (short, False)):
            took = training.ours(task, 0, training.OWN["ours"], epochs, validated=True, recorded=recorded)[0]
            if number > 0:
                times.setdefault((recorded, epochs), []).append(took)
    print(
        {f"recorded {kind[0]}, {kind[1]} epochs": [round(t, 3) for t in each] for kind, each in times.items()}
    )
    plain, kept = (
        (statistics.median(times[kind, long]) - statistics.median(times[kind, short])) / (long - short)
        for kind in (False, True)
    )
    return plain, kept, watched.seconds / ((pairs + 1) * (long + short))


class Watch:
    """Adds up the time that whoever records spends in it; the machine's noise touches it least."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for name in ("record", "fetch", "end_epoch"):
            setattr(LossHistory, name, self._timed(getattr(LossHistory, name)))

    def _timed(self, call: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: Any, **named: Any) -> None:
            begun = time.perf_counter()
            call(*args, **named)
            self.seconds += time.perf_counter() - begun

        return timed


def alone(samples: int, size: int, device: torch.device) -> float:
    """Seconds of recording one epoch with nothing beside it."""
    with tempfile.TemporaryDirectory() as folder:
        history = LossHistory(samples, path=Path(folder) / "losses.npy")
        losses = torch.rand(samples, device=device)

        def work() -> None:
            for index in torch.randperm(samples, device=device).split(size):
                history.record(index, losses[index])
            history.end_epoch(wait=False)  # as the engine does

        return common.seconds(work, repeats=9)


if __name__ == "__main__":
    main()
