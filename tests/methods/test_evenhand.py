"""Evenhand: its split, its validation weights, and what it does of all that when it trains."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_tab import asked_of, make_run, same_weights, small_task
from torch.nn import functional as F

from evenhand import Partition, Recipe, Split, Task, execute, partition
from evenhand.core.history import summarise
from evenhand.core.partition import rebalance
from evenhand.methods import evenhand, tab
from evenhand.tasks import embeddings
from evenhand.training.data import Batch
from evenhand.training.log import Silent

SWITCHES = [
    {"identifier": "erm"},
    {"summary": "loss"},
    {"summary": "history"},
    {"split": "any"},
    {"draw": "fresh"},
    {"average": False},
    {"keep": "last"},
    {"form": "head"},
]

# -- the whole -------------------------------------------------------------------------------------------


def test_the_second_training_is_asked_for_what_the_first_has_shown(tmp_path: Path, monkeypatch) -> None:
    run = make_run(made_task(0.95), tmp_path)
    asked = asked_of(run, monkeypatch)
    evenhand.train(run, draw="fresh")
    assert run.partition.minority.any(), "the test needs a minority"
    first = run.stages["identifier"]
    means = (1 - np.exp(-np.asarray(first.losses, np.float64))).mean(1).astype(np.float32)
    parts = evenhand.as_far_as_clear(partition(means, run.train.y), means)
    np.testing.assert_array_equal(run.partition.minority, parts.minority)
    np.testing.assert_allclose(asked["draw"], tab.even_chances(parts))
    val_means = (1 - np.exp(-np.asarray(first.val_losses, np.float64))).mean(1)
    minority = evenhand.joined(parts, means, val_means, run.val.y)
    assert torch.equal(asked["choose"], evenhand.even_weights(run.val.y, minority))
    assert asked["split"] is None and asked["recipe"].average and asked["recipe"].keep == "best"


def test_with_every_ingredient_taken_away_it_is_tab(tmp_path: Path) -> None:
    off = {"identifier": "erm", "summary": "history", "average": False, "keep": "last"}
    model = evenhand.train(make_run(small_task(), tmp_path / "evenhand"), **off)
    assert same_weights(model, tab.train(make_run(small_task(), tmp_path / "tab")))


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: "{}={}".format(*next(iter(switch.items()))))
def test_every_switch_changes_what_is_asked_for(tmp_path: Path, monkeypatch, switch: dict) -> None:
    asked = []
    for settings in ({}, switch):
        run = make_run(small_task(), tmp_path, **settings)
        seen = asked_of(run, monkeypatch)
        evenhand.train(run, **settings)
        draw = None if seen["draw"] is None else seen["draw"].tolist()
        weight = None if seen.get("choose") is None else seen["choose"].tolist()
        rows = None if seen["split"] is None else seen["split"].index.tolist()
        asked.append((list(run.stages), rows, draw, weight, seen.get("recipe")))
    assert asked[0] != asked[1]


def test_variants_share_the_identifier_and_have_the_same_weights_as_alone(tmp_path: Path) -> None:
    weights, stages = [], []
    for place in ("shared", "shared", "alone"):
        settings = {"average": False} if stages else {}
        run = {"runs": tmp_path / place, "device": "cpu", "show": Silent()}
        record = execute(small_task(), "evenhand", settings, **run)
        weights.append((record.path / "model.safetensors").read_bytes())
        stages.append({name: stage["folder"] for name, stage in record.config["stages"].items()})
    assert stages[0]["identifier"] == stages[1]["identifier"] and stages[0]["model"] != stages[1]["model"]
    logs = "".join(log.read_text() for log in (tmp_path / "shared").rglob("log.txt"))
    assert logs.count("identifier: begins") == logs.count("identifier: reused") == 1
    assert weights[1] == weights[2]


def made_task(aligned: float) -> Task:
    """The attribute is one clear number, which agrees with the class so often; the class is many faint ones."""
    random = np.random.default_rng(0)

    def split(per_class: int, aligned: float) -> Split:
        y = np.repeat([0, 1], per_class)
        attribute = np.where(random.random(len(y)) < aligned, y, 1 - y)
        clear = 4.0 * (2 * attribute[:, None] - 1) + 0.3 * random.standard_normal((len(y), 1))
        faint = 0.4 * (2 * y[:, None] - 1) + random.standard_normal((len(y), 12))
        x = torch.from_numpy(np.concatenate([clear, faint], axis=1)).float()
        return Split(x, torch.from_numpy(y), group=torch.from_numpy(2 * y + attribute))

    splits = {"train": split(300, aligned), "val": split(100, aligned), "test": split(300, 0.5)}
    recipe = Recipe(model="mlp", epochs=20, batch_size=32, check_every=1)
    return Task(name="made", class_names=("0", "1"), conflicting=frozenset({1, 2}), recipe=recipe, **splits)


def test_samples_that_break_the_shortcut_are_found_and_learned(tmp_path: Path) -> None:
    runs = {"runs": tmp_path, "device": "cpu", "show": Silent()}
    plain, evened = (execute(made_task(0.95), name, **runs).metrics for name in ("erm", "evenhand"))
    assert evened["identification"]["identified"] > 0.6 and evened["identification"]["purity"] > 0.8
    assert evened["test"]["wga"] > plain["test"]["wga"] + 0.2


def test_without_a_shortcut_it_costs_no_accuracy(tmp_path: Path) -> None:
    runs = {"runs": tmp_path, "device": "cpu", "show": Silent()}
    plain, evened = (execute(made_task(0.5), name, **runs).metrics for name in ("erm", "evenhand"))
    assert evened["test"]["accuracy"] > plain["test"]["accuracy"] - 0.03


@pytest.mark.parametrize("keep", ["last", "best"])
def test_a_minority_is_found_and_used_without_any_group(tmp_path: Path, keep: str) -> None:
    """The contract's tiny task may have no class that is split at all; this one has two."""
    task, random, weights = made_task(0.95), torch.Generator().manual_seed(0), []
    for name in ("given", "shuffled"):
        if name == "shuffled":
            splits = {part: getattr(task, part) for part in ("train", "val", "test")}
            order = {part: torch.randperm(len(split), generator=random) for part, split in splits.items()}
            new = {p: dataclasses.replace(s, group=s.group[order[p]]) for p, s in splits.items()}
            assert all(not torch.equal(new[part].group, splits[part].group) for part in splits)
            task = dataclasses.replace(task, **new, checksum="")
        run = {
            "runs": tmp_path / name,
            "device": "cpu",
            "show": Silent(),
            "recipe": task.recipe.replace(epochs=6),
        }
        record = execute(task, "evenhand", {"keep": keep}, **run)
        assert (record.partition.sizes[:, 1] > 0).all()
        weights.append((record.path / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


# -- the identifier --------------------------------------------------------------------------------------


def test_a_samples_gradient_is_that_of_the_cross_entropy_times_its_probability_to_the_q() -> None:
    logits = torch.tensor([[3.0, -1.0, 0.5], [0.2, -6.0, 1.0]], requires_grad=True)
    y = torch.tensor([0, 1])
    batch = Batch(x=logits, y=y, index=y, row=y)
    (own,) = torch.autograd.grad(evenhand.generalised_cross_entropy(lambda x: x, batch), logits)
    (plain,) = torch.autograd.grad(F.cross_entropy(logits, y), logits)
    p = logits.softmax(1)[torch.arange(2), y].detach()
    torch.testing.assert_close(own, plain * p[:, None] ** 0.7)
    expected = ((1 - p**0.7) / 0.7).mean()
    torch.testing.assert_close(evenhand.generalised_cross_entropy(lambda x: x, batch).detach(), expected)


# -- the split -------------------------------------------------------------------------------------------


def test_a_minority_of_one_is_none() -> None:
    errors = np.array([0.0] * 20 + [1.0] + [0.0] * 20 + [1.0] * 2, np.float32)
    labels = np.array([0] * 21 + [1] * 22)
    parts = partition(errors, labels)
    assert parts.sizes.tolist() == [[20, 1], [20, 2]]
    clear = evenhand.as_far_as_clear(parts, errors)
    assert clear.sizes.tolist() == [[21, 0], [20, 2]]
    assert clear.minority.tolist() == [False] * 41 + [True] * 2
    assert clear.unsplit == {0: "split no clearer than by one odd sample"} and clear.strength == 1
    assert clear.separation.tolist() == [0, 1], "nothing is separated in a class that is left whole"
    none = evenhand.as_far_as_clear(partition(errors[:21], labels[:21]), errors[:21])
    assert not none.minority.any() and none.strength == 1, "no split is left, so there is nothing to doubt"


@pytest.mark.parametrize(("error", "found"), [(0.73, 0), (0.75, 2)])
def test_two_samples_are_a_minority_if_they_explain_more_than_one_could(error: float, found: int) -> None:
    """Of 22 samples, two that err explain 2 * 20 / 22 times the square of their error: 0.97 and 1.02."""
    errors = np.array([0.0] * 20 + [error] * 2, np.float32)
    parts = evenhand.as_far_as_clear(partition(errors, np.zeros(22, int)), errors)
    assert parts.sizes.tolist() == [[22 - found, found]]


@pytest.mark.parametrize(("power", "strength"), [(1.05, 0.5), (0.95, 1.0)])
def test_what_explains_more_than_an_even_spread_is_clear(power: float, strength: float) -> None:
    """Of the powers of evenly spread numbers a cut explains (2 k + 1) / (k + 1)^2: 0.738 and 0.763."""
    spread = np.linspace(-1, 1, 1001)
    errors = (0.5 + np.sign(spread) * abs(spread) ** power / 2).astype(np.float32)
    parts = evenhand.as_far_as_clear(partition(errors, np.zeros(1001, int)), errors)
    assert parts.separation[0] == pytest.approx((2 * power + 1) / (power + 1) ** 2, abs=0.001)
    assert parts.strength == strength


def test_samples_that_are_more_or_less_hard_are_rebalanced_half_way() -> None:
    """A cut through one hump explains less than 3/4; beside classes of two kinds it counts in full."""
    hump = np.linspace(-1, 1, 101) ** 3 / 2 + 0.5  # most in the middle
    kinds = np.concatenate([np.full(80, 0.05), np.full(21, 0.6)]) + np.linspace(0, 0.2, 101)
    labels = np.repeat([0, 1], 101)

    def judged(*classes: np.ndarray) -> Partition:
        errors = np.concatenate(classes).astype(np.float32)
        return evenhand.as_far_as_clear(partition(errors, labels), errors)

    explained = partition(hump.astype(np.float32), labels[:101]).separation[0]
    assert explained < 0.7, "the test needs a hump"
    alone, both, two = judged(hump, hump), judged(hump, kinds), judged(kinds, kinds)
    assert alone.strength == 0.5 and (alone.sizes[:, 1] > 0).all() and not alone.unsplit
    assert two.strength == 1 and (two.sizes[:, 1] > 0).all()
    odd = np.concatenate([np.zeros(100), [0.9]])  # one odd sample explains all of its class
    mixed = judged(hump, odd)
    assert mixed.strength == 0.5 and mixed.sizes[1].tolist() == [101, 0] and list(mixed.unsplit) == [1]
    assert judged(kinds, odd).strength == 1
    total = [((values - values.mean()) ** 2).sum() for values in (hump, kinds)]
    together = (explained * total[0] + two.separation[0] * total[1]) / sum(total)
    assert together > 0.75 and both.strength == 1


@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1, width=32)), min_size=1, max_size=60).filter(
        lambda rows: {label for label, _ in rows} == {0, 1, 2}
    )
)
def test_what_is_left_is_a_partition_whose_minorities_have_at_least_two(rows: list) -> None:
    labels, errors = (np.array(column) for column in zip(*rows, strict=True))
    errors = errors.astype(np.float32)
    before = partition(errors, labels)
    after = evenhand.as_far_as_clear(before, errors)
    after._check()
    assert ((after.sizes[:, 1] == 0) | (after.sizes[:, 1] >= 2)).all()
    for position, label in enumerate(after.classes):
        own = labels == label
        if after.sizes[position, 1]:
            assert np.array_equal(after.minority[own], before.minority[own])
            low, high = errors[own & ~after.minority], errors[own & after.minority]
            gain = len(low) * len(high) / own.sum() * (float(low.mean()) - float(high.mean())) ** 2
            assert gain > 1 - 1e-5
        else:
            assert label in after.unsplit and not after.margin[own].any()


