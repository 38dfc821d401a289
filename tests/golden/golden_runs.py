"""The golden runs: what is trained, which numbers are kept, and how far they may move.

Every method trains on two tasks, and once more for every value of its switches. The numbers lie in
`metrics/METHOD.json`, the names of the run and stage folders in `keys.json`. `make.py` writes both.

How the tolerances were chosen. The two networks are shallow and saturate (tanh after batch
normalization), and the images are noisy, so training contracts small differences. Initial weights
changed by 1e-6 (relative, random) move no loss by more than 2e-6 and flip no prediction, no cluster and
no step of the learning rate, in any run. `make.py --sensitivity` measures this again. Losses may differ by
50 times as much, 1e-4. An accuracy may differ by one or two samples. Clusters, learning rates and the
number of epochs must agree. A real change of the numerics moves losses by 1e-3 and more. The numbers were
recorded with torch 2.15 on AVX-512. They hold with torch 2.6 and numpy 1.26, and with AVX2 and SSE4.1 alone.
A method that calls another library, such as scikit-learn, is compared only with the same version of it.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import json
import math
import os
import re
import subprocess
import sys
import time
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import nn

import evenhand.training
from evenhand import Recipe, Split, Task, execute
from evenhand.core import ranks
from evenhand.tasks import load
from evenhand.training import plugins
from evenhand.training.augment import Warp
from evenhand.training.data import training_weights
from evenhand.training.log import Silent
from evenhand.training.record import Record

HERE = Path(__file__).parent
METHODS = list(plugins.describe("evenhand.methods", "train"))
EPOCHS = 12
INTERRUPTED = 5  # the epoch after which a training is interrupted, and resumed


# -- tasks -----------------------------------------------------------------------------------------------


def digits() -> Task:
    """400 of the packaged digits: Adam, a check in every epoch, the last weights, early stopping."""
    recipe = Recipe(
        epochs=EPOCHS,
        batch_size=40,
        lr=0.04,
        weight_decay=0.02,
        check_every=1,
        plateau_epochs=1,
        plateau_factor=0.3,
    )
    return dataclasses.replace(
        load("digits:p=0.8", limit=400), recipe=recipe, make_model=lambda: network(classes=10, side=3)
    )


def photos() -> Task:
    """160 noisy images whose tint suggests the class: normalized, augmented, SGD, the best check's weights."""
    random = np.random.default_rng(7)
    shapes = random.random((2, 1, 12, 12))
    tints = np.array([[0.9, 0.5, 0.2], [0.2, 0.5, 0.9]])[:, :, None, None]

    def split(*counts: int) -> Split:
        group = random.permutation(np.repeat(np.arange(4), counts))
        y, tint = group // 2, group % 2
        x = 0.1 * shapes[y] + 0.2 * tints[tint] + 0.7 * random.random((len(y), 3, 12, 12))
        return Split(*map(torch.from_numpy, ((255 * x).astype(np.uint8), y, group)))

    def weighted(split: Split) -> Split:
        assert train.group is not None and split.group is not None
        return dataclasses.replace(split, weight=training_weights(train.group, split.group, 4))

    train, val, test = split(70, 12, 18, 60), split(40, 40, 40, 40), split(40, 40, 40, 40)
    return Task(
        name="photos",
        train=train,
        val=weighted(val),
        test=weighted(test),
        class_names=("waves", "dots"),
        group_names=("waves, warm", "waves, cold", "dots, warm", "dots, cold"),
        conflicting=frozenset([1, 2]),
        mean=(0.5, 0.45, 0.4),
        std=(0.25, 0.2, 0.3),
        augment=Warp(crop=(0.7, 1.0), flip=True),
        make_model=lambda: network(classes=2, side=5),
        recipe=Recipe(
            epochs=EPOCHS,
            batch_size=32,
            optimizer="sgd",
            lr=0.1,
            momentum=0.8,
            weight_decay=1e-3,
            check_every=2,
            patience=EPOCHS,
            keep="best",
            plateau_epochs=1,
            plateau_factor=0.3,
        ),
    )


def network(*, classes: int, side: int) -> nn.Module:
    """One convolution, whose map has `side` x `side` pixels, and batch normalization."""
    layers = nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(8 * side**2, classes))


def paper_cnn() -> Task:
    """The paper's CNN, which amplifies rounding, for as long as it does not: three epochs of small steps."""
    recipe = Recipe(epochs=3, batch_size=40, optimizer="sgd", lr=0.02, check_every=1)
    return dataclasses.replace(load("digits_even_odd:p=0.8", limit=120), recipe=recipe)


TASKS = {"digits": digits, "photos": photos, "paper_cnn": paper_cnn}
# What of the engine no method's own settings reach; TAB reads histories, so it shows them all.
ENGINE: list[dict[str, Any]] = [
    {"augment": False},
    {"average": True},
    {"clean_losses": True},
    {"keep": "last"},
    {"optimizer": "adam", "lr": 0.01},
    {"patience": 2, "delta": 0.02},
    {"slices": 2},
]

