"""Broken on purpose: deaths between two writes, files that are gone, keys that must not meet."""

import dataclasses
import functools
import importlib
import linecache
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from shortcut import shortcut_task
from torch.nn import functional as F

from evenhand import LossHistory, Recipe, Split, Task, execute
from evenhand.training import batches, store
from evenhand.training import execute as execution
from evenhand.training.data import Batch, training_weights
from evenhand.training.log import Silent
from evenhand.training.loop import Training, TrainingDiverged
from evenhand.training.objective import cross_entropy
from evenhand.training.run import Run


class Died(Exception):
    pass


def early_task() -> Task:
    """A task on which ERM's validation rule fires before the identifier's training rule."""
    recipe = Recipe(epochs=12, batch_size=16, check_every=1, patience=2, delta=0.02)
    return dataclasses.replace(shortcut_task(epochs=12), recipe=recipe)


def content(path: Path) -> bytes:
    return (path / "metrics.json").read_bytes()


@pytest.mark.parametrize("at", range(1, 16))
def test_a_death_before_any_write_of_a_training_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    task = early_task()
    whole = {
        method: execute(task, method, runs=tmp_path / "whole", show=Silent()) for method in ("tab", "erm")
    }
    written, real = 0, store.write_bytes

    def dying(*arguments: object) -> None:
        nonlocal written
        written += 1
        if written == at:
            raise Died
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_bytes", dying)
        with pytest.raises(Died):
            execute(task, "tab", runs=tmp_path / "cut", show=Silent())
    for method, before in whole.items():
        after = execute(task, method, runs=tmp_path / "cut", show=Silent())
        assert content(after.path) == content(before.path)
        for stage in before.config["stages"]:
            assert [row["loss"] for row in after.epochs(stage)] == [
                row["loss"] for row in before.epochs(stage)
            ]
        losses = after.losses()
        assert losses is not None
        np.testing.assert_array_equal(losses, before.losses())


@pytest.mark.parametrize(
    "harm", ["hits.npy gone", "losses.npy cut", "val_losses.npy rubbish", "train.ckpt gone"]
)
def test_what_is_lost_of_a_shared_training_is_computed_again(tmp_path: Path, harm: str) -> None:
    task = early_task()
    first = {method: execute(task, method, runs=tmp_path, show=Silent()) for method in ("tab", "erm")}
    before = {method: content(record.path) for method, record in first.items()}
    losses = np.array(first["tab"].losses())
    name, _, kind = harm.partition(" ")
    path = first["tab"].stage("erm") / name
    if kind == "gone":
        path.unlink()
    elif kind == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        path.write_bytes(b"rubbish" * 100)
    for record in first.values():
        (record.path / "metrics.json").unlink()
    with pytest.warns(UserWarning, match="computed again") if kind in ("rubbish", "cut") else _nothing():
        again = {method: execute(task, method, runs=tmp_path, show=Silent()) for method in ("erm", "tab")}
    assert {method: content(record.path) for method, record in again.items()} == before
    np.testing.assert_array_equal(execute(task, "tab", runs=tmp_path).losses(), losses)


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_a_damaged_metrics_file_is_set_aside_and_made_again(tiny: Task, tmp_path: Path) -> None:
    record = execute(tiny, "erm", runs=tmp_path, show=Silent())
    whole = content(record.path)
    (record.path / "metrics.json").write_bytes(whole[:50])
    with pytest.warns(UserWarning, match=r"metrics.json should hold JSON.*computed again"):
        again = execute(tiny, "erm", runs=tmp_path, show=Silent())
    assert content(again.path) == whole


def test_a_consumer_that_stops_early_does_not_hang() -> None:
    for left in range(1, 6):
        source = batches._ahead(iter([torch.zeros(1)] * left))
        next(source)
        source.close()  # must return, however many batches were still to come


def test_an_error_of_the_data_reaches_the_caller() -> None:
    def broken():
        yield torch.zeros(1)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(batches._ahead(broken()))


