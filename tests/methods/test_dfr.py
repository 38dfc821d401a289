"""DFR's subsets, its search and its average, with features and fits that are known."""

import numpy as np
import pytest
import torch
from by_hand import FeatureRun, close, linear

from evenhand.methods import dfr
from evenhand.methods._heads import Head, head_of

X = torch.tensor([[float(i), 10.0 * (i % 4)] for i in range(24)])
Y = [i % 2 for i in range(24)]
GROUP = [0 if i < 12 else 1 if i < 18 else 3 for i in range(24)]  # sizes 12, 6, 0 and 6


def run() -> FeatureRun:
    return FeatureRun(X, Y, linear([[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0]), group=GROUP)


def fits(monkeypatch: pytest.MonkeyPatch, right: float) -> list[dict]:
    """Every fit that DFR asks for; the fit of the strength `right` is good, the others are not."""
    asked: list[dict] = []

    def fit(x: torch.Tensor, y: torch.Tensor, num_classes: int, strength: float, steps: int) -> Head:
        asked.append({"x": x, "y": y, "strength": strength})
        # The second feature alternates with the label: 0, 10, 20, 30. Its sign is used well, or badly.
        slope = 1.0 if strength == right else -1.0
        weight = torch.tensor([[0.0, 0.0], [float(len(asked)), slope]])
        return Head(weight, torch.tensor([0.0, float(len(asked))]))

    monkeypatch.setattr(dfr, "sparse_head", fit)
    return asked


def test_dfr_1_features_are_standardised_over_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fits(monkeypatch, 0.3)
    dfr.train(run(), retrains=1)
    expected = (X - X.mean(0)) / X.std(0)
    for each in asked:
        for row in each["x"]:
            assert (expected - row).abs().sum(1).min() < 1e-5


def test_dfr_2_every_fit_has_as_many_samples_of_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fits(monkeypatch, 0.3)
    dfr.train(run(), retrains=3)
    first = X[:, 0].sub(X[:, 0].mean()).div(X[:, 0].std())
    sizes = []
    for each in asked:
        numbers = [int((first - value).abs().argmin()) for value in each["x"][:, 0]]
        assert len(set(numbers)) == len(numbers)
        assert each["y"].tolist() == [Y[number] for number in numbers]
        sizes.append(np.bincount(np.array(GROUP)[numbers]).tolist())
    # A half of validation has 3 of the small groups, and all of it 6.
    assert sizes == [[3, 3, 0, 3]] * len(dfr.STRENGTHS) + [[6, 6, 0, 6]] * 3


def test_dfr_3_the_strength_is_best_for_the_worst_group(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fits(monkeypatch, 0.07)
    monkeypatch.setattr(dfr, "worst_group", lambda correct, groups: float(asked[-1]["strength"] == 0.07))
    dfr.train(run(), retrains=2)
    assert [each["strength"] for each in asked] == [*dfr.STRENGTHS, 0.07, 0.07]


def test_dfr_3_the_worst_group_is_that_of_those_present() -> None:
    correct = torch.tensor([True, True, False, True])
    assert dfr.worst_group(correct, np.array([0, 0, 2, 2])) == 0.5
    assert dfr.worst_group(correct, np.array([0, 0, 2, 0])) == 0


def test_dfr_3_halves_are_even_in_every_group() -> None:
    first, second = dfr.halves(np.array(GROUP), 0)
    assert sorted([*first, *second]) == list(range(24))
    assert np.bincount(np.array(GROUP)[first]).tolist() == [6, 3, 0, 3]
    assert first.tolist() != dfr.halves(np.array(GROUP), 1)[0].tolist()


def test_dfr_4_coefficients_are_averaged_and_undo_the_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    fits(monkeypatch, 1.0)
    monkeypatch.setattr(dfr, "worst_group", lambda correct, groups: 0.0)  # all are equal: the first is taken
    head = head_of(dfr.train(run(), retrains=2))
    # The last two fits are numbers 8 and 9.
    weight = torch.tensor([[0.0, 0.0], [8.5, 1.0]])
    close(head.weight, weight / X.std(0))
    close(head(X), (X - X.mean(0)) / X.std(0) @ weight.T + torch.tensor([0.0, 8.5]), rtol=1e-4)


def test_a_task_without_groups_is_refused() -> None:
    made = run()
    made.val = made.val.without_groups()
    with pytest.raises(ValueError, match="dfr needs the group of every validation sample, but task 'made'"):
        dfr.train(made)
