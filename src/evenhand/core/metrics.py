"""Accuracies of groups, the price of not knowing them, and how well they were found: on plain arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.typing as npt

from evenhand.core.arrays import as_numpy, as_real, as_whole

if TYPE_CHECKING:
    from torch import Tensor

Array = Union["Tensor", npt.ArrayLike]  # torch need not be loaded to compare scores


def group_accuracies(predictions: Array, labels: Array, groups: Array) -> dict[Any, float]:
    """Return the accuracy of every group that has samples.

    >>> group_accuracies([0, 1, 1], [0, 1, 0], ["a", "a", "b"])
    {'a': 1.0, 'b': 0.0}
    """
    correct, group = _correct(predictions, labels), _vector(groups, "groups")
    if len(group) != len(correct):
        raise ValueError(f"groups must hold one value per sample, got {len(group)} for {len(correct)}")
    names, position = np.unique(group, return_inverse=True)
    hits = np.bincount(position, weights=correct) / np.bincount(position)
    return dict(zip(names.tolist(), hits.tolist(), strict=True))


def worst_group_accuracy(predictions: Array, labels: Array, groups: Array) -> float:
    """Return the worst-group accuracy (WGA): the lowest accuracy of any group, a fraction of 1.

    - `predictions`: (samples,) predicted labels.
    - `labels`: (samples,) true labels.
    - `groups`: (samples,) the group of each sample, as integers or strings.

    Raises ValueError for arrays of different lengths, and for no samples.

    >>> worst_group_accuracy([0, 1, 1, 1], [0, 1, 0, 1], ["a", "a", "b", "b"])
    0.5
    """
    return min(group_accuracies(predictions, labels, groups).values())


def worst_class_accuracy(predictions: Array, labels: Array) -> float:
    """Return the lowest accuracy of any class."""
    return worst_group_accuracy(predictions, labels, labels)


def balanced_accuracy(predictions: Array, labels: Array, groups: Array) -> float:
    """Return the mean of the group accuracies, regardless of the group sizes."""
    return float(np.mean(list(group_accuracies(predictions, labels, groups).values())))


def mean_accuracy(predictions: Array, labels: Array, weight: Array | None = None) -> float:
    """Return the share of correct predictions, each sample weighted by its weight.

    >>> mean_accuracy([0, 1], [0, 0], weight=[3, 1])
    0.75
    """
    correct = _correct(predictions, labels)
    if weight is None:
        return float(correct.mean())
    weights = _vector(weight, "weight").astype(np.float64)
    if len(weights) != len(correct):
        raise ValueError(f"weight must hold one value per sample, got {len(weights)} for {len(correct)}")
    if not np.isfinite(weights).all() or (weights < 0).any() or weights.sum() == 0:
        raise ValueError("weight must be finite, not negative, and not all zero")
    return float(np.average(correct, weights=weights))


def wilson_interval(successes: int, total: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share, which is also sensible for small counts.

    >>> low, high = wilson_interval(0, 10)
    >>> round(low, 3), round(high, 3)
    (0.0, 0.278)
    """
    if not 0 <= successes <= total or total < 1:
        raise ValueError(f"need 0 <= successes <= total and total >= 1, got {successes} of {total}")
    share = successes / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    low = 0.0 if successes == 0 else max(centre - half, 0.0)
    high = 1.0 if successes == total else min(centre + half, 1.0)
    return low, high


@dataclass(frozen=True)
class Identification:
    """Scores of how well pseudo-groups match the samples that break the shortcut, as fractions of 1."""

    identified: float | None  # of the conflicting samples, those in a minority cluster
    purity: float | None  # of the minority clusters' samples, those that conflict
    share: float | None  # of the balanced set, the conflicting part


def identification(minority: Array, conflicting: Array, balanced: Array | None = None) -> Identification:
    """Return the three identification scores; `balanced` are the indices of the balanced set, if any.

    A score whose denominator is zero, such as the purity of no minority, is None.
    """
    found, truth = (
        _vector(a, n).astype(bool) for a, n in ((minority, "minority"), (conflicting, "conflicting"))
    )
    if len(found) != len(truth):
        raise ValueError(f"minority and conflicting must be equally long, got {len(found)} and {len(truth)}")
    share = None
    if balanced is not None:
        rows = as_whole(_vector(balanced, "balanced"), "balanced")
        if len(rows) == 0 or rows.min() < 0 or rows.max() >= len(truth):
            raise ValueError(
                f"balanced must hold indices between 0 and {len(truth) - 1}, got {rows[:5].tolist()} …"
            )
        share = float(truth[rows].mean())
    both = int((found & truth).sum())
    return Identification(
        identified=both / int(truth.sum()) if truth.any() else None,
        purity=both / int(found.sum()) if found.any() else None,
        share=share,
    )


@dataclass(frozen=True)
class Price:
    """The price of unawareness: the best candidate's WGA over that of the one selected without groups."""

    mean: float  # of the seeds' ratios
    deviation: float  # population deviation of the seeds' ratios
    per_seed: tuple[float, ...]
    ratio_of_means: float
    selected: int  # candidate with the best mean validation accuracy
    best: int  # candidate with the best mean test WGA


