"""The hooks that a method may use: each does what it says, and is part of the key of its training."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from shortcut import shortcut_task
from test_run import Interrupted, StopAt, make_run
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand import Split, Task, execute
from evenhand.core.partition import of_mask
from evenhand.core.rebalance import rebalance
from evenhand.training.data import Batch
from evenhand.training.models import mlp
from evenhand.training.plan import Fit, described
from evenhand.training.progress import Silent
from evenhand.training.record import Record


def as_method(monkeypatch: pytest.MonkeyPatch, train: Any, **names: Any) -> str:
    """A user's module with this function `train`; gives its name."""
    package, module = ModuleType("hooked"), ModuleType("hooked.method")
    for name, value in {"train": train, **names}.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "hooked", package)
    monkeypatch.setitem(sys.modules, "hooked.method", module)
    return "hooked.method"


def rows_of(fit: Fit) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (fit.folder / "epochs.jsonl").read_text().splitlines()]


# -- what a batch says -----------------------------------------------------------------------------------


class Seen(nn.Module):
    """Cross-entropy that remembers the batches it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Batch] = []

    def forward(self, model: Any, batch: Batch) -> Tensor:
        self.batches.append(batch)
        return F.cross_entropy(model(batch.x), batch.y)


def test_a_batch_knows_its_epoch_and_step_also_after_a_resume(tiny: Task, tmp_path: Path) -> None:
    whole, second = Seen(), Seen()
    make_run(tiny, tmp_path / "whole").fit("model", objective=whole, stop=3)
    numbers = [(batch.epoch, batch.step) for batch in whole.batches]
    assert numbers == [(step // 4, step) for step in range(12)]  # 60 samples, 16 a batch

    def run(objective: nn.Module, show: Silent) -> None:
        make_run(tiny, tmp_path / "again", show=show).fit("model", objective=objective, stop=3)

    with pytest.raises(Interrupted):
        run(Seen(), StopAt("model", epoch=2))
    run(second, Silent())
    found = [(batch.epoch, batch.step) for batch in second.batches]
    assert len(found) < 12 and found == numbers[-len(found) :]


def test_slices_of_a_batch_have_one_step(tiny: Task, tmp_path: Path) -> None:
    seen = Seen()
    seen.separable = True
    make_run(tiny, tmp_path, tiny.recipe.replace(slices=2)).fit("model", objective=seen, stop=1)
    assert [batch.step for batch in seen.batches] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_transform_sees_epoch_and_step(tiny: Task, tmp_path: Path) -> None:
    seen = []

    def transform(x: Tensor, batch: Batch, _generator: torch.Generator) -> Tensor:
        seen.append((batch.epoch, batch.step))
        return x

    make_run(tiny, tmp_path).fit("model", transform=transform, stop=2)
    assert seen == [(step // 4, step) for step in range(8)]


# -- environments ----------------------------------------------------------------------------------------


def test_environments_reach_the_batch_by_row_and_are_in_the_key(tiny: Task, tmp_path: Path) -> None:
    seen, folders = Seen(), []
    rows = tiny.train.take([5, 5, 7, 50, 51])
    environments = np.array([3, 4, 5, 6, 7])
    run = make_run(tiny, tmp_path)
    fit = run.fit("model", rows, objective=seen, environments=environments, stop=1)
    for batch in seen.batches:
        assert batch.environment is not None and batch.environment.dtype == torch.int64
        assert batch.environment.tolist() == environments[batch.row.numpy()].tolist()
        assert batch.index.tolist() == rows.index[batch.row].tolist()
    for given in (environments, environments[::-1].copy(), None):
        again = make_run(tiny, tmp_path).fit("model", rows, objective=Seen(), environments=given, stop=1)
        folders.append(again.folder)
    assert folders[0] == fit.folder and len({*folders}) == 3


@pytest.mark.parametrize("given", [np.zeros(59, int), np.zeros((60, 1), int), np.full(60, 0.5)])
def test_environments_must_be_one_whole_number_per_row(tiny: Task, tmp_path: Path, given: np.ndarray) -> None:
    with pytest.raises(ValueError, match="environments must"):
        make_run(tiny, tmp_path).fit("model", environments=given)


def test_group_dro_takes_environments_for_groups(tiny: Task, tmp_path: Path) -> None:
    from evenhand.methods.gdro import WorstGroup

    group = tiny.train.group
    assert group is not None
    counts = torch.bincount(group, minlength=4)
    hidden = tiny.without_groups()
    fits = [
        make_run(task, tmp_path / name).fit(
            "model", objective=WorstGroup(counts, step_size=0.1, adjustment=0), stop=2, **options
        )
        for name, task, options in (("groups", tiny, {}), ("environments", hidden, {"environments": group}))
    ]
    states = [fit.model.state_dict().values() for fit in fits]
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))


# -- another network -------------------------------------------------------------------------------------


def test_a_factory_makes_the_network_and_it_is_seeded(tiny: Task, tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Dropout(), nn.Linear(5, 2))

    fit = make_run(tiny, tmp_path).fit("model", model=make, stop=1)
    assert isinstance(fit.model, nn.Sequential) and fit.model[1].out_features == 5
    read = make_run(tiny, tmp_path).fit("model", model=make, stop=1)  # from disk
    other = make_run(tiny, tmp_path, seed=1).fit("model", model=make, stop=1)
    assert torch.equal(read.model[1].weight, fit.model[1].weight)
    assert not torch.equal(other.model[1].weight, fit.model[1].weight)
    more = make_run(tiny, tmp_path).fit("more", start=read, stop=1)  # the same network goes on
    assert more.model[1].out_features == 5


def test_a_factory_is_in_the_key_by_what_it_makes(tiny: Task, tmp_path: Path) -> None:
    def make(width: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, width), nn.Linear(width, 2))

    def sized(width: int) -> Any:
        return lambda: make(width)

    run = make_run(tiny, tmp_path)
    factories = [functools.partial(make, 3), functools.partial(make, 4), functools.partial(make, width=4)]
    factories += [sized(3), sized(4), functools.partial(mlp, (1, 6, 6), 2), None]
    folders = {run.fit("model", model=factory, stop=1).folder for factory in factories}
    assert len(folders) == len(factories)
    assert described(functools.partial(mlp, (1, 6, 6), num_classes=2))["values"] == {"num_classes": 2}


def test_a_factory_must_make_a_module(tiny: Task, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model must make a torch.nn.Module, but it made a str"):
        make_run(tiny, tmp_path).fit("model", model=lambda: "linear")


def test_a_network_of_the_method_is_not_cut_as_the_cnn_is(tiny: Task, tmp_path: Path) -> None:
    seen: list[int] = []

    class Watched(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return super().forward(x)

    make_run(tiny, tmp_path).fit(
        "model", model=lambda: Watched(nn.Flatten(), nn.Linear(36, 2)), stop=1, recipe=tiny.recipe
    )
    assert seen[0] == 16  # the batch, where the recipe's CNN has two slices


# -- other validation samples, and a score of one's own --------------------------------------------------


def test_other_validation_samples_decide_and_are_in_the_key(tiny: Task, tmp_path: Path) -> None:
    rest, held_out = make_run(tiny, tmp_path).hold_out(0.25)
    run = make_run(tiny, tmp_path)
    fit = run.fit("model", rest, val=held_out)
    correct = run.predict(fit.model, held_out).argmax(1) == held_out.y
    assert rows_of(fit)[-1]["val_accuracy"] == pytest.approx(correct.double().mean().item())
    weighted = dataclasses.replace(held_out, weight=torch.linspace(0, 1, len(held_out)))
    others = [None, held_out.take(range(8)), weighted, tiny.val]
    assert len({run.fit("model", rest, val=val).folder for val in [held_out, *others]}) == 5


def test_a_recorded_training_keeps_the_losses_of_the_runs_validation_samples(
    tiny: Task, tmp_path: Path
) -> None:
    run = make_run(tiny, tmp_path)
    with pytest.raises(ValueError, match="record keeps the losses of the run's validation samples"):
        run.fit("model", val=run.hold_out(0.2)[1], record=True)


def test_inputs_of_another_array_are_in_the_key(tiny: Task, tmp_path: Path) -> None:
    x = tiny.train.x
    splits = [Split(x + shift, tiny.train.y) for shift in (0.0, 1.0, 1.0)]
    run = make_run(tiny, tmp_path)
    first, second, same = (run.fit("model", split, stop=1).folder for split in splits)
    assert first != second and second == same


def test_a_score_decides_when_to_stop_and_which_check_is_kept(tiny: Task, tmp_path: Path) -> None:
    given: list[Any] = []
    values = iter([0.1, 0.5, 0.3, 0.2, 0.1, 0.0])

    def score(logits: Tensor, val: Split) -> float:
        given.append((logits, val))
        return next(values)

    recipe = tiny.recipe.replace(epochs=50, patience=2, keep="best")
    states: list[dict[str, Tensor]] = []

    class Keep(Silent):
        def epoch(self, row: dict[str, Any]) -> None:
            states.append(row)

    run = make_run(tiny, tmp_path, recipe, show=Keep())
    fit = run.fit("model", score=score)
    assert fit.epochs == 4 and [row["score"] for row in rows_of(fit)] == [0.1, 0.5, 0.3, 0.2]
    logits, val = given[1]
    assert logits.dtype == torch.float32 and logits.shape == (20, 2) and logits.device.type == "cpu"
    assert val is run.val and val.group is not None  # this run's task has its groups
    torch.testing.assert_close(run.predict(fit.model, run.val), logits)  # of the best check, not the last


def test_a_score_is_in_the_key_and_must_be_a_number(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)

    def worst_class(logits: Tensor, val: Split) -> float:
        hits = (logits.argmax(1) == val.y).double()
        return min(hits[val.y == label].mean().item() for label in range(2))

    assert run.fit("model", score=worst_class).folder != run.fit("model", stop="val", record=True).folder
    with pytest.raises(ValueError, match="score must give a finite number, got nan"):
        run.fit("other", score=lambda logits, val: float("nan"))
    with pytest.raises(ValueError, match="choose and score both decide"):
        run.fit("third", score=worst_class, choose=torch.ones(len(run.val)))


# -- what was found --------------------------------------------------------------------------------------


def test_any_mask_gets_identification_scores_and_a_page(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenhand.report import page

    mask = np.zeros(60, dtype=bool)
    mask[[0, 1, 2, 40]] = True

    def train(run: Any) -> nn.Module:
        run.found(mask)
        return run.fit("model", run.train.take(np.flatnonzero(~mask))).model

    record = execute(tiny, as_method(monkeypatch, train), runs=tmp_path, device="cpu", show=Silent())
    assert tiny.train.group is not None
    truth = np.isin(tiny.train.group.numpy(), sorted(tiny.conflicting))
    scores = record.metrics["identification"]
    assert scores["identified"] == pytest.approx((mask & truth).sum() / truth.sum())
    assert scores["purity"] == pytest.approx((mask & truth).sum() / 4) and scores["share"] is None
    assert record.partition is not None and record.partition.sizes.tolist() == [[27, 3], [29, 1]]
    html = page.build([record], tmp_path / "page", load_task=lambda _: tiny).read_text()
    assert "set apart 4 of 60 training samples" in html


def test_the_rows_that_were_drawn_give_the_share(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(run: Any) -> nn.Module:
        parts = run.found(torch.arange(60) % 5 == 0, np.arange(10))
        assert len(rebalance(parts)) == 96  # 24 + 24 of both classes
        return run.fit("model").model

    record = execute(tiny, as_method(monkeypatch, train), runs=tmp_path, device="cpu", show=Silent())
    assert tiny.train.group is not None
    truth = np.isin(tiny.train.group.numpy(), sorted(tiny.conflicting))
    assert record.metrics["identification"]["share"] == pytest.approx(truth[:10].mean())


def test_a_mask_may_mark_all_or_none_of_a_class() -> None:
    parts = of_mask([True, True, False, False, False], [0, 0, 1, 1, 1])
    assert parts.sizes.tolist() == [[0, 2], [3, 0]] and parts.margin.tolist() == [0] * 5
    assert parts.unsplit == {0: "all samples marked", 1: "no sample marked"}
    assert sorted(rebalance(parts)) == [0, 1, 2, 3, 4]
    most = of_mask([True, True, False], [0, 0, 0])
    assert most.margin.tolist() == [0.5, 0.5, -0.5] and sorted(rebalance(most)) == [0, 1, 2]
    for wrong in ([0, 1, 0], [True]):
        with pytest.raises(ValueError, match="mask must hold True or False for each of the 3 samples"):
            of_mask(wrong, [0, 0, 0])


# -- a part that is held out -----------------------------------------------------------------------------


def test_a_held_out_part_is_stratified_and_follows_seed_and_salt(tmp_path: Path) -> None:
    task = shortcut_task(num_classes=3, per_class=20)
    run = make_run(task, tmp_path)
    rest, held_out = run.hold_out(0.25)
    assert held_out.y.bincount().tolist() == [5, 5, 5] and rest.y.bincount().tolist() == [15, 15, 15]
    assert sorted([*rest.index.tolist(), *held_out.index.tolist()]) == list(range(60))
    assert torch.equal(held_out.index, make_run(task, tmp_path).hold_out(0.25)[1].index)
    others = [run.hold_out(0.25, salt=1)[1], make_run(task, tmp_path, seed=1).hold_out(0.25)[1]]
    assert not any(torch.equal(held_out.index, other.index) for other in others)
    halves = run.hold_out(0.5, split=run.val)
    assert [len(half) for half in halves] == [9, 9] and halves[0].x is run.val.x


def test_a_rare_class_is_in_both_parts(tiny: Task, tmp_path: Path) -> None:
    few = dataclasses.replace(tiny, train=tiny.train.take([0, 1, 2, 58, 59]))
    run = make_run(few, tmp_path)
    for fraction in (0.01, 0.99):
        assert all(set(part.y.tolist()) == {0, 1} for part in run.hold_out(fraction))
    for wrong in (0, 1, 1.5):
        with pytest.raises(ValueError, match="fraction must be above 0 and below 1"):
            run.hold_out(wrong)


# -- logits in the record --------------------------------------------------------------------------------


def test_predictions_keep_the_logits(tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = execute(tiny, "erm", runs=tmp_path, device="cpu", show=Silent())
    for name, split in (("val", tiny.val), ("test", tiny.test)):
        logits = record.predictions[f"{name}_logits"]
        assert logits.dtype == np.float16 and logits.shape == (len(split), 2)
        assert (logits.argmax(1) == record.predictions[name]).all()

    class Huge(nn.Module):
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.network(x) * 1e8
            return outputs

    def train(run: Any) -> nn.Module:
        return Huge(run.fit("erm").model)

    def rebuild(network: Any, tensors: Any, num_classes: int) -> nn.Module:
        return Huge(network())

    method = as_method(monkeypatch, train, rebuild=rebuild)
    huge = execute(tiny, method, runs=tmp_path, device="cpu", show=Silent())
    assert np.isfinite(huge.predictions["test_logits"]).all()


def test_older_records_without_logits_are_read(tiny: Task, tmp_path: Path) -> None:
    record = execute(tiny, "erm", runs=tmp_path, device="cpu", show=Silent())
    kept = {name: record.predictions[name] for name in ("val", "test")}
    (record.path / "checksums.json").unlink()
    np.savez_compressed(record.path / "predictions.npz", **kept)
    assert set(Record(record.path).predictions) == {"val", "test"}
