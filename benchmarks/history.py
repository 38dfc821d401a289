"""What recording costs: an epoch of the engine with and without it, as a ratio from one run.

    python benchmarks/history.py [--data ROOT] [--batch SIZE] [--smoke]

First a plain loop: of four epochs the outer or the inner two, as a coin decides, are recorded by a
`LossHistory`, so that a machine that gets slower is equally slow to both; the mean of the differences, and
its standard error, which tells how noisy it was. Then the engine, as every method uses it: whole trainings
alternate, both validate after each epoch, and one of them keeps losses and hits of all training and
validation samples in files.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
import training

from evenhand import Task, tasks
from evenhand.core.history import LossHistory
from evenhand.training.loop import Training
from evenhand.training.models import make_model

WARM_UP = 5  # epochs of a training that do not count: kernels are chosen and graphs captured in them


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--batch", type=int, help="other batches than the task's, in the plain loop only")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    print(common.machine())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)  # as `execute` does for batches as small as those of the digits
    spec = "digits" if options.smoke or options.data is None else "cmnist"
    task = tasks.load(spec, options.data)
    size = options.batch or task.recipe.batch_size
    x = torch.as_tensor(task.train.x)[task.train.rows].to(device)
    y = task.train.y.to(device)
    model = make_model("cnn", shape=tuple(x.shape[1:]), num_classes=task.num_classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), fused=device.type == "cuda" or None)
    rounds = 2 if options.smoke else 20 if device.type == "cuda" else 200
    times: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        history = LossHistory(len(y), path=Path(folder) / "losses.npy")
        for number in range(rounds + 1):
            outer = random.Random(number).random() < 0.5
            for recorded in (outer, not outer, not outer, outer):
                common.finish()
                begun = time.perf_counter()
                epoch(model, optimizer, x, y, size, history if recorded else None)
                history.flush()  # what was put off is charged to whom it is done for
                common.finish()
                if number:  # the first is to warm up
                    times[recorded].append(time.perf_counter() - begun)
    differences = np.subtract(times[True], times[False]).reshape(rounds, 2).mean(1)
    without, more = statistics.fmean(times[False]), differences.mean()
    error = differences.std(ddof=1) / rounds**0.5
    own = alone(len(y), size, device)
    epochs = WARM_UP + 2 if options.smoke else 65 if device.type == "cuda" else 20
    plain, kept, calls, close = engine(task, epochs, 1 if options.smoke else 4)
    print(f"\n{spec}, {len(y):,} samples, batches of {size}, six-layer CNN, {device.type}")
    common.table(
        ["", "milliseconds an epoch", "share"],
        [
            ("without recording", f"{1000 * without:.1f}", ""),
            (
                f"with recording, {rounds} times two epochs",
                f"{1000 * (without + more):.1f}",
                f"{100 * more / without:+.2f}% ± {100 * error / without:.2f}",
            ),
            ("the recording by itself", f"{1000 * own:.2f}", f"{100 * own / without:.2f}%"),
            ("the engine, not recorded", f"{1000 * plain:.1f}", ""),
            ("the engine, recorded", f"{1000 * kept:.1f}", f"{100 * (kept / plain - 1):+.2f}%"),
            ("its calls that record", f"{1000 * calls:.2f}", f"{100 * calls / plain:.2f}%"),
            ("of that, making and writing columns", f"{1000 * close:.2f}", f"{100 * close / plain:.2f}%"),
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


def engine(task: Task, epochs: int, pairs: int) -> tuple[float, float, float, float]:
    """Seconds an epoch: not recorded, recorded (with checkpoints), in calls that record, in closing."""
    times: dict[bool, list[np.ndarray]] = {False: [], True: []}
    watched, marks = Watch(), Marks()
    for number in range(2 * pairs):
        recorded = number % 4 in (1, 2)  # neither kind is always first
        training.ours(task, 0, training.OWN["ours"], epochs, validated=True, recorded=recorded)
        times[recorded].append(marks.epochs()[WARM_UP:])
    for kind, name in ((False, "not recorded"), (True, "recorded")):
        print(f"{name}: milliseconds an epoch of each training, mean and median", end=" ")
        print([f"{1000 * each.mean():.2f} {1000 * np.median(each):.2f}" for each in times[kind]])
    plain, kept = (float(np.concatenate(times[kind]).mean()) for kind in (False, True))
    return plain, kept, watched.seconds / (pairs * epochs), watched.closing / (pairs * epochs)


class Marks:
    """When the engine's epochs begin."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        one_epoch = Training._one_epoch

        def marked(run: Training) -> None:
            self.begun.append(time.perf_counter())
            one_epoch(run)

        Training._one_epoch = marked  # type: ignore[method-assign]

    def epochs(self) -> np.ndarray:
        """The seconds of all epochs but the last since this was last asked for."""
        seconds, self.begun = np.diff(self.begun), []
        return seconds


class Watch:
    """Adds up the time that recording takes of the training's thread, and what of it is writing epochs."""

    def __init__(self) -> None:
        self.seconds = self.closing = 0.0
        self._depth = 0
        for name in ("record", "fetch", "end_epoch", "flush"):
            setattr(LossHistory, name, self._timed(getattr(LossHistory, name), name == "flush"))

    def _timed(self, call: Callable[..., None], closing: bool) -> Callable[..., None]:
        def timed(*args: Any, **named: Any) -> None:
            begun = time.perf_counter()
            self._depth += 1
            call(*args, **named)
            self._depth -= 1
            took = time.perf_counter() - begun
            self.closing += took if closing else 0.0
            self.seconds += 0.0 if self._depth else took  # calls within calls count once

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

        took = common.seconds(work, repeats=9)
        history.flush()
        return took


if __name__ == "__main__":
    main()
