"""GEORGE's coordinates and clusters, on numbers worked out by hand and on planted clusters."""

import numpy as np
import pytest
import torch
from by_hand import close
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_samples

from evenhand.methods import george
from evenhand.methods.george import clusters, margins, overclusters, silhouette


def test_george_1_the_margin_over_the_other_logits() -> None:
    logits = torch.tensor([[1.0, 4.0, 2.0], [1.0, 4.0, 2.0]])
    close(margins(logits, torch.tensor([1, 0])), [[2], [-3]])


def test_george_1_of_two_classes_it_lies_along_the_difference_of_their_weights() -> None:
    features, weight = torch.randn(5, 3), torch.randn(2, 3)
    found = margins(features @ weight.T, torch.tensor([1, 1, 1, 0, 0]))[:, 0]
    along = features @ (weight[1] - weight[0])
    close(found, torch.cat([along[:3], -along[3:]]))


def planted(*sizes: int, seed: int = 0) -> np.ndarray:
    """Samples around 0, 10, 20, …, so many of each."""
    random = np.random.default_rng(seed)
    return np.concatenate([random.normal(10.0 * n, 0.5, (size, 1)) for n, size in enumerate(sizes)])


def same(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two clusterings are equal but for the numbers of the clusters."""
    pairs = {(a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)}
    return len(pairs) == len(set(first.tolist())) == len(set(second.tolist()))


@pytest.mark.parametrize("kind", ["gmm", "kmeans"])
@pytest.mark.parametrize("sizes", [(40, 10), (30, 30, 5), (20, 20, 20, 20)])
def test_george_2_as_many_clusters_as_the_silhouette_says(kind: str, sizes: tuple[int, ...]) -> None:
    val = planted(*[5] * len(sizes), seed=1)
    found = clusters([planted(*sizes), val], kind, seed=0)
    assert same(found[0], np.repeat(np.arange(len(sizes)), sizes))
    assert same(found[1], np.repeat(np.arange(len(sizes)), 5))
    both = [*found[0].tolist(), *found[1].tolist()]
    assert len(set(both)) == len(sizes), "validation has the clusters of training"


def test_george_2_small_clusters_count_as_much_as_large_ones() -> None:
    """The mean silhouette over samples is highest with two clusters, that over clusters with four."""
    random = np.random.default_rng(0)
    around = ((0.0, 1.0, 100), (5.0, 0.05, 4), (8.0, 0.05, 4))
    x = np.concatenate([random.normal(middle, wide, (size, 1)) for middle, wide, size in around])
    by_sample, by_cluster = {}, {}
    for size in range(2, 11):
        part = KMeans(size, n_init=3, random_state=0).fit_predict(x)
        values = silhouette_samples(x, part)
        by_sample[size] = values.mean()
        by_cluster[size] = np.mean([values[part == each].mean() for each in range(size)])
    assert max(by_sample, key=by_sample.get) == 2, "the test could not fail"
    found = clusters([x, x], "kmeans", seed=0)[0]
    assert len(np.unique(found)) == max(by_cluster, key=by_cluster.get) == 4


def test_george_2_silhouettes_are_those_of_hand_made_clusters() -> None:
    x, part = np.array([[0.0], [1.0], [5.0]]), np.array([0, 0, 1])
    close(silhouette(x, part, 0), [1 - 1 / 5, 1 - 1 / 4, 0.0])
    close(silhouette(x, np.zeros(3, dtype=int), 0), [-1.0] * 3)


def test_george_2_a_class_of_equal_samples_stays_whole() -> None:
    found = clusters([np.ones((5, 1)), np.ones((2, 1))], "gmm", seed=0)
    assert found[0].tolist() == [0] * 5 and found[1].tolist() == [0] * 2


def hard_inside(loss: float, val: int = 30, size: int = 60) -> list[np.ndarray]:
    """Two clusters, of which the second has a far part with this loss; the other losses are 1."""
    easy = [100 + planted(*[number] * 4) / 3 for number in (50, 8)]
    x = np.concatenate([planted(200), easy[0], 130 + planted(size, seed=2)])
    val_x = np.concatenate([planted(30), easy[1], 130 + planted(val, seed=3)])
    parts = [np.array([0] * 200 + [1] * (200 + size)), np.array([0] * 30 + [1] * (32 + val))]
    losses = np.ones(len(x))
    losses[400:] = loss
    return overclusters([x, val_x], parts, losses, "kmeans", seed=0)


def test_george_3_a_harder_part_that_stands_apart_becomes_a_cluster() -> None:
    found = hard_inside(2.0)
    assert len(set(found[0][400:].tolist())) == 1 and found[0][400] not in found[0][:400]
    assert set(found[1][62:].tolist()) == {found[0][400]} and found[0][400] not in found[1][:62]


@pytest.mark.parametrize(("loss", "val", "size"), [(0.5, 30, 60), (2.0, 20, 60), (2.0, 30, 20)])
def test_george_3_unless_it_is_easier_or_too_small(loss: float, val: int, size: int) -> None:
    found = hard_inside(loss, val, size)
    assert len(set(found[0][400:].tolist()) & set(found[0][200:400].tolist())) == 1


def test_george_3_silhouettes_are_taken_among_all_pieces_of_the_class() -> None:
    """A cluster of five tight parts beside a wide one: a piece is compared with the nearest piece of either."""
    random = np.random.default_rng(0)
    tight = [random.normal(middle, 0.1, (60, 1)) for middle in (0.0, 1.0, 2.0, 3.0, 4.0)]
    x, part = np.concatenate([*tight, random.normal(6.0, 1.0, (300, 1))]), np.repeat([0, 1], 300)
    found = overclusters([x, x], [part, part], np.ones(600), "kmeans", seed=0)[0]
    pieces = np.concatenate(
        [5 * n + KMeans(5, n_init=3, random_state=0).fit_predict(x[part == n]) for n in (0, 1)]
    )
    before, after = silhouette_samples(x, part), silhouette_samples(x, pieces)
    wanted = [n for n in range(10) if after[pieces == n].mean() > before[pieces == n].mean()]
    wanted = [n for n in wanted if (pieces == n).sum() >= 25]
    apart = {n for n in range(10) if (found[pieces == n] > 1).all()}
    assert apart == set(wanted) and 0 < len(apart) < 10, "some, not all"


def test_george_4_clusters_are_environments_of_training_and_validation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = torch.tensor([[0.0, 9.0]] * 6 + [[9.0, 0.0]] * 3 + [[9.0, 0.0]] * 5)
    logits = logits + torch.linspace(0, 0.1, 14)[:, None] * torch.tensor([1.0, -1.0])
    y = torch.tensor([1] * 9 + [0] * 5)  # of class 1, three samples are taken for class 0
    split = type("Split", (), {"y": y, "__len__": lambda self: 14})()
    asked: dict = {}

    class Made:
        train = val = split
        seed = 0

        def fit(self, stage: str, **given: object) -> object:
            return type("Fit", (), {"model": None})

        def predict(self, model: object, split: object) -> torch.Tensor:
            return logits

    def robust(run, environments, then, val_environments, *, adjustment) -> dict:
        asked.update(train=environments, val=val_environments, then=then, adjustment=adjustment)
        return {}

    monkeypatch.setattr(george, "robust", robust)
    george.train(Made(), cluster="kmeans")
    assert same(asked["train"][:9], np.array([0] * 6 + [1] * 3)) and asked["adjustment"] == 2.0
    assert asked["val"].tolist() == asked["train"].tolist()
