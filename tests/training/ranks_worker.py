"""What each rank does in test_ranks.py: torchrun --nproc-per-node=2 ranks_worker.py COMMAND FOLDER."""

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from shortcut import shortcut_task
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from evenhand import LossHistory, Recipe, Split, Task, execute, fit
from evenhand.core import ranks
from evenhand.training.data import Batch
from evenhand.training.log import Silent
from evenhand.training.run import Run

METHODS = ("erm", "tab", "eta_tab", "jtt", "masktune", "minibatch_tab", "evenhand")
SETTINGS = {"jtt": {"identifier_epochs": 2, "upweight": 3}}
CPU = torch.device("cpu")


def ranks_task(slices: int = 1) -> Task:
    """A shortcut task whose last batch, of three samples, two ranks cannot share evenly."""

    def make_model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))

    task = shortcut_task(epochs=5)
    recipe = Recipe(epochs=5, batch_size=19, check_every=1, patience=2, slices=slices)
    return dataclasses.replace(task, make_model=make_model, recipe=recipe)


def cnn_task() -> Task:
    """The paper's CNN for so long that another order of a sum would be seen."""
    task = shortcut_task(per_class=101, epochs=30)
    return dataclasses.replace(task, recipe=task.recipe.replace(patience=30))


def carry_out(method: str, task: Task, runs: Path) -> Path:
    return execute(task, method, SETTINGS.get(method), runs=runs, device="cpu", show=Silent()).path


def normalised_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8)
    )


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return torch.randn(13, 1, 6, 6, generator=random), torch.randint(0, 8, (13,), generator=random)


def take_step(model: nn.Module, sizes: list[int]) -> dict[str, torch.Tensor]:
    """The gradients of every batch, added up, and the state afterwards; rank by rank the same."""
    model = ranks.synchronize_batch_norm(model, CPU)
    x, y = samples()
    rows, pieces = ranks.slices(torch.arange(len(y)), sizes)
    start = 0
    for piece in pieces:
        own = rows[start : start + piece.length]
        start += piece.length
        (F.cross_entropy(model(x[own]), y[own]) * piece.share).backward()
    ranks.all_reduce_gradients(model.parameters())
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    evaluated = model.eval()(x)
    return {**gradients, **model.state_dict(), "evaluated": evaluated}


def record(history: LossHistory, rank: int, world: int) -> None:
    """Three epochs of thirteen samples: seen once, seen twice or not at all, seen by one rank only."""
    random = np.random.default_rng(0)
    for index in (np.arange(12), random.integers(0, 13, 40), np.array([3])):
        losses = random.random(len(index)).astype(np.float32)
        history.record(index[rank::world], losses[rank::world])
        history.end_epoch()


class Stepping(nn.Module):
    """Descends by itself."""

    def step(self, model: nn.Module, batch: Batch, optimizers: dict) -> torch.Tensor:
        loss = F.cross_entropy(model(batch.x), batch.y)
        optimizers["model"].zero_grad()
        loss.backward()
        optimizers["model"].step()
        return loss.detach()


def hooked_run(out: Path) -> Run:
    task = ranks_task(slices=2)
    where = out / task.name / "any" / "key-s0"
    return Run(task, task.recipe, seed=0, path=where, identity={}, device=CPU, show=Silent())


def everything(out: Path) -> None:
    rank, world = ranks.number(), ranks.count()
    for kind, sizes in {"even": [8], "uneven": [13], "tiny": [12, 1]}.items():
        model = normalised_model() if kind != "tiny" else normalised_model()[:1].append(nn.Flatten())
        torch.save(take_step(model, sizes), out / f"{kind}-{rank}.pt")
    for dtype in (torch.float32, torch.bool):
        kept = LossHistory(13, dtype=dtype, across_ranks=True)
        filed = LossHistory(13, path=out / f"{dtype}.npy", dtype=dtype, across_ranks=True)
        for history in (kept, filed):
            record(history, rank, world)
        np.save(out / f"kept-{dtype}-{rank}.npy", kept.losses.numpy())
        again = LossHistory(13, path=out / f"{dtype}.npy", dtype=dtype, across_ranks=True)
        assert again.num_epochs == 3
    for method in METHODS:
        carry_out(method, ranks_task(slices=2), out / "exact")
    carry_out("tab", ranks_task(), out / "plain")
    carry_out("tab", cnn_task(), out / "cnn")
    x, y = samples()
    made = fit(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8)), TensorDataset(x, y), TensorDataset(x, y)
    )
    np.save(out / f"fit-{rank}.npy", made.partition.margin)
    refused = {}
    for method in ("gdro", "lff"):
        try:
            carry_out(method, ranks_task(), out / "refused")
        except ValueError as error:
            refused[method] = str(error)
    run = hooked_run(out / "hooks")
    trained = run.fit("erm", stop=2)
    many = run.train.take(np.arange(3000) % len(run.train))  # several blocks of several batches
    np.save(out / f"features-{rank}.npy", run.features(trained, many))
    np.save(out / f"module-features-{rank}.npy", run.features(trained.model, many))
    try:
        run.fit("stepping", objective=Stepping())
    except ValueError as error:
        refused["step"] = str(error)
    (out / f"refused-{rank}.json").write_text(json.dumps(refused))


class Dying(torch.utils.data.Dataset):
    """The samples of a task, until the `last` one has been read by the second rank."""

    def __init__(self, split: Split, last: int, how: str) -> None:
        self.split, self.left, self.how = split, last, how

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, row: int) -> torch.Tensor:
        self.left -= os.environ["RANK"] == "1"
        if self.left == 0 and self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.left == 0:
            raise OSError("the disk of rank 1 is gone")
        return self.split.x[row]


def dying(out: Path, how: str) -> None:
    task = ranks_task(slices=2)
    items = Split(Dying(task.train, 4 * len(task.train) // 2 - 5, how), task.train.y, group=task.train.group)
    carry_out("tab", dataclasses.replace(task, train=items), out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    ranks.join(gpu=False)
    command, folder = sys.argv[1], Path(sys.argv[2])
    if command == "everything":
        everything(folder)
    elif command == "continue":
        for each in sys.argv[2:]:
            carry_out("tab", ranks_task(slices=2), Path(each))
    else:
        dying(folder, command)
    ranks.leave()
