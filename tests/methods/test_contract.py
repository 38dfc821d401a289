"""What every method promises, whoever wrote it: a new file in methods/ is tested here without an edit."""

import dataclasses
import functools
import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest
import torch
from shortcut import shortcut_task
from torch import nn

from evenhand import Recipe, Task, execute, rebalance
from evenhand.bench.grid import PAPER, combinations, rule
from evenhand.training import plugins
from evenhand.training.log import Silent
from evenhand.training.record import Record
from evenhand.training.run import Run

METHODS = list(plugins.describe("evenhand.methods", "train"))
UNSUPERVISED = [
    name for name in METHODS if not plugins.groups_needed(importlib.import_module(f"evenhand.methods.{name}"))
]
QUICK = {  # nothing but the tests' time depends on it
    "afr": {"steps": 50},
    "dfr": {"retrains": 2, "steps": 20},
    "dpe": {"num_heads": 3},
    "eiil": {"steps": 50},
    "jtt": {"identifier_epochs": 2, "upweight": 3},
}


def tiny_task(num_classes: int = 2, epochs: int = 3) -> Task:
    """A shortcut task for a net of one convolution."""

    def make_model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, num_classes))

    per_class = 30 if num_classes == 2 else 3
    return dataclasses.replace(shortcut_task(num_classes, per_class, epochs=epochs), make_model=make_model)


def carry_out(method: str, task: Task, runs: Path, **options: object) -> Record:
    return execute(task, method, QUICK.get(method), runs=runs, device="cpu", **options)


def results(record: Record) -> tuple[bytes, bytes]:
    return tuple((record.path / name).read_bytes() for name in ("metrics.json", "model.safetensors"))


def module_of(method: str) -> ModuleType:
    return importlib.import_module(f"evenhand.methods.{method}")


class Counting(Silent):
    """Counts batches, and dies in the middle of an epoch when told to."""

    def __init__(self, last: int | None = None) -> None:
        self.last, self.batches = last, 0

    def advance(self, samples: int) -> None:
        self.batches += 1
        if self.batches == self.last:
            raise KeyboardInterrupt


def test_there_are_methods() -> None:
    assert {"erm", "tab", "gdro", "lff", "jtt", "masktune", "erm_randaug", "eta_tab", "evenhand"} <= set(
        METHODS
    )
    assert set(METHODS) - set(UNSUPERVISED) == {"gdro", "dfr", "adversarial"}


@pytest.mark.parametrize("method", METHODS)
def test_trains_and_continues_after_a_kill_to_the_same_result(method: str, tmp_path: Path) -> None:
    task, count = tiny_task(), Counting()
    record = carry_out(method, task, tmp_path / "whole", show=count)
    assert count.batches >= 3 * 3, "three epochs of four batches, or of three where samples are held out"
    assert 0 <= record.metrics["test"]["wga"] <= record.metrics["test"]["accuracy"] <= 1
    trainings = getattr(plugins.load("evenhand.methods", method, "train"), "TRAININGS", 1)
    assert len(record.config["stages"]) == trainings, "the method's file declares its number of trainings"
    for last in (2, count.batches - 1):  # before the first checkpoint, and just before the end
        runs = tmp_path / f"killed at {last}"
        with pytest.raises(KeyboardInterrupt):
            carry_out(method, task, runs, show=Counting(last))
        rest = Counting()
        assert results(carry_out(method, task, runs, show=rest)) == results(record)
    assert rest.batches < count.batches, "what was finished must not be done again"


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_gives_another_model(method: str, tmp_path: Path) -> None:
    task = tiny_task(epochs=1)
    first, second = (results(carry_out(method, task, tmp_path, seed=seed))[1] for seed in (0, 1))
    assert first != second


@pytest.mark.parametrize("method", [name for name in METHODS if hasattr(module_of(name), "rebalance")])
def test_copies_are_drawn_by_the_seed_of_the_run(method: str, tmp_path: Path, monkeypatch) -> None:
    found = []
    monkeypatch.setattr(Run, "found", lambda run, *parts, **validation: found.append(parts))
    task = tiny_task(epochs=8)
    y = task.train.y.clone()
    y[::8] = 1 - y[::8]  # wrong labels stay hard, so that every method finds minorities of several samples
    task = dataclasses.replace(
        task, train=dataclasses.replace(task.train, y=y), recipe=task.recipe.replace(lr=0.01)
    )
    carry_out(method, task, tmp_path, seed=5)
    ((parts, balanced),) = found
    assert balanced.indices.tolist() == rebalance(parts, seed=5).indices.tolist()
    assert balanced.indices.tolist() != rebalance(parts, seed=0).indices.tolist(), "the test could not fail"


