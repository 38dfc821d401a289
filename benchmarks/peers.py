"""Whole trainings through evenhand and SpuCo: the same data, network, epochs and seeds.

    python benchmarks/peers.py [-o results/peers.md]                          a part of Even-Odd, on a CPU
    python benchmarks/peers.py --task cmnist --device cuda --data ROOT        the paper's network and epochs
    python benchmarks/peers.py --task pacs --device cuda --data ROOT

SpuCo needs an environment of its own: `pip install spuco` beside evenhand. Both train with Adam or SGD as the
task's recipe says, at a constant learning rate, in single precision on a CPU, without early stopping, and
keep the last weights. Seconds are those of training and scoring. Lines are those of the functions below that
a user would write, without blank lines and docstrings.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import machine, table
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand import Split, Task, execute, tasks
from evenhand.core.metrics import worst_group_accuracy
from evenhand.methods import gdro, lff
from evenhand.training.data import Batch
from evenhand.training.models import make_model

SMALL = "even_odd:p=0.8,limit=1500"
METHODS = ("erm", "gdro", "jtt", "lff")
IDENTIFIER, UPWEIGHT, Q = 2, 20, 0.7  # JTT's T and lambda, LfF's q
# Why a number may differ. The formulas themselves are compared by `same_formulas`.
REASONS = {
    "erm": "the same formula; other initial weights and batches",
    "gdro": "the same formula; other initial weights and batches",
    "jtt": "the errors: evenhand takes those of training epoch T, as each batch is trained on, as the "
    "official code does; SpuCo's user predicts the training set once, after epoch T",
    "lff": "the same formula with `scale_by_q=false`; the official code's loss of the biased network has one "
    "more factor q, which SpuCo leaves out",
}


# -- what a user writes ------------------------------------------------------------------------------------


def evenhand_erm(task: Task, setup: Setup) -> Any:
    return execute(task, "erm", seed=setup.seed, runs=setup.runs, device=setup.device)


def evenhand_gdro(task: Task, setup: Setup) -> Any:
    return execute(task, "gdro", seed=setup.seed, runs=setup.runs, device=setup.device)


def evenhand_jtt(task: Task, setup: Setup) -> Any:
    settings = {"identifier_epochs": IDENTIFIER, "upweight": UPWEIGHT}
    return execute(task, "jtt", settings, seed=setup.seed, runs=setup.runs, device=setup.device)


def evenhand_lff(task: Task, setup: Setup) -> Any:
    settings = {"q": Q, "scale_by_q": False}
    return execute(task, "lff", settings, seed=setup.seed, runs=setup.runs, device=setup.device)


def spuco_erm(train: Any, setup: Setup) -> nn.Module:
    from spuco.robust_train import ERM
    from spuco.utils.random_seed import set_seed

    set_seed(setup.seed)
    model = setup.network().to(setup.device)
    ERM(
        model=model,
        trainset=train,
        batch_size=setup.batch_size,
        optimizer=setup.optimizer(model),
        num_epochs=setup.epochs,
        device=torch.device(setup.device),
    ).train()
    return model


def spuco_gdro(train: Any, setup: Setup) -> nn.Module:
    from spuco.datasets import GroupLabeledDatasetWrapper
    from spuco.robust_train import GroupDRO
    from spuco.utils.random_seed import set_seed

    set_seed(setup.seed)
    model = setup.network().to(setup.device)
    GroupDRO(
        model=model,
        trainset=GroupLabeledDatasetWrapper(train, train.group_partition),
        batch_size=setup.batch_size,
        optimizer=setup.optimizer(model),
        num_epochs=setup.epochs,
        device=torch.device(setup.device),
    ).train()
    return model


def spuco_jtt(train: Any, setup: Setup) -> nn.Module:
    from spuco.group_inference import JTTInference
    from spuco.robust_train import ERM, CustomSampleERM
    from spuco.utils.random_seed import set_seed

    set_seed(setup.seed)
    first = setup.network().to(setup.device)
    identifier = ERM(
        model=first,
        trainset=train,
        batch_size=setup.batch_size,
        optimizer=setup.optimizer(first),
        num_epochs=IDENTIFIER,
        device=torch.device(setup.device),
    )
    identifier.train()
    predicted = identifier.trainer.get_trainset_outputs().argmax(1).tolist()
    errors = JTTInference(predicted, train.labels).infer_groups()[(0, 1)]
    model = setup.network().to(setup.device)
    CustomSampleERM(
        model=model,
        trainset=train,
        batch_size=setup.batch_size,
        optimizer=setup.optimizer(model),
        num_epochs=setup.epochs,
        indices=[*range(len(train)), *(errors * (UPWEIGHT - 1))],
        device=torch.device(setup.device),
    ).train()
    return model


def spuco_lff(train: Any, setup: Setup) -> nn.Module:
    from spuco.end2end import LFF
    from spuco.utils.random_seed import set_seed

    set_seed(setup.seed)
    biased, model = setup.network().to(setup.device), setup.network().to(setup.device)
    LFF(
        trainset=train,
        bias_model=biased,
        debias_model=model,
        batch_size=setup.batch_size,
        bias_optimizer=setup.optimizer(biased),
        debias_optimizer=setup.optimizer(model),
        num_epochs=setup.epochs,
        q=Q,
        device=torch.device(setup.device),
    ).train()
    return model


# -- the same data, network and settings -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """What both libraries are given."""

    network: Callable[[], nn.Module]
    epochs: int
    batch_size: int
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    device: str
    seed: int
    runs: Path


class Labeled(torch.utils.data.Dataset):
    """A split as SpuCo's trainers read it, normalized as the engine does it."""

    num_classes: int

    def __init__(self, task: Task, split: Split) -> None:
        assert split.group is not None
        self.x, self.num_classes = normalized(task, split), task.num_classes
        self.labels = split.y.tolist()
        attributes = max(len(task.group_names) // task.num_classes, 1)
        self.group_partition: dict[tuple[int, int], list[int]] = {}
        for row, group in enumerate(split.group.tolist()):
            self.group_partition.setdefault(divmod(group, attributes), []).append(row)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.x[row], self.labels[row]


def normalized(task: Task, split: Split) -> Tensor:
    """All inputs of a split as float32; images are stored as bytes."""
    x = torch.stack([torch.as_tensor(np.array(split.x[row])) for row in split.rows.tolist()])
    x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    if task.mean is None or task.std is None:
        return x
    shape = (1, -1, *[1] * (x.ndim - 2))
    return (x - torch.tensor(task.mean).view(shape)) / torch.tensor(task.std).view(shape)


def fresh(name: str, weights: str | None, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The recipe's network; torch's generator decides its fresh weights."""
    seed = int(torch.randint(2**31, ()))
    return make_model(name, shape=shape, num_classes=classes, weights=weights, seed=seed)


def small_network(classes: int) -> nn.Module:
    """Two convolutions for images of 28 pixels."""
    layers = [nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(32 * 6 * 6, classes))


# -- measuring ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Trained:
    """One training: its seconds, those of the processors, and the scores of its model."""

    seconds: float
    cpu: float
    wga: float
    accuracy: float


def through_evenhand(method: str, task: Task, setup: Setup) -> Trained:
    with Clock() as clock:
        record = globals()[f"evenhand_{method}"](task, setup)
    test = record.metrics["test"]
    return Trained(clock.seconds, clock.cpu, test["wga"], test["accuracy_balanced"])


def through_spuco(method: str, task: Task, setup: Setup, train: Labeled, test: Labeled) -> Trained:
    torch.manual_seed(setup.seed)
    with Clock() as clock, redirect_stdout(io.StringIO()):
        model = globals()[f"spuco_{method}"](train, setup)
        predicted = predictions(model, test.x, setup)
    groups = task.test.group
    assert groups is not None
    labels = task.test.y.numpy()
    each = [(predicted == labels)[groups.numpy() == group].mean() for group in groups.unique().tolist()]
    wga = worst_group_accuracy(predicted, labels, groups.numpy())
    return Trained(clock.seconds, clock.cpu, wga, float(np.mean(each)))


@torch.no_grad()
def predictions(model: nn.Module, x: Tensor, setup: Setup) -> np.ndarray:
    model.eval()
    return np.concatenate([model(part.to(setup.device)).argmax(1).cpu().numpy() for part in x.split(2048)])


class Clock:
    """Seconds on the wall, and of all processors, those of finished child processes included."""

    def __enter__(self) -> Clock:
        self._wall, self._cpu = time.perf_counter(), self._processors()
        return self

    def __exit__(self, *_: object) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds, self.cpu = time.perf_counter() - self._wall, self._processors() - self._cpu

    @staticmethod
    def _processors() -> float:
        import resource

        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def lines_of(function: Callable[..., Any]) -> int:
    """Lines of the body of a function, without blank ones."""
    return sum(bool(line.strip()) for line in inspect.getsource(function).splitlines()[1:])


def same_formulas(seed: int = 0) -> Iterator[tuple[str, float]]:
    """Losses of both libraries on the same logits: the largest relative difference over ten steps."""
    from spuco.end2end.lff import EMA, LFF
    from spuco.robust_train.group_dro import GroupWeightedLoss

    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(60) % 3
    group = labels * 2 + (torch.rand(60, generator=random) < 0.2)
    ours = gdro.WorstGroup(torch.bincount(group, minlength=6), step_size=0.01, adjustment=0.0)
    theirs = GroupWeightedLoss(nn.CrossEntropyLoss(reduction="none"), 6, 0.01)
    failures = lff.Failures(nn.Identity(), labels, 3, q=Q, decay=0.7, scale_by_q=False)
    peer = LFF.__new__(LFF)  # its formulas without its loaders
    peer.cross_entropy_no_reduction, peer.q, peer.device = nn.CrossEntropyLoss(reduction="none"), Q, "cpu"
    averages = EMA(labels, 0.7), EMA(labels, 0.7)
    apart = {"gdro": 0.0, "lff": 0.0}
    for _ in range(10):
        rows = torch.randperm(60, generator=random)[:30]
        z, debiased = (2 * torch.randn(30, 3, generator=random) for _ in range(2))
        batch = Batch(x=z, y=labels[rows], index=rows, row=rows, group=group[rows])
        a, b = ours(lambda x: x, batch), theirs(z, labels[rows], group[rows])
        apart["gdro"] = max(apart["gdro"], abs(float(a - b)) / abs(float(b)))
        # evenhand's biased network is the identity here, and the debiased logits come from the model.
        a = failures(lambda x, given=debiased: given, batch)
        shares = []
        for average, logits in zip(averages, (z, debiased), strict=True):
            average.update(F.cross_entropy(logits, labels[rows], reduction="none"), rows)
            largest = torch.stack([average.max_loss(label) for label in labels[rows].tolist()])
            shares.append(average.parameter[rows] / largest)
        b = peer.bias_loss(z, labels[rows]) + peer.debias_loss(debiased, labels[rows], *shares)
        apart["lff"] = max(apart["lff"], abs(float(a - b)) / abs(float(b)))
    yield from apart.items()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default=SMALL)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, help="8, or the recipe's on a GPU")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("-o", "--out", type=Path)
    given = parser.parse_args()
    task, on_gpu = tasks.load(given.task, given.data), given.device != "cpu"
    epochs = given.epochs or (task.recipe.epochs if on_gpu else 8)
    own = task.recipe.replace(batch_size=task.recipe.batch_size if on_gpu else 128)
    # No early stopping, and a constant learning rate, which SpuCo's trainers have.
    recipe = own.replace(epochs=epochs, check_every=epochs, patience=epochs, plateau_epochs=epochs)
    network: Callable[[], nn.Module]
    if on_gpu:
        network = partial(
            fresh, recipe.model, recipe.weights, tuple(task.train.x.shape[1:]), task.num_classes
        )
        task = dataclasses.replace(task, recipe=recipe, augment=None)
    else:
        torch.set_num_threads(1)
        network = partial(small_network, task.num_classes)
        task = dataclasses.replace(task, recipe=recipe, make_model=network, augment=None)

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        if recipe.optimizer == "adam":
            return torch.optim.Adam(model.parameters(), recipe.lr, weight_decay=recipe.weight_decay)
        return torch.optim.SGD(
            model.parameters(), recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay
        )

    import spuco.end2end
    import spuco.group_inference
    import spuco.robust_train  # noqa: F401  so that no method pays for the import

    train, test = Labeled(task, task.train), Labeled(task, task.test)
    found: dict[tuple[str, str], list[Trained]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seeds):
            setup = Setup(
                network=network,
                epochs=epochs,
                batch_size=recipe.batch_size,
                optimizer=optimizer,
                device=given.device,
                seed=seed,
                runs=Path(folder),
            )
            for method in METHODS:
                peers = {
                    "evenhand": lambda m=method, s=setup: through_evenhand(m, task, s),
                    "spuco": lambda m=method, s=setup: through_spuco(m, task, s, train, test),
                }
                for name, work in peers.items() if seed % 2 else reversed(peers.items()):
                    found.setdefault((method, name), []).append(work())
                    print(f"{method} {name} seed {seed}: {found[method, name][-1]}", file=sys.stderr)
    out = io.StringIO()
    with redirect_stdout(out):
        report(given, task, epochs, found)
    print(out.getvalue())
    if given.out:
        given.out.write_text(out.getvalue(), encoding="utf-8")


def report(given: Any, task: Task, epochs: int, found: dict[tuple[str, str], list[Trained]]) -> None:
    """One row a method: both libraries' numbers, and why they may differ."""
    command = f"python benchmarks/peers.py --task {given.task} --device {given.device} --seeds {given.seeds}"
    print("# Whole trainings beside SpuCo\n")
    print(
        f"`{command} --epochs {epochs}`: {len(task.train):,} training and {len(task.test):,} test samples, "
    )
    print(f"batches of {task.recipe.batch_size}, evenhand and spuco {version('spuco')} in turn.")
    print(f"{machine()}.\n")
    rows = []
    for method in METHODS:
        ours, theirs = found[method, "evenhand"], found[method, "spuco"]
        spent = {"jtt": IDENTIFIER + epochs}.get(method, epochs) * len(task.train)
        seconds = [statistics.median(each.seconds for each in runs) for runs in (ours, theirs)]
        cpu = [statistics.median(each.cpu for each in runs) for runs in (ours, theirs)]
        rows.append(
            [
                method,
                *(f"{value:.1f}" for value in seconds),
                f"{seconds[1] / seconds[0]:.1f}×",
                *(f"{value:.1f}" for value in cpu),
                f"{cpu[1] / cpu[0]:.1f}×",
                *(f"{spent / value:,.0f}" for value in seconds),
                *(spread([100 * each.wga for each in runs]) for runs in (ours, theirs)),
                *(lines_of(globals()[f"{name}_{method}"]) for name in ("evenhand", "spuco")),
            ]
        )
    heads = [f"{what}, {name}" for what in ("samples/s", "WGA", "lines") for name in ("ours", "spuco")]
    timed = ["s, ours", "s, spuco", "ratio", "CPU s, ours", "CPU s, spuco", "ratio"]
    table(["method", *timed, *heads], rows)
    print(
        "\nSeconds are medians over seeds, WGA mean ± population deviation. Samples: of the data set, once an"
    )
    print("epoch; JTT's repeated errors come on top.\n")
    apart = dict(same_formulas())
    table(
        ["method", "largest relative difference of one loss", "why a WGA may differ"],
        [[m, f"{apart[m]:.0e}" if m in apart else "–", REASONS[m]] for m in METHODS],
    )


def spread(values: list[float]) -> str:
    return f"{statistics.fmean(values):.1f} ± {statistics.pstdev(values):.1f}"


if __name__ == "__main__":
    main()
