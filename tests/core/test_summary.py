"""LossSummary, and the exact split of one number per sample."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.core import search
from evenhand.core.history import LossHistory, LossSummary, Of, summarise
from evenhand.core.partition import partition
from evenhand.core.search import cut_in_two


def inertia_by_trying_all(values: np.ndarray) -> float:
    """The best of every cut between distinct neighbours, by definition."""
    ordered = np.sort(values.astype(np.float64))
    costs = [
        ((ordered[:k] - ordered[:k].mean()) ** 2).sum() + ((ordered[k:] - ordered[k:].mean()) ** 2).sum()
        for k in range(1, len(ordered))
    ]
    return min(costs)


@settings(max_examples=200)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=40))
def test_the_cut_is_the_best_of_all(numbers: list[float]) -> None:
    values = np.array(numbers, dtype=np.float32)
    cut = cut_in_two(values.copy())
    if len(set(values.tolist())) == 1:
        assert cut.sizes == (len(values), 0)
        return
    assert cut.inertia <= inertia_by_trying_all(values) * (1 + 1e-6) + 1e-6
    inside = values > np.float32(cut.threshold)
    assert (int((~inside).sum()), int(inside.sum())) == cut.sizes
    np.testing.assert_allclose(
        cut.means,
        [values[~inside].mean(dtype=np.float64), values[inside].mean(dtype=np.float64)],
        rtol=1e-6,
        atol=1e-5,
    )


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).gamma(0.5, size=1000).astype(np.float32)
    whole = cut_in_two(values.copy())
    monkeypatch.setattr(search, "_CHUNK", 7)
    parts = cut_in_two(values.copy())
    assert parts.sizes == whole.sizes and parts.threshold == whole.threshold
    np.testing.assert_allclose(parts.inertia, whole.inertia, rtol=1e-9)


def test_a_large_offset_costs_no_digits() -> None:
    values = 1e6 + np.array([0.0, 0.1, 0.2, 5.0, 5.1])
    cut = cut_in_two(values)
    assert cut.sizes == (3, 2)
    np.testing.assert_allclose(cut.inertia, 0.02 + 0.005, rtol=1e-6)


def test_numbers_are_partitioned_as_histories_of_one_epoch_are() -> None:
    random = np.random.default_rng(1)
    labels = random.integers(4, size=3000)
    values = (random.exponential(size=3000) + 3 * (random.random(3000) < 0.1)).astype(np.float32)
    ours, theirs = partition(values, labels), partition(values[:, None], labels)
    np.testing.assert_array_equal(ours.minority, theirs.minority)
    np.testing.assert_array_equal(ours.sizes, theirs.sizes)
    np.testing.assert_allclose(ours.separation, theirs.separation, rtol=1e-4)
    np.testing.assert_allclose(ours.margin, theirs.margin, atol=1e-4)


def test_classes_that_cannot_be_split_are_named() -> None:
    parts = partition(np.array([1.0, 2.0, 2.0, 3.0, 1.0, 9.0]), ["a", "b", "b", "c", "d", "d"])
    assert parts.unsplit == {"a": "one sample", "b": "identical histories", "c": "one sample"}
    assert parts.minority.tolist() == [False] * 5 + [True]
    with pytest.raises(ValueError, match="cluster is for histories"):
        partition(np.arange(3.0), [0, 0, 0], cluster=lambda x: x > 1)
    with pytest.raises(ValueError, match="one number each per sample, got 3 float64 and 2 labels"):
        partition(np.arange(3.0), [0, 0])
    with pytest.raises(ValueError, match="must be finite"):
        partition(np.array([1.0, np.nan, 2.0]), [0, 0, 0])


@pytest.mark.parametrize("of", ["loss", "error"])
def test_a_summary_is_the_mean_of_the_history(of: Of) -> None:
    random = np.random.default_rng(2)
    history, summary = LossHistory(50), LossSummary(50, of=of)
    for _ in range(6):
        for rows in np.array_split(random.permutation(50), 4):
            losses = torch.from_numpy(random.exponential(size=len(rows))).float()
            history.record(rows, losses)
            summary.record(rows, losses)
        history.end_epoch()
    wanted = history.losses.numpy() if of == "loss" else 1 - np.exp(-history.losses.numpy())
    np.testing.assert_allclose(summary.values, wanted.mean(1), rtol=1e-5)
    np.testing.assert_allclose(summarise(history.losses.numpy(), of), wanted.mean(1), rtol=1e-5)


def test_parts_merge_to_the_whole_and_a_state_continues() -> None:
    losses = np.random.default_rng(3).random((2, 20)).astype(np.float32)
    whole, first, second = (LossSummary(20) for _ in range(3))
    for epoch in losses:
        whole.record(np.arange(20), epoch)
        first.record(np.arange(10), epoch[:10])
        second.record(np.arange(10, 20), epoch[10:])
    first.merge(second)
    np.testing.assert_array_equal(first.values, whole.values)
    again = LossSummary(20)
    again.load_state_dict(whole.state_dict())
    np.testing.assert_array_equal(again.values, whole.values)


def test_what_it_refuses() -> None:
    summary = LossSummary(3)
    with pytest.raises(ValueError, match="nothing has been recorded"):
        _ = summary.values
    with pytest.raises(ValueError, match="reduction='none'"):
        summary.record([0], torch.tensor(0.5))
    with pytest.raises(ValueError, match="index must lie in 0 … 2, got 0 … 3"):
        summary.record([0, 3], [0.1, 0.2])
    with pytest.raises(ValueError, match="of must be 'loss' or 'error', got 'mean'"):
        LossSummary(3, of="mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot take in"):
        summary.merge(LossSummary(4))
    summary.record([0, 1], [0.1, np.inf])
    assert summary.values[2] == summary.values[:2].mean()  # never seen; an infinite loss is an error of 1


PEAK = """
import importlib, resource
import numpy as np
module = importlib.import_module("evenhand.core.partition")
arrays = importlib.import_module("evenhand.core.arrays")
search = importlib.import_module("evenhand.core.search")
module._CHUNK = arrays._CHUNK = search._CHUNK = 1 << 16
module._parts.__defaults__ = (1 << 16,)
def used():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
samples = 8_000_000
values, labels = np.random.default_rng(0).random(samples, np.float32), np.arange(samples, dtype=np.int8) % 10
module.partition(values[:100_000], labels[:100_000])
before = used()
parts = module.partition(values, labels)
print(used() - before)
"""


def test_memory_is_what_the_answer_takes_and_one_byte_more_a_sample() -> None:
    """46 MiB: margins (4 bytes), minority (1) and classes (1) of 8,000,000 samples; a copy were 31 more."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64, f"{done.stdout.strip()} MiB"