@pytest.mark.parametrize("method", METHODS)
def test_works_for_two_hundred_classes(method: str, tmp_path: Path) -> None:
    record = carry_out(method, tiny_task(200, epochs=1), tmp_path)
    assert len(record.metrics["test"]["classes"]) == 200


@pytest.mark.parametrize("method", METHODS)
def test_settings_are_keyword_only_with_defaults_and_the_grid_names_them(method: str) -> None:
    module = module_of(method)
    assert (module.__doc__ or "").strip().count("\n") == 0, "line one says what it is, and whose"
    run, *settings = inspect.signature(module.train).parameters.values()
    assert run.name == "run"
    assert all(one.kind is one.KEYWORD_ONLY and one.default is not one.empty for one in settings)
    known = {one.name for one in settings} | {field.name for field in dataclasses.fields(Recipe)}
    assert set(module.GRID) <= known
    assert all(isinstance(values, list) and values for values in module.GRID.values())


@pytest.mark.parametrize("method", METHODS)
def test_defaults_of_searched_settings_lie_in_the_grid(method: str) -> None:
    module = module_of(method)
    for name, default in plugins.keywords(module.train).items():
        assert name not in module.GRID or default in module.GRID[name]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_reads_no_groups_is_selected_without_them(method: str) -> None:
    assert rule(method) == ("accuracy" if method in UNSUPERVISED else "wga")


@pytest.mark.parametrize("method", [name for name in METHODS if name not in PAPER])
def test_a_method_outside_the_paper_has_at_most_four_candidates(method: str) -> None:
    assert 1 <= len(combinations(module_of(method).GRID)) <= 4


GROUPS = [(name, getattr(module_of(name), "NEEDS_GROUPS", False)) for name in METHODS]


@pytest.mark.parametrize(("method", "said"), [*GROUPS, *(("erm", said) for said in ("val", "both", True))])
def test_groups_reach_only_those_who_need_them(
    method: str, said: str | bool, tmp_path: Path, monkeypatch
) -> None:
    module = module_of(method)
    monkeypatch.setattr(module, "NEEDS_GROUPS", said, raising=False)
    train, seen = module.train, []

    @functools.wraps(train)
    def spy(run: Run, **settings: object) -> nn.Module:
        splits = (run.train, run.val, run.task.train, run.task.val, run.task.test)
        seen.extend(split.group is not None for split in splits)
        return train(run, **settings)

    monkeypatch.setattr(module, "train", spy)
    carry_out(method, tiny_task(epochs=1), tmp_path)
    told = [said in told for told in (("train", "both", True), ("val", "both", True))]
    assert seen == [*told, *told, False]


def test_whose_groups_are_needed_must_be_said_in_known_words(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module_of("erm"), "NEEDS_GROUPS", "test", raising=False)
    with pytest.raises(
        ValueError, match="NEEDS_GROUPS of a method must be 'train', 'val' or 'both', got 'test'"
    ):
        carry_out("erm", tiny_task(epochs=1), tmp_path)


@pytest.mark.parametrize("method", UNSUPERVISED)
def test_shuffled_or_deleted_groups_change_no_weight(method: str, tmp_path: Path) -> None:
    task = tiny_task()
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(0))
    assert not torch.equal(task.train.group[order], task.train.group)

    def regrouped(how: str) -> Task:
        splits = {}
        for name in ("train", "val", "test"):
            split = getattr(task, name)
            group = split.group[order[order < len(split)]] if how == "shuffled" else None
            splits[name] = dataclasses.replace(split, group=group)
        return dataclasses.replace(task, **splits)

    expected = results(carry_out(method, task, tmp_path / "given"))[1]
    for how in ("shuffled", "deleted"):
        assert results(carry_out(method, regrouped(how), tmp_path / how))[1] == expected


def test_shuffled_groups_do_change_what_group_dro_learns(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    task = tiny_task()
    shuffled = dataclasses.replace(task.train, group=task.train.group.roll(7))
    first = results(carry_out("gdro", task, tmp_path / "given"))[1]
    second = results(carry_out("gdro", dataclasses.replace(task, train=shuffled), tmp_path / "shuffled"))[1]
    assert first != second
