"""The engine: stages that are shared, stopped, killed and continued, and always end the same."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from shortcut import shortcut_task
from torch.nn import functional as F

from evenhand import Recipe, Split, Task, execute, separable
from evenhand.core import ranks
from evenhand.core.metrics import wilson_interval
from evenhand.core.ranks import seed_epoch
from evenhand.training.checkpoint import Rule
from evenhand.training.data import Batch
from evenhand.training.log import Silent
from evenhand.training.models import cnn
from evenhand.training.record import Record, find
from evenhand.training.run import Run, chance


def make_run(
    task: Task, path: Path, recipe: Recipe | None = None, seed: int = 0, show: Silent | None = None
) -> Run:
    recipe = (recipe or task.recipe).replace(precision="fp32")
    where = path / task.name / "any" / "key-s0"
    device = torch.device("cpu")
    return Run(
        task, recipe, seed=seed, path=where, identity={"test": 1}, device=device, show=show or Silent()
    )


def weights(record: Record) -> bytes:
    return (record.path / "model.safetensors").read_bytes()


class Interrupted(Exception):
    pass


class StopAt(Silent):
    """Raises in the middle of an epoch, as a machine that dies there would."""

    def __init__(self, stage: str, epoch: int, batches: int = 2) -> None:
        self.stage, self.at, self.batches, self.seen = stage, epoch, batches, 0

    def start(self, title: str, *, epochs: int, samples: int, done: int = 0) -> None:
        self.current, self.now = title, done

    def advance(self, samples: int) -> None:
        if self.current == self.stage and self.now == self.at:
            self.seen += 1
            if self.seen == self.batches:
                raise Interrupted

    def epoch(self, row: dict) -> None:
        self.now = row["epoch"]


# -- one training ----------------------------------------------------------------------------------------


def test_an_epoch_equals_a_plain_loop(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path, tiny.recipe.replace(epochs=2))
    fit = run.fit("erm", stop=2)

    model = run.make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=tiny.recipe.lr)
    histories = []
    for epoch in range(2):
        number, _ = seed_epoch(0, "erm", epoch, torch.device("cpu"))
        order = np.random.default_rng(number).permutation(len(tiny.train))
        recorded = torch.zeros(len(tiny.train))
        for start in range(0, len(order), 16):
            batch = order[start : start + 16]
            optimizer.zero_grad()
            for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):  # as two ranks do it
                losses = F.cross_entropy(model(tiny.train.x[half]), tiny.train.y[half], reduction="none")
                recorded[half] = losses.detach()
                (losses.mean() * (len(half) / len(batch))).backward()
            optimizer.step()
        histories.append(recorded)
    for name, value in model.state_dict().items():
        assert torch.equal(value, fit.model.state_dict()[name]), name
    np.testing.assert_allclose(fit.losses, torch.stack(histories, 1).numpy(), rtol=1e-6)


CUT = {"nothing": 8, "slices": 4, "declared": 8, "declared class": 8, "declared transform": 8}


@pytest.mark.parametrize("given", [*CUT, "objective", "ours", "transform", "model"])
def test_a_batch_is_cut_only_where_that_is_declared(tiny: Task, tmp_path: Path, given: str) -> None:
    seen: list[int] = []

    def objective(model, batch):
        seen.append(len(batch.y))
        return F.cross_entropy(model(batch.x), batch.y)

    def transform(x, _batch, _generator):
        seen.append(len(x))
        return x

    class Declared(torch.nn.Module):
        separable = True
        forward = staticmethod(objective)

    if given == "model":  # which may do anything with a batch, even if it is this network
        tiny = dataclasses.replace(tiny, make_model=lambda: cnn((1, 6, 6), 2))
    if given == "ours":  # the name of a module declares nothing
        objective.__module__ = "evenhand.training.objective"
    run = make_run(tiny, tmp_path, tiny.recipe.replace(batch_size=16, slices=4 if given == "slices" else 1))
    options = {
        "objective": {"objective": objective},
        "ours": {"objective": objective},
        "declared": {"objective": separable(objective)} if given == "declared" else {},
        "declared class": {"objective": Declared()},
        "transform": {"transform": transform},
        "declared transform": {"transform": separable(transform)} if given == "declared transform" else {},
    }.get(given, {})
    seeing = run.make_model

    def make_model(salt: int = 0) -> torch.nn.Module:
        model = seeing(salt)
        model.register_forward_pre_hook(lambda module, x: seen.append(len(x[0])) if module.training else None)
        return model

    if not options:
        run.make_model = make_model
    run.fit("other", stop=1, recipe=run.recipe.replace(check_every=2), **options)
    assert max(seen) == CUT.get(given, 16)


@pytest.mark.parametrize("kind", ["objective", "transform"])
@pytest.mark.parametrize("cut_by", ["slices", "ranks"])
def test_what_does_not_declare_it_is_not_cut_but_refused(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, cut_by: str
) -> None:
    def contrast(model, batch):
        return model(batch.x).var(0).sum()

    recipe = tiny.recipe.replace(slices=2) if cut_by == "slices" else tiny.recipe
    run = make_run(tiny, tmp_path, recipe)
    if cut_by == "ranks":
        monkeypatch.setattr(ranks, "count", lambda: 2)
    words = rf"the {kind} .*contrast does not declare that batches may be cut, but they are cut into 2 slices"
    with pytest.raises(
        ValueError, match=words + r"; run it without torchrun and with slices=1, or.*separable"
    ):
        run.fit("model", **{kind: contrast})


def test_early_stopping_counts_checks_without_gain() -> None:
    rule, recipe = Rule(), Recipe(patience=2, delta=0.01)
    gains = [rule.check(accuracy, recipe) for accuracy in (0.5, 0.505, 0.52, 0.525, 0.53)]
    assert gains == [True, False, True, False, False]
    assert rule.waited == 2


def test_validation_is_checked_every_few_epochs_and_training_every_epoch(tiny: Task, tmp_path: Path) -> None:
    recipe = Recipe(epochs=40, batch_size=16, check_every=3, patience=2, delta=1.0)  # no gain ever counts
    run = make_run(tiny, tmp_path, recipe)
    assert run.fit("erm", stop="train").epochs == 3  # the first check is a gain over nothing
    assert run.fit("erm", stop="val").epochs == 9


def test_the_best_weights_are_kept_when_asked_for(tiny: Task, tmp_path: Path) -> None:
    recipe = Recipe(epochs=6, batch_size=16, check_every=1, patience=2, delta=1.0)
    last = make_run(tiny, tmp_path / "last", recipe).fit("erm")
    best = make_run(tiny, tmp_path / "best", recipe.replace(keep="best")).fit("erm")
    first = make_run(tiny, tmp_path / "first", recipe).fit("erm", stop=1)
    assert last.epochs == best.epochs == 3
    state = best.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in first.model.state_dict().items())
    assert not all(torch.equal(value, state[name]) for name, value in last.model.state_dict().items())


def test_the_learning_rate_falls_on_a_plateau(tiny: Task, tmp_path: Path) -> None:
    recipe = Recipe(epochs=6, batch_size=16, lr=1e-7, plateau_epochs=1)
    run = make_run(tiny, tmp_path, recipe)
    fit = run.fit("erm", stop=6)
    rates = [json.loads(line)["lr"] for line in (fit.folder / "epochs.jsonl").read_text().splitlines()]
    assert rates[0] == 1e-7 and rates[-1] == pytest.approx(1e-8)


def replayed_rates(values: list[float], recipe: Recipe) -> list[float]:
    """The learning rate of every epoch if torch's schedule sees these values."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=recipe.lr)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=recipe.plateau_factor, patience=recipe.plateau_epochs
    )
    rates = []
    for value in values:
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.step(value)
    return rates