# -- validation ------------------------------------------------------------------------------------------


def test_a_validation_sample_joins_the_nearer_part_of_its_class() -> None:
    errors = np.array([0.1, 0.1, 0.1, 0.9, 0.9, 0.3, 0.3], np.float32)
    parts = partition(errors, np.array([0, 0, 0, 0, 0, 1, 1]))
    joined = evenhand.joined(parts, errors, np.array([0.49, 0.51, 0.99]), torch.tensor([0, 0, 1]))
    assert joined.tolist() == [False, True, False]


def test_both_parts_of_a_class_weigh_the_same_and_classes_keep_their_weight() -> None:
    minority = np.array([True, False, False, False] + [False] * 5)
    weight = evenhand.even_weights(torch.tensor([0, 0, 0, 0, 2, 2, 2, 2, 2]), minority)
    np.testing.assert_allclose(weight, [2, 2 / 3, 2 / 3, 2 / 3, 1, 1, 1, 1, 1], rtol=1e-6)


def test_half_way_a_minority_weighs_the_root_of_what_it_would() -> None:
    minority = np.array([True, False, False, False, False] + [False] * 3)
    y = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1])
    full, half = evenhand.even_weights(y, minority), evenhand.even_weights(y, minority, 0.5)
    assert (full[0] / full[1], half[0] / half[1]) == (4, 2) and half[5:].tolist() == [1, 1, 1]


