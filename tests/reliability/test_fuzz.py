"""Odd files and odd arrays: what comes out is a result that makes sense, or an error that says what is wrong.

The long version over files is `python tests/reliability/fuzz/fuzz.py --cases 3000`, and over arrays
`FUZZ_EXAMPLES=2000 python -m pytest tests/reliability/test_fuzz.py`; docs/reliability.md has their totals.
"""

import dataclasses
import math
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parent / "fuzz"))

import fuzz
import odd
from targets import TARGETS, Target

import evenhand
from evenhand import BalancedSampler, LossHistory, LossSummary, Partition, Split, Task, partition
from evenhand.core import metrics
from evenhand.core.partition import rebalance, sample_weights
from evenhand.core.twomeans import two_means

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))
CASES = int(os.environ.get("FUZZ_CASES", "60"))
many = settings(
    max_examples=EXAMPLES,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_mutated_file_is_read_or_refused_by_its_name(target: Target) -> None:
    results = fuzz.fuzz(target, CASES)
    assert not [text for text in results if text.startswith("DEFECT")]
    assert results.total() == CASES and results["read"] >= 1  # the first case is the sound file itself


def test_the_fuzzer_notices_what_it_looks_for(tmp_path: Path) -> None:
    def fails(with_error: Exception) -> Callable[[Path], object]:
        def read(folder: Path) -> object:
            if (folder / "x").read_bytes() != b"sound":
                raise with_error
            return None

        return read

    for error in (
        KeyError("a"),
        ValueError("no name"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "x"),
        OSError(22, "?"),
    ):
        target = Target(
            "made", "x", lambda folder: (folder / "x").write_bytes(b"sound") and None, fails(error)
        )
        results = fuzz.fuzz(target, 20)
        assert results["refused"] == 0 and sum(text.startswith("DEFECT") for text in results) == 1, error


def attempt(call: Callable[[], Any]) -> Any:
    """The result, or None where the arguments were refused in words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call()
        except (ValueError, TypeError) as error:
            assert str(error) and not isinstance(error, UnicodeError), repr(error)
            return None


@many
@given(st.integers(-1, 8), st.data())
def test_histories_take_any_array(num_samples: int, data: st.DataObject) -> None:
    history = attempt(
        lambda: LossHistory(
            num_samples, dtype=data.draw(st.sampled_from([torch.float32, torch.float16, torch.bool]))
        )
    )
    summary = attempt(lambda: LossSummary(num_samples, of=data.draw(st.sampled_from(["loss", "error"]))))
    assert (history is None) == (num_samples < 1) == (summary is None)
    if history is None:
        return
    for _ in range(data.draw(st.integers(1, 3))):
        size = data.draw(st.integers(0, 8))
        index, losses = (
            data.draw(odd.arrays((size,), ("int64", "int32", "uint8"))),
            data.draw(odd.arrays((size,))),
        )
        attempt(lambda: history.record(index, losses))  # noqa: B023
        attempt(lambda: summary.record(index, losses))  # noqa: B023
        attempt(history.end_epoch)
    found, values = history.losses, attempt(lambda: summary.values)
    assert found.shape == (num_samples, history.num_epochs) and bool(torch.isfinite(found.float()).all())
    assert values is None or (values.shape == (num_samples,) and np.isfinite(values).all())


def check_partition(parts: Partition, num_samples: int) -> None:
    assert len(parts.labels) == len(parts.minority) == len(parts.margin) == num_samples
    assert len(parts.clustered) == num_samples and parts.clustered.sum() == parts.sizes.sum()
    assert (parts.sizes[:, 0] >= parts.sizes[:, 1]).all() and np.isfinite(parts.margin).all()
    assert ((parts.separation >= 0) & (parts.separation <= 1)).all()
    for position, label in enumerate(parts.classes.tolist()):
        own = parts.labels == label
        assert parts.minority[own].sum() == parts.sizes[position, 1]
        assert (label in parts.unsplit) == (parts.sizes[position, 1] == 0)
    balanced, weights = rebalance(parts), sample_weights(parts)
    assert np.array_equal(balanced.indices[: balanced.num_original], np.flatnonzero(parts.clustered))
    assert math.isclose(weights.sum(), len(balanced))
    order = list(BalancedSampler(parts, num_replicas=2, rank=1))
    assert len(order) == -(-len(balanced) // 2) and parts.clustered[order].all()


@many
@given(st.integers(0, 9), st.integers(0, 4), st.data())
def test_partitions_of_any_arrays_make_sense(num_samples: int, epochs: int, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(num_samples, epochs), (num_samples,)]))
    losses = data.draw(odd.arrays(shape))
    labels = data.draw(odd.arrays((num_samples,), ("int64", "uint8", "<U3", "bool")))
    parts = attempt(lambda: partition(losses, labels))
    if parts is not None:
        check_partition(parts, len(losses))
    clusters = attempt(lambda: two_means(losses, labels))
    if clusters is not None and np.abs(np.asarray(losses, np.float64)).max() < 1e100:
        assert clusters.sizes.sum() == len(losses) and bool((clusters.inertia >= -1e-9).all())


@many
@given(st.integers(0, 8), st.data())
def test_metrics_of_any_arrays_are_shares(num_samples: int, data: st.DataObject) -> None:
    predictions, labels, groups = (data.draw(odd.arrays((num_samples,))) for _ in range(3))
    for accuracy in (
        attempt(lambda: metrics.worst_group_accuracy(predictions, labels, groups)),
        attempt(lambda: metrics.balanced_accuracy(predictions, labels, groups)),
        attempt(lambda: metrics.worst_class_accuracy(predictions, labels)),
        attempt(lambda: metrics.mean_accuracy(predictions, labels)),
        attempt(lambda: metrics.mean_accuracy(predictions, labels, weight=groups)),
    ):
        assert accuracy is None or 0 <= accuracy <= 1
    found = attempt(lambda: metrics.identification(predictions, labels, groups))
    assert found is None or all(score is None or 0 <= score <= 1 for score in dataclasses.astuple(found))


@many
@given(st.integers(0, 4), st.integers(0, 4), st.data())
def test_prices_of_any_arrays_are_finite(candidates: int, seeds: int, data: st.DataObject) -> None:
    accuracy, wga = (data.draw(odd.arrays((candidates, seeds))) for _ in range(2))
    price = attempt(lambda: metrics.price_of_unawareness(accuracy, wga))
    assert price is None or (price.ratio_of_means > 0 and 0 <= price.selected < candidates + 8)
    mean = attempt(lambda: metrics.mean_model_selection(wga))
    assert mean is None or math.isfinite(mean.mean)
    low_high = attempt(lambda: metrics.wilson_interval(candidates - 1, seeds))
    assert low_high is None or 0 <= low_high[0] <= low_high[1] <= 1


@many
@given(st.integers(0, 6), st.data())
def test_splits_and_tasks_of_any_arrays(num_samples: int, data: st.DataObject) -> None:
    x = data.draw(odd.arrays((num_samples, 3)))
    y = data.draw(odd.arrays((num_samples,), ("int64", "uint8", "bool")))
    group = data.draw(st.none() | odd.arrays((num_samples,), ("int64", "uint8")))
    split = attempt(lambda: Split(x, y, group=group))
    if split is None:
        return
    assert split.y.dtype == torch.int64 and len(split) == len(split.rows) == len(x)
    taken = data.draw(odd.arrays((3,), ("int64", "uint8")))
    chosen = attempt(lambda: split.take(taken))
    assert chosen is None or len(chosen) == len(np.asarray(taken))
    task = attempt(lambda: Task("odd", split, split, split, class_names=("a", "b", "c", "d")))
    assert task is None or len(task.checksum) == 16


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.float())


@settings(many, max_examples=max(EXAMPLES // 10, 6))
@given(st.integers(0, 8), st.data())
def test_fit_takes_any_arrays(num_samples: int, data: st.DataObject) -> None:
    x = data.draw(odd.arrays((num_samples, 3), ("float32", "float64", "uint8", "float16")))
    y = data.draw(odd.arrays((num_samples,), ("int64", "uint8")))
    split = attempt(lambda: Split(x, y))
    if split is None:
        return
    recipe = evenhand.Recipe(epochs=1, batch_size=4)
    result = attempt(lambda: evenhand.fit(Linear, split, recipe=recipe, device="cpu"))
    if result is not None:
        check_partition(result.partition, num_samples)
        assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())