# What a method's golden runs set besides: with its defaults rounding grows into other numbers, or it takes long.
STEADY: dict[str, dict[str, Any]] = {
    "cvar_dro": {"alpha": 0.5},
    "eiil": {"steps": 200},
    "george digits": {"cluster": "kmeans"},
    "spectral_decoupling": {"optimizer": "sgd", "lr": 0.1},  # Adam magnifies gradients that are almost zero
}


# -- cases -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """One golden run."""

    method: str
    task: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    world_size: int = 1

    @property
    def name(self) -> str:
        """Its name in the method's file: `photos summary=loss`."""
        settings = [f"{key}={value}" for key, value in self.settings.items()]
        return " ".join([self.task, *settings, *(["two ranks"] if self.world_size > 1 else [])])

    @property
    def plain(self) -> bool:
        """Whether the method's switches are as they are by default."""
        return self.settings == steady(self.method, self.task)

    @property
    def seed(self) -> int:
        return 2 if self.task == "photos" else 0

    def execute(self, runs: Path, show: Silent | None = None) -> Record:
        return execute(
            TASKS[self.task](),
            self.method,
            self.settings,
            seed=self.seed,
            runs=runs,
            device="cpu",
            show=show or Silent(),
        )

    def execute_together(self, runs: Path) -> Record:
        """The same by two ranks."""
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
        source = str(Path(evenhand.__file__).parents[1])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source, "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [*command, __file__, self.method, self.task, json.dumps(self.settings), str(runs)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stderr
        return self.execute(runs)  # finished: only read

    def numbers(self, runs: Path) -> dict[str, Any]:
        """Train, and give what is kept."""
        return numbers(self.execute(runs) if self.world_size == 1 else self.execute_together(runs))


def cases(method: str) -> list[Case]:
    """The golden runs of a method: both tasks, then every other value of each of its switches."""
    train = plugins.load("evenhand.methods", method, "train").train
    switches = [
        {name: value}
        for name, default in plugins.keywords(train).items()
        for value in choices(typing.get_type_hints(train)[name])
        if value != default
    ]
    more = {
        "erm": [Case("erm", "paper_cnn")],
        "tab": [Case("tab", "photos", settings) for settings in ENGINE],
        "evenhand": [
            Case("evenhand", "digits", {"split": "full"}),  # the photos' split is clear
            Case("evenhand", "digits", {"split": "any"}),
            Case("evenhand", "photos", world_size=2),  # ranks augment with generators of their own
        ],
    }.get(method, [])
    defaults = [Case(method, task, steady(method, task)) for task in ("digits", "photos")]
    changed = [{**steady(method, "photos"), **settings} for settings in switches]
    return [*defaults, *(Case(method, "photos", settings) for settings in changed), *more]


def steady(method: str, task: str) -> dict[str, Any]:
    """What the golden runs of a method on a task set besides its switches."""
    return {**STEADY.get(method, {}), **STEADY.get(f"{method} {task}", {})}


def choices(hint: Any) -> tuple[Any, ...]:
    """The values that a type lists: those of bool, of a Literal, and of a Literal in a union."""
    if hint is bool:
        return False, True
    inner = typing.get_args(hint)
    return inner if typing.get_origin(hint) is typing.Literal else sum(map(choices, inner), ())


def version_of(method: str) -> int:
    return int(getattr(importlib.import_module(f"evenhand.methods.{method}"), "VERSION", 1))


