"""partition and rebalance: every sample kept, both clusters of a class equal in the end, minorities found."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import MiniBatchKMeans
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

from evenhand import BalancedSampler, LossHistory, Partition, partition, rebalance, sample_weights


def planted(
    seed: int = 0, classes: int = 3, share: float = 0.05
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Loss curves of classes in which some samples are learned late."""
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, size=1200)
    late = random.random(len(y)) < share
    rate = np.where(late, 0.05, 0.6)[:, None]
    losses = 2 * np.exp(-rate * np.arange(12)) * random.lognormal(0, 0.3, size=(len(y), 12))
    return losses, y, late


def test_a_planted_minority_is_found() -> None:
    losses, y, late = planted()
    parts = partition(losses, y)
    assert (parts.minority & late).sum() / late.sum() > 0.95
    assert (parts.minority & late).sum() / parts.minority.sum() > 0.95
    assert (parts.separation > 0.5).all() and not parts.unsplit
    assert ((parts.margin > 0) == parts.minority).all()


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("high", [False, True])
def test_margins_are_positive_in_the_minority_whichever_part_has_the_higher_loss(
    numbers: bool, high: bool
) -> None:
    random = np.random.default_rng(0)
    y, few = np.repeat([0, 1], 50), np.arange(100) % 10 == 0
    losses = np.where(few == high, 2.0, 0.5)[:, None] + 0.1 * random.random((100, 4))
    parts = partition(losses.mean(1) if numbers else losses, y)
    np.testing.assert_array_equal(parts.minority, few)
    np.testing.assert_array_equal(parts.margin > 0, few)
    assert parts.margin[few].mean() == pytest.approx(0.5, abs=0.01)
    assert parts.margin[~few].mean() == pytest.approx(-0.5, abs=0.01)


class OnGPU(torch.Tensor):
    """A tensor that says it lies on a GPU; in float64, which the kernels leave to plain passes."""

    is_cuda = True


