"""Metrics on hand-made numbers with known answers."""

import math

import numpy as np
import pytest
import torch

from evenhand import mean_model_selection, price_of_unawareness, worst_group_accuracy
from evenhand.core.metrics import (
    balanced_accuracy,
    group_accuracies,
    identification,
    mean_accuracy,
    wilson_interval,
    worst_class_accuracy,
)


def test_accuracies_against_a_loop() -> None:
    random = np.random.default_rng(0)
    predictions, labels, groups = random.integers(0, 3, (3, 500))
    loop = {
        group: float(np.mean([predictions[i] == labels[i] for i in range(500) if groups[i] == group]))
        for group in range(3)
    }
    assert group_accuracies(predictions, labels, groups) == pytest.approx(loop)
    assert worst_group_accuracy(predictions, labels, groups) == pytest.approx(min(loop.values()))
    tensors = [torch.from_numpy(array) for array in (predictions, labels, groups)]
    assert worst_group_accuracy(*tensors) == pytest.approx(min(loop.values()))
    assert balanced_accuracy(predictions, labels, groups) == pytest.approx(np.mean(list(loop.values())))
    assert worst_class_accuracy([0, 1, 1], [0, 0, 1]) == 0.5


def test_weights_count() -> None:
    assert mean_accuracy([1, 0, 1], [1, 1, 1], weight=[1, 2, 1]) == 0.5
    with pytest.raises(ValueError, match="one value per sample, got 2 for 3"):
        mean_accuracy([1, 0, 1], [1, 1, 1], weight=[1, 2])
    with pytest.raises(ValueError, match="equally long, got 1 and 2"):
        mean_accuracy([1], [1, 0])
    with pytest.raises(ValueError, match="at least one sample"):
        mean_accuracy([], [])


def test_wilson_interval_has_known_values() -> None:
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson_interval(0, 44)[0] == 0 and wilson_interval(44, 44)[1] == 1
    with pytest.raises(ValueError, match="got 3 of 2"):
        wilson_interval(3, 2)


def test_identification_scores() -> None:
    minority = [True, True, True, True, False, False]
    conflicting = [True, True, False, False, True, False]
    scores = identification(minority, conflicting, [0, 1, 2, 3, 4, 5, 0, 0])
    assert scores.identified == pytest.approx(2 / 3) and scores.purity == pytest.approx(2 / 4)
    assert scores.share == pytest.approx(5 / 8)
    assert identification([False] * 3, [False] * 3, [0, 1, 2]).purity is None


def test_the_price_of_unawareness() -> None:
    #            selected by accuracy | best WGA  | zero WGA, best accuracy: dropped
    accuracy = [[0.95, 0.97], [0.90, 0.92], [0.99, 0.99]]
    wga = [[0.40, 0.50], [0.60, 0.80], [0.0, 0.0]]
    price = price_of_unawareness(accuracy, wga)
    assert (price.selected, price.best) == (0, 1)
    assert price.per_seed == pytest.approx((1.5, 1.6))
    assert price.mean == pytest.approx(1.55) and price.deviation == pytest.approx(0.05)
    assert price.ratio_of_means == pytest.approx(0.70 / 0.45)


def test_the_best_candidate_is_one_for_all_seeds() -> None:
    accuracy = [[0.95, 0.97], [0.90, 0.92], [0.80, 0.80]]
    wga = [[0.40, 0.50], [0.60, 0.80], [0.70, 0.60]]  # the third is better in the first seed alone
    price = price_of_unawareness(accuracy, wga)
    assert price.best == 1 and price.per_seed == pytest.approx((0.6 / 0.4, 0.8 / 0.5))


def test_the_selected_candidate_is_one_for_all_seeds() -> None:
    accuracy = [[0.95, 0.97], [0.96, 0.90], [0.80, 0.80]]  # the second is better in the first seed alone
    wga = [[0.40, 0.50], [0.50, 0.60], [0.70, 0.80]]
    price = price_of_unawareness(accuracy, wga)
    assert price.selected == 0 and price.per_seed == pytest.approx((0.7 / 0.4, 0.8 / 0.5))


def test_ties_missing_seeds_and_zeros_are_defined() -> None:
    nan = math.nan
    tie = price_of_unawareness([[0.9], [0.9]], [[0.5], [0.5]])
    assert (tie.selected, tie.best, tie.mean) == (0, 0, 1.0)
    turned = [[0.3, 0.2, 0.1], [0.1, 0.2, 0.3]]  # whose sums differ in the last bit
    assert price_of_unawareness(turned, [[0.5] * 3, [0.6] * 3]).selected == 0
    missing = price_of_unawareness([[0.9, nan], [0.8, 0.8]], [[0.4, nan], [0.6, 0.9]])
    assert (missing.selected, missing.best) == (0, 1) and missing.per_seed == pytest.approx((1.5,))
    one_zero = price_of_unawareness([[0.9, 0.9], [0.8, 0.8]], [[0.0, 0.4], [0.5, 0.8]])
    assert one_zero.per_seed == pytest.approx((2.0,))  # a seed whose selected WGA is zero has no ratio
    with pytest.raises(ValueError, match="no candidate has a test WGA above zero"):
        price_of_unawareness([[0.9]], [[0.0]])
    with pytest.raises(ValueError, match=r"shaped \(candidates, seeds\)"):
        price_of_unawareness([0.9], [0.5])


def test_mean_model_selection() -> None:
    wga = [[0.2, 0.4], [0.6, math.nan], [0.0, 0.2]]
    mms = mean_model_selection(wga)
    assert mms.per_seed == pytest.approx((0.8 / 3, 0.3))
    assert mms.mean == pytest.approx((0.8 / 3 + 0.3) / 2)