def libraries_of(method: str) -> dict[str, str]:
    """The versions of what a method imports besides torch and numpy, since they decide its numbers, too."""
    found = importlib.import_module(f"evenhand.methods.{method}")
    tree = ast.parse(Path(str(found.__file__)).read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    known = {"torch", "numpy", "evenhand", *sys.stdlib_module_names}
    others = sorted({name.partition(".")[0] for name in names} - known)
    return {name: ".".join(importlib.import_module(name).__version__.split(".")[:2]) for name in others}


def numerics_version() -> int:
    """NUMERICS, wherever in evenhand.training it stands; 1 while there is none."""
    for path in evenhand.training.__path__:
        for file in sorted(Path(path).glob("*.py")):
            if found := re.search(r"^NUMERICS\b[^=\n]*=\s*(\d+)", file.read_text(encoding="utf-8"), re.M):
                return int(found.group(1))
    return 1


# -- numbers ---------------------------------------------------------------------------------------------

SCORES = ("accuracy", "accuracy_weighted", "accuracy_balanced", "worst_class", "wga")
SMALLEST = 20  # the WGA of groups with fewer samples is not kept: one sample would move it too far


def numbers(record: Record) -> dict[str, Any]:
    """What is kept of a run: curves, scores, clusters, and the norm of the final weights."""
    curves = {}
    for stage in sorted(record.config["stages"]):
        rows = record.epochs(stage)
        curves[stage] = {name: [row[name] for row in rows] for name in rows[0] if name != "epoch"}
    found: dict[str, Any] = {"stages": curves, "epochs": record.metrics["epochs"]}
    for part in ("val", "test"):
        scores = record.metrics[part]
        small = min(group["count"] for group in scores["groups"]) < SMALLEST
        found[part] = {name: scores[name] for name in SCORES if not (small and name == "wga")}
    found["identification"] = record.metrics["identification"]
    found["sizes"] = None if record.partition is None else record.partition.sizes.tolist()
    weights = load_file(record.file("model.safetensors")).values()
    found["norm"] = math.sqrt(sum(float((each.astype(np.float64) ** 2).sum()) for each in weights))
    return _rounded(found)


def keys(record: Record) -> dict[str, Any]:
    """Where a run and its trainings lie: what decides whether an older record is found again."""
    stages = {name: stage["folder"] for name, stage in record.config["stages"].items()}
    return {"run": "/".join(record.path.parts[-3:]), "stages": stages}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def tolerance(path: str, value: float) -> float:
    """How far a number may lie from the golden one."""
    kind = path.rstrip("/0123456789").rpartition("/")[2]
    if kind in ("loss", "norm"):
        return 1e-4 * abs(value)
    if kind in ("accuracy", "val_accuracy", "choice", "val_error", *SCORES):
        return 0.06 if kind in ("worst_class", "wga") else 0.03
    return 1e-6 * abs(value)  # counts, learning rates and shares


def differences(golden: Any, found: Any, path: str = "") -> Iterator[str]:
    """Where two sets of numbers differ by more than the tolerance, a line each."""
    if isinstance(golden, dict) and isinstance(found, dict):
        for key in sorted(golden.keys() | found.keys()):
            yield from differences(golden.get(key), found.get(key), f"{path}/{key}")
    elif isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        for number, (first, second) in enumerate(zip(golden, found, strict=True)):
            yield from differences(first, second, f"{path}/{number}")
    elif isinstance(golden, int | float) and isinstance(found, int | float):
        if abs(golden - found) > tolerance(path, golden):
            yield f"{path}: golden {golden:g}, now {found:g}"
    elif golden != found:
        yield f"{path}: golden {golden}, now {found}"


def read(name: str) -> dict[str, Any]:
    """A golden file, `erm` or `keys`; empty where there is none."""
    path = path_of(name)
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


def path_of(name: str) -> Path:
    return HERE / "keys.json" if name == "keys" else HERE / "metrics" / f"{name}.json"


def write(name: str, content: dict[str, Any]) -> None:
    """A line for every list, so that a difference can be read."""
    text = json.dumps(content, indent=1)
    text = re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found.group().split()), text)
    path_of(name).parent.mkdir(exist_ok=True)
    path_of(name).write_text(text + "\n")


# -- interruptions ---------------------------------------------------------------------------------------


class Epochs(Silent):
    """Counts the epochs that end."""

    count = 0

    def epoch(self, row: dict[str, Any]) -> None:
        self.count += 1


class Interrupting(Epochs):
    """Raises KeyboardInterrupt once in every stage, in the middle of the epoch after INTERRUPTED."""

    def __init__(self) -> None:
        self.stage, self.at, self.jump = "", 0, 0.0
        self.interrupted: set[str] = set()

    def start(self, title: str, *, epochs: int, samples: int, done: int = 0) -> None:
        self.stage, self.at = title, done

    def epoch(self, row: dict[str, Any]) -> None:
        super().epoch(row)
        self.at = row["epoch"]
        self.jump += 1e6 * (self.at == INTERRUPTED)  # seconds: a checkpoint is due

    def advance(self, samples: int) -> None:
        if self.at == INTERRUPTED and self.stage not in self.interrupted:
            self.interrupted.add(self.stage)
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def clock(self) -> Iterator[None]:
        """Checkpoints are written when enough time has passed; this clock can jump."""
        now = time.monotonic
        with mock.patch("time.monotonic", lambda: now() + self.jump):
            yield


def execute_interrupted(case: Case, runs: Path) -> tuple[Record, Interrupting]:
    """Execute again and again until no stage is interrupted any more."""
    show = Interrupting()
    with show.clock():
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                return case.execute(runs, show), show


def files(record: Record) -> dict[str, bytes]:
    """All files of a run and its stages that must not depend on how often it was interrupted."""
    reproducible = ("metrics.json", "*.safetensors", "*.npz", "dynamics.json", "epochs.jsonl", "*.npy")
    folders = [record.path, *(record.stage(name) for name in record.config["stages"])]
    return {
        f"{folder.name}/{path.name}": path.read_bytes()
        for folder in folders
        for pattern in reproducible
        for path in sorted(folder.glob(pattern))
    }


if __name__ == "__main__":  # one of several ranks
    torch.set_num_threads(1)
    ranks.join(gpu=False)
    Case(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])).execute(Path(sys.argv[4]))
    ranks.leave()