def test_many_histories_on_a_gpu_are_split_there(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, y, _ = planted()
    names = np.array(["a", "b", "c"])[y]
    monkeypatch.setattr("evenhand.core.twomeans._HUGE", 1000)
    module = sys.modules["evenhand.core.partition"]
    expected = partition(losses, names)
    monkeypatch.setattr(module, "as_real", None)  # which would copy them
    found = partition(torch.from_numpy(losses).as_subclass(OnGPU), names)
    assert type(found.minority) is np.ndarray and type(found.margin) is np.ndarray
    np.testing.assert_array_equal(found.minority, expected.minority)
    np.testing.assert_array_equal(found.sizes, expected.sizes)
    np.testing.assert_array_equal(found.classes, expected.classes)
    np.testing.assert_allclose(found.margin, expected.margin, atol=1e-4)
    with pytest.raises(ValueError, match="one row per sample, got 1200 and 1199"):
        partition(torch.from_numpy(losses).as_subclass(OnGPU), names[1:])
    losses[3, 4] = np.nan
    with pytest.raises(
        ValueError, match=r"must be finite, got nan for sample 3 in epoch 4; .* lower learning rate"
    ):
        partition(torch.from_numpy(losses).as_subclass(OnGPU), names)


@given(st.integers(0, 10_000), st.integers(2, 60), st.integers(1, 8), st.integers(1, 7))
@settings(max_examples=60)
def test_balanced_sets_keep_every_sample_and_make_clusters_equal(
    seed: int, samples: int, classes: int, epochs: int
) -> None:
    random = np.random.default_rng(seed)
    losses = random.exponential(size=(samples, epochs)).round(int(random.integers(0, 3)))
    y = random.integers(0, classes, size=samples)
    parts = partition(losses, y)
    balanced = rebalance(parts, seed=seed)
    indices = np.asarray(balanced)
    np.testing.assert_array_equal(indices[:samples], np.arange(samples))
    assert balanced.num_original == samples and balanced.copies.sum() == len(indices) - samples
    assert parts.minority[indices[samples:]].all()
    weights = sample_weights(parts)
    for position, label in enumerate(parts.classes):
        own = y == label
        assert parts.sizes[position].sum() == own.sum()
        assert parts.sizes[position, 0] >= parts.sizes[position, 1]
        if label in parts.unsplit:
            assert not parts.minority[own].any() and (weights[own] == 1).all()
            continue
        drawn = np.bincount(indices, minlength=samples)
        assert drawn[own & parts.minority].sum() == drawn[own & ~parts.minority].sum()
        assert weights[own & parts.minority].sum() == pytest.approx(weights[own & ~parts.minority].sum())


def test_the_names_and_the_order_of_classes_do_not_matter() -> None:
    losses, y, _ = planted()
    plain = partition(losses, y)
    renamed = partition(losses, np.array(["c", "a", "b"])[y])
    np.testing.assert_array_equal(plain.minority, renamed.minority)
    order = np.random.default_rng(0).permutation(len(y))
    np.testing.assert_array_equal(partition(losses[order], y[order]).minority, plain.minority[order])


def test_classes_that_cannot_be_split_are_named() -> None:
    losses = np.array([[1.0], [2.0], [2.0], [2.0], [0.1], [5.0]])
    parts = partition(losses, [0, 1, 1, 1, 2, 2])
    assert parts.unsplit == {0: "one sample", 1: "identical histories"}
    assert parts.minority.tolist() == [False, False, False, False, False, True]  # of equals, the higher loss
    whole = partition(losses, [0] * 6, cluster=lambda histories: np.zeros(len(histories), dtype=int))
    assert whole.unsplit == {0: "a single cluster"}


def test_other_clusterings_can_be_used() -> None:
    losses, y, _ = planted()
    ours = partition(losses, y)
    estimator = MiniBatchKMeans(2, random_state=0, n_init=3, reassignment_ratio=1e-5)
    for cluster in (estimator, estimator.fit_predict, lambda h: h.mean(1) > 1):
        assert (partition(losses, y, cluster=cluster).minority == ours.minority).mean() > 0.95
    with pytest.raises(ValueError, match="cluster must give 0 or 1 for each of the"):
        partition(losses, y, cluster=lambda histories: np.full(len(histories), 7))
    with pytest.raises(ValueError, match="cluster must be a function"):
        partition(losses, y, cluster="kmeans")


@pytest.mark.parametrize(
    "losses, labels, message",
    [
        ([[[1.0]], [[2.0]]], [0, 1], r"losses must be shaped \(samples, epochs\), got \(2, 1, 1\)"),
        (np.zeros((2, 0)), [0, 1], "at least one sample and one epoch"),
        ([[1.0], [np.nan]], [0, 1], "losses must be finite, got nan for sample 1 in epoch 0"),
        ([[1.0], [2.0]], [0], "one row per sample, got 2 and 1"),
        ([[1.0], [2.0]], [0.0, 1.0], "labels must be whole numbers or strings, got float64"),
        ([[1.0], [2.0]], [[0], [1]], r"labels must hold one class per sample, got shape \(2, 1\)"),
    ],
)
def test_wrong_input_is_refused(losses, labels, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        partition(losses, labels)


def test_a_read_only_history_makes_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    losses, y, _ = planted()
    losses.flags.writeable = False
    partition(losses, y)
    assert not list(recwarn)


def test_draws_depend_on_the_seed_and_on_nothing_else() -> None:
    losses, y, _ = planted()
    parts = partition(losses, y)
    assert (np.asarray(rebalance(parts, seed=1)) == np.asarray(rebalance(parts, seed=1))).all()
    assert (np.asarray(rebalance(parts, seed=1)) != np.asarray(rebalance(parts, seed=2))).any()
    own = partition(losses[y == 0], y[y == 0])  # class 0 alone draws the same samples
    rows = np.flatnonzero(y == 0)
    alone = rebalance(own, seed=1)
    alone_copies = rows[np.asarray(alone)[alone.num_original :]]
    copies = np.asarray(rebalance(parts, seed=1))[len(y) :]
    np.testing.assert_array_equal(copies[y[copies] == 0], alone_copies)


def test_a_balanced_set_behaves_as_an_int_array() -> None:
    losses, y, _ = planted()
    balanced = rebalance(partition(losses, y))
    data = TensorDataset(torch.from_numpy(losses), torch.from_numpy(y))
    assert len(Subset(data, balanced)) == len(balanced) == len(list(balanced))
    assert (y[balanced] == y[balanced.indices]).all()
    assert torch.equal(
        torch.from_numpy(y)[torch.as_tensor(np.asarray(balanced))], torch.from_numpy(y[balanced])
    )
    assert isinstance(balanced[0], int)


def test_a_partition_is_saved_and_loaded(tmp_path: Path) -> None:
    parts = partition([[1.0], [9.0], [1.1], [2.0]], np.array(["a", "a", "a", "b"]))
    parts.save(tmp_path / "partition.npz")
    again = Partition.load(tmp_path / "partition.npz")
    for name in ("minority", "labels", "classes", "sizes", "separation", "margin"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(again, name))
    assert again.unsplit == {"b": "one sample"} and again.strength == 1
    dataclasses.replace(parts, strength=0.5).save(tmp_path / "partition.npz")
    assert Partition.load(tmp_path / "partition.npz").strength == 0.5


def held_out() -> Partition:
    """The second and the last sample were not clustered."""
    found = partition([[1.0], [9.0], [1.1], [2.0]], np.array(["a", "a", "a", "b"]))
    return dataclasses.replace(
        found,
        labels=np.array(["a", "b", "a", "a", "b", "a"]),
        minority=np.array([False, False, True, False, False, False]),
        margin=np.array([*found.margin[:1], 0, *found.margin[1:], 0], np.float32),
        clustered=np.array([True, False, True, True, True, False]),
    )


def test_samples_that_were_held_out_are_never_repeated() -> None:
    parts = held_out()
    assert "a: 2 + 1" in repr(parts) and repr(parts).endswith("; 2 held out)")
    balanced = rebalance(parts)
    assert balanced.indices.tolist() == [0, 2, 3, 4, 2] and balanced.num_original == 4
    assert balanced.copies.tolist() == [False] * 4 + [True]
    assert sample_weights(parts).tolist() == [1, 0, 2, 1, 1, 0]
    assert sorted(BalancedSampler(parts)) == [0, 2, 2, 3, 4]
    assert set(BalancedSampler(parts, num_samples=500)) == {0, 2, 3, 4}
    whole = partition([[1.0], [9.0]], [0, 0])
    assert whole.clustered.tolist() == [True, True] and "held out" not in repr(whole)


def test_a_saved_partition_knows_what_was_held_out(tmp_path: Path) -> None:
    path, parts = tmp_path / "partition.npz", held_out()
    parts.save(path)
    np.testing.assert_array_equal(Partition.load(path).clustered, parts.clustered)
    assert rebalance(Partition.load(path)).indices.tolist() == rebalance(parts).indices.tolist()
    fields = dict(np.load(path))
    wrong = [parts.clustered[:-1], parts.clustered.astype(np.int64), np.ones(6, bool), ~parts.clustered]
    swapped = parts.clustered.copy()
    swapped[[1, 2]] = swapped[[2, 1]]  # the minority's only sample
    for clustered in (*wrong, swapped):
        np.savez(path, **{**fields, "clustered": clustered})
        with pytest.raises(ValueError, match="should be a saved partition, but it cannot be read"):
            Partition.load(path)
    partition([[1.0], [9.0]], [0, 0]).save(path)
    assert "clustered" not in np.load(path), "files of whole partitions are as they were"


def test_a_saved_partition_without_a_strength_is_of_full_strength(tmp_path: Path) -> None:
    path = tmp_path / "partition.npz"
    partition([[1.0], [9.0], [1.1]], [0, 0, 0]).save(path)
    fields = dict(np.load(path))
    np.savez(path, **{name: array for name, array in fields.items() if name != "strength"})
    assert Partition.load(path).strength == 1
    np.savez(path, **{**fields, "strength": np.array(2.0)})
    with pytest.raises(ValueError, match="strength must be 0 to 1, got 2.0"):
        Partition.load(path)


def test_the_ten_lines_in_torch() -> None:
    random = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (600,), generator=random)
    breaks = torch.rand(600, generator=random) < 0.05
    x = torch.randn(600, 8, generator=random)
    x[:, 0] += 6 * torch.where(breaks, 1 - y, y)
    train_set = TensorDataset(x, y, torch.arange(600))
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    history = LossHistory(len(train_set))
    for _ in range(6):
        for xs, ys, index in DataLoader(train_set, batch_size=32, shuffle=True):
            losses = F.cross_entropy(model(xs), ys, reduction="none")
            history.record(index, losses)
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        history.end_epoch()
    parts = partition(history.losses, y)
    balanced = Subset(train_set, rebalance(parts, seed=0))

    assert parts.minority[breaks.numpy()].mean() > 0.9 and breaks.numpy()[parts.minority].mean() > 0.9
    assert len(balanced) > 1000


def test_the_ten_lines_in_numpy() -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 2, size=600)
    breaks = random.random(600) < 0.05
    x = random.normal(size=(600, 8))
    x[:, 0] += 6.0 * np.where(breaks, 1 - y, y) - 3
    weights = np.zeros(8)

    history = LossHistory(len(y))
    for _ in range(6):
        for index in np.array_split(random.permutation(600), 20):
            probability = 1 / (1 + np.exp(-x[index] @ weights))
            losses = -np.log(np.where(y[index] == 1, probability, 1 - probability) + 1e-9)
            history.record(index, losses)
            weights -= 0.1 * x[index].T @ (probability - y[index]) / len(index)
        history.end_epoch()
    parts = partition(history.losses, y)
    balanced = rebalance(parts, seed=0)

    assert parts.minority[breaks].mean() > 0.8 and breaks[parts.minority].mean() > 0.8
    assert x[balanced].shape[0] == len(balanced) > 1000