def test_an_unclear_split_is_used_half_way_in_training_and_in_choosing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(evenhand, "EVEN_SPREAD", 1.1)  # so nothing is clear
    asked = {}
    for draw in ("repeated", "fresh"):
        run = make_run(made_task(0.95), tmp_path, draw=draw)
        asked[draw] = asked_of(run, monkeypatch)
        evenhand.train(run, draw=draw)
    large, small = run.partition.sizes.T
    assert run.partition.strength == 0.5 and (large > 4 * small).all(), "the test needs minorities"
    rows = asked["repeated"]["split"].index.numpy()
    for position, label in enumerate(run.partition.classes):
        own = run.partition.minority & (run.partition.labels == label)
        wanted = (large[position] * small[position]) ** 0.5
        assert own[rows].sum() == round(wanted)
        most = ~run.partition.minority & (run.partition.labels == label)
        chances = asked["fresh"]["draw"]
        assert chances[own].sum() / chances[most].sum() == pytest.approx(wanted / large[position])
    assert len(asked["fresh"]["choose"].unique()) > 1, "the test needs a validation minority"
    means = summarise(run.stages["identifier"].losses, "error")
    val_means = summarise(run.stages["identifier"].val_losses, "error")
    minority = evenhand.joined(run.partition, means, val_means, run.val.y)
    torch.testing.assert_close(asked["fresh"]["choose"], evenhand.even_weights(run.val.y, minority) ** 0.5)


