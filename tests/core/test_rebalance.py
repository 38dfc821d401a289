"""rebalance: exactly the missing copies, drawn evenly, class by class; weights that say the same."""

import dataclasses

import numpy as np
import pytest
import torch

from evenhand import BalancedSampler
from evenhand.core.partition import Balanced, Partition, rebalance, sample_weights


def made(sizes: list[tuple[int, int]]) -> Partition:
    """A partition with these majorities and minorities, its samples in no order."""
    labels = np.concatenate([np.full(sum(pair), label) for label, pair in enumerate(sizes)])
    minority = np.concatenate([np.arange(sum(pair)) >= pair[0] for pair in sizes])
    order = np.random.default_rng(0).permutation(len(labels))
    return Partition(
        minority=minority[order],
        labels=labels[order],
        classes=np.arange(len(sizes)),
        sizes=np.array(sizes),
        separation=np.ones(len(sizes)),
        margin=np.zeros(len(labels), np.float32),
        unsplit={label: "one sample" for label, pair in enumerate(sizes) if not pair[1]},
    )


def test_originals_come_first_and_then_exactly_the_missing_copies() -> None:
    parts = made([(30, 4), (5, 5), (7, 0), (1, 1)])
    balanced = rebalance(parts, seed=3)
    num_samples = len(parts.labels)
    assert balanced.num_original == num_samples and len(balanced) == num_samples + 26
    np.testing.assert_array_equal(balanced.indices[:num_samples], np.arange(num_samples))
    copies = balanced.indices[balanced.copies]
    assert parts.minority[copies].all() and (parts.labels[copies] == 0).all()
    assert balanced.indices.dtype == np.int64


def test_every_minority_sample_is_equally_likely() -> None:
    parts = made([(20_005, 5)])
    drawn = np.bincount(rebalance(parts).indices, minlength=len(parts.labels))[parts.minority] - 1
    assert drawn.sum() == 20_000
    assert np.abs(drawn - 4000).max() < 5 * np.sqrt(20_000 * 0.2 * 0.8)  # five deviations of a fair draw


def test_a_class_draws_the_same_whatever_the_others_do() -> None:
    few, many = made([(30, 4)]), made([(30, 4), (50, 3)])
    rows = np.flatnonzero(many.labels == 0)
    wanted = np.flatnonzero(few.minority)
    first = rebalance(few, seed=5)
    second = rebalance(many, seed=5)
    ranks = np.searchsorted(wanted, first.indices[first.copies])
    copies = second.indices[second.copies]
    own = rows[many.minority[rows]]
    np.testing.assert_array_equal(copies[many.labels[copies] == 0], own[ranks])


def test_equal_classes_draw_independently() -> None:
    parts = made([(30, 6), (30, 6)])
    indices = rebalance(parts, seed=5).indices[len(parts.labels) :]
    draws = []
    for label in (0, 1):
        minority = np.flatnonzero(parts.minority & (parts.labels == label))
        draws.append(np.searchsorted(minority, indices[parts.labels[indices] == label]).tolist())
    assert len(draws[0]) == len(draws[1]) == 24 and draws[0] != draws[1]


def test_weights_are_the_expected_number_of_appearances() -> None:
    parts = made([(30, 4), (7, 0), (6, 6)])
    weights = sample_weights(parts)
    assert weights.sum() == pytest.approx(len(rebalance(parts)))
    average = np.mean([np.bincount(rebalance(parts, seed=s).indices) for s in range(2000)], axis=0)
    np.testing.assert_allclose(average, weights, rtol=0.05)


@pytest.mark.parametrize(("strength", "repeated"), [(1.0, [37, 6, 0]), (0.5, [12, 6, 0]), (0.0, [4, 6, 0])])
def test_the_strength_says_how_far_a_minority_is_repeated(strength: float, repeated: list[int]) -> None:
    parts = dataclasses.replace(made([(37, 4), (6, 6), (7, 0)]), strength=strength)
    assert parts.repeated_sizes.tolist() == repeated
    indices = rebalance(parts).indices
    counts = np.bincount(parts.labels[indices], weights=parts.minority[indices], minlength=3)
    assert counts.tolist() == repeated and len(indices) == 37 + 6 + 7 + sum(repeated)
    assert sample_weights(parts).sum() == pytest.approx(len(indices), abs=0.5)


@pytest.mark.parametrize("strength", [-0.1, 1.1, float("nan")])
def test_a_strength_beyond_its_bounds_is_refused(strength: float) -> None:
    with pytest.raises(ValueError, match="strength must be 0 to 1"):
        dataclasses.replace(made([(3, 1)]), strength=strength)


def test_a_partition_shows_a_strength_that_is_not_full() -> None:
    parts = made([(3, 1)])
    assert "strength" not in repr(parts)
    assert repr(dataclasses.replace(parts, strength=0.5)).endswith("; strength 0.5)")


@pytest.mark.parametrize("num_samples", [None, 20_000])
def test_the_sampler_goes_as_far_as_the_strength_says(num_samples: int | None) -> None:
    parts = dataclasses.replace(made([(90, 10)]), strength=0.5)
    visited = np.fromiter(BalancedSampler(parts, num_samples=num_samples), dtype=int)
    assert parts.minority[visited].mean() == pytest.approx(30 / 120, abs=0.02)


def test_ten_thousand_classes_take_a_moment() -> None:
    balanced = rebalance(made([(3, 1)] * 10_000))
    assert len(balanced) == 60_000


def test_it_behaves_as_an_int_array() -> None:
    balanced = Balanced(np.array([0, 1, 2, 1]), num_original=3)
    assert list(balanced) == [0, 1, 2, 1] and balanced[3] == 1 and balanced[1:].tolist() == [1, 2, 1]
    assert np.asarray(balanced, dtype=np.int32).dtype == np.int32
    assert np.array(balanced) is not balanced.indices
    data = np.array([10, 20, 30])
    assert (
        data[balanced].tolist()
        == torch.from_numpy(data)[torch.as_tensor(balanced)].tolist()
        == [10, 20, 30, 20]
    )
