"""two_means: as good as scikit-learn's best of ten starts, the same every time, in any order of samples."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from evenhand.core.kmeans import two_means

FAMILIES = 12
PROBLEMS = 20  # of each family


def problem(family: int, number: int) -> np.ndarray:
    """Histories of many shapes: heavy tails, duplicates, grids, outliers, loss curves with a minority."""
    random = np.random.default_rng([family, number])
    samples = int(random.choice([2, 3, 5, 10, 40, 150, 600]))
    epochs = int(random.choice([1, 2, 5, 20, 100]))
    shape = (samples, epochs)
    if family == 0:
        x = random.normal(size=shape)
    elif family == 1:
        x = random.standard_t(1.5, size=shape)  # heavy tails
    elif family == 2:
        x = random.lognormal(0, 1.5, size=shape)
    elif family == 3:  # loss curves of a majority and a minority that is learned later
        late = random.random(samples) < random.choice([0.02, 0.1, 0.3])
        rate = np.where(late, 0.02, 0.3)[:, None] * random.lognormal(0, 0.5, size=(samples, 1))
        x = 2.3 * np.exp(-rate * np.arange(epochs)) * random.lognormal(0, 0.4, size=shape)
    elif family == 4:
        x = random.integers(0, 4, size=shape).astype(float)  # a grid with many ties
    elif family == 5:
        few = random.normal(size=(int(random.integers(1, 6)), epochs))
        x = few[random.integers(0, len(few), samples)]  # duplicates, at times all identical
    elif family == 6:
        centres = random.normal(size=(int(random.integers(2, 9)), epochs)) * random.choice([1, 3, 10])
        x = centres[random.integers(0, len(centres), samples)] + random.normal(size=shape)
    elif family == 7:
        x = random.normal(size=shape)
        x[0] += random.choice([10, 1e3, 1e6])  # one far outlier
    elif family == 8:
        x = random.normal(size=shape)
        x *= random.pareto(1.5, size=(samples, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
    elif family == 9:
        x = random.normal(size=shape)
        x /= np.linalg.norm(x, axis=1, keepdims=True)  # a sphere: nothing to find
    elif family == 10:
        x = random.exponential(size=shape) ** random.choice([1, 2, 4])
    else:  # mostly zero with rare large losses
        x = random.exponential(size=shape) * (random.random(shape) < random.choice([0.02, 0.1, 0.3]))
    x = x * random.choice([1, 1e-3, 1e3]) + random.choice([0, 5])
    return x.astype(np.float32) if number % 2 else x


def inertia(x: np.ndarray, assignment: np.ndarray) -> float:
    x = x.astype(np.float64)
    parts = [x[assignment == cluster] for cluster in (0, 1)]
    return sum(float(((part - part.mean(0)) ** 2).sum()) for part in parts if len(part))


def best_of_ten(x: np.ndarray) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about duplicates
        found = KMeans(2, n_init=10, random_state=0).fit_predict(x.astype(np.float64))
    return inertia(x, found)


def total(x: np.ndarray) -> float:
    return inertia(x, np.zeros(len(x)))


@pytest.mark.parametrize("family", range(FAMILIES))
def test_no_more_than_a_thousandth_worse_than_the_best_of_ten(family: int) -> None:
    for number in range(PROBLEMS):
        x = problem(family, number)
        ours = inertia(x, two_means(x).assignment.numpy())
        # float32 inputs far from zero carry rounding of their own, hence the floor relative to the total.
        assert ours <= best_of_ten(x) * 1.001 + 1e-9 * total(x), (family, number, x.shape)


def test_two_hundred_classes_in_one_call_equal_each_alone() -> None:
    random = np.random.default_rng(0)
    sizes = random.integers(1, 60, size=200)
    y = random.permutation(np.repeat(np.arange(200), sizes))
    x = random.lognormal(0, 1, size=(len(y), 12)).astype(np.float32)
    together = two_means(x, y)
    for label in range(200):
        rows = y == label
        own = x[rows]
        if len(own) == 1:
            assert together.sizes[label].tolist() == [1, 0]
            continue
        ours = inertia(own, together.assignment.numpy()[rows])
        assert ours <= best_of_ten(own) * 1.001, label
        assert ours == pytest.approx(float(together.inertia[label]), rel=1e-4, abs=1e-6 * total(own))
        alone = two_means(own).assignment.numpy()
        assert (alone == together.assignment.numpy()[rows]).all(), label


@pytest.mark.parametrize("family", range(FAMILIES))
def test_the_same_answer_on_every_repeat_and_in_any_order(family: int) -> None:
    for number in range(8):
        x = problem(family, number)
        first = two_means(x)
        assert torch.equal(first.assignment, two_means(x).assignment)
        shuffled = np.random.default_rng(number).permutation(len(x))
        again = two_means(x[shuffled])
        moved = first.assignment.numpy()[shuffled] != again.assignment.numpy()
        if moved.all():  # the names of two equal clusters may change places
            continue
        # Whoever changed sides lies on the boundary.
        assert np.abs(first.margin.numpy()[shuffled][moved]).max(initial=0) <= 1e-6, (family, number)


def test_a_large_class_is_split_as_well_as_a_small_one() -> None:
    random = np.random.default_rng(1)
    late = random.random(20_000) < 0.03
    rate = np.where(late, 0.03, 0.4)[:, None] * random.lognormal(0, 0.4, size=(20_000, 1))
    x = (2.3 * np.exp(-rate * np.arange(20)) * random.lognormal(0, 0.3, size=(20_000, 20))).astype(np.float32)
    found = two_means(x)
    assert inertia(x, found.assignment.numpy()) <= best_of_ten(x) * 1.001
    assert torch.equal(found.assignment, two_means(x).assignment)


def test_identical_histories_are_not_split() -> None:
    found = two_means(np.full((5, 3), 0.7))
    assert found.sizes.tolist() == [[5, 0]] and not found.assignment.any()


def test_cluster_1_has_the_higher_losses_and_the_positive_margins() -> None:
    found = two_means([[0.1, 0.2], [3.0, 2.0], [0.2, 0.1], [2.9, 2.2], [3.1, 2.1]])
    assert found.assignment.tolist() == [False, True, False, True, True]
    assert ((found.margin > 0) == found.assignment).all()
    assert found.centroids[0, 1].mean() > found.centroids[0, 0].mean()


def test_half_precision_and_integers_are_taken() -> None:
    x = torch.tensor([[0.0, 1.0], [0.0, 1.0], [4.0, 5.0]])
    for kind in (torch.float16, torch.float64, torch.int64):
        assert two_means(x.to(kind)).assignment.tolist() == [False, False, True]
