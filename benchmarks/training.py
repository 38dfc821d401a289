"""The engine against the loops that people write: samples per second and final accuracy, ratios from one run.

    python benchmarks/training.py --data ROOT             cMNIST, batches of 2048, the six-layer CNN
    python benchmarks/training.py --data ROOT --accuracy  instead of times: three seeds of each, 15 epochs
    python benchmarks/training.py --photos                ResNet-18 on prepared images of 224 pixels
    python benchmarks/training.py --smoke                 digits, a few steps; shows that it runs

The rivals read a torch Dataset that normalises each image, through a DataLoader with workers and pinned
memory, in fp32 and in bf16; with Lightning where it is installed. Ours is `Run.fit` as every method uses
it, with the kernels and graphs that a training of some length gets by itself, and without (`compile="off"`).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from evenhand import Task, tasks
from evenhand.core.metrics import mean_accuracy
from evenhand.training.batches import Source
from evenhand.training.data import Split
from evenhand.training.forward import allow_kernels
from evenhand.training.log import Silent
from evenhand.training.models import make_model
from evenhand.training.recipe import Recipe
from evenhand.training.run import Run

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TRAINED = 15  # epochs, for the accuracies


class Images(Dataset[tuple[Tensor, Tensor]]):
    """The training set as a usual dataset: one image at a time, made float and normalised."""

    def __init__(self, task: Task) -> None:
        self.x, self.y = np.asarray(task.train.x)[task.train.rows.numpy()], task.train.y
        mean, std = task.mean or (0.0,) * 3, task.std or (1.0,) * 3
        self.mean, self.std = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        x = torch.from_numpy(self.x[row])
        return ((x.float() / 255 if x.dtype == torch.uint8 else x) - self.mean) / self.std, self.y[row]


def fresh(task: Task, seed: int) -> nn.Module:
    shape = tuple(np.asarray(task.train.x[int(task.train.rows[0])]).shape)
    model = make_model("cnn", shape=shape, num_classes=task.num_classes, seed=seed).to(DEVICE)
    allow_kernels(model, False)  # our own kernels are not what the rivals have
    return model


def usual_loop(task: Task, seed: int, workers: int, *, bf16: bool) -> Iterator[nn.Module]:
    """A training loop as it stands in most repositories."""
    torch.manual_seed(seed)
    model, recipe = fresh(task, seed), task.recipe
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    loader = DataLoader(
        Images(task),
        recipe.batch_size,
        shuffle=True,
        num_workers=workers,
        pin_memory=DEVICE.type == "cuda",
        persistent_workers=workers > 0,
    )
    while True:
        model.train()
        for x, y in loader:
            x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=bf16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        yield model


def ours(
    task: Task, seed: int, compiled: str, epochs: int, *, recorded: bool = False, validated: bool = False
) -> tuple[float, nn.Module]:
    """The engine: seconds of a training of so many epochs, checkpoints included, and its model."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = task.recipe.replace(compile=compiled, precision="bf16" if DEVICE.type == "cuda" else "fp32")
        # The rivals do not validate, and neither do we unless told to. A recorded training always does.
        recipe = recipe.replace(epochs=epochs, check_every=1 if validated else 1000, patience=10**6)
        path = Path(folder) / "task" / "method" / "run"
        run = Run(
            task.without_groups(), recipe, seed=seed, path=path, identity={}, device=DEVICE, show=Silent()
        )
        rows = None if recorded else run.train.take(np.arange(len(run.train)))
        common.finish()
        begun = time.perf_counter()
        fit = run.fit("erm", rows, stop="val" if validated else epochs)
        common.finish()
        return time.perf_counter() - begun, fit.model


def ours_an_epoch(task: Task, compiled: str, epochs: int) -> float:
    """Seconds an epoch: of a longer training less a shorter one, so that starting does not count."""
    ours(task, 0, compiled, 1)  # compiles
    short, long = (ours(task, 0, compiled, number)[0] for number in (2, epochs + 2))
    return (long - short) / epochs