def test_the_learning_rate_follows_the_training_loss_alone(tiny: Task, tmp_path: Path) -> None:
    recipe = Recipe(epochs=12, batch_size=16, lr=0.3, plateau_epochs=1, plateau_factor=0.5)
    flat = dataclasses.replace(
        tiny, make_model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2))
    )
    log = make_run(flat, tmp_path, recipe).fit("erm", stop=12).read()["log"]
    curves = {name: [row[name] for row in log] for name in ("loss", "accuracy", "val_accuracy", "lr")}
    assert curves["lr"][-1] < curves["lr"][0] and curves["lr"] == replayed_rates(curves["loss"], recipe)
    for other in ("accuracy", "val_accuracy"):
        assert curves["lr"] != replayed_rates(curves[other], recipe), "the test could not fail"


def test_drawn_epochs_follow_their_weights(tiny: Task, tmp_path: Path) -> None:
    seen = torch.zeros(len(tiny.train))

    def objective(model, batch):
        seen.index_add_(0, batch.row, torch.ones(len(batch.row)))
        return F.cross_entropy(model(batch.x), batch.y)

    draw = np.zeros(len(tiny.train))
    draw[:10] = 1
    draw[3] = 9  # half of all
    recipe = tiny.recipe.replace(epochs=20)
    make_run(tiny, tmp_path, recipe).fit("model", objective=objective, draw=draw, stop=20)
    assert seen[:10].min() > 0 and seen[10:].sum() == 0
    assert seen.sum() == 20 * len(tiny.train)
    assert seen[3] / seen.sum() == pytest.approx(0.5, abs=0.06)  # four deviations of a fair draw


