"""Multiaccuracy Boost against residuals, regressions and corrections worked out by hand."""

import numpy as np
import pytest
import torch
from by_hand import FeatureRun, close, linear
from torch import Tensor

from evenhand.methods import multiaccuracy
from evenhand.methods.multiaccuracy import Correction, Ridge, corrected, residuals, with_one
from evenhand.training.models import PostHoc


def test_ma_1_the_residual_is_the_derivative_of_the_loss_and_straight_where_it_is_steep() -> None:
    p = torch.tensor([[0.25, 0.75], [0.25, 0.75], [0.95, 0.05], [1.0, 0.0]])
    found = residuals(p, torch.tensor([0, 1, 1, 1]))
    # 1/p is 4 and 4/3. Below 0.1 the tangent is 20 - 100 p: 15 and 20.
    close(found, [[-4, 4], [4 / 3, -4 / 3], [15, -15], [20, -20]])


def test_ma_1_with_more_classes_the_others_share_it() -> None:
    close(residuals(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0])), [[-2, 1, 1]])


def test_ma_2_ridge_regression_of_several_targets() -> None:
    x = torch.tensor([[1.0], [2.0], [6.0]])
    targets = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 3.0]])
    # Centred: x is -2, -1, 3 and sums of squares are 14; the targets are -2, 0, 2 and -1, -1, 2.
    slopes = [10 / (14 + 2), 9 / (14 + 2)]
    close(Ridge(with_one(x), 2.0)(targets), [slopes, [3 - 3 * slopes[0], 1 - 3 * slopes[1]]])


def test_ma_2_is_the_solution_of_the_normal_equations() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(20, 4)), random.normal(size=(20, 3))
    found = Ridge(with_one(torch.from_numpy(x)), 0.7)(torch.from_numpy(y)).numpy()
    centred, target = x - x.mean(0), y - y.mean(0)
    weight = np.linalg.solve(centred.T @ centred + 0.7 * np.eye(4), centred.T @ target)
    np.testing.assert_allclose(found, np.vstack([weight, y.mean(0) - x.mean(0) @ weight]), rtol=1e-8)


def test_ma_3_corrections_belong_to_the_class_that_the_original_net_predicts() -> None:
    logits, features = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0], [5.0]])
    table = torch.tensor([[[1.0, -1.0], [0.5, 0.0]], [[0.0, 2.0], [0.0, 0.0]]])
    # The first sample loses 3 x (1, -1) + (0.5, 0), the second 5 x (0, 2).
    expected = [[1 - 3.5, 3], [0, 1 - 10]]
    close(corrected(logits, with_one(features), table), expected)
    close(Correction(table)(logits, features), expected)


def audit(y: list[int], head: tuple, x: Tensor, **settings: object) -> Tensor:
    """The table that an audit of a linear net on these samples ends with."""
    model = multiaccuracy.train(FeatureRun(x, y, linear(*head)), **settings)
    assert isinstance(model, PostHoc)
    return model.function.table


def planted() -> tuple[list[int], Tensor]:
    """The label is whether the second feature is positive, which the net does not look at."""
    random = np.random.default_rng(1)
    x = torch.from_numpy(random.normal(size=(400, 2))).float()
    return (x[:, 1] > 0).int().tolist(), x


BLIND = ([[-1.0, 0.0], [1.0, 0.0]], [0.0, 0.0])


def test_ma_3_one_round_subtracts_the_rate_times_the_regression() -> None:
    y, x = planted()
    table = audit(y, BLIND, x, rounds=1, rate=0.1, ridge=2.0)
    order = np.random.default_rng([0, 4]).permutation(400)
    fits = order[:280]
    logits = linear(*BLIND)(x[fits]).detach()
    first = logits.argmax(1) == 0  # the first set: those who are predicted to be of class 0
    labels = torch.tensor(y)[fits][first]
    regression = Ridge(with_one(x[fits][first]), 2.0)(residuals(logits.softmax(1)[first], labels))
    close(table[0], 0.1 * regression / 2, rtol=1e-3)
    assert not table[1].any()


def test_ma_4_corrections_are_kept_that_judged_samples_confirm() -> None:
    y, x = planted()
    labels, logits = torch.tensor(y), linear(*BLIND)(x).detach()
    before = (logits.argmax(1) == labels).float().mean()
    table = audit(y, BLIND, x, rate=1.0)
    after = (corrected(logits, with_one(x), table).argmax(1) == labels).float().mean()
    assert before < 0.6 and after > 0.9


def test_ma_3_nothing_is_changed_that_no_regression_predicts() -> None:
    y, x = planted()
    assert not audit(y, BLIND, x, threshold=1e9).any()
    assert not audit(y, BLIND, x, rounds=0).any()


def test_ma_4_the_best_round_is_kept_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    y, x = planted()
    # With a huge rate the corrections overshoot.
    table = audit(y, ([[0.0, -3.0], [0.0, 3.0]], [0.0, 0.0]), x, rate=1e3)
    assert not table.any(), "the net is right about all samples, and no round can be better"
