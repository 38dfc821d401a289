"""Which weights a training hands over: averaged ones, those of the best check, by other weights of validation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shortcut import shortcut_task
from test_run import Interrupted, StopAt, make_run
from torch import nn

from evenhand import Recipe, Task, execute
from evenhand.core.ranks import seed_epoch
from evenhand.training import checkpoint, loop
from evenhand.training.checkpoint import EMA
from evenhand.training.data import checksum
from evenhand.training.forward import standard_error, weighted_mean
from evenhand.training.log import Silent
from evenhand.training.record import key_of


def same(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# -- averaged weights ------------------------------------------------------------------------------------


def test_the_average_is_that_of_a_plain_loop(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path, tiny.recipe.replace(epochs=2, average=True))
    fit = run.fit("erm", stop=2)
    model, y = run.make_model(), tiny.train.y
    optimizer = torch.optim.Adam(model.parameters(), lr=tiny.recipe.lr)
    mean = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    taken = 0
    for epoch in range(2):
        order = np.random.default_rng(seed_epoch(0, "erm", epoch, torch.device("cpu"))[0]).permutation(60)
        for start in range(0, 60, 16):
            rows = order[start : start + 16]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tiny.train.x[rows]), y[rows]).backward()
            optimizer.step()
            taken += 1
            for name, value in model.state_dict().items():
                mean[name] += (value - mean[name]) / min(taken, 4)  # an epoch has four steps
    for name, value in fit.model.state_dict().items():
        torch.testing.assert_close(value, mean[name], rtol=1e-5, atol=1e-6)
    losses = nn.functional.cross_entropy(fit.model(tiny.val.x), tiny.val.y, reduction="none").detach()
    np.testing.assert_allclose(
        fit.val_losses[:, -1], losses, rtol=1e-5, err_msg="it is also what is validated"
    )
    raw = nn.functional.cross_entropy(model(tiny.val.x), tiny.val.y, reduction="none").detach()
    assert not np.allclose(raw, losses, rtol=1e-3), "the test could not fail"


def test_running_statistics_are_averaged_and_counts_are_copied() -> None:
    norm = nn.BatchNorm1d(2)
    ema = EMA(norm, steps=2)
    for _ in range(3):
        norm(torch.randn(8, 2))
        ema.update(norm)
    assert ema.module.num_batches_tracked == 3
    assert not torch.equal(ema.module.running_mean, norm.running_mean)


def test_a_killed_training_continues_to_the_same_average(tmp_path: Path) -> None:
    task, runs = shortcut_task(epochs=5), (tmp_path / "whole", tmp_path / "killed")
    recipe = task.recipe.replace(average=True, keep="best")
    whole = execute(task, "erm", recipe=recipe, runs=runs[0], device="cpu", show=Silent())
    with pytest.raises(Interrupted):
        execute(task, "erm", recipe=recipe, runs=runs[1], device="cpu", show=StopAt("erm", 3))
    again = execute(task, "erm", recipe=recipe, runs=runs[1], device="cpu", show=Silent())
    files = [(record.path / "model.safetensors").read_bytes() for record in (whole, again)]
    assert files[0] == files[1]
    plain = execute(task, "erm", runs=runs[0], device="cpu", show=Silent())
    assert (plain.path / "model.safetensors").read_bytes() != files[0]


# -- other weights of validation samples -----------------------------------------------------------------


def test_other_weights_decide_which_model_is_kept_and_not_when_to_stop(tiny: Task, tmp_path: Path) -> None:
    recipe = Recipe(epochs=6, batch_size=16, check_every=1, patience=3, delta=0.0, keep="best")
    weight = (tiny.val.y == 1).float()
    fit = make_run(tiny, tmp_path, recipe).fit("model", choose=weight)
    walk = make_run(tiny, tmp_path / "walk", recipe)
    assert fit.epochs == walk.fit("model").epochs
    models = [walk.fit("model", stop=epoch).model for epoch in range(1, fit.epochs + 1)]
    hits = [one(tiny.val.x).argmax(1) == tiny.val.y for one in models]
    plain, other = ([weighted_mean(each, by) for each in hits] for by in (None, weight))
    floor = max(plain) - standard_error(hits[int(np.argmax(plain))], None)
    scores = [(a + b, a) if a >= floor else (0, 0) for a, b in zip(plain, other, strict=True)]
    assert same(fit.model, models[max(i for i, score in enumerate(scores) if score == max(scores))])
    np.testing.assert_allclose([row["choice"] for row in fit.read()["log"]], other)


def test_a_training_with_other_weights_is_not_taken_for_another(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    weights = [None, tiny.val.y == 0, tiny.val.y == 1]
    assert len({run.fit("model", choose=weight).folder for weight in weights}) == 3


def test_a_training_is_found_again_by_all_that_makes_it_and_nothing_else(tiny: Task, tmp_path: Path) -> None:
    """A key that holds more, or less, orphans the trainings of earlier versions."""
    run, rows = make_run(tiny, tmp_path), tiny.train.take([0, 1, 2, 3])
    shared = {"task": "tiny", "data": tiny.checksum, "stage": "erm", "recipe": run.recipe.changed()}
    shared |= {
        "numerics": 1,
        "objective": {"name": "evenhand.training.objective.cross_entropy", "version": 1},
    }
    shared |= {"arithmetic": {"device": "cpu", "precision": "fp32", "compute": "eager", "slices": 2}}
    assert run.fit("erm").folder.name == f"{key_of(shared)}-s0"
    own = {
        "draw": "",
        "choose": "",
        "start": "",
        "transform": "",
        "salt": 0,
        "recorded": False,
        "stop": "val",
    }
    own |= {"rows": checksum(rows.index, rows.rows, rows.copies, rows.y), "groups": checksum(rows.group)}
    key = key_of({**shared, **own, "stage": "model"})
    assert run.fit("model", rows).folder.name == f"{key}-s0"


# -- a second accuracy -----------------------------------------------------------------------------------


def test_weights_with_the_best_sum_of_two_accuracies_are_kept(
    tiny: Task, tmp_path: Path, monkeypatch
) -> None:
    wanted = make_run(tiny, tmp_path / "walk", tiny.recipe).fit("erm", stop=4)
    plain = [0.5, 0.9, 0.904, 0.909, 0.9, 0.905, 0.906]
    other = [0.9, 0.6, 0.61, 0.645, 0.65, 0.64, 0.63]  # the best by itself is the first, or the fifth
    accuracies = [value for pair in zip(plain, other, strict=True) for value in pair]
    monkeypatch.setattr(loop, "weighted_mean", lambda *_: accuracies.pop(0))
    monkeypatch.setattr(loop, "standard_error", lambda *_: 0.001)
    recipe = Recipe(epochs=20, batch_size=16, check_every=1, patience=3, keep="best")
    fit = make_run(tiny, tmp_path, recipe).fit("erm", choose=np.ones(len(tiny.val)))
    assert fit.epochs == 7
    assert same(fit.model, wanted.model)
    assert not fit.read()["checks"], "a snapshot holds one model"


def kept_check(choices: list[float], accuracies: list[float], errors: list[float] | float = 0.001) -> int:
    """The epoch whose weights remain when the rule has seen these checks."""
    rules = checkpoint.Rules(("val",), Recipe(check_every=1, patience=100, keep="best"))
    errors = errors if isinstance(errors, list) else [errors] * len(choices)
    for epoch, (choice, accuracy, error) in enumerate(zip(choices, accuracies, errors, strict=True), 1):
        row = {"epoch": epoch, "accuracy": 0.5, "val_accuracy": accuracy, "choice": choice}
        row["val_error"] = error
        halfway, state = checkpoint.Rules(("val",), rules.recipe), rules.state()
        for saved, check in zip(state["checks"], rules.checks, strict=True):
            assert saved["weights"] is check.weights, "a checkpoint holds every set of weights once"
        halfway.restore(state)  # a training that is killed and continues decides the same
        rules = halfway
        rules.check(row, lambda epoch=epoch: {"w": torch.tensor(epoch)})
        kept = [(check.score, check.accuracy) for check in rules.checks]
        assert not any(a <= c and b <= d for i, (a, b) in enumerate(kept) for c, d in kept[i + 1 :]), kept
    return int(rules.best["val"]["w"])


def test_a_check_that_gave_up_more_than_a_point_of_all_is_not_kept() -> None:
    rising = [0.90, 0.93, 0.935, 0.934]
    assert kept_check([0.80, 0.70, 0.70, 0.71], rising) == 4, "the first gave up 3.5 points"
    assert kept_check([0.80, 0.75, 0.70, 0.65], rising) == 2, "the second gave up half a point"
    assert kept_check([0.80, 0.75, 0.70, 0.65], [0.926, 0.93, 0.935, 0.934]) == 1
    assert kept_check([0.80, 0.75, 0.70, 0.65], rising, 0.04) == 1, "few samples prove little"
    assert kept_check([0.80, 0.82, 0.50], [0.920, 0.911, 0.922]) == 1, "the second, not the first, fell back"
    assert kept_check([0.70, 0.70, 0.70], [0.920, 0.920, 0.920]) == 3, "of equal ones the last"
    assert kept_check([0.5, 0.5078125], [0.9375, 0.9296875]) == 1, "of equal sums the more accurate"
    assert kept_check([0.50, 0.55, 0.00], [0.60, 0.57, 0.02], [0.05, 0.05, 0.01]) == 2, (
        "nor one that collapsed"
    )


def test_training_accuracy_chooses_for_a_training_that_waits_for_it() -> None:
    rules = checkpoint.Rules(("train", "val"), Recipe(check_every=1, patience=100, keep="best"))
    for epoch, accuracy in enumerate([0.5, 0.8, 0.6], 1):
        row = {"epoch": epoch, "accuracy": accuracy, "val_accuracy": 0.9, "choice": 0.1 * epoch}
        rules.check({**row, "val_error": 0.001}, lambda epoch=epoch: {"w": torch.tensor(epoch)})
    assert {name: int(weights["w"]) for name, weights in rules.best.items()} == {"train": 2, "val": 3}


def test_the_last_epoch_is_checked_wherever_it_falls() -> None:
    rules = checkpoint.Rules(("val",), Recipe(epochs=7, check_every=5, keep="best"))
    for epoch, accuracy in enumerate([0.1, 0.2, 0.9, 0.4, 0.5, 0.6, 0.7], 1):
        row = {"epoch": epoch, "accuracy": 0.5, "val_accuracy": accuracy}
        fired = rules.check(row, lambda epoch=epoch: {"w": torch.tensor(epoch)})
        assert fired == (["val"] if epoch == 7 else [])
    assert int(rules.best["val"]["w"]) == 7


@given(st.lists(st.tuples(*[st.integers(0, 40)] * 2), min_size=1, max_size=12))
@settings(max_examples=200)
def test_what_is_kept_is_what_all_checks_together_say(rows: list[tuple[int, int]]) -> None:
    choices, accuracies = ([value / 256 + 0.5 for value in column] for column in zip(*rows, strict=True))
    floor = max(accuracies) - checkpoint.POINT
    scores = [(c + a, a) if a >= floor else (0, 0) for c, a in zip(choices, accuracies, strict=True)]
    assert kept_check(choices, accuracies) == max(i for i, s in enumerate(scores, 1) if s == max(scores))


def test_the_standard_error_is_that_of_accuracies_of_other_samples() -> None:
    random, weight = np.random.default_rng(0), torch.tensor([1.0] * 40 + [5.0] * 10)
    drawn = torch.from_numpy(random.random((4000, 50)) < 0.8)
    spread = np.std([weighted_mean(correct, weight) for correct in drawn])
    errors = [standard_error(correct, weight) for correct in drawn]
    assert np.mean(np.square(errors)) ** 0.5 == pytest.approx(spread, rel=0.1)
    assert standard_error(torch.ones(3, dtype=torch.bool), None) > 0.2, "three of three prove little"