def lightning_loop(task: Task, seed: int, workers: int, epochs: int) -> float:
    """Seconds an epoch of Lightning's Trainer in bf16, after the first."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.marks = fresh(task, seed), []

        def training_step(self, batch: Any, _: int) -> Tensor:
            return F.cross_entropy(self.model(batch[0]), batch[1])

        def on_train_epoch_end(self) -> None:
            common.finish()
            self.marks.append(time.perf_counter())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=task.recipe.lr)

    loader = DataLoader(
        Images(task),
        task.recipe.batch_size,
        shuffle=True,
        num_workers=workers,
        pin_memory=DEVICE.type == "cuda",
        persistent_workers=workers > 0,
    )
    module = Module()
    lightning.Trainer(
        max_epochs=epochs + 1,
        accelerator="gpu" if DEVICE.type == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed" if DEVICE.type == "cuda" else "32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(module, loader)
    return statistics.median(np.diff(module.marks))


def photos(num: int, size: int, epochs: int) -> None:
    """ResNet-18 on prepared images, beside the same model on one batch that never changes."""
    x = torch.randint(0, 256, (num, 3, size, size), dtype=torch.uint8)
    y = torch.randint(0, 10, (num,))
    small = Split(x[:64], y[:64])
    batch = min(128, num // 2)
    recipe = Recipe(model="resnet18", optimizer="sgd", lr=1e-3, batch_size=batch, epochs=50, check_every=1000)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    made = Task("made", Split(x, y), small, small, tuple("abcdefghij"), recipe=recipe, mean=mean, std=std)
    took = {"on the GPU": ours_an_epoch(made, "off", epochs)}
    fits, Source._fits = Source._fits, lambda *_: False  # type: ignore[method-assign, assignment]
    took["fetched from memory"] = ours_an_epoch(made, "off", epochs)
    Source._fits = fits  # type: ignore[method-assign]
    alone = {name: synthetic(batch, size, compiled) * num / batch for name, compiled in SYNTHETIC.items()}
    best = min(alone.values())
    rows = [(name, f"{num / t:,.0f}", f"{100 * best / t:.0f}%") for name, t in {**took, **alone}.items()]
    common.table(["ResNet-18, bf16", "images/s", "of the best synthetic"], rows)


SYNTHETIC = (
    {"synthetic, eager": False, "synthetic, compiled": True}
    if DEVICE.type == "cuda"
    else {"synthetic": False}
)


def synthetic(batch: int, size: int, compiled: bool) -> float:
    """Seconds of a step on one batch that lies ready on the device."""
    model = make_model("resnet18", shape=(3, size, size), num_classes=10).to(DEVICE)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(batch, 3, size, size, device=DEVICE).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=DEVICE.type == "cuda")
    forward = torch.compile(model, dynamic=False) if compiled else model

    def steps() -> None:
        for _ in range(20 if DEVICE.type == "cuda" else 1):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=DEVICE.type == "cuda"):
                loss = F.cross_entropy(forward(x), y)
            loss.backward()
            optimizer.step()

    return common.seconds(steps) / (20 if DEVICE.type == "cuda" else 1)


def timed(epochs: Iterator[nn.Module], number: int) -> float:
    """The median seconds of an epoch, after one to warm up."""
    next(epochs)
    times = []
    for _ in range(number):
        common.finish()
        begun = time.perf_counter()
        next(epochs)
        common.finish()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def accuracy(task: Task, model: nn.Module) -> float:
    """Validation accuracy."""
    model.eval()
    data = Images(dataclasses.replace(task, train=task.val))
    with torch.no_grad():
        batches = (
            torch.stack([data[row][0] for row in rows]) for rows in torch.arange(len(data)).split(1024)
        )
        guesses = [model(x.to(DEVICE)).argmax(1).cpu() for x in batches]
    return mean_accuracy(torch.cat(guesses), task.val.y)


USUAL = {"DataLoader, fp32": False, "DataLoader, bf16": True}
# "on" takes graphs in these short trainings too, as "auto" does from 200 steps on.
OWN = {"ours": "on", "ours, compile=off": "off"} if DEVICE.type == "cuda" else {"ours": "off"}


def times(task: Task, workers: int, epochs: int) -> None:
    """How long an epoch takes each of them."""
    took = {name: timed(usual_loop(task, 0, workers, bf16=bf16), epochs) for name, bf16 in USUAL.items()}
    for name, compiled in OWN.items():
        took[name] = ours_an_epoch(task, compiled, 4 * epochs)  # more, since the start is subtracted
    try:
        took["Lightning, bf16"] = lightning_loop(task, 0, workers, epochs)
    except ImportError:
        print("Lightning is not installed")
    first, second = took["DataLoader, fp32"], took["DataLoader, bf16"]
    rows = [
        (name, f"{1000 * t:.0f}", f"{len(task.train) / t:,.0f}", f"{first / t:.1f}", f"{second / t:.1f}")
        for name, t in took.items()
    ]
    common.table(["loop", "ms an epoch", "samples/s", "times the fp32 loop", "times the bf16 loop"], rows)


def accuracies(task: Task, workers: int) -> None:
    """What each of them has learned after as many epochs."""
    scores: dict[str, list[str]] = {}
    for seed in range(3):
        for name, bf16 in USUAL.items():
            loop = usual_loop(task, seed, workers, bf16=bf16)
            model = next(itertools.islice(loop, TRAINED - 1, None))
            scores.setdefault(name, []).append(f"{100 * accuracy(task, model):.2f}")
        for name, compiled in OWN.items():
            model = ours(task, seed, compiled, TRAINED)[1]
            scores.setdefault(name, []).append(f"{100 * accuracy(task, model):.2f}")
    rows = [(name, *values) for name, values in scores.items()]
    common.table([f"validation accuracy after {TRAINED} epochs", "seed 0", "seed 1", "seed 2"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--photos", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.photos:
        print(common.machine())
        photos(*((32, 64, 1) if options.smoke else (4096, 224, options.epochs)))
        return
    task = tasks.load("digits" if options.smoke else "cmnist", options.data)
    epochs, workers = (1, 0) if options.smoke else (options.epochs, options.workers)
    print(
        common.machine(), f"; {task.name}, {len(task.train):,} samples, batches of {task.recipe.batch_size}"
    )
    if options.accuracy:
        accuracies(task, workers)
    else:
        times(task, workers, epochs)


if __name__ == "__main__":
    main()