def test_every_epoch_and_every_stage_has_an_order_of_its_own(tiny: Task, tmp_path: Path) -> None:
    orders: dict[str, list[int]] = {}
    run = make_run(tiny, tmp_path)
    for stage in ("first", "second"):
        seen = orders[stage] = []

        def objective(model, batch, seen=seen):
            seen.extend(batch.index.tolist())
            return F.cross_entropy(model(batch.x), batch.y)

        run.fit(stage, objective=objective, stop=2)
    epochs = [orders[stage][start : start + 60] for stage in orders for start in (0, 60)]
    assert all(sorted(epoch) == list(range(60)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_validation_is_weighted_and_not_augmented(tiny: Task, tmp_path: Path) -> None:
    weight = torch.linspace(0.1, 2, len(tiny.val))
    val = dataclasses.replace(tiny.val, weight=weight)
    task = dataclasses.replace(
        tiny, val=val, augment=lambda x, generator: x + torch.randn(x.shape, generator=generator)
    )
    fit = make_run(task, tmp_path).fit("erm", stop=1)
    logits = fit.model(tiny.val.x).detach()
    losses = F.cross_entropy(logits, tiny.val.y, reduction="none")
    np.testing.assert_allclose(fit.val_losses[:, -1], losses, rtol=1e-5)
    hits = (logits.argmax(1) == tiny.val.y).double()
    expected = (hits * weight).sum() / weight.sum()
    assert fit.read()["log"][-1]["val_accuracy"] == pytest.approx(float(expected), rel=1e-6)
    assert float(expected) != pytest.approx(float(hits.mean()), rel=1e-6), "the test could not fail"


def test_a_dataset_trains_as_its_tensors_do(tiny: Task, tmp_path: Path) -> None:
    class Items(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(tiny.train)

        def __getitem__(self, row: int):
            return tiny.train.x[row], int(tiny.train.y[row])

    lazy = dataclasses.replace(tiny, train=Split(Items(), tiny.train.y))
    mapped = dataclasses.replace(tiny, train=Split(tiny.train.x.numpy(), tiny.train.y))
    plain, *others = (
        make_run(task, tmp_path / str(number)).fit("erm", stop=2).model.state_dict()
        for number, task in enumerate((tiny, lazy, mapped))
    )
    for other in others:
        assert all(torch.equal(value, other[name]) for name, value in plain.items())


def test_an_unknown_stop_is_refused(tiny: Task, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop must be 'val', 'train' or a number of epochs, got 'test'"):
        make_run(tiny, tmp_path).fit("erm", stop="test")


# -- what an objective's passes leave ----------------------------------------------------------------------


def views(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Two other views of a batch."""
    return batch.x.flip(-1), batch.x + 0.5


def consistency(model, batch):  # a clean pass, and one of another view
    clean, other = model(batch.x), model(views(batch)[0])
    return F.cross_entropy(clean, batch.y) + (clean - other).square().mean()


def other_first(model, batch):
    model(batch.x), model(views(batch)[1])
    return F.cross_entropy(model(batch.x), batch.y) + model(views(batch)[0]).square().mean()


def two_views(model, batch):
    return sum(F.cross_entropy(model(view), batch.y) for view in views(batch))


def mixup(model, batch):
    outputs = model(0.7 * batch.x + 0.3 * batch.x.roll(1, 0))
    return 0.7 * F.cross_entropy(outputs, batch.y) + 0.3 * F.cross_entropy(outputs, batch.y.roll(1))


def concatenated(model, batch):
    return F.cross_entropy(model(torch.cat(views(batch))), batch.y.repeat(2))


def in_parts(model, batch):
    parts = [model(part) for part in batch.x.split(max(1, len(batch.x) // 2))]
    return F.cross_entropy(torch.cat(parts), batch.y)


def silent(model, batch):
    return sum(parameter.square().sum() for parameter in model.parameters())


def with_a_look(model, batch):
    with torch.no_grad():
        model(batch.x)
    return concatenated(model, batch)


@pytest.mark.parametrize("objective", [consistency, other_first, with_a_look])
def test_the_recorded_losses_are_of_the_pass_of_the_batch(tiny: Task, tmp_path: Path, objective) -> None:
    seen = torch.zeros(len(tiny.train))

    def watched(model, batch):
        seen[batch.index] = F.cross_entropy(
            model._model(batch.x).detach(), batch.y, reduction="none"
        )  # before the step, as the objective finds the model
        return objective(model, batch)

    fit = make_run(tiny, tmp_path).fit("model", objective=watched, record=True, stop=1)
    np.testing.assert_allclose(fit.losses[:, 0], seen, rtol=1e-5)
    np.testing.assert_array_equal(fit.hits[:, 0], seen < np.log(2))  # of two classes the likelier
    row = json.loads((fit.folder / "epochs.jsonl").read_text().splitlines()[0])
    assert row["accuracy"] == pytest.approx(float(fit.hits[:, 0].mean()))


@pytest.mark.parametrize("objective", [two_views, mixup, concatenated, in_parts, silent])
def test_losses_that_no_pass_gives_are_not_recorded_but_refused(
    tiny: Task, tmp_path: Path, objective
) -> None:
    run = make_run(tiny, tmp_path)
    words = r"the objective never calls model\(batch.x\); call it once, .*, or fit without record"
    with pytest.raises(ValueError, match="losses are recorded, but it is not known.*" + words):
        run.fit("model", objective=objective, record=True, stop=1)


@pytest.mark.parametrize("objective", [two_views, mixup])
def test_without_a_pass_of_the_batch_accuracy_is_of_the_last_one_as_long(
    tiny: Task, tmp_path: Path, objective
) -> None:
    run, correct = make_run(tiny, tmp_path), []

    def watched(model, batch):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        loss = objective(model, batch)
        last = views(batch)[1] if objective is two_views else 0.7 * batch.x + 0.3 * batch.x.roll(1, 0)
        outputs = torch.func.functional_call(model._model, before, (last,))
        correct.append((outputs.argmax(1) == batch.y).sum().item())
        return loss

    fit = run.fit("model", objective=watched, stop=1)
    row = json.loads((fit.folder / "epochs.jsonl").read_text().splitlines()[0])
    assert row["accuracy"] == pytest.approx(sum(correct) / len(tiny.train))


@pytest.mark.parametrize("objective", [concatenated, in_parts, silent])
def test_an_accuracy_that_no_pass_gives_is_refused(tiny: Task, tmp_path: Path, objective) -> None:
    with pytest.raises(ValueError, match="training accuracy is counted, but it is not known which outputs"):
        make_run(tiny, tmp_path).fit("model", objective=objective, stop=1)


# -- sharing ---------------------------------------------------------------------------------------------


def test_methods_share_one_erm_training_in_any_order(tmp_path: Path) -> None:
    task = shortcut_task(epochs=8)
    task = dataclasses.replace(task, recipe=task.recipe.replace(patience=2))
    forward = [execute(task, method, runs=tmp_path / "a", show=Silent()) for method in ("erm", "tab")]
    backward = [execute(task, method, runs=tmp_path / "b", show=Silent()) for method in ("tab", "erm")]
    alone = [execute(task, method, runs=tmp_path / method, show=Silent()) for method in ("erm", "tab")]
    for one, two, three in zip(forward, reversed(backward), alone, strict=True):
        assert one.metrics == two.metrics == three.metrics
        assert weights(one) == weights(two) == weights(three)
    assert forward[0].stage("erm") == forward[1].stage("erm")
    assert len(list((tmp_path / "a" / "tiny" / "stages").iterdir())) == 2


def test_a_record_ends_where_its_run_stopped_a_shared_training(tiny: Task, tmp_path: Path) -> None:
    recipe = Recipe(epochs=8, batch_size=16, check_every=3, patience=1, delta=1.0)  # no gain ever counts
    tab, erm = (
        execute(tiny, method, recipe=recipe, runs=tmp_path, device="cpu", show=Silent())
        for method in ("tab", "erm")
    )
    assert tab.stage("erm") == erm.stage("erm")
    assert (tab.metrics["epochs"]["erm"], erm.metrics["epochs"]["erm"]) == (2, 6)
    assert [row["epoch"] for row in tab.epochs("erm")] == [1, 2] and len(erm.epochs("erm")) == 6
    assert tab.losses().shape == (60, 2) and erm.losses().shape == (60, 6)


def test_a_shared_training_that_went_further_can_still_give_an_earlier_model(
    tiny: Task, tmp_path: Path
) -> None:
    direct = make_run(tiny, tmp_path / "direct").fit("erm", stop=2)
    run = make_run(tiny, tmp_path / "long")
    run.fit("erm", stop=4)
    late = run.fit("erm", stop=2)
    np.testing.assert_array_equal(late.losses, direct.losses)
    np.testing.assert_array_equal(late.hits, direct.hits)
    state = direct.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in late.model.state_dict().items())


def test_a_training_continues_with_another_ones_weights_and_optimiser(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    start = run.fit("erm", stop=2)
    tuned = run.fit("model", start=start, stop=1)
    before, after = start.read(), tuned.read()
    assert before["optimizer"]["state"][0]["step"] * 3 == after["optimizer"]["state"][0]["step"] * 2
    assert not torch.equal(before["model"]["0.weight"], after["model"]["0.weight"])


# -- killing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage, epoch", [("erm", 0), ("erm", 2), ("model", 0), ("model", 3)])
def test_an_interrupted_run_ends_as_if_nothing_had_happened(
    tiny: Task, tmp_path: Path, stage: str, epoch: int
) -> None:
    whole = execute(tiny, "tab", runs=tmp_path / "whole", show=Silent())
    with pytest.raises(Interrupted):
        execute(tiny, "tab", runs=tmp_path / "cut", show=StopAt(stage, epoch))
    assert not list(find(tmp_path / "cut"))
    resumed = execute(tiny, "tab", runs=tmp_path / "cut", show=Silent())
    assert (resumed.path / "metrics.json").read_bytes() == (whole.path / "metrics.json").read_bytes()
    assert weights(resumed) == weights(whole)
    np.testing.assert_array_equal(resumed.losses(), whole.losses())


KILLED = """
import os, signal, sys
from evenhand import execute
from evenhand.training.log import Silent
from shortcut import shortcut_task

class Kill(Silent):
    def start(self, title, *, epochs, samples, done=0):
        self.title, self.done = title, done
    def advance(self, samples):
        if (self.title, self.done) == ({stage!r}, {epoch}):
            os.kill(os.getpid(), signal.SIGKILL)
    def epoch(self, row):
        self.done = row["epoch"]

execute(shortcut_task(), "tab", runs={runs!r}, show=Kill())
"""


def worker(runs: Path, stage: str, epoch: int = 2) -> "subprocess.Popen[bytes]":
    """A process of its own that runs TAB, and dies by SIGKILL in this epoch of this stage."""
    code = KILLED.format(stage=stage, epoch=epoch, runs=str(runs))
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    )


def test_runs_killed_in_either_training_end_with_the_same_bytes(tiny: Task, tmp_path: Path) -> None:
    whole = execute(tiny, "tab", runs=tmp_path / "whole", show=Silent())
    killed = {stage: worker(tmp_path / stage, stage) for stage in ("erm", "model")}
    for stage, process in killed.items():
        assert process.wait() == -signal.SIGKILL
        assert not list(find(tmp_path / stage))
        assert list((tmp_path / stage).glob("*/stages/*/last.ckpt")), "it died before anything was kept"
        resumed = execute(tiny, "tab", runs=tmp_path / stage, show=Silent())
        assert (resumed.path / "metrics.json").read_bytes() == (whole.path / "metrics.json").read_bytes()
        assert resumed.path.name == whole.path.name


def test_a_damaged_checkpoint_is_set_aside_and_computed_again(tiny: Task, tmp_path: Path) -> None:
    whole = execute(tiny, "tab", runs=tmp_path / "whole", show=Silent())
    with pytest.raises(Interrupted):
        execute(tiny, "tab", runs=tmp_path / "cut", show=StopAt("model", 2))
    for path in (tmp_path / "cut").glob("*/stages/*/*.ckpt"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"checksum does not match; kept as .*damaged.*, and computed again"):
        resumed = execute(tiny, "tab", runs=tmp_path / "cut", show=Silent())
    assert (resumed.path / "metrics.json").read_bytes() == (whole.path / "metrics.json").read_bytes()


def test_a_lost_snapshot_is_walked_to_again(tiny: Task, tmp_path: Path) -> None:
    first = execute(tiny, "tab", runs=tmp_path, show=Silent())
    content = (first.path / "metrics.json").read_bytes()
    for lost in [first.path / "metrics.json", *tmp_path.glob("*/stages/*/train.ckpt")]:
        lost.unlink()
    assert (execute(tiny, "tab", runs=tmp_path, show=Silent()).path / "metrics.json").read_bytes() == content


# -- execute ---------------------------------------------------------------------------------------------


def test_a_finished_run_returns_at_once(tiny: Task, tmp_path: Path) -> None:
    first = execute(tiny, "erm", runs=tmp_path, show=Silent())
    stamp = (first.path / "metrics.json").stat().st_mtime_ns
    again = execute(tiny, "erm", runs=tmp_path, show=StopAt("erm", 0))
    assert again.path == first.path and (again.path / "metrics.json").stat().st_mtime_ns == stamp


def test_a_key_knows_everything_that_changes_the_result(tiny: Task, tmp_path: Path) -> None:
    def path(task: Task = tiny, seed: int = 0, **settings: object) -> Path:
        return execute(task, "erm", {"epochs": 1, **settings}, seed=seed, runs=tmp_path, show=Silent()).path

    other_data = dataclasses.replace(tiny, checksum="other")
    paths = [path(), path(lr=0.1), path(seed=1), path(task=other_data), path(weight_decay=0.1)]
    assert len(set(paths)) == 5
    assert path(lr=tiny.recipe.lr) == paths[0] and path(compile="off") == paths[0]


def test_unknown_settings_list_the_known(tiny: Task, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="method 'erm' has no setting 'speed'; it has none of its own, and the"
    ):
        execute(tiny, "erm", {"speed": 1}, runs=tmp_path)
    with pytest.raises(ValueError, match="unknown method 'nothing'; known methods are .*erm.*tab"):
        execute(tiny, "nothing", runs=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_user_brings_a_method_as_a_module(tiny: Task, tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "own_methods"
    package.mkdir()
    (package / "half.py").write_text(
        "def train(run, *, share=0.5):\n    return run.fit('model', run.train.take(range(40))).model\n"
    )
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    record = execute(tiny, "own_methods.half", runs=tmp_path / "runs", show=Silent())
    assert record.metrics["test"]["wga"] <= 1 and record.path.parent.name == "own_methods.half"


def test_scores_against_a_loop(tiny: Task, tmp_path: Path) -> None:
    record = execute(tiny, "erm", runs=tmp_path, show=Silent())
    predicted = np.load(record.path / "predictions.npz")["test"]
    test = tiny.test
    by_group = [
        np.mean([predicted[i] == test.y[i] for i in range(len(test)) if test.group[i] == group])
        for group in sorted(set(test.group.tolist()))
    ]
    assert record.metrics["test"]["wga"] == pytest.approx(min(by_group))
    worst = sorted(set(test.group.tolist()))[int(np.argmin(by_group))]
    count = int((test.group == worst).sum())
    assert record.metrics["test"]["worst_group"] == tiny.group_names[worst]
    assert record.metrics["test"]["wga_interval"] == list(
        wilson_interval(round(min(by_group) * count), count)
    )
    assert record.metrics["test"]["accuracy_balanced"] == pytest.approx(np.mean(by_group))
    assert record.metrics["test"]["accuracy_weighted"] == pytest.approx(np.mean(predicted == test.y.numpy()))


def test_two_processes_on_one_run_do_it_once(tmp_path: Path) -> None:
    workers = [worker(tmp_path, "none") for _ in range(2)]
    assert [process.wait() for process in workers] == [0, 0]
    assert len(list(find(tmp_path))) == 1
    assert not list(tmp_path.rglob("*.tmp"))


# -- a training that learns nothing ----------------------------------------------------------------------


class Stillborn(torch.nn.Module):
    """Learns nothing where it is made under one of these salts, like a deep network that begins dead."""

    def __init__(self, salts: tuple[int, ...]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(36, 2)
        self.register_buffer("alive", torch.tensor(float(torch.initial_seed() % 1000 not in salts)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(1) * self.alive) * self.alive


class Titles(Silent):
    """Notes which trainings are announced."""

    def __init__(self) -> None:
        self.titles: list[str] = []

    def start(self, title: str, **_: object) -> None:
        self.titles.append(title)


@pytest.mark.parametrize(("salts", "begun"), [((), 1), ((0,), 2), ((0, 1), 3), ((0, 1, 2), 3)])
def test_what_learns_nothing_begins_again_with_other_weights(tiny, tmp_path, salts, begun) -> None:
    task = dataclasses.replace(tiny, make_model=lambda: Stillborn(salts))
    recipe = Recipe(epochs=8, batch_size=16, lr=0.03)
    watch = Titles()
    run = make_run(task, tmp_path, recipe, show=watch)
    fit = run.fit("model", task.train, again=True)
    assert watch.titles == ["model", *["model, which learned nothing, with other weights"] * (begun - 1)]
    folders = list((tmp_path / task.name / "stages").iterdir())
    assert len(folders) == begun
    assert (fit.accuracy > chance(task.train.y)) == (len(salts) < 3)
    assert float(fit.model.alive) == (len(salts) < 3)
    assert run.stages["model"] is fit
    alone = make_run(task, tmp_path, recipe).fit("model", task.train).seconds
    assert (fit.seconds > alone) == (begun > 1), "all trainings are counted"
    once_more = make_run(task, tmp_path, recipe).fit("model", task.train, again=True)
    assert once_more.folder == fit.folder and once_more.seconds == fit.seconds, "nothing is done twice"


def test_a_training_that_learns_is_not_repeated_and_the_commonest_label_is_no_learning() -> None:
    labels = torch.tensor([0] * 30 + [1] * 70)
    assert 0.7 < chance(labels) < 0.75
    assert chance(torch.zeros(5, dtype=torch.long)) == 1.0
