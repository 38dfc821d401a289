"""BalancedSampler: the balanced multiset as an order of samples, shared out among processes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch.distributed
from torch.utils.data import DistributedSampler

from evenhand.core.arrays import whole_number
from evenhand.core.partition import Partition
from evenhand.core.rebalance import rebalance, sample_weights


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
