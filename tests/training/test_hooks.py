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
from evenhand.core.partition import of_mask, rebalance
from evenhand.core.ranks import seed_epoch
from evenhand.integrations.prediction import predict
from evenhand.training import run as run_module
from evenhand.training.checkpoint import EMA
from evenhand.training.data import Batch
from evenhand.training.keys import Description
from evenhand.training.log import Silent
from evenhand.training.models import PostHoc, mlp, replace_head
from evenhand.training.record import Record
from evenhand.training.run import Run
from evenhand.training.stage import Fit


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
    assert Description(functools.partial(mlp, (1, 6, 6), num_classes=2)).content["arguments"] == [
        [[1, 6, 6]],
        {"num_classes": 2},
    ]


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
    wanted = [0.1, 0.3, 0.2, 0.4, 0.6, 0.5, 0.1]  # the best is the fifth; two more, and it stops
    values = iter(wanted)

    def score(logits: Tensor, val: Split) -> float:
        given.append((logits, val))
        return next(values)

    recipe = tiny.recipe.replace(epochs=50, patience=2, keep="best")
    run = make_run(tiny, tmp_path, recipe)
    fit = run.fit("model", score=score)
    assert fit.epochs == 7 and [row["score"] for row in rows_of(fit)] == wanted
    logits, val = given[4]
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


# -- features --------------------------------------------------------------------------------------------


def network() -> nn.Module:
    """With batch statistics and dropout, both of which must be off where features are made."""
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(48, 2))
    )


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples go through the features' computation from now on."""
    seen: list[int] = []
    compute = run_module.features

    def features(model: nn.Module, batches: Any, recipe: Any) -> Any:
        seen.append(len(batches.split))
        return compute(model, batches, recipe)

    monkeypatch.setattr(run_module, "features", features)
    return seen


def test_features_are_what_the_head_is_given(tiny: Task, tmp_path: Path) -> None:
    mean = dataclasses.replace(tiny, mean=(0.5,), std=(0.25,), augment=lambda x, generator: x + 9)
    run = make_run(mean, tmp_path)
    fit = run.fit("model", model=network, stop=1)
    rows = run.train.take([7, 3, 3, 50])
    found = run.features(fit, rows)
    body = fit.model.eval()[:-1]
    with torch.no_grad():
        expected = body((tiny.train.x[[7, 3, 3, 50]] - 0.5) / 0.25)
    assert found.dtype == np.float32 and found.shape == (4, 48)
    torch.testing.assert_close(torch.from_numpy(found), expected)


