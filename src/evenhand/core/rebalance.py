"""rebalance: repeat every class's minority until it is as large as its majority, or part of the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.core.partition import Partition


@dataclass(frozen=True, eq=False)
class Balanced:
    """Which sample each row of the balanced multiset is; behaves as an int array.

    The first `num_original` rows are the samples themselves, in order, less those that were held out; the
    rest are drawn copies.

    >>> balanced = Balanced(np.array([0, 1, 2, 2]), num_original=3)
    >>> len(balanced), balanced.copies.tolist()
    (4, [False, False, False, True])
    """

    indices: npt.NDArray[np.int64]  # (rows,)
    num_original: int

    @property
    def copies(self) -> npt.NDArray[np.bool_]:
        """(rows,) bool: which rows are drawn copies."""
        return np.arange(len(self.indices)) >= self.num_original

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices.tolist())

    def __getitem__(self, key: Any) -> Any:
        chosen = self.indices[key]
        return int(chosen) if np.ndim(chosen) == 0 else chosen

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.indices, dtype=dtype) if copy else np.asarray(self.indices, dtype=dtype)


def rebalance(partition: Partition, seed: int = 0) -> Balanced:
    """The samples, then |majority| - |minority| copies per class, drawn uniformly from its minority.

    Fewer, if the partition's strength is below 1: minorities are repeated to `partition.repeated_sizes`.
    Samples that were held out (see `Partition.clustered`) are left out.
    Every class draws from a generator of its own, so one class's draws do not depend on the others.
    """
    originals = np.flatnonzero(partition.clustered)
    copies = [originals]
    missing = partition.repeated_sizes - partition.sizes[:, 1]
    for position, minority in enumerate(_minorities(partition)):
        if len(minority):
            copies.append(np.random.default_rng([seed, position]).choice(minority, missing[position]))
    return Balanced(np.concatenate(copies), num_original=len(originals))


def sample_weights(partition: Partition) -> npt.NDArray[np.float64]:
    """How often each sample appears in the balanced multiset on average, (samples,).

    A majority sample weighs 1, a minority sample |majority| / |minority| to the power of the partition's
    strength: with a strength of 1, both clusters of a class weigh the same in total. The weights sum to the
    length of the multiset, up to rounding, not to the number of samples. A held-out sample weighs 0.
    """
    position = np.searchsorted(partition.classes, partition.labels)
    majority, minority = partition.sizes[position].T
    repeated = (majority / np.maximum(minority, 1)) ** partition.strength
    return np.where(partition.minority, repeated, partition.clustered.astype(np.float64))


def _minorities(partition: Partition) -> list[npt.NDArray[np.int64]]:
    """For every class, its minority samples in ascending order; all classes in one sort."""
    chosen = np.flatnonzero(partition.minority)
    position = np.searchsorted(partition.classes, partition.labels[chosen])
    order = np.argsort(position, kind="stable")
    return np.split(chosen[order], np.cumsum(partition.sizes[:, 1])[:-1])
