"""Evidence: what the trainings of an audit leave, whatever was trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from evenhand.core.partition import Balanced, Partition, partition, sample_weights

PARTS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Evidence:
    """Loss histories, pseudo-groups, and what both models make of every sample.

    `unseen` and `unseen_balanced` are what models that have not seen a training sample make of it: the
    training set is divided into folds, and each fold is predicted by a model trained on the others as they
    are, and by one trained on their balanced set.
    """

    class_names: tuple[str, ...]
    y: Mapping[str, np.ndarray]  # per part: (samples,) int64
    losses: np.ndarray  # (training samples, epochs) float32, of the identifier
    hits: np.ndarray  # (training samples, epochs) bool
    val_losses: np.ndarray  # (validation samples, epochs) float32
    parts: Partition  # of the training samples
    balanced_rows: Balanced
    baseline: Mapping[str, np.ndarray]  # per part: predicted classes, (samples,) int64
    balanced: Mapping[str, np.ndarray]
    unseen: np.ndarray  # (training samples, classes) float32 probabilities
    unseen_balanced: np.ndarray  # the same
    group: Mapping[str, np.ndarray] | None = None  # for scoring only
    group_names: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)  # the two models, by file name
    about: Mapping[str, Any] = field(default_factory=dict)  # what was trained, and how long

    @cached_property
    def late(self) -> np.ndarray:
        """(training samples,) bool: in its class's smaller cluster, and that one has the higher loss."""
        return late_samples(self.parts, self.losses)

    @cached_property
    def val_late(self) -> np.ndarray:
        """(validation samples,) bool: the same of the validation set."""
        return late_samples(self.val_parts, self.val_losses)

    @cached_property
    def val_parts(self) -> Partition:
        """The validation set's pseudo-groups, by the identifier's losses on it."""
        return partition(self.val_losses, self.y["val"])


def late_samples(parts: Partition, losses: np.ndarray) -> np.ndarray:
    """The samples of smaller clusters whose loss is the higher one, (samples,) bool."""
    mean = np.asarray(losses, dtype=np.float64).mean(axis=1)
    late = parts.minority.copy()
    for label in parts.classes:
        own = parts.labels == label
        few, most = own & parts.minority, own & ~parts.minority
        if few.any() and most.any() and mean[few].mean() < mean[most].mean():
            late[few] = False
    return late


def folds(parts: Partition, count: int) -> np.ndarray:
    """Which fold each sample is in; every cluster of every class is spread evenly, (samples,) int64."""
    fold = np.zeros(len(parts.labels), dtype=np.int64)
    rng = np.random.default_rng([count, 31])
    start = 0
    for label in parts.classes:
        for minority in (False, True):
            rows = rng.permutation(np.flatnonzero((parts.labels == label) & (parts.minority == minority)))
            fold[rows] = (np.arange(len(rows)) + start) % count
            start += len(rows)
    return fold


def balanced_without(parts: Partition, kept: np.ndarray) -> np.ndarray:
    """The balanced multiset of some of the samples: rows repeated as often as their weight says."""
    times = np.rint(sample_weights(parts)).astype(np.int64)
    return np.repeat(kept, times[kept])


def course(hits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First epoch (from 1) from which on a sample stays right, -1 for never; and how often it was forgotten.

    >>> learned, forgotten = course(np.array([[0, 1, 0, 1, 1], [1, 1, 1, 1, 0]], dtype=bool))
    >>> learned.tolist(), forgotten.tolist()
    ([4, -1], [1, 1])
    """
    right = np.asarray(hits, dtype=bool)
    forgotten = (right[:, :-1] & ~right[:, 1:]).sum(axis=1)
    wrong_last = np.where(right.all(axis=1), 0, right.shape[1] - np.argmin(right[:, ::-1], axis=1))
    learned = np.where(right[:, -1], wrong_last + 1, -1)
    return learned.astype(np.int64), forgotten.astype(np.int64)