def test_features_of_a_training_are_computed_once_by_whatever_run(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = counted(monkeypatch)
    first = make_run(tiny, tmp_path)
    fit = first.fit("erm", stop=1)
    expected = first.features(fit, first.train).copy()
    for _ in range(2):
        run = make_run(tiny, tmp_path)
        run.path = run.path.with_name("another-s0")
        np.testing.assert_array_equal(run.features(run.fit("erm", stop=1), run.train), expected)
        run.features(run.fit("erm", stop=1), run.train)
    assert seen == [60]
    first.features(fit, first.val)
    first.features(fit, first.train.take(range(10)))
    assert seen == [60, 20, 10]
    later = first.fit("erm", stop=2)  # the same folder, other weights
    assert later.folder == fit.folder and not np.array_equal(first.features(later, first.train), expected)


def test_damaged_features_are_computed_again(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = counted(monkeypatch)
    run = make_run(tiny, tmp_path)
    fit = run.fit("erm", stop=1)
    expected = run.features(fit, run.train).copy()
    (file,) = fit.folder.glob("features-*.npy")
    data = bytearray(file.read_bytes())
    data[500] ^= 1
    file.write_bytes(data)
    again = make_run(tiny, tmp_path)
    with pytest.warns(UserWarning, match="its checksum does not match"):
        np.testing.assert_array_equal(again.features(again.fit("erm", stop=1), again.train), expected)
    assert seen == [60, 60]


def test_features_of_a_module_are_kept_by_its_weights(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = counted(monkeypatch)
    run, model = make_run(tiny, tmp_path), network()
    first = run.features(model, run.train).copy()
    np.testing.assert_array_equal(make_run(tiny, tmp_path).features(model, run.train), first)
    assert seen == [60]
    with torch.no_grad():
        model[0].weight += 1
    assert not np.array_equal(run.features(model, run.train), first) and seen == [60, 60]


def test_a_split_of_features_trains_a_last_layer(tiny: Task, tmp_path: Path) -> None:
    normalised = dataclasses.replace(tiny, mean=(0.5,), std=(0.25,))
    run = make_run(normalised, tmp_path)
    fit = run.fit("model", model=network, stop=2)
    held_out = run.hold_out(0.3)[1]
    features = run.feature_split(fit, held_out)
    assert features.index.tolist() == held_out.index.tolist() and features.y.equal(held_out.y)
    assert features.group is not None and held_out.group is not None and features.group.equal(held_out.group)
    head = run.fit("head", features, model=lambda: nn.Linear(48, 2), val=run.feature_split(fit, run.val))
    model = replace_head(fit.model, head.model)
    torch.testing.assert_close(
        run.predict(model, run.val), run.predict(head.model, run.feature_split(fit, run.val))
    )
    assert rows_of(head)[-1]["val_accuracy"] == pytest.approx(
        (run.predict(model, run.val).argmax(1) == run.val.y).double().mean().item()
    )


def test_features_of_other_trainings_are_other_inputs(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    fits = [run.fit("erm", stop=epochs) for epochs in (1, 2)]

    def head() -> nn.Module:
        return nn.Linear(64 * 36, 2)

    folders = {run.fit("head", run.feature_split(fit, run.train), model=head, stop=1).folder for fit in fits}
    assert len(folders) == 2


# -- the head alone --------------------------------------------------------------------------------------


def test_the_head_alone_is_trained_and_nothing_else_moves(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    fit = run.fit("model", model=network, stop=1)
    head = run.fit("head", start=fit, train_only="head", stop=2)
    before, after = fit.model.state_dict(), head.model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"5.weight", "5.bias"}  # neither weights nor running means, nor counters
    assert all(parameter.requires_grad for parameter in head.model.parameters())

    features, x = run.feature_split(fit, run.train), run.feature_split(fit, run.val)
    cheap = run.fit("cheap", features, model=lambda: nn.Linear(48, 2), val=x, stop=1)
    assert cheap.model.state_dict().keys() == {"weight", "bias"}


def test_the_head_alone_sees_no_dropout_below_it(tiny: Task, tmp_path: Path) -> None:
    seen = []

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.append((x == 0).float().mean().item())
            return super().forward(x)

    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.BatchNorm1d(36), Watched(36, 2))

    run = make_run(tiny, tmp_path)
    run.fit("head", model=make, train_only="head", stop=1)
    assert len(seen) == 4 and max(seen) == 0


def test_the_head_alone_needs_no_optimiser_of_the_start(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    fit = run.fit("model", model=network, stop=1, recipe=tiny.recipe.replace(optimizer="sgd"))
    head = run.fit("head", start=fit, train_only="head", stop=1)
    assert not torch.equal(head.model[-1].weight, fit.model[-1].weight)
    other = run.fit("head", start=fit, train_only="head", stop=1, record=True)
    assert other.folder != head.folder
    whole = run.fit("whole", start=run.fit("again", model=network, stop=1), stop=1)
    assert not torch.equal(whole.model[0].weight, fit.model[0].weight)
    with pytest.raises(ValueError, match="train_only must be 'head' or None, got 'body'"):
        run.fit("wrong", train_only="body")


# -- a step of its own -----------------------------------------------------------------------------------


class Two(nn.Module):
    """A second network that is trained in turn, at another rate; the first one's gradients are clipped."""

    def __init__(self) -> None:
        super().__init__()
        self.second = network()
        self.register_buffer("taken", torch.zeros((), dtype=torch.int64))

    def parameter_groups(self, model: nn.Module) -> dict[str, Any]:
        return {"model": model.parameters(), "second": {"params": self.second.parameters(), "lr": 0.05}}

    def step(self, model: Any, batch: Batch, optimizers: dict[str, torch.optim.Optimizer]) -> Tensor:
        other = F.cross_entropy(self.second(batch.x), batch.y)
        optimizers["second"].zero_grad()
        other.backward()
        optimizers["second"].step()
        loss = F.cross_entropy(model(batch.x), batch.y) * (1 + other.detach())
        optimizers["model"].zero_grad()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad.clamp_(-0.01, 0.01)
        optimizers["model"].step()
        self.taken += 1
        return loss.detach()


def two(run: Any, **options: Any) -> Fit:
    torch.manual_seed(0)
    return run.fit("model", objective=Two(), model=network, **options)


def test_a_step_of_its_own_is_a_plain_loop_with_two_optimisers(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path, tiny.recipe.replace(average=True))
    fit = two(run, stop=2, record=True)

    model = run.make(network, 0)
    torch.manual_seed(0)
    objective = Two()
    optimizers = {
        "model": torch.optim.Adam(model.parameters(), lr=tiny.recipe.lr),
        "second": torch.optim.Adam(objective.second.parameters(), lr=0.05),
    }
    average = EMA(model, 4)
    for epoch in range(2):
        number, _ = seed_epoch(0, "model", epoch, torch.device("cpu"))
        order = np.random.default_rng(number).permutation(60)
        model.train()
        for start in range(0, 60, 16):
            rows = torch.from_numpy(order[start : start + 16])
            x, y = tiny.train.x[rows], tiny.train.y[rows]
            objective.step(model, Batch(x=x, y=y, index=rows, row=rows), optimizers)
            average.update(model)
    for name, value in average.module.state_dict().items():
        assert torch.equal(value, fit.model.state_dict()[name]), name
    assert fit.objective_state["taken"] == 8
    for name, value in objective.second.state_dict().items():
        assert torch.equal(value, fit.objective_state[f"second.{name}"]), name
    assert fit.losses.shape == (60, 2) and (fit.losses > 0).all()


def test_a_step_of_its_own_resumes_to_the_byte(tiny: Task, tmp_path: Path) -> None:
    recipe = tiny.recipe.replace(average=True, epochs=6, plateau_epochs=1, lr=0.02)
    whole = two(make_run(tiny, tmp_path / "whole", recipe), stop=6)
    rates = [row["lr"] for row in rows_of(whole)]
    with pytest.raises(Interrupted):
        two(make_run(tiny, tmp_path / "again", recipe, show=StopAt("model", epoch=4)), stop=6)
    again = two(make_run(tiny, tmp_path / "again", recipe), stop=6)
    states = [fit.read() for fit in (whole, again)]
    assert states[0].keys() == states[1].keys() and set(states[0]["optimizer"]) == {"model", "second"}
    for name in ("model", "objective", "optimizer", "scheduler", "average"):
        assert_same(states[0][name], states[1][name])
    assert rates == [row["lr"] for row in rows_of(again)]


def test_the_schedule_lowers_the_rate_of_every_optimiser(tiny: Task, tmp_path: Path) -> None:
    class Worse(Two):
        def step(self, model: Any, batch: Batch, optimizers: Any) -> Tensor:
            super().step(model, batch, optimizers)
            return torch.tensor(float(batch.step))  # never falls

    run = make_run(tiny, tmp_path, tiny.recipe.replace(plateau_epochs=1))
    fit = run.fit("model", objective=Worse(), model=network, stop=4)
    optimizers = fit.read()["optimizer"]
    rates = {name: state["param_groups"][0]["lr"] for name, state in optimizers.items()}
    assert rates == pytest.approx({"model": tiny.recipe.lr * 0.1, "second": 0.005})


def test_by_default_the_model_and_the_objective_have_an_optimiser_each(tiny: Task, tmp_path: Path) -> None:
    names = []

    class Own(nn.Module):
        def __init__(self, *parts: nn.Module) -> None:
            super().__init__()
            self.parts = nn.ModuleList(parts)

        def step(self, model: Any, batch: Batch, optimizers: Any) -> Tensor:
            names.append(sorted(optimizers))
            return F.cross_entropy(model(batch.x), batch.y).detach()

    run = make_run(tiny, tmp_path)
    fit = run.fit("one", objective=Own(), stop=1)
    run.fit("two", objective=Own(nn.Linear(2, 2)), stop=1)
    assert names[0] == ["model"] and names[-1] == ["model", "objective"]
    fresh = run.make_model().state_dict()
    assert all(torch.equal(value, fresh[name]) for name, value in fit.model.state_dict().items())


def test_a_step_of_its_own_takes_whole_batches(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path, tiny.recipe.replace(slices=2))
    with pytest.raises(
        ValueError, match="the objective Two has a step of its own for whole batches, but .* 2"
    ):
        run.fit("model", objective=Two())


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


# -- models that are more than the recipe's network ------------------------------------------------------


class Shift(nn.Module):
    """Logits plus a linear function of the features."""

    def __init__(self, dimensions: int, num_classes: int) -> None:
        super().__init__()
        self.shift = nn.Linear(dimensions, num_classes)

    def forward(self, logits: Tensor, features: Tensor) -> Tensor:
        outputs: Tensor = logits + self.shift(features)
        return outputs


def post_hoc(run: Any) -> nn.Module:
    fit = run.fit("erm")
    torch.manual_seed(0)
    return PostHoc(fit.model, Shift(run.features(fit, run.val).shape[1], run.num_classes))


def rebuild(network: Any, tensors: Any, num_classes: int) -> nn.Module:
    return PostHoc(network(), Shift(tensors["function.shift.weight"].shape[1], num_classes))


def test_a_post_hoc_model_goes_through_predict(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = as_method(monkeypatch, post_hoc, rebuild=rebuild)
    record = execute(tiny, method, runs=tmp_path, device="cpu", show=Silent())
    np.save(tmp_path / "x.npy", np.asarray(tiny.test.x))
    found = predict(record.path, tmp_path / "x.npy", device="cpu", trust=[method])
    assert found.classes == [tiny.class_names[label] for label in record.predictions["test"]]
    plain = execute(tiny, "erm", runs=tmp_path, device="cpu", show=Silent())
    logits = [each.predictions["test_logits"].astype(np.float32) for each in (record, plain)]
    assert not np.allclose(*logits)  # the function counts
    monkeypatch.delitem(sys.modules, "hooked.method")
    monkeypatch.delitem(sys.modules, "hooked")
    with pytest.raises(ValueError, match="should hold the weights of cnn, but .*cannot import the method"):
        predict(record.path, tmp_path / "x.npy", device="cpu", trust=[method])
    with pytest.raises(ValueError, match=r"if you trust the code of .*, add --trust hooked\.method"):
        predict(record.path, tmp_path / "x.npy", device="cpu")


def test_a_model_that_cannot_be_rebuilt_is_refused_before_anything_is_written(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = as_method(monkeypatch, post_hoc)
    with pytest.raises(ValueError, match=r"cannot be rebuilt from its record: .*define rebuild\(network"):
        execute(tiny, method, runs=tmp_path, device="cpu", show=Silent())
    assert not [path for path in (tmp_path / "tiny" / "hooked.method").rglob("*.*") if path.name != "log.txt"]


def test_the_same_weights_that_predict_otherwise_are_refused(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(run: Any) -> nn.Module:
        model = run.fit("erm").model
        model.register_forward_hook(lambda module, inputs, outputs: -outputs)  # no weight says so
        return model

    with pytest.raises(ValueError, match="the weights in it predict otherwise"):
        execute(tiny, as_method(monkeypatch, train), runs=tmp_path, device="cpu", show=Silent())


def test_a_head_that_was_replaced_is_saved_with_the_recipes_network(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(run: Any) -> nn.Module:
        fit = run.fit("erm")
        x, val = (run.feature_split(fit, split) for split in (run.train, run.val))
        head = run.fit("head", x, model=lambda: nn.Linear(x.x.shape[1], run.num_classes), val=val)
        return replace_head(fit.model, head.model)

    record = execute(tiny, as_method(monkeypatch, train), runs=tmp_path, device="cpu", show=Silent())
    np.save(tmp_path / "x.npy", np.asarray(tiny.test.x))
    found = predict(record.path, tmp_path / "x.npy", device="cpu")
    assert found.classes == [tiny.class_names[label] for label in record.predictions["test"]]


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


# -- on a GPU --------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_hooks_on_a_gpu_with_kernels_and_graphs(tmp_path: Path) -> None:
    task = shortcut_task(per_class=400)
    task = dataclasses.replace(task, recipe=task.recipe.replace(epochs=5))
    where = tmp_path / task.name / "any" / "key-s0"
    run = Run(task, task.recipe, seed=0, path=where, identity={}, device=torch.device("cuda"), show=Silent())
    assert run.arithmetic.compute == "kernels"
    erm = run.fit("erm", stop=5)
    features = run.feature_split(erm, run.train)
    assert features.x.shape == (800, 64 * 36) and features.x.isfinite().all()
    head = run.fit("head", features, model=lambda: nn.Linear(64 * 36, 2), val=run.feature_split(erm, run.val))
    outputs = run.predict(replace_head(erm.model, head.model), run.val)
    torch.testing.assert_close(
        outputs, run.predict(head.model, run.feature_split(erm, run.val)), rtol=0.05, atol=0.2
    )
    alone = run.fit("alone", start=erm, train_only="head", stop=2)
    before, after = erm.model.state_dict(), alone.model.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"13.weight", "13.bias"}
    stepped = two(run, stop=2)
    assert stepped.objective_state["taken"] == 100
    on_top = PostHoc(erm.model, Shift(64 * 36, 2).cuda())
    assert run.predict(on_top, run.val).shape == (266, 2)


def test_a_step_uses_the_weights_that_it_has_just_updated(tiny: Task, tmp_path: Path) -> None:
    class Twice(nn.Module):
        def step(self, model, batch, optimizers):
            for _ in range(2):
                loss = F.cross_entropy(model(batch.x), batch.y)
                optimizers["model"].zero_grad()
                loss.backward()
                optimizers["model"].step()
                self.seen.append(loss.item())
            return loss.detach()

    objective = Twice()
    objective.seen = []
    run = make_run(tiny, tmp_path, tiny.recipe.replace(precision="bf16", lr=0.05, epochs=1))
    run.fit("model", objective=objective, stop=1)
    first, second = objective.seen[::2], objective.seen[1::2]
    assert all(before != after for before, after in zip(first, second, strict=True)), "an old copy was used"


def test_the_groups_that_a_score_may_read_are_in_the_key(tiny: Task, tmp_path: Path) -> None:
    folders = set()
    for group in (tiny.val.group, tiny.val.group.flip(0)):
        run = make_run(tiny, tmp_path)
        run.val = dataclasses.replace(run.val, group=group)
        object.__setattr__(run.task, "val", run.val)
        folders.add(run.fit("model", score=len_of_val, stop=1).folder)
    assert len(folders) == 2


def len_of_val(logits, val) -> float:
    return float(len(val))
