"""The advice, the lists and the scores, on evidence whose answer is known."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_evidence import made

from evenhand.audit import judge as judging
from evenhand.audit.evidence import Evidence, balanced_without, course, folds, late_samples
from evenhand.audit.judge import (
    CLASS_FLOOR,
    Change,
    ClassEvidence,
    Information,
    advise,
    class_advice,
    class_gaps,
    conditional_information,
    even_change,
    humps,
    judge,
    paired_change,
    recommendation,
    side_by_side,
    threshold,
)
from evenhand.audit.labels import confident_learning, learned, ordinary, wrong_count, wrong_labels
from evenhand.audit.page import _scores
from evenhand.audit.shortcut import Shortcut, contradicted, find, wordings
from evenhand.core.partition import partition


def answered(answer: np.ndarray, sure: float | np.ndarray = 0.95) -> np.ndarray:
    """Probabilities of two classes for these answers."""
    sure = np.broadcast_to(sure, answer.shape)
    return np.where(answer[:, None] == [0, 1], sure[:, None], 1 - sure[:, None]).astype(np.float32)


def changed(mended: int, lost: int, *, others_lost: int = 0) -> Evidence:
    """800 samples, 40 of them late and wrong by the first model but for `lost` ones; what the second changes."""
    found = made(apart=0.05)
    y, late = found.y["train"], np.flatnonzero(found.late)
    others = np.setdiff1d(np.arange(len(y)), late)
    before, after = y.copy(), y.copy()
    wrong, right = late[: len(late) - lost], late[len(late) - lost :]
    before[wrong] = after[wrong] = 1 - y[wrong]
    order = np.argsort(np.arange(len(wrong)) % 20, kind="stable")  # of both classes in turn
    after[wrong[order[:mended]]] = y[wrong[order[:mended]]]
    after[right] = 1 - y[right]
    spread = np.random.default_rng(0).permutation(others)
    after[spread[:others_lost]] = 1 - y[spread[:others_lost]]
    return made(apart=0.05, unseen=answered(before), unseen_balanced=answered(after))


def test_a_minority_that_balancing_helps_is_retrained_with_its_counts() -> None:
    judged = judge(changed(24, 2, others_lost=5))
    assert judged.advice == "retrain" and judged.model == "balanced"
    assert (judged.late, judged.late_mended, judged.late_lost, judged.others_lost) == (40, 24, 2, 5)
    assert "of 40 late samples, the balanced model mends 24 and loses 2" in judged.reasons[1]
    assert judged.even.gain == pytest.approx((22 / 40 - 5 / 760) / 2)
    assert recommendation(judged).startswith("Ship the balanced model")


def test_the_aim_decides_only_where_the_models_disagree() -> None:
    costly, cheap = changed(24, 0, others_lost=40), changed(24, 0, others_lost=5)
    assert judge(costly).model == "balanced" and judge(costly).collected.gain < 0
    accurate = judge(costly, aim="accuracy")
    assert accurate.advice == "retrain" and accurate.model == "baseline"
    assert "since the aim is accuracy" in recommendation(accurate)
    assert judge(cheap, aim="accuracy").model == "balanced"
    with pytest.raises(ValueError, match="--aim must be worst-group or accuracy, got 'speed'"):
        judge(cheap, aim="speed")


def with_errors(count: int) -> Evidence:
    """No minority; both models get the same samples wrong."""
    before = made().y["train"].copy()
    before[:count] = 1 - before[:count]
    return made(unseen=answered(before), unseen_balanced=answered(before))


def test_without_a_minority_nothing_is_found() -> None:
    judged = judge(with_errors(40))
    assert judged.advice == "nothing found" and judged.model == "baseline"
    assert recommendation(judged) == "Ship the model trained on the data as collected."


def test_a_model_that_trades_errors_is_not_shipped() -> None:
    judged = judge(changed(10, 0, others_lost=300))
    assert judged.even.z < 0 and judged.advice != "retrain" and judged.model == "baseline"


def test_a_class_that_pays_for_the_others_is_named() -> None:
    found = changed(40, 0)
    y, after = found.y["train"], found.unseen_balanced.argmax(1)
    after[(y == 1) & found.late] = 0  # dogs become cats, late ones and
    after[np.flatnonzero((y == 1) & ~found.late)[:300]] = 0  # others
    judged = judge(dataclasses.replace(found, unseen_balanced=answered(after)))
    assert judged.advice != "retrain" and judged.model == "baseline"


def test_a_model_that_has_learned_nothing_cannot_tell() -> None:
    guesses = np.random.default_rng(0).dirichlet([1, 1], 800).astype(np.float32)
    judged = judge(made(apart=0.1, unseen=guesses, unseen_balanced=guesses))
    assert judged.advice == "cannot tell" and "it has learned too little" in judged.reasons[0]
    assert not wrong_labels(made(apart=0.1, unseen=guesses, unseen_balanced=guesses), minority=False).any()


def test_a_balanced_model_with_one_answer_cannot_tell() -> None:
    found = changed(24, 0)
    failed = dataclasses.replace(found, balanced={**found.balanced, "train": np.zeros(800, dtype=int)})
    assert "the training of the balanced model failed: it predicts 'cat'" in judge(failed).reasons[0]


@pytest.mark.parametrize(("errors", "advice"), [(9, "cannot tell"), (10, "nothing found")])
def test_with_few_errors_no_test_has_power(errors: int, advice: str) -> None:
    assert judge(with_errors(errors)).advice == advice


@pytest.mark.parametrize(
    ("right_without", "against", "advice"),
    [(14, 40, "retrain"), (2, 40, "nothing found"), (5, 40, "cannot tell"), (3, 5, "cannot tell")],
)
def test_a_shortcut_is_proven_by_models_that_do_not_see_it(
    right_without: int, against: int, advice: str
) -> None:
    found = made(direct=True)
    y = found.y["train"]
    contradicts, blind = np.zeros(len(y), dtype=bool), y.copy()
    contradicts[:against] = True
    first = np.where(contradicts, 1 - y, y)
    blind[right_without:against] = 1 - y[right_without:against]
    known = Shortcut("site", "the column site", 0.95, contradicts)
    given = {"unseen": answered(first), "unseen_balanced": answered(first), "unseen_without": answered(blind)}
    judged = judge(made(direct=True, shortcut=known, **given))
    assert judged.advice == advice and judged.proven == (advice == "retrain")
    assert judged.shortcut is not None and judged.shortcut.right_without == right_without
    assert judged.minority(made(direct=True, shortcut=known, **given)).sum() == (
        against if judged.proven else found.late.sum()
    )


def test_without_a_candidate_known_properties_are_no_shortcut() -> None:
    late = judge(dataclasses.replace(changed(24, 2, others_lost=5), direct=True))
    assert late.advice == "retrain" and not late.proven  # the gain alone is certain
    assert judge(dataclasses.replace(changed(3, 2, others_lost=40), direct=True)).advice == "nothing found"


def test_the_property_that_predicts_most_labels_is_the_candidate() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    site = np.where(rng.random(400) < 0.95, y, 1 - y)
    columns = {
        "noise": rng.normal(size=400),
        "site": np.array(["a", "b"], dtype=object)[site],
        "level": site + rng.normal(0, 0.05, 400) + 2.0 * (rng.random(400) < 0.1),
    }
    known = find(columns, y, 2)
    assert known is not None and known.name == "site"
    assert np.array_equal(known.against, site != y) and known.accuracy == (site == y).mean()
    assert find({"noise": columns["noise"]}, y, 2) is None
    rare = np.arange(400) % 20 == 0  # 95% are of one class: a constant predicts them, and is no candidate
    assert find({"one": np.full(400, "x", dtype=object)}, rare.astype(int), 2) is None


def test_the_wording_of_texts_is_a_property() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    words = np.array(["red", "green", "blue", "grey", "pink", "brown"])
    ends = np.array(["sent from my phone", "kind regards"])
    texts = [f"{' '.join(rng.choice(words, 5))} {ends[label]}" for label in y]
    value, phrases, similar = wordings(texts, y, 2)
    assert phrases == ["sent from my", "kind regards"] or phrases == ["from my phone", "kind regards"]
    assert similar == {"sent", "from", "my", "phone", "kind", "regards"}
    assert not contradicted(value, y, 2).any()


# What decides, number by number: the gain in standard errors, the information, the excess of the strength.
@pytest.mark.parametrize(
    ("gain", "information", "excess", "lost", "advice"),
    [
        (0.85, 0.0, 0.05, 0, "retrain"),  # clearly apart: a likely gain is enough
        (0.83, 0.0, 0.05, 0, "cannot tell"),
        (0.85, 0.0, 0.049, 0, "cannot tell"),
        (2.34, 0.0, -0.2, 0, "retrain"),  # one hump: only a certain gain is
        (2.32, 0.0, -0.2, 0, "cannot tell"),
        (2.34, -1.7, -0.2, 0, "nothing found"),  # the second model knows less than the first
        (2.34, -1.7, 0.0, 0, "retrain"),
        (2.34, 0.0, -0.2, 3, "cannot tell"),  # of ten mended, three others are lost
        (2.34, 0.0, -0.2, 2, "retrain"),
        (1.27, 0.0, -0.2, 0, "nothing found"),
        (1.29, 0.0, -0.2, 0, "cannot tell"),
        (0.0, 0.0, 0.03, 0, "cannot tell"),
        (0.0, 0.0, 0.029, 0, "nothing found"),
        (-1.7, 0.0, 0.2, 0, "nothing found"),  # they stand apart, and balancing surely does not help them
    ],
)
def test_the_rules(gain: float, information: float, excess: float, lost: int, advice: str) -> None:
    found = changed(10, 0)
    said = advise(found, Change(0, gain, 1.0), Information(information, 1.0), excess, (10, lost), "")
    assert said[0] == advice


def test_a_losing_class_and_too_many_doubtful_labels_stop_the_advice() -> None:
    found, change, none = changed(10, 0), Change(0, 3.0, 1.0), Information(0.0, 1.0)
    assert advise(found, change, none, -0.2, (10, 0), "cat") == (
        "nothing found",
        "balancing costs the class 'cat' more than its late samples gain",
    )
    y = found.y["train"].copy()
    wrong = np.random.default_rng(0).permutation(800)[:100]
    sure = np.random.default_rng(1).uniform(0.8, 1, 800)
    y[wrong] = 1 - y[wrong]
    clear = answered(found.y["train"], sure)
    noisy = made(y={**found.y, "train": y}, unseen=clear, unseen_balanced=clear)
    assert wrong_labels(noisy, minority=False).sum() > 80
    assert "labels look wrong, too many" in advise(noisy, change, none, 0.2, (10, 0), "")[1]
    few = y.copy()
    few[wrong[70:]] = 1 - few[wrong[70:]]
    less = made(y={**found.y, "train": few}, unseen=clear, unseen_balanced=clear)
    assert advise(less, change, none, 0.2, (10, 0), "")[0] == "retrain"


def test_even_accuracy_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    y, late = rng.integers(0, 3, 300), rng.random(300) < 0.2
    before, after = rng.random(300) < 0.7, rng.random(300) < 0.8
    groups = [(y == label) & (late == side) for label in range(3) for side in (False, True)]
    change = even_change(before, after, late, y)
    assert change.before == pytest.approx(np.mean([before[group].mean() for group in groups]))
    assert change.after == pytest.approx(np.mean([after[group].mean() for group in groups]))
    spread = [((after.astype(float) - before)[group]).var() / group.sum() for group in groups]
    assert change.error == pytest.approx(np.sqrt(sum(spread)) / 6, rel=0.15)
    assert even_change(before, after, late & False, y).z == pytest.approx(after.mean() - before.mean())


def test_no_change_among_few_samples_is_no_proof() -> None:
    same = np.ones(4, dtype=bool)
    assert paired_change(same, same).error == pytest.approx(0.25) and paired_change(same, same).z == 0
    before, after = np.zeros(100, dtype=bool), np.arange(100) < 5
    assert paired_change(before, after).error == pytest.approx(np.sqrt((0.06 - 0.0025) / 100))


def test_conditional_information_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    y, first, second = rng.integers(0, 2, (3, 60))
    second = np.where(rng.random(60) < 0.4, y, second)
    probabilities = answered(first, rng.uniform(0.6, 1, 60))
    observed = expected = variance = 0.0
    for rows in judging.strata(probabilities):
        assert len(set(first[rows])) == 1 and len(rows) in (5, 6, 7)
        other = 1 - first[rows[0]]
        says, is_so, n = second[rows] == other, y[rows] == other, len(rows)
        observed += (says & is_so).sum()
        expected += says.sum() * is_so.sum() / n
        variance += says.sum() * is_so.sum() * (~says).sum() * (~is_so).sum() / (n * n * (n - 1))
    found = conditional_information(probabilities, answered(second), y)
    assert found.z == pytest.approx((observed - expected - 0.5) / np.sqrt(variance)) and found.z > 1


def test_a_second_model_that_flips_at_random_has_no_information_and_one_that_knows_has() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 4000)
    first = np.where(rng.random(4000) < 0.9, y, 1 - y)
    flips = rng.random(4000) < 0.2
    sure = rng.uniform(0.6, 1, 4000)
    chance = conditional_information(answered(first, sure), answered(np.where(flips, 1 - first, first)), y)
    knows = np.where(flips & (first != y), y, first)
    informed = conditional_information(answered(first, sure), answered(knows), y)
    misled = np.where(flips & (first == y), 1 - y, first)
    assert abs(chance.z) < 2 and informed.z > 10 and informed.odds_ratio > 10
    assert conditional_information(answered(first, sure), answered(misled), y).z < -2
    assert informed.chance < 1e-9 and 0.02 < chance.chance < 0.98
    assert conditional_information(answered(first), answered(first), y).z == 0


# -- wrong labels ----------------------------------------------------------------------------------------


def labelled(noise: float, seed: int = 0, num: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, which of them are wrong, and calibrated probabilities of the true classes."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, num)
    odds = rng.normal(size=(num, 3)) + 4 * np.eye(3)[truth]
    unseen = np.exp(odds) / np.exp(odds).sum(1, keepdims=True)
    wrong = rng.random(num) < noise
    return np.where(wrong, (truth + rng.integers(1, 3, num)) % 3, truth), wrong, unseen.astype(np.float32)


@pytest.mark.parametrize("seed", range(3))
def test_wrong_labels_are_listed(seed: int) -> None:
    y, wrong, unseen = labelled(0.05, seed)
    found = made(class_names=("a", "b", "c"), y={"train": y}, unseen=unseen, unseen_balanced=unseen)
    listed = wrong_labels(found, minority=False)
    assert (listed & wrong).sum() / listed.sum() > 0.8 and (listed & wrong).sum() / wrong.sum() > 0.8
    assert (confident_learning(unseen, y) == listed).all()  # confirmed, so all candidates are


def test_clean_labels_are_not_listed() -> None:
    y, _, unseen = labelled(0.0)
    found = made(class_names=("a", "b", "c"), y={"train": y}, unseen=unseen, unseen_balanced=unseen)
    assert wrong_labels(found, minority=False).sum() < 5


def test_a_minority_that_looks_less_like_the_other_class_is_not_listed() -> None:
    found = made(apart=0.1)
    y, rng = found.y["train"], np.random.default_rng(0)
    own = np.where(found.late, rng.uniform(0.06, 0.09, 800), rng.uniform(0.95, 1, 800))
    unseen = np.where(y[:, None] == [0, 1], own[:, None], 1 - own[:, None]).astype(np.float32)
    hard = made(apart=0.1, unseen=unseen, unseen_balanced=unseen)
    assert confident_learning(unseen, y).sum() > 40  # by itself it calls them wrong
    assert not wrong_labels(hard, minority=False).any()


def test_what_the_balanced_model_confirms_is_not_listed_once_a_minority_was_found() -> None:
    y, wrong, unseen = labelled(0.05)
    again = unseen.copy()
    confirmed = np.flatnonzero(wrong)[::2]
    again[confirmed] = np.eye(3)[y[confirmed]]
    found = made(class_names=("a", "b", "c"), y={"train": y}, unseen=unseen, unseen_balanced=again)
    assert wrong_labels(found, minority=False)[confirmed].any()
    assert not wrong_labels(found, minority=True)[confirmed].any()


def test_the_number_of_wrong_labels_is_five_times_those_in_the_last_fifth() -> None:
    assert wrong_count(np.linspace(0, 1, 101)) == 100 and wrong_count(np.full(50, 0.5)) == 0
    assert wrong_count(np.ones(3)) == 3


def test_more_right_than_the_largest_class_is_learned() -> None:
    y = np.repeat([0, 1], [700, 300])
    assert not learned(answered(np.zeros(1000, dtype=int)), y)
    nearly = y.copy()
    nearly[700:780] = 0
    assert learned(answered(nearly), y)
    assert not learned(answered(np.where(np.arange(1000) < 720, 0, y) * (np.arange(1000) < 720)), y)


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


# -- loss histories, scores and folds --------------------------------------------------------------------


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


def test_a_class_says_why() -> None:
    def said(words: str, gap: float, late: int) -> str:
        return class_advice(ClassEvidence("cat", 400, late, 0, 0, gap, CLASS_FLOOR, words))

    assert "Some of its samples are learned later" in said("clear", 0.9, 5)
    assert "This class alone is not sufficient evidence" in said("weak", 0.8, 5)
    assert said("none", 0.9, 2) == "Fewer than 3 of its samples are learned late."  # too few, not too weak
    assert said("none", 0.7, 5) == "By itself it shows no minority."  # all classes together may


def test_outliers_make_no_hump() -> None:
    y = np.repeat([0, 1], 400)
    losses = np.random.default_rng(0).uniform(0, 2, 800)
    losses[np.r_[:4, 400:404]] = 100.0
    parts, gaps = humps(losses[:, None] * np.ones((1, 4)), y)
    assert gaps.max() < threshold(800) and parts.minority.sum() > 100


def test_the_page_counts_samples_only_where_both_numbers_are_of_the_same_ones() -> None:
    found = made(apart=0.05)
    dogs = {part: np.ones_like(y) for part, y in found.y.items()}  # worst: all cats, early ones first
    lines = {line.name: line for line in _scores(side_by_side(made(apart=0.05, balanced=dogs)))}
    assert lines["Worst pseudo-group, validation"].num_samples is None  # 10 late cats; 90 early ones
    assert lines["Validation accuracy"].num_samples == 200 and lines["Validation accuracy"].note == ""
    assert lines["Late validation samples"].note == "chosen by the losses of the model as collected"
    assert lines["Worst class, test"].note == "cat"


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
