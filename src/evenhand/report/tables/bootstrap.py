"""Intervals over test samples: how a WGA would vary if other samples of each group had been drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evenhand import tasks
from evenhand.bench.grid import task_file
from evenhand.tasks.samples import TEST
from evenhand.training.record import Record

REPLICATES = 2000
AT_ONCE = 1 << 22  # drawn samples that are held in memory

Resampled = dict[Path, npt.NDArray[np.float64]]  # a run's folder -> its WGA in every replicate


@dataclass(frozen=True, eq=False)
class Truth:
    """What is known of the test samples: groups are the labels where there are none."""

    labels: npt.NDArray[np.int64]  # (samples,)
    groups: npt.NDArray[np.int64]  # (samples,)


def resampled_wga(
    correct: npt.NDArray[np.bool_], groups: npt.NDArray[np.int64], replicates: int = REPLICATES
) -> npt.NDArray[np.float64]:
    """Each run's WGA when the samples of every group are drawn anew with replacement, (runs, replicates).

    `correct` is (runs, samples). All runs get the same draws, so differences between them are paired; the
    draws depend on nothing but the sizes of the groups, so other runs beside two change nothing.

    >>> resampled_wga(np.array([[True, True, False]]), np.array([0, 0, 1]), replicates=2)
    array([[0., 0.]])
    """
    rng = np.random.default_rng(0)
    worst = np.full((len(correct), replicates), np.inf)
    for group in np.unique(groups):
        hits = correct[:, groups == group].astype(np.float32)  # sums of a group's hits are exact in float32
        size = hits.shape[1]
        step = max(1, AT_ONCE // size)
        for start in range(0, replicates, step):
            count = min(step, replicates - start)
            drawn = rng.integers(size, size=(count, size)) + size * np.arange(count)[:, None]
            times = np.bincount(drawn.ravel(), minlength=count * size).reshape(count, size)
            part = worst[:, start : start + count]
            np.minimum(part, (hits @ times.T.astype(np.float32)).astype(np.float64) / size, out=part)
    return worst


def interval_of_difference(
    ours: Sequence[npt.NDArray[np.float64]], theirs: Sequence[npt.NDArray[np.float64]]
) -> tuple[float, float]:
    """The middle 95% of the replicates' mean differences over seeds; both are (seeds, replicates)."""
    low, high = np.percentile(np.mean(np.subtract(ours, theirs), axis=0), [2.5, 97.5])
    return float(low), float(high)


def resample(records: Sequence[Record], spec: str, root: Path | None) -> tuple[Resampled, list[str]]:
    """The replicates of all runs of a task for which that is possible, and why it is not for the others.

    Records keep predictions, but neither labels nor groups: these are read from the data below `root`. They
    are believed only where they give a run's own accuracies again, group by group.
    """
    predicted = [record for record in records if (record.path / "predictions.npz").exists()]
    why = Counter({"keep no predictions": len(records) - len(predicted)})
    truth = read_truth(spec, root) if predicted else None
    if truth is None:
        lacking = "have test samples whose labels are not here, see: evenhand data list, and --data"
        return {}, _said(why + Counter({lacking: len(predicted)}), len(records))
    usable = {record.path: hits for record in predicted if (hits := _correct(record, truth)) is not None}
    why["were tested on other samples than the data here"] = len(predicted) - len(usable)
    if not usable:
        return {}, _said(why, len(records))
    worst = resampled_wga(np.stack(list(usable.values())), truth.groups)
    return dict(zip(usable, worst, strict=True)), _said(why, len(records))


def _said(why: Counter[str], total: int) -> list[str]:
    reasons = [(reason, count) for reason, count in why.items() if count]
    return [f"No interval over test samples of runs that {r}: {count} of {total}." for r, count in reasons]


def read_truth(spec: str, root: Path | None) -> Truth | None:
    """Labels and groups of a task's test samples; None where they are not here or nobody knows the task."""
    if task_file(spec) is None:
        return None
    try:
        listing = tasks.listing(spec, root)  # so that no photograph has to be opened
        if listing is not None:
            rows, groups = listing.rows(TEST), listing.y if listing.group is None else listing.group
            return Truth(listing.y[rows], groups[rows])
        test = tasks.load(spec, root).test
    except (ValueError, OSError, ImportError):
        return None
    return Truth(test.y.numpy(), (test.y if test.group is None else test.group).numpy())


def _correct(record: Record, truth: Truth) -> npt.NDArray[np.bool_] | None:
    """Which test samples a run has right, (samples,); None where that is not what it was scored with."""
    predictions = record.predictions.get("test")
    if predictions is None or predictions.shape != truth.labels.shape:
        return None
    correct = np.asarray(predictions == truth.labels)
    _, position, sizes = np.unique(truth.groups, return_inverse=True, return_counts=True)
    parts = record.metrics["test"]["groups"] or record.metrics["test"]["classes"]
    known = [(int(part["count"]), round(part["count"] * part["accuracy"])) for part in parts]
    hits = np.bincount(position, weights=correct).astype(np.int64)
    return correct if known == list(zip(sizes.tolist(), hits.tolist(), strict=True)) else None
