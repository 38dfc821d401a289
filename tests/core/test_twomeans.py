"""two_means: as good as scikit-learn's best of ten starts, the same every time, in any order of samples."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from evenhand.core.search import Rows
from evenhand.core.twomeans import two_means

FAMILIES = 12
PROBLEMS = 26  # of each family


def problem(family: int, number: int, shape: tuple[int, int] | None = None) -> np.ndarray:
    """Histories of many shapes: heavy tails, duplicates, grids, outliers, loss curves with a minority."""
    random = np.random.default_rng([family, number])
    samples = int(random.choice([2, 3, 5, 10, 40, 150, 600]))
    epochs = int(random.choice([1, 2, 5, 20, 100]))
    samples, epochs = shape = shape or (samples, epochs)
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


def test_a_large_class_with_a_heavy_tail_needs_a_large_sample() -> None:
    """On a sample of 2,048 rows the best cut is not among the good ones."""
    x = problem(2, 5, (100_000, 10))
    assert inertia(x, two_means(x).assignment.numpy()) <= 1.001 * best_of_ten(x)


def test_a_large_class_of_many_equal_losses_is_described_well() -> None:
    """Sums of forty thousand numbers in float32, most of them equal, would be off by a hundredth."""
    random = np.random.default_rng(1)
    x = (random.exponential(size=(40_000, 2)) * (random.random((40_000, 2)) < 0.1) + 5).astype(np.float32)
    found = two_means(x)
    inside = found.assignment.numpy()
    assert float(found.inertia) == pytest.approx(inertia(x, inside), rel=1e-3)
    means = [x[inside == cluster].mean(0, dtype=np.float64) for cluster in (False, True)]
    np.testing.assert_allclose(found.centroids[0], means, rtol=1e-4)


def test_classes_of_more_samples_than_float32_counts() -> None:
    n = 2**24 + 3
    x = torch.zeros(1, n, 1)
    x[0, :5] = 1
    sizes, *_ = Rows(x - x.mean(), None).describe(x[:, :, 0], torch.tensor([n]))
    assert sizes.tolist() == [[n - 5, 5]]


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


def curves(samples: int, epochs: int = 12, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    late = random.random(samples) < 0.05
    rate = np.where(late, 0.05, 0.5)[:, None] * random.lognormal(0, 0.3, size=(samples, 1))
    return (2 * np.exp(-rate * np.arange(epochs)) * random.lognormal(0, 0.3, (samples, epochs))).astype("f4")


@pytest.mark.parametrize("samples", [50, 1500, 6000])
def test_the_order_of_samples_changes_not_one_bit(samples: int) -> None:
    x, y = curves(samples), np.arange(samples) % 2
    order = np.random.default_rng(1).permutation(samples)
    first, again = two_means(x, y), two_means(x[order], y[order])
    assert torch.equal(first.assignment[order], again.assignment)
    assert torch.equal(first.inertia, again.inertia) and torch.equal(first.centroids, again.centroids)


def test_the_number_of_threads_changes_not_one_bit() -> None:
    x, y = curves(8000), np.arange(8000) % 3
    before = torch.get_num_threads()
    try:
        answers = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            answers.append(two_means(x, y))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for other in answers[1:]:
        assert torch.equal(answers[0].assignment, other.assignment)
        assert torch.equal(answers[0].margin, other.margin)


@pytest.mark.parametrize("family", range(FAMILIES))
def test_every_sample_is_on_its_own_clusters_side(family: int) -> None:
    for number in range(6):
        found = two_means(problem(family, number))
        clear = found.margin.abs() > 1e-6
        assert ((found.margin > 0) == found.assignment)[clear].all(), (family, number)


def test_few_samples_are_split_in_the_best_of_all_ways() -> None:
    for number in range(60):
        random = np.random.default_rng(number)
        x = random.standard_t(2, size=(int(random.integers(2, 9)), int(random.integers(1, 5))))
        ways = [np.array(list(f"{way:0{len(x)}b}")) == "1" for way in range(1, 2 ** (len(x) - 1))]
        least = min(inertia(x, way) for way in ways)
        assert inertia(x, two_means(x).assignment.numpy()) <= least * (1 + 1e-9) + 1e-12 * total(x), number


def test_layout_and_storage_do_not_matter(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    x = curves(300)
    np.save(tmp_path / "x.npy", np.asfortranarray(x))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    wanted = two_means(x).assignment
    for other in (mapped, np.asfortranarray(x), torch.from_numpy(x.T.copy()).t(), x[::-1][::-1]):
        assert torch.equal(two_means(other).assignment, wanted)
    assert not list(recwarn)


def test_ten_thousand_classes_of_all_sizes() -> None:
    random = np.random.default_rng(0)
    y = np.concatenate([np.arange(10_000), random.integers(0, 10_000, 20_000), np.full(3000, 17)])
    x = random.exponential(size=(len(y), 4)).astype(np.float32)
    found = two_means(x, y)
    assert (found.sizes.sum(1).numpy() == np.bincount(y)).all()
    assert ((found.sizes[:, 1] > 0).numpy() == (np.bincount(y) > 1)).all()
    assert (found.inertia <= found.total).all()


@pytest.mark.parametrize("scale", [1e-30, 1e30, 1e200])
def test_very_large_and_very_small_losses_are_split_alike(scale: float) -> None:
    x = curves(200).astype(np.float64)
    assert torch.equal(two_means(x * scale).assignment, two_means(x * 2.0**20).assignment)


def test_a_given_assignment_is_described() -> None:
    x = np.array([[0.0], [1.0], [4.0], [6.0]])
    found = two_means(x, assignment=[True, False, False, False])
    assert found.assignment.tolist() == [False, True, True, True]  # cluster 1 has the higher mean
    assert found.centroids[0, :, 0].tolist() == pytest.approx([0.0, 11 / 3])
    assert float(found.inertia[0]) == pytest.approx(inertia(x, np.array([0, 1, 1, 1])))
    assert float(found.total[0]) == pytest.approx(total(x))
    whole = two_means(x, assignment=[True] * 4)
    assert whole.sizes.tolist() == [[4, 0]] and not whole.assignment.any()


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"histories must be shaped \(samples, epochs\), got \(3,\)"):
        two_means([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="one row per sample, got 2 and 3"):
        two_means([[1.0], [2.0]], [0, 1, 1])
    with pytest.raises(ValueError, match="must be real numbers, got complex128"):
        two_means([[1j]])
