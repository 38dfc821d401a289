"""The verdict, the lists and the recommendation, on evidence whose answer is known."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_evidence import made

from evenhand.audit.choice import late_changes, recommend, side_by_side, sign_test
from evenhand.audit.evidence import Evidence, balanced_without, folds, late_samples
from evenhand.audit.labels import course, follow, ordinary
from evenhand.audit.page import _scores
from evenhand.audit.triage import sort_out
from evenhand.audit.verdict import CLASS_FLOOR, class_gaps, doubtful, humps, judge, paired_change, threshold
from evenhand.core.partition import partition


def test_one_hump_is_left_and_two_humps_are_retrained() -> None:
    plain, apart = judge(made()), judge(made(apart=0.05))
    assert plain.advice == "leave it" and "differences in difficulty" in plain.reasons[0]
    assert apart.advice == "retrain" and apart.strength > apart.threshold and apart.late == 40
    assert [each.words for each in apart.classes] == ["clear", "clear"]
    assert not any(each.clear for each in plain.classes)


@pytest.mark.parametrize("seed", range(5))
def test_a_normal_hump_explains_two_thirds_whatever_its_size(seed: int) -> None:
    rng = np.random.default_rng(seed)
    histories = 5 + rng.normal(size=(4000, 1)) @ np.ones((1, 6))
    gaps = class_gaps(partition(histories, np.repeat([0, 1], 2000)))
    assert gaps == pytest.approx([2 / np.pi] * 2, abs=0.03)  # what theory says of a normal hump


def test_outliers_are_clipped() -> None:
    losses = np.full((600, 5), 0.3) + np.random.default_rng(0).normal(0, 0.05, (600, 1))
    losses[0] = 500.0
    parts, _ = humps(losses, np.repeat([0, 1], 300))
    assert abs(parts.margin).max() < 20  # in units of the distance between the clusters


def with_losses(losses: np.ndarray, y: np.ndarray) -> Evidence:
    """Training samples with these losses in every epoch; both models are right about every sample."""
    histories = (losses[:, None] * np.ones((1, 4))).astype(np.float32)
    count, right = int(y.max()) + 1, dict.fromkeys(("train", "val", "test"), y)
    return made(
        class_names=tuple(f"class {label}" for label in range(count)),
        y=right,
        losses=histories,
        hits=histories < 1,
        val_losses=histories,
        parts=partition(histories, y),
        baseline=right,
        balanced=right,
        unseen=np.eye(count)[y],
        unseen_balanced=np.eye(count)[y],
    )


def test_a_few_outliers_make_no_hump() -> None:
    y = np.repeat([0, 1], 400)
    losses = np.random.default_rng(0).uniform(0, 2, 800)
    losses[np.r_[:4, 400:404]] = 100.0
    assert judge(with_losses(losses, y)).advice == "leave it"


@pytest.mark.parametrize(("apart", "advice"), [(2, "leave it"), (3, "retrain")])
def test_of_many_classes_one_in_twenty_must_stand_apart(apart: int, advice: str) -> None:
    y = np.repeat(np.arange(41), 240)
    losses = np.random.default_rng(0).normal(1, 0.1, len(y))
    losses[(y < apart) & (np.arange(len(y)) % 240 < 12)] = 3.0
    verdict = judge(with_losses(losses, y))
    assert sum(each.clear for each in verdict.classes) == apart and verdict.strength < verdict.threshold
    assert verdict.advice == advice


@pytest.mark.parametrize(
    ("doubted", "late", "expected"), [(19, 19, False), (11, 20, True), (10, 20, False), (20, 41, False)]
)
def test_doubts_need_twenty_late_samples_and_more_than_half_of_them(
    doubted: int, late: int, expected: bool
) -> None:
    assert doubtful(doubted, late) == expected


@pytest.mark.parametrize("seed", range(3))
def test_late_samples_that_look_like_another_class_ask_for_a_look(seed: int) -> None:
    found = made(apart=0.1, confirmed=0.0, seed=seed)
    verdict = judge(found)
    assert verdict.advice == "look first"
    doubt = "late samples look like ordinary samples of another class to a model that has not seen them"
    assert f"{verdict.doubted} of 80 {doubt}" in verdict.reasons[1] and verdict.doubted > 40
    assert "wrong labels, or kinds that the model cannot learn yet, explain them" in verdict.reasons[1]
    lists = sort_out(found, verdict)
    assert len(lists.rows("mislabelled")) == verdict.doubted
    assert recommend(found, verdict)["model"] == "baseline"


def test_a_minority_that_is_not_learned_but_looks_unlike_the_others_is_not_called_mislabelled() -> None:
    found = made(apart=0.1)
    own = found.unseen[np.arange(800), found.y["train"]]
    own = np.where(
        found.late, 0.1 + 0.3 * own, own
    )  # contradicted, but less than the samples of the other class are
    unseen = np.where(found.y["train"][:, None] == [0, 1], own[:, None], 1 - own[:, None])
    hard = made(apart=0.1, unseen=unseen.astype(np.float32), unseen_balanced=unseen.astype(np.float32))
    assert (hard.unseen.argmax(1) != hard.y["train"])[hard.late].all()
    assert not follow(hard).mislabelled.any()
    assert len(sort_out(hard, judge(hard)).rows("minority")) == 80


@pytest.mark.parametrize("num_classes", [2, 4])
def test_the_place_of_a_wrong_label_is_anywhere_and_that_of_others_is_low(num_classes: int) -> None:
    rng = np.random.default_rng(num_classes)
    truth = np.arange(4000) % num_classes
    odds = rng.normal(size=(4000, num_classes)) + 3 * np.eye(num_classes)[truth]
    unseen = np.exp(odds) / np.exp(odds).sum(1, keepdims=True)
    y, suspects = truth.copy(), np.arange(400)
    y[suspects] = (truth[suspects] + 1) % num_classes
    place = ordinary(unseen, y, suspects)
    assert np.quantile(place, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.06)
    assert np.quantile(ordinary(unseen, truth, suspects), 0.9) < 0.1
    again = ordinary(unseen**0.5 / (unseen**0.5).sum(1, keepdims=True), y, suspects)  # another temperature
    assert again == pytest.approx(place, abs=1e-6)


def test_a_model_that_cannot_tell_the_classes_apart_finds_no_wrong_labels() -> None:
    guesses = np.random.default_rng(0).dirichlet([1, 1], 800).astype(np.float32)
    found = made(apart=0.1, unseen=guesses, unseen_balanced=guesses)
    assert not follow(found).mislabelled.any()


def test_what_one_of_the_two_models_can_tell_is_no_wrong_label() -> None:
    blind, sees = made(apart=0.1, confirmed=0.0), made(apart=0.1)
    assert follow(blind).mislabelled.sum() > 40
    assert not follow(made(apart=0.1, confirmed=0.0, unseen_balanced=sees.unseen)).mislabelled.any()
    assert not follow(made(apart=0.1, confirmed=0.0, unseen=sees.unseen)).mislabelled.any()


def test_where_nothing_stands_apart_the_doubt_about_late_samples_is_no_reason() -> None:
    plain = made()
    verdict = judge(made(unseen=plain.unseen[:, ::-1]))
    assert verdict.advice == "leave it" and len(verdict.reasons) == 1


def second_split() -> Evidence:
    """Wrong labels far above the rest, and a second hump below them."""
    num = 400
    level = np.tile(np.repeat([2.0, 0.5, 0.1], [25, 20, num - 45]), 2)
    rng = np.random.default_rng(0)
    losses = level[:, None] * np.ones(12) + rng.normal(0, 0.01, (2 * num, 12))
    learned = np.where(level == 2.0, 13, np.where(level == 0.5, 6, 2))
    y = np.repeat([0, 1], num)
    right = np.where(level == 2.0, 1 - y, y)
    sure = rng.uniform(0.9, 1, 2 * num)
    sure[level == 2.0] = np.tile(np.linspace(0.901, 0.999, 25), 2)  # anywhere among the ordinary samples
    unseen = np.where(right[:, None] == [0, 1], sure[:, None], 1 - sure[:, None]).astype(np.float32)
    return made(
        num,
        losses=losses.astype(np.float32),
        hits=np.arange(1, 13) >= learned[:, None],
        parts=partition(losses.astype(np.float32), y),
        unseen=unseen,
        unseen_balanced=unseen,
        baseline={**made().baseline, "train": right},
    )


def test_the_second_split_lists_a_minority_that_wrong_labels_hid() -> None:
    found = second_split()
    verdict = judge(found)
    assert verdict.advice == "look first"
    lists = sort_out(found, verdict)
    assert (
        lists.course.mislabelled[found.late].mean() > 0.8 and not lists.course.mislabelled[~found.late].any()
    )
    assert int(lists.hidden.sum()) == 40 and lists.hidden[np.r_[25:45, 425:445]].all()
    assert [each.late for each in verdict.classes] == [25, 25]


def test_a_model_that_loses_accuracy_asks_for_a_look() -> None:
    verdict = judge(made(apart=0.05, harm=0.2, baseline={**made().baseline, "val": made().y["val"]}))
    assert verdict.advice == "look first" and "loses 20.0 points of validation accuracy" in verdict.reasons[1]
    assert verdict.reasons[1].endswith("what was repeated does not generalise")


def losing(lost: int, samples: int) -> Evidence:
    """The balanced model turns `lost` of so many validation samples from right to wrong."""
    y = np.arange(samples) % 2
    return made(
        apart=0.05,
        y={**made().y, "val": y},
        val_losses=np.full((samples, 12), 0.1, dtype=np.float32),
        baseline={**made(apart=0.05).baseline, "val": y},
        balanced={**made().balanced, "val": np.where(np.arange(samples) < lost, 1 - y, y)},
    )


@pytest.mark.parametrize(
    ("lost", "samples", "harmed"),
    [
        (40, 1000, True),  # 4 points, six standard errors
        (20, 1000, False),  # 2 points are tolerated, however certain
        (1, 20, False),  # 5 points, but one standard error
        (3, 20, False),  # 15 points, 1.9 standard errors
        (4, 20, True),  # 20 points, 2.2 standard errors
    ],
)
def test_harm_is_a_loss_of_more_than_three_points_and_two_standard_errors(
    lost: int, samples: int, harmed: bool
) -> None:
    verdict = judge(losing(lost, samples))
    assert verdict.advice == ("look first" if harmed else "retrain")
    assert any("points of validation accuracy" in reason for reason in verdict.reasons) == harmed


def test_a_loss_of_more_than_three_points_is_not_recommended_however_uncertain() -> None:
    cheap, dear = losing(1, 40), losing(1, 20)  # 2.5 and 5 points
    wrong = cheap.unseen.copy()
    wrong[:10] = wrong[:10, ::-1]  # of ten late samples, balancing turns all from wrong to right
    for found, model in ((cheap, "balanced"), (dear, "baseline")):
        chosen = recommend(dataclasses.replace(found, unseen=wrong), judge(found))
        assert chosen["model"] == model and judge(found).advice == "retrain"


def test_a_balanced_model_that_says_one_class_of_everything_is_a_failed_training() -> None:
    found = made(apart=0.05)
    dogs = {part: np.ones_like(y) for part, y in found.y.items()}
    verdict = judge(made(apart=0.05, balanced=dogs))
    assert verdict.advice == "look first"
    assert "its training failed, it says 'dog' of every training sample" in verdict.reasons[1]
    assert "generalise" not in verdict.reasons[1]


@pytest.mark.parametrize("apart", [0.0, 0.05])
def test_a_model_no_better_than_naming_the_largest_class_is_said_to_tell_little(apart: float) -> None:
    found = made(apart=apart)
    verdict = judge(made(apart=apart, baseline={**found.baseline, "val": np.ones_like(found.y["val"])}))
    told = "the model is right on 50.0% of the validation samples, where naming the largest class would be on 50.0%"
    assert verdict.reasons[-1].startswith(told) and verdict.advice == judge(found).advice
    assert not any("largest class" in reason for reason in judge(found).reasons)


def test_a_smaller_part_that_is_learned_sooner_is_no_minority_to_retrain_on() -> None:
    easy = np.arange(800) % 4 == 0
    spread = np.random.default_rng(0).normal(0, 0.02, (800, 1))
    losses = ((np.where(easy, 0.05, 1.0)[:, None] + spread) * np.ones((1, 12))).astype(np.float32)
    found = made(losses=losses, hits=losses < 0.5, parts=partition(losses, np.repeat([0, 1], 400)))
    verdict = judge(found)
    assert verdict.late == 0 and verdict.strength > verdict.threshold and verdict.advice == "leave it"
    assert "fewer than 3 samples are in a late, smaller part" in verdict.reasons[0]
    assert len(sort_out(found, verdict).rows("minority")) == 0


def test_a_confirmed_minority_is_one_list_and_the_balanced_model_is_shipped() -> None:
    found = made(apart=0.05)
    verdict = judge(found)
    lists = sort_out(found, verdict)
    assert lists.rows("minority").tolist() == [*range(20), *range(400, 420)]
    assert len(lists.rows("mislabelled")) == 0
    assert recommend(found, verdict)["model"] == "balanced"
    both = side_by_side(found)
    assert (
        both["baseline"]["val"]["late"]["accuracy"] == 0 and both["balanced"]["val"]["late"]["accuracy"] == 1
    )
    assert both["baseline"]["val"]["worst_pseudo_group"]["count"] == 10


def test_the_page_counts_samples_only_where_both_numbers_are_of_the_same_ones() -> None:
    found = made(apart=0.05)
    dogs = {part: np.ones_like(y) for part, y in found.y.items()}  # worst: all cats, early ones first
    lines = {line.name: line for line in _scores(side_by_side(made(apart=0.05, balanced=dogs)))}
    assert lines["Worst pseudo-group, validation"].num_samples is None  # 10 late cats; 90 early ones
    assert lines["Validation accuracy"].num_samples == 200 and lines["Validation accuracy"].note == ""
    assert lines["Late validation samples"].note == "chosen by the losses of the model as collected"
    assert lines["Worst class, test"].note == "cat"


def test_a_gain_that_may_be_chance_is_none() -> None:
    few = made(apart=0.05, val_losses=np.full((200, 12), 0.1, dtype=np.float32))  # no late validation samples
    verdict = judge(few)
    assert verdict.advice == "retrain" and late_changes(few) == (0, 0, 40)
    chosen = recommend(few, verdict)
    assert chosen["model"] == "baseline" and "of 40 late samples" in chosen["reason"]
    assert chosen["reason"].endswith("both get the same 40 right")
    wrong = few.unseen.copy()
    wrong[:5] = wrong[:5, ::-1]
    five = made(apart=0.05, val_losses=few.val_losses, unseen=wrong, unseen_balanced=few.unseen)
    assert late_changes(five) == (5, 0, 40) and recommend(five, judge(five))["model"] == "balanced"
    assert recommend(five, judge(five))["chance"] == 1 / 32
    wrong[4] = wrong[4, ::-1]
    four = made(apart=0.05, val_losses=few.val_losses, unseen=wrong, unseen_balanced=few.unseen)
    chosen = recommend(four, judge(four))
    assert late_changes(four) == (4, 0, 40) and chosen["chance"] == 1 / 16
    assert chosen["model"] == "baseline" and "which may be chance" in chosen["reason"]


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (3, 0), (5, 2), (2, 5), (6, 6)])
def test_the_sign_test_against_all_outcomes(better: int, worse: int) -> None:
    outcomes = [sum(each) for each in itertools.product((0, 1), repeat=better + worse)]
    assert sign_test(better, worse) == sum(each >= better for each in outcomes) / len(outcomes)


def test_one_minority_sample_in_most_classes_is_not_outvoted_by_a_large_cut() -> None:
    num, count = 100, 10
    rng = np.random.default_rng(0)
    losses = 0.3 + rng.normal(0, 0.03, (count * num, 1)) * np.ones((1, 6))
    losses[::num] = 3.0  # one in every class
    losses[:1] = 0.3
    y = np.repeat(np.arange(count), num)
    names = tuple("abcdefghij")
    plain = dict.fromkeys(("train", "val", "test"), y)
    found = made(
        class_names=names, y=plain, losses=losses, hits=losses < 1, val_losses=losses, parts=partition(losses, y),
        baseline=plain, balanced=plain, unseen=np.eye(count)[y], unseen_balanced=np.eye(count)[y],
    )  # fmt: skip
    verdict = judge(found)
    assert verdict.classes[0].late > 20 and {each.late for each in verdict.classes[1:]} == {1}
    assert verdict.advice == "retrain"


def test_where_nothing_stands_apart_nothing_is_called_a_minority_and_the_baseline_is_shipped() -> None:
    found = made()
    verdict = judge(found)
    assert len(sort_out(found, verdict).rows("minority")) == 0
    assert recommend(found, verdict)["model"] == "baseline"  # although the other is better on late samples


def test_true_groups_are_scored_and_change_nothing_else() -> None:
    plain = made(apart=0.05)
    group = {part: 2 * y + (np.arange(len(y)) % 2) for part, y in plain.y.items()}
    grouped = made(apart=0.05, group=group, group_names=("cat, a", "cat, b", "dog, a", "dog, b"))
    assert judge(plain) == judge(grouped)
    scores = side_by_side(grouped)["baseline"]["test"]["groups"]
    assert sum(each["count"] for each in scores) == 200 and all(each["accuracy"] == 1 for each in scores)
    values = side_by_side(grouped)["baseline"]["test"]["values"]
    assert [(each["name"], each["count"]) for each in values] == [
        ("a, all classes", 100),
        ("b, all classes", 100),
    ]
    others = made(apart=0.05, group=group, group_names=("a cat", "b cat", "a dog", "b dog"))
    assert "values" not in side_by_side(others)["baseline"]["test"]  # who knows how they are numbered
    assert not {"groups", "values"} & set(side_by_side(plain)["baseline"]["test"])


def test_a_smaller_cluster_of_low_losses_is_not_late() -> None:
    losses = np.array([[1.0], [1.1], [1.0], [0.1]])
    parts = partition(losses, np.zeros(4, dtype=int))
    assert parts.minority.tolist() == [False, False, False, True]
    assert not late_samples(parts, losses).any()


def test_few_samples_need_a_larger_gap() -> None:
    sizes = [10, 50, 100, 1000, 10**6]
    values = [threshold(size) for size in sizes]
    assert values == sorted(values, reverse=True) and values[-1] == threshold(10**9)
    assert threshold(10**6, CLASS_FLOOR) == CLASS_FLOOR


@settings(max_examples=50)
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=8))
def test_the_course_of_a_sample_against_a_loop(rows: list[list[bool]]) -> None:
    learned, forgotten = course(np.array(rows))
    for row, when, times in zip(rows, learned.tolist(), forgotten.tolist(), strict=True):
        stays = [epoch for epoch in range(1, 5) if all(row[epoch - 1 :])]
        assert when == (stays[0] if stays else -1)
        assert times == sum(a and not b for a, b in itertools.pairwise(row))


@settings(max_examples=30)
@given(st.integers(2, 5), st.integers(10, 60), st.integers(0, 100))
def test_folds_spread_every_cluster_and_balance_without_one(count: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = partition(rng.random((size, 3)), np.arange(size) % 2)
    fold = folds(parts, count)
    for label in (0, 1):
        for minority in (False, True):
            inside = fold[(parts.labels == label) & (parts.minority == minority)]
            spread = np.bincount(inside, minlength=count)
            assert spread.max() - spread.min() <= 1
    kept = np.flatnonzero(fold != 0)
    assert set(balanced_without(parts, kept).tolist()) == set(kept.tolist())


def test_paired_change_counts_the_same_samples() -> None:
    y = np.zeros(100, dtype=int)
    before, after = y.copy(), y.copy()
    before[:10] = 1
    after[:5] = 1
    assert paired_change(before, after, y)[0] == pytest.approx(0.05)
    assert paired_change(y, y, y) == (0.0, 0.0)
    differences = np.r_[np.zeros(95), np.ones(5)]  # five turn right
    assert paired_change(before, after, y)[1] == pytest.approx(differences.std() / 10)