def test_a_method_that_returns_no_model_or_lacks_a_library_is_said(
    tiny: Task, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ownmethods").mkdir()
    (tmp_path / "ownmethods" / "nothing.py").write_text("def train(run):\n    run.fit('erm')\n")
    (tmp_path / "ownmethods" / "lacking.py").write_text("import no_such_library\ndef train(run): ...\n")
    with pytest.raises(TypeError, match="'ownmethods.nothing' must return a torch.nn.Module.* got NoneType"):
        execute(tiny, "ownmethods.nothing", {"epochs": 1}, runs=tmp_path / "runs", show=Silent())
    with pytest.raises(ImportError, match="method 'ownmethods.lacking' needs no_such_library, which is not"):
        execute(tiny, "ownmethods.lacking", {"epochs": 1}, runs=tmp_path / "runs", show=Silent())


def test_a_machine_without_git_finishes_its_runs(tiny: Task, tmp_path: Path, monkeypatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    record = execute(tiny, "erm", {"epochs": 1}, runs=tmp_path, device="cpu", show=Silent())
    assert "commit" not in record.config["versions"]


def test_a_record_says_that_the_source_was_changed_since_the_commit(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text("one")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    commit = execution._commit(tmp_path)
    assert len(commit) >= 7
    assert not commit.endswith("+")
    (tmp_path / "notes.md").write_text("elsewhere")
    assert execution._commit(tmp_path) == commit
    (tmp_path / "src" / "code.py").write_text("two")
    assert execution._commit(tmp_path) == f"{commit}+"


def test_divergence_says_what_to_do(tiny: Task, tmp_path: Path) -> None:
    with pytest.raises(
        TrainingDiverged, match=r"loss is not finite in epoch \d+; lower the learning rate \(now 1e\+30\)"
    ):
        execute(tiny, "erm", {"lr": 1e30}, runs=tmp_path, show=Silent())


def test_losses_on_the_cpu_are_looked_at_at_once_also_beside_a_gpu() -> None:
    training = SimpleNamespace(stage=SimpleNamespace(name="erm"), epoch=2, learning_rate=0.1)
    training._diverged = Training._diverged.__get__(training)
    with pytest.raises(TrainingDiverged, match="erm: the validation loss is not finite in epoch 2; lower"):
        Training._record(training, LossHistory(2), torch.tensor([1.0, torch.nan]))  # type: ignore[arg-type]


# -- keys ------------------------------------------------------------------------------------------------


def plain_task(seed: int, **changes: object) -> Task:
    random = torch.Generator().manual_seed(seed)
    split = Split(torch.randn(24, 1, 6, 6, generator=random), torch.arange(24) % 2)
    fields: dict = {"name": "mine", "train": split, "val": split, "test": split, "class_names": ("a", "b")}
    return Task(**{**fields, "recipe": Recipe(epochs=1, batch_size=8), **changes})


def test_tasks_of_one_name_with_other_data_never_share_results(tmp_path: Path) -> None:
    first = plain_task(0)
    folds = [dataclasses.replace(first.train.take(range(start, start + 12))) for start in (0, 12)]
    tasks = [first, plain_task(1), plain_task(0, class_names=("a", "c"))]
    tasks += [plain_task(0, train=fold) for fold in folds]
    paths = {execute(task, "erm", runs=tmp_path, show=Silent()).path for task in tasks}
    assert len(paths) == len(tasks)
    assert execute(plain_task(0), "erm", runs=tmp_path, show=Silent()).path in paths


def test_stages_that_differ_never_share_a_folder(tiny: Task, tmp_path: Path) -> None:
    recipe = tiny.recipe.replace(precision="fp32", epochs=1)
    device = torch.device("cpu")
    run = Run(tiny, recipe, seed=0, path=tmp_path / "a/b/c", identity={}, device=device, show=Silent())
    draws = np.ones((2, len(tiny.train)))
    draws[1, :10] = 5
    start = run.fit("erm", stop=1)
    fits = [
        *(run.fit("model", draw=draw) for draw in draws),
        run.fit("model", start=start),
        run.fit("model", start=start, stop="train"),
        run.fit("model", run.train.take(range(30))),
        run.fit("model", run.train.take(range(31))),
        run.fit("model", dataclasses.replace(run.train.take(range(31)), y=1 - run.train.y[:31])),
    ]
    assert len({fit.folder for fit in fits}) == len(fits)
    run.fit("own", objective=lambda model, batch: F.cross_entropy(model(batch.x), batch.y))
    with pytest.raises(
        ValueError, match="stage 'own' is used twice with another objective, transform, score or model"
    ):
        run.fit("own", objective=lambda model, batch: 2 * F.cross_entropy(model(batch.x), batch.y))


def test_only_rows_of_the_task_s_own_data_are_shared_between_runs(tiny: Task, tmp_path: Path) -> None:
    recipe = tiny.recipe.replace(precision="fp32", epochs=1)
    folders = []
    for setting in (1, 2):
        run = Run(tiny, recipe, seed=0, path=tmp_path / f"a/b/{setting}", identity={"setting": setting},
                  device=torch.device("cpu"), show=Silent())  # fmt: skip
        half = run.train.take(range(30))
        darker = dataclasses.replace(half, x=run.train.x / (1 + setting))
        doubled = functools.wraps(cross_entropy)(lambda model, batch: 2 * own_loss(model, batch))
        fits = (
            run.fit("half", half),
            run.fit("darker", darker),
            run.fit("own", half, objective=own_loss),
            run.fit("wrapped", half, objective=doubled),
            run.fit("further", half, start=run.fit("half", half)),
        )
        folders.append([fit.folder for fit in fits])
    assert [first == second for first, second in zip(*folders, strict=True)] == [True, *[False] * 4]
    assert run.fit("half", half, record=True).folder != folders[1][0]  # its curve has other epochs


def test_an_edited_model_is_trained_again(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = tiny.recipe.replace(precision="fp32", epochs=1, model="edited_net:net")
    text = "from torch import nn\n\ndef net(shape, num_classes):\n    size = shape[0] * shape[1] * shape[2]\n"
    text += "    return nn.Sequential(nn.Flatten(), nn.Linear(size, 4), nn.{}(), nn.Linear(4, num_classes))\n"
    folders = []
    for kind in ("ReLU", "Tanh"):
        (tmp_path / "edited_net.py").write_text(text.format(kind))
        sys.modules.pop("edited_net", None)
        linecache.clearcache()
        importlib.invalidate_caches()
        run = Run(tiny, recipe, seed=0, path=tmp_path / "a/b/c", identity={}, device=torch.device("cpu"),
                  show=Silent())  # fmt: skip
        folders.append([run.fit("erm").folder, run.fit("model", run.train.take(range(30))).folder])
    assert not {*folders[0]} & {*folders[1]}


def own_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch.x), batch.y)


def test_one_and_one_point_zero_are_one_setting() -> None:
    assert Recipe(weight_decay=1) == Recipe(weight_decay=1.0)
    with pytest.raises(ValueError, match="augment must be true or false, got 'no'"):
        Recipe(augment="no")  # type: ignore[arg-type]


# -- what users bring ------------------------------------------------------------------------------------


def test_groups_need_no_names_but_all_of_them_if_any(tmp_path: Path) -> None:
    split = dataclasses.replace(plain_task(0).train, group=torch.arange(24) % 3)
    task = plain_task(0, train=split, val=split, test=split)
    assert task.group_names == ("group 0", "group 1", "group 2")
    assert len(execute(task, "erm", runs=tmp_path, show=Silent()).metrics["test"]["groups"]) == 3
    with pytest.raises(ValueError, match="group_names must name all 3 groups, got 2"):
        plain_task(0, train=split, group_names=("x", "y"))
    identifiers = dataclasses.replace(split, group=torch.arange(24) + 10**12)
    with pytest.raises(
        ValueError, match="from 0 to 99,999 at most, got 1,000,000,000,023; number those of all splits"
    ):
        plain_task(0, train=identifiers)
    with pytest.raises(ValueError, match="class_names must name all 2 classes, got 1"):
        plain_task(0, class_names=("a",))


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(36, 36, bias=False)
            self.second = torch.nn.Linear(36, 36, bias=False)
            self.second.weight = self.first.weight
            self.out = torch.nn.Linear(36, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.second(self.first(x.flatten(1)).relu()))

    record = execute(plain_task(0, make_model=Tied), "erm", runs=tmp_path, show=Silent())
    assert (record.path / "model.safetensors").exists()


def test_training_weights_restate_proportions() -> None:
    weights = training_weights(torch.tensor([0] * 9 + [1]), torch.tensor([0, 1, 1, 1]), 2)
    assert weights[0] / weights[1:].sum() == pytest.approx(9)


def test_snapshots_are_named_by_what_stopped_the_training(tiny: Task, tmp_path: Path) -> None:
    record = execute(tiny, "tab", runs=tmp_path, show=Silent())
    assert {path.name for path in record.stage("erm").glob("*.ckpt")} == {
        "last.ckpt",
        "train.ckpt",
        "val.ckpt",
    }