def price_of_unawareness(validation_accuracy: Array, test_wga: Array) -> Price:
    """Return the cost of selecting a model without group labels, as a ratio of WGAs.

    The ratio is the test WGA of the best candidate over that of the candidate with the highest validation
    accuracy. 1 means that group labels would not have improved the selection.

    - `validation_accuracy`: (candidates, seeds) accuracies without group labels.
    - `test_wga`: (candidates, seeds) worst-group accuracies. NaN marks a missing run in both arrays.

    Returns a `Price`. Both candidates are selected by their means over seeds; the first of equal candidates
    wins. Candidates with a mean test WGA of zero are dropped. The ratio of a seed needs a run of both
    candidates, and a WGA of the selected candidate above zero. Raises ValueError for arrays of different
    shapes, and if no candidate has a test WGA above zero.

    >>> price = price_of_unawareness([[0.9, 0.9], [0.8, 0.8]], [[0.5, 0.5], [0.75, 0.75]])
    >>> price.mean, price.selected, price.best
    (1.5, 0, 1)
    """
    accuracy, wga = _candidates(validation_accuracy, "validation_accuracy"), _candidates(test_wga, "test_wga")
    if accuracy.shape != wga.shape:
        raise ValueError(
            f"validation_accuracy and test_wga must be shaped alike, got {accuracy.shape} and {wga.shape}"
        )
    means, accuracies = _means(wga), _means(accuracy)
    usable = (means > 0) & np.isfinite(accuracies)
    if not usable.any():
        raise ValueError("no candidate has a test WGA above zero, so its price is not defined")
    selected = first_highest(np.where(usable, accuracies, -np.inf))
    best = first_highest(np.where(usable, means, -np.inf))
    common = np.isfinite(wga[selected]) & np.isfinite(wga[best]) & (wga[selected] > 0)
    ratios = wga[best, common] / wga[selected, common]
    return Price(
        mean=float(ratios.mean()) if len(ratios) else math.nan,
        deviation=float(ratios.std()) if len(ratios) else math.nan,
        per_seed=tuple(ratios.tolist()),
        ratio_of_means=float(means[best] / means[selected]),
        selected=selected,
        best=best,
    )


def first_highest(means: Array) -> int:
    """Return the position of the highest mean. Ties go to the first, whatever the order of the seeds.

    >>> first_highest([(0.3 + 0.2 + 0.1) / 3, (0.1 + 0.2 + 0.3) / 3])
    0
    """
    return int(np.argmax(highest(means)))


def highest(means: Array) -> npt.NDArray[np.bool_]:
    """Return which means equal the highest within 1e-12, which is more than the rounding of sums."""
    values = as_real(means, "means")
    return np.asarray(values >= values.max() - 1e-12)


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its population deviation."""

    mean: float
    deviation: float
    per_seed: tuple[float, ...]


def mean_model_selection(test_wga: Array) -> Mean:
    """Return the expected test WGA of a candidate that is selected at random.

    - `test_wga`: (candidates, seeds) worst-group accuracies. NaN marks a missing run.

    Returns a `Mean`. `per_seed` holds the mean over the candidates of each seed, and `mean` and `deviation`
    are taken over the seeds. Raises ValueError for another shape, and for an array without any value.

    >>> mean_model_selection([[0.25, 0.5], [0.75, 1.0]]).per_seed
    (0.5, 0.75)
    """
    wga = _candidates(test_wga, "test_wga")
    seeds = [column[np.isfinite(column)].mean() for column in wga.T if np.isfinite(column).any()]
    if not seeds:
        raise ValueError("test_wga holds no value")
    return Mean(float(np.mean(seeds)), float(np.std(seeds)), tuple(float(seed) for seed in seeds))


def _vector(values: Array, name: str) -> npt.NDArray[Any]:
    array = as_numpy(values, name)
    if array.ndim != 1:
        raise ValueError(f"{name} must hold one value per sample, got shape {array.shape}")
    return array


def _correct(predictions: Array, labels: Array) -> npt.NDArray[np.bool_]:
    predicted, wanted = _vector(predictions, "predictions"), _vector(labels, "labels")
    if len(predicted) != len(wanted):
        raise ValueError(
            f"predictions and labels must be equally long, got {len(predicted)} and {len(wanted)}"
        )
    if len(wanted) == 0:
        raise ValueError("an accuracy needs at least one sample, got none")
    return np.asarray(predicted == wanted)


def _candidates(values: Array, name: str) -> npt.NDArray[np.float64]:
    array = as_real(values, name).astype(np.float64)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{name} must be shaped (candidates, seeds), got {array.shape}")
    return array


def _means(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return each candidate's mean over the seeds that it has; NaN without any."""
    present = np.isfinite(values)
    sums = np.where(present, values, 0.0).sum(1)
    return np.where(present.any(1), sums / np.maximum(present.sum(1), 1), np.nan)
