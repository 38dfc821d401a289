"""rebalance and BalancedSampler: every class's minority as often as its majority, or part of the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed
from torch.utils.data import DistributedSampler

from evenhand.core.arrays import whole_number
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


class BalancedSampler(DistributedSampler[int]):
    """Which samples an epoch visits, so that both pseudo-groups of every class come equally often.

    Or, with a partition of a strength below 1, so often as its `sample_weights` say.
    Without `num_samples` an epoch is the multiset of `rebalance(partition, seed)`, shuffled. With it an
    epoch is that many draws with replacement, made anew every epoch, a sample being drawn in proportion to
    its `sample_weights`. Call `set_epoch` before every epoch, or all epochs have the same order.

    Under torch.distributed every process visits a part of its own; together they visit everything. Where
    the rows do not divide evenly, the first rows of the epoch are visited twice, at most one per process,
    so that all parts are equally long. `num_replicas` and `rank` are asked of torch.distributed when
    needed, unless given.

    >>> from evenhand.core.partition import partition
    >>> parts = partition([[0.1], [0.1], [0.9], [0.2]], [0, 0, 0, 1])
    >>> sampler = BalancedSampler(parts)
    >>> len(sampler), sorted(sampler)
    (5, [0, 1, 2, 2, 3])
    """

    # A DistributedSampler, because frameworks leave one alone and would divide any other a second time.
    # Its own constructor is not called: it asks for a dataset, and for the processes before there are any.
    def __init__(
        self,
        partition: Partition,
        *,
        num_samples: int | None = None,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        if num_samples is not None and whole_number(num_samples, "num_samples") < 1:
            raise ValueError(f"num_samples must be at least 1, or None for the multiset, got {num_samples}")
        if (num_replicas is None) != (rank is None):
            raise ValueError(f"give num_replicas and rank, or neither, got {num_replicas} and {rank}")
        if num_replicas is not None and rank is not None and not 0 <= rank < num_replicas:
            raise ValueError(f"rank must be between 0 and {num_replicas - 1}, got {rank}")
        self.seed, self.epoch = seed, 0
        self._given = None if num_replicas is None or rank is None else (num_replicas, rank)
        self._draws = num_samples
        if num_samples is None:
            self._rows = np.asarray(rebalance(partition, seed=seed))
        else:
            weights = sample_weights(partition)
            self._chances = weights / weights.sum()

    def set_epoch(self, epoch: int) -> None:
        """Choose the order, which is a function of the seed and the epoch alone."""
        self.epoch = epoch

    def __len__(self) -> int:
        """How many rows this process visits in an epoch; the same for every process."""
        total = len(self._rows) if self._draws is None else self._draws
        return -(-total // self._processes()[0])

    def __iter__(self) -> Iterator[int]:
        num_processes, rank = self._processes()
        order = self._order()
        padded = np.resize(order, len(self) * num_processes)  # repeats from the start where it is longer
        return iter(padded[rank::num_processes].tolist())

    def _order(self) -> npt.NDArray[np.int64]:
        random = np.random.default_rng([self.seed, self.epoch])
        if self._draws is None:
            return random.permutation(self._rows)
        return random.choice(len(self._chances), self._draws, p=self._chances)

    def _processes(self) -> tuple[int, int]:
        """How many processes there are, and which one this is."""
        if self._given is not None:
            return self._given
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_world_size(), torch.distributed.get_rank()
        return 1, 0
