"""DPE's logits, penalties and ensemble against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from by_hand import FeatureRun, close, linear
from torch.nn import functional as F

from evenhand.methods import dpe
from evenhand.methods.dpe import Ensemble, distances, overlap, standardised


def test_dpe_1_features_have_mean_zero_and_unit_length() -> None:
    found = standardised(torch.tensor([[1.0, 3.0, 5.0], [0.0, 0.0, 9.0]]))
    close(found, [[-math.sqrt(0.5), 0, math.sqrt(0.5)], (np.array([-1, -1, 2]) / math.sqrt(6)).tolist()])


def test_dpe_1_logits_are_scaled_distances_of_unit_vectors() -> None:
    unit = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    prototypes = torch.tensor([[[5.0, 0.0], [0.0, 2.0]]])
    # Distances of unit vectors: 0 and sqrt 2; sqrt(2 - 1.2) and sqrt(2 - 1.6). The scale counts without sign.
    expected = [[[0, -3 * math.sqrt(2)], [-3 * math.sqrt(0.8), -3 * math.sqrt(0.4)]]]
    torch.testing.assert_close(
        distances(unit, prototypes, torch.tensor([-3.0])), torch.tensor(expected), atol=1e-4, rtol=1e-5
    )


def test_dpe_2_the_overlap_is_the_mean_covariance_with_earlier_prototypes() -> None:
    prototypes = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    earlier = torch.tensor([[[0.6, 0.8], [0.0, 1.0]], [[0.8, 0.6], [0.0, 1.0]]])
    # Class 0: (0.6, 0.8) less its mean is (-0.1, 0.1). Covariances 0.01 and -0.01: their mean is 0.
    # Class 1: (0.5, -0.5) with twice (-0.5, 0.5): -0.25, and without sign 0.25.
    close(overlap(prototypes, earlier), 0.25 / 2)
    close(overlap(prototypes, earlier[:1]), (0.01 + 0.25) / 2)
    close(overlap(prototypes, earlier[:0]), 0.0)


def test_dpe_5_probabilities_are_averaged() -> None:
    features = torch.tensor([[2.0, 0.0], [0.0, 2.0]])  # standardised: along (1, -1) and (-1, 1)
    prototypes = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]], [[-1.0, 1.0], [1.0, -1.0]]])
    model = Ensemble(prototypes, torch.tensor([math.log(3) / 2, 0.0]))
    # Distances are 0 and 2: the first head is sure by 3 to 1, the second, with scale 0, knows nothing.
    close(model(torch.zeros(2, 2), features).exp(), [[5 / 8, 3 / 8], [3 / 8, 5 / 8]], rtol=1e-4)


X = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 4))).float()
Y = [0] * 9 + [1] * 3


def trained(**settings: object) -> Ensemble:
    made = FeatureRun(X, Y, linear([[0.0] * 4] * 2, [0.0, 0.0]))
    model = dpe.train(made, batch_size=99, head_epochs=1, **settings)
    return model.function


def step_by_hand(
    number: int, earlier: torch.Tensor, *, diversity: float, monkeypatched: list
) -> torch.Tensor:
    """One step of head `number` with all the samples that it was given, as the docstring says."""
    generator = torch.Generator().manual_seed(number)
    start = F.normalize(torch.randn(2, 4, generator=generator), dim=1).requires_grad_()
    rows = monkeypatched[number]
    logits = distances(standardised(X[rows]), start[None], torch.ones(1))[0]
    loss = F.cross_entropy(30 * logits, torch.tensor(Y)[rows]) + 10 * (start.norm(dim=1) ** 2).mean()
    if number:
        loss = loss + diversity / (1 + 0.05 * number) * overlap(start, earlier)
    loss.backward()
    return F.normalize(start.detach() - 1e-3 * start.grad, dim=1)


def test_dpe_2_to_4_each_head_takes_its_step_on_an_even_subset(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[np.ndarray] = []
    subset = dpe.even_subset

    def spy(*given: object) -> np.ndarray:
        drawn.append(subset(*given))
        return drawn[-1]

    monkeypatch.setattr(dpe, "even_subset", spy)
    found = trained(num_heads=3, diversity=40.0).prototypes
    assert [np.bincount(np.array(Y)[rows]).tolist() for rows in drawn] == [[3, 3]] * 3
    assert drawn[0].tolist() != drawn[1].tolist(), "a fresh subset for each head"
    for number in range(3):
        expected = step_by_hand(number, found[:number], diversity=40.0, monkeypatched=drawn)
        close(found[number], expected, rtol=1e-4)


def test_dpe_3_diversity_makes_prototypes_differ() -> None:
    made = FeatureRun(X, Y, linear([[0.0] * 4] * 2, [0.0, 0.0]))
    apart = []
    for diversity in (0.0, 1e3):
        prototypes = dpe.train(made, num_heads=2, head_epochs=300, diversity=diversity).function.prototypes
        apart.append(float(overlap(prototypes[1], prototypes[:1])))
    assert apart[1] < 0.1 * apart[0]
