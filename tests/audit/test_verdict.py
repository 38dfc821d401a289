"""The verdict, the lists and the recommendation, on evidence whose answer is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_evidence import made

from evenhand.audit.choice import recommend, side_by_side
from evenhand.audit.evidence import Evidence, balanced_without, folds, late_samples
from evenhand.audit.triage import counted, course, later_than_most, sort_out
from evenhand.audit.verdict import CLASS_FLOOR, class_gaps, humps, judge, paired_change, threshold
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


def test_late_samples_that_no_unseen_model_confirms_ask_for_a_look() -> None:
    found = made(apart=0.05, confirmed=0.05)
    verdict = judge(found)
    assert verdict.advice == "look first" and "only 2 of 40 late samples" in verdict.reasons[1]
    lists = sort_out(found, verdict)
    assert len(lists.rows("mislabelled")) == 38 and len(lists.rows("minority")) == 2
    assert recommend(found, verdict)["model"] == "baseline"

    assert "wrong labels, or kinds that the model cannot learn yet, explain the rest" in verdict.reasons[1]


def test_where_nothing_stands_apart_the_doubt_about_late_samples_is_no_reason() -> None:
    plain = made()
    verdict = judge(made(unseen=plain.unseen[:, ::-1]))
    assert verdict.advice == "leave it" and len(verdict.doubts) == 1 and len(verdict.reasons) == 1


def second_split(*, early: bool) -> Evidence:
    """Wrong labels far above the rest, and a second hump, which is learned as early as the rest or later."""
    num = 400
    level = np.tile(np.repeat([2.0, 0.5, 0.1], [25, 20, num - 45]), 2)
    losses = level[:, None] * np.ones(12) + np.random.default_rng(0).normal(0, 0.01, (2 * num, 12))
    learned = np.where(level == 2.0, 13, np.where(level == 0.5, 2 if early else 6, 2))
    y = np.repeat([0, 1], num)
    right = np.where(level == 2.0, 1 - y, y)
    return made(
        num,
        losses=losses.astype(np.float32),
        hits=np.arange(1, 13) >= learned[:, None],
        parts=partition(losses.astype(np.float32), y),
        unseen=np.eye(2, dtype=np.float32)[right],
        baseline={**made().baseline, "train": right},
    )


def test_the_second_split_lists_only_samples_that_are_learned_late() -> None:
    for early, listed in ((True, 0), (False, 40)):
        found = second_split(early=early)
        verdict = judge(found)
        assert verdict.advice == "look first"
        lists = sort_out(found, verdict)
        assert len(lists.rows("mislabelled")) == 50 and len(lists.rows("minority")) == listed
        assert int(lists.hidden.sum()) == listed
        assert [each.late for each in verdict.classes] == [25, 25]
        late = [each.late for each in counted(verdict, found, lists).classes]
        assert late == [25 + listed // 2] * 2  # never fewer than are listed


@settings(max_examples=30)
@given(st.lists(st.integers(-1, 9).filter(bool), min_size=1, max_size=30))
def test_later_than_most_against_a_loop(learned: list[int]) -> None:
    when = [100 if each < 0 else each for each in learned]
    expected = [sum(other < each for other in when) >= 0.75 * len(when) for each in when]
    assert later_than_most(np.array(learned), np.zeros(len(learned), dtype=int)).tolist() == expected


def test_a_model_that_loses_accuracy_asks_for_a_look() -> None:
    verdict = judge(made(apart=0.05, harm=0.2, baseline={**made().baseline, "val": made().y["val"]}))
    assert verdict.advice == "look first" and "loses 20.0 points of validation accuracy" in verdict.reasons[1]


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
    assert "groups" not in side_by_side(plain)["baseline"]["test"]


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