def test_a_split_in_full_is_the_clear_one_whose_strength_is_1(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(evenhand, "EVEN_SPREAD", 1.1)  # so nothing is clear
    parts = {}
    for split in ("clear", "full"):
        run = make_run(made_task(0.95), tmp_path, split=split)
        evenhand.train(run, split=split)
        parts[split] = run.partition
    assert (parts["clear"].strength, parts["full"].strength) == (0.5, 1)
    assert np.array_equal(parts["clear"].minority, parts["full"].minority) and parts["full"].minority.any()


def test_the_numbers_are_those_of_the_summary(tmp_path: Path) -> None:
    run = make_run(small_task(), tmp_path, seed=3)
    evenhand.train(run, summary="loss")
    wanted = partition(summarise(run.stages["identifier"].losses, "loss"), run.train.y)
    np.testing.assert_array_equal(run.partition.minority, wanted.minority)
    assert np.array_equal(run.balanced, rebalance(wanted, seed=3))
    assert not np.array_equal(run.balanced, rebalance(wanted, seed=0)), "the test needs copies that differ"


def test_validation_samples_are_told_apart_by_the_same_numbers(tmp_path: Path, monkeypatch) -> None:
    run = make_run(made_task(0.95), tmp_path)
    asked = asked_of(run, monkeypatch)
    evenhand.train(run, summary="loss")
    losses, val_losses = (
        summarise(each, "loss")
        for each in (run.stages["identifier"].losses, run.stages["identifier"].val_losses)
    )
    minority = evenhand.joined(run.partition, losses, val_losses, run.val.y)
    assert minority.any(), "the test needs a validation minority"
    assert torch.equal(asked["choose"], evenhand.even_weights(run.val.y, minority))


@pytest.mark.parametrize("identifier", ["confident", "erm"])
def test_which_trainings_wait_for_what_and_begin_again(tmp_path: Path, monkeypatch, identifier: str) -> None:
    """The identifier until training accuracy rests, the second as the recipe says; ERM's is shared as it is."""
    run, asked = make_run(small_task(), tmp_path), []
    fit = run.fit

    def noted(stage: str, *given, **settings):
        asked.append((stage, settings.get("stop", "val"), settings.get("again", False)))
        return fit(stage, *given, **settings)

    monkeypatch.setattr(run, "fit", noted)
    evenhand.train(run, identifier=identifier)
    first = ("erm", "train", False) if identifier == "erm" else ("identifier", "train", True)
    assert asked == [first, ("model", "val", True)]


# -- heads on embeddings ---------------------------------------------------------------------------------


def embedded_task(conflicting: float = 0.08, samples: int = 1500) -> Task:
    """Vectors: a strong direction shows the site, a weaker one the class, which is uneven."""
    rng = np.random.default_rng(3)
    y = (rng.random(samples) < 0.3).astype(np.int64)
    site = np.where(rng.random(samples) < conflicting, 1 - y, y)
    x = rng.normal(0, 1, (samples, 16)).astype(np.float32)
    x[:, :4] += 2.0 * site[:, None] - 1
    x[:, 4] += 5.0 * y - 2.5
    return embeddings.task(x, y, groups=site)


def test_a_head_on_embeddings_has_even_classes_and_even_parts(tmp_path: Path, monkeypatch) -> None:
    run = make_run(embedded_task(), tmp_path)
    asked = asked_of(run, monkeypatch)
    evenhand.train(run)
    parts, y = run.partition, run.train.y.numpy()
    draw, first = np.asarray(asked["draw"]), run.stages["identifier"]
    totals = [draw[(y == label) & (parts.minority == late)].sum() for label in (0, 1) for late in (0, 1)]
    assert parts.minority[y == 0].any() and parts.minority[y == 1].any(), "the test needs two minorities"
    if parts.strength == 1:
        np.testing.assert_allclose(totals, 0.25)
    assert draw[y == 0].sum() == pytest.approx(0.5) and asked["split"] is None
    means, val_means = summarise(first.losses, "error"), summarise(first.val_losses, "error")
    minority = evenhand.joined(parts, means, val_means, run.val.y)
    assert asked["score"].cells.tolist() == (2 * run.val.y.numpy() + minority).tolist()


def test_a_head_finds_the_minority_and_lifts_the_worst_group(tmp_path: Path) -> None:
    settings = {"runs": tmp_path, "device": "cpu", "show": Silent()}
    task = embedded_task()
    erm, ours = (execute(task, method, **settings) for method in ("erm", "evenhand"))
    found = ours.metrics["identification"]
    assert found["identified"] > 0.6 and found["purity"] > 0.6
    assert ours.metrics["test"]["wga"] > erm.metrics["test"]["wga"] + 0.1


def test_weights_make_the_classes_of_the_identifier_even() -> None:
    logits, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]]), torch.tensor([0, 1, 0])
    objective = evenhand.EvenClasses(torch.tensor([0.75, 1.5]))
    batch = Batch(x=logits, y=y, index=torch.arange(3), row=torch.arange(3))
    p = logits.softmax(1)[torch.arange(3), y].double()
    expected = (torch.tensor([0.75, 1.5, 0.75]) * (1 - p**0.7) / 0.7).mean()
    assert float(objective(lambda x: x, batch)) == pytest.approx(float(expected), rel=1e-6)


def test_the_score_of_a_check_counts_every_part_once() -> None:
    score = evenhand.EvenParts(torch.tensor([0, 0, 0, 1, 3]))  # class 1 has no majority here
    val = Split(torch.zeros(5, 1), torch.tensor([0, 0, 0, 0, 1]))
    logits = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1], [0, 1]])  # right: 2 of 3, 0 of 1, 1 of 1
    assert score(logits, val) == pytest.approx((2 / 3 + 0 + 1) / 3)
