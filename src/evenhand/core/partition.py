"""partition: every class in two clusters by its loss histories; rebalance: repeat the smaller one."""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from evenhand.core import ranks
from evenhand.core.arrays import (
    as_labels,
    as_matrix,
    as_numpy,
    as_real,
    class_positions,
    read_arrays,
    whole_number,
    write_whole,
)
from evenhand.core.passes import check_values, thread_pool
from evenhand.core.search import Cut, cut_in_two
from evenhand.core.twomeans import TwoMeans, as_positions, check_lengths, on_device, split_classes

LARGEST = 1e100  # of a loss: squares of larger ones may overflow
_CHUNK = 1 << 22  # samples worked on at once
Cluster = Callable[[npt.NDArray[Any]], npt.ArrayLike]  # (samples, epochs) of one class -> 0/1 per sample


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """The majority and the minority of each class, and how clearly the two separate. Notebooks show a table.

    - `minority`, `labels`: True for each sample of a minority, and the labels as given.
    - `classes`, `sizes`, `separation`: one row per class. `separation` is the share of the variance that the
      two clusters explain, from 0 to 1.
    - `margin`: the signed distance of a sample to the boundary between the clusters, over the distance of
      their centroids: 0.5 at the minority's centroid, -0.5 at the majority's, 0 in a class that was not
      split.
    - `unsplit`: the classes that stay whole, and why.
    - `strength`: how far to rebalance. A minority sample counts (majority / minority) ** strength times.
    - `clustered`: False for samples that were held out. They belong to neither cluster.

    `save` and `load` keep it in one .npz file. Raises ValueError for a strength outside 0 to 1.

    >>> parts = partition([[0.1], [0.2], [0.9]], [0, 0, 0])
    >>> parts
    Partition(class: majority + minority (separation); 0: 2 + 1 (0.99))
    """

    minority: npt.NDArray[np.bool_]  # (samples,)
    labels: npt.NDArray[Any]  # (samples,) as given
    classes: npt.NDArray[Any]  # (classes,) the distinct labels, ascending
    sizes: npt.NDArray[np.int64]  # (classes, 2): majority, minority
    separation: npt.NDArray[np.float64]  # (classes,) between-cluster share of the variance, 0 to 1
    margin: npt.NDArray[np.float32]  # (samples,) positive: on the minority's side
    unsplit: Mapping[Any, str]  # classes left alone -> why
    strength: float = 1.0  # of rebalancing: 1 until both clusters are equal, 0 not at all
    clustered: npt.NDArray[np.bool_] = None  # type: ignore[assignment]  # (samples,); all of them by default

    def __post_init__(self) -> None:
        if self.clustered is None:  # takes no memory
            object.__setattr__(self, "clustered", np.broadcast_to(np.True_, len(self.labels)))
        if not 0 <= self.strength <= 1:
            raise ValueError(f"strength must be 0 to 1, got {self.strength}")

    @property
    def repeated_sizes(self) -> npt.NDArray[np.int64]:
        """(classes,): the size to which rebalancing repeats every minority."""
        large, small = self.sizes.T
        wanted = np.rint(large**self.strength * small ** (1 - self.strength)).astype(np.int64)
        return np.where(small > 0, np.maximum(wanted, small), 0)

    def __repr__(self) -> str:
        rows = zip(self.classes.tolist(), self.sizes.tolist(), self.separation.tolist(), strict=True)
        shown = [f"{name}: {large} + {small} ({share:.2f})" for name, (large, small), share in rows]
        more = f", … {len(shown) - 12} more" if len(shown) > 12 else ""
        strength = "" if self.strength == 1 else f"; strength {self.strength:g}"
        held_out = "" if self.clustered.all() else f"; {np.count_nonzero(~self.clustered)} held out"
        classes = ", ".join(shown[:12]) + more
        return f"Partition(class: majority + minority (separation); {classes}{strength}{held_out})"

    def _repr_html_(self) -> str:
        return str(importlib.import_module("evenhand.report.notebook").partition_html(self))

    def plot(self) -> Any:
        """Draw the sizes of the clusters and the margins; returns a matplotlib Figure."""
        return importlib.import_module("evenhand.report.notebook").plot_partition(self)

    def save(self, path: str | Path) -> None:
        """Write it as one .npz file, which holds no pickles."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        if not self.clustered.all():
            arrays["clustered"] = self.clustered
        positions = [int(np.searchsorted(self.classes, label)) for label in self.unsplit]
        unsplit = json.dumps(list(zip(positions, self.unsplit.values(), strict=True)))
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays, unsplit=np.array(unsplit), strength=np.array(self.strength))
        write_whole(Path(path), buffer.getvalue())

    @staticmethod
    def load(path: str | Path) -> Partition:
        """Read what `save` wrote."""
        fields = read_arrays(path, "a saved partition")
        try:
            classes, reasons = as_labels(fields["classes"]).tolist(), json.loads(str(fields.pop("unsplit")))
            unsplit = {classes[position]: str(reason) for position, reason in reasons}
            strength = float(fields.get("strength", 1.0))  # older files have none
            arrays = {name: fields[name] for name in _ARRAYS}
            clustered: Any = fields.get("clustered")  # only where some are not
            parts = Partition(**arrays, unsplit=unsplit, strength=strength, clustered=clustered)
            parts._check()
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            what = f"{path} should be a saved partition, but it cannot be read: {error!r}"
            raise ValueError(what) from error
        return parts

    def _check(self) -> None:
        """Raise for arrays that do not belong together, as in a file that somebody has changed."""
        num_samples, num_classes = len(as_labels(self.labels)), len(self.classes)
        expected: dict[str, tuple[str, tuple[int, ...]]] = {
            **dict.fromkeys(("minority", "clustered"), ("b", (num_samples,))),
            **{"margin": ("f", (num_samples,)), "separation": ("f", (num_classes,))},
            **{"sizes": ("iu", (num_classes, 2)), "classes": ("iubU", (num_classes,))},
        }
        for name, (kinds, shape) in expected.items():
            if (array := getattr(self, name)).shape != shape or array.dtype.kind not in kinds:
                raise ValueError(f"{name} must be shaped {shape}, got {array.dtype} of shape {array.shape}")
        classes, position = class_positions(self.labels)
        if not np.array_equal(classes, self.classes):
            raise ValueError("classes are not the distinct labels")
        members = [self.clustered & ~self.minority, self.minority]
        counts = [np.bincount(position, weights=each, minlength=num_classes) for each in members]
        held_out = (self.minority & ~self.clustered).any()
        if held_out or not np.array_equal(np.stack(counts, axis=1), self.sizes):
            raise ValueError("sizes are not those of the clusters")


_ARRAYS = ("minority", "labels", "classes", "sizes", "separation", "margin")


def partition(
    losses: Tensor | npt.ArrayLike,
    labels: Tensor | npt.ArrayLike,
    cluster: Cluster | Any | None = None,
    *,
    across_ranks: bool = False,
) -> Partition:
    """Split the loss histories of each class in two; the smaller cluster of a class is its minority.

    - `losses`: (samples, epochs) losses, as an array, a tensor, or a memory-mapped file of any size. One
      number per sample, (samples,), such as `LossSummary.values`, is split exactly by one sort.
    - `labels`: (samples,) integers or strings.
    - `cluster`: replaces two-means. A function from the histories of one class to 0 or 1 per sample, or a
      scikit-learn estimator such as `MiniBatchKMeans(2)`.
    - `across_ranks`: in a distributed training, each rank passes its own part of the samples. The clusters
      are then those of all samples together.

    Returns a `Partition`. Of two equally large clusters, the one with the higher mean loss is the minority. A
    class with one sample, with identical histories or with a single cluster stays whole and is named in
    `unsplit`. Raises ValueError where `losses` and `labels` differ in length, and for losses that are
    missing, infinite or larger than 1e100.

    >>> parts = partition([[0.9, 0.1], [0.8, 0.1], [0.9, 0.8], [0.7, 0.7]], [0, 0, 0, 1])
    >>> parts.minority.tolist(), parts.sizes.tolist(), parts.unsplit
    ([False, False, True, False], [[2, 1], [1, 0]], {1: 'one sample'})
    """
    names = as_labels(labels)
    if not on_device(losses) or cluster is not None or across_ranks:
        losses = as_real(losses, "losses")
    if losses.ndim == 1:
        if cluster is not None or across_ranks:
            name = "across_ranks" if cluster is None else "cluster"
            raise ValueError(
                f"{name} is for histories; numbers, one per sample, are split exactly without it"
            )
        return _of_numbers(as_real(losses, "losses"), names)
    classes, position = class_positions(names)
    matrix = None if cluster is None else as_matrix(losses, "losses")
    given = None if matrix is None else _user_clusters(matrix, classes, position, cluster)
    options: dict[str, Any] = {"name": "losses", "largest": LARGEST, "across_ranks": across_ranks}
    if on_device(losses):
        found = split_classes(losses, as_positions(position, len(classes)).to(losses.device), **options)
    else:
        found = split_classes(losses, names if across_ranks else position, assignment=given, **options)
    if across_ranks:  # other ranks may have samples of other classes
        table = np.searchsorted(found.classes, classes).astype(np.min_scalar_type(len(found.classes)))
        classes, position = found.classes, table[position]
    return _of_clusters(found, names, classes, position)


def of_mask(mask: Tensor | npt.ArrayLike, labels: Tensor | npt.ArrayLike) -> Partition:
    """Return the partition whose minorities are the samples that a mask marks, (samples,) bool.

    A mask may mark more than half of a class. `separation` is 0, since a mask does not say how clear it is.

    >>> of_mask([False, True, False], [0, 0, 1]).sizes.tolist()
    [[1, 1], [1, 0]]
    """
    names, marked = as_labels(labels), as_numpy(mask, "mask")
    if marked.dtype != bool or marked.shape != names.shape:
        got = f"{marked.dtype} of shape {marked.shape}"
        raise ValueError(f"mask must hold True or False for each of the {len(names)} samples, got {got}")
    classes, position = class_positions(names)
    small = np.bincount(position, weights=marked, minlength=len(classes)).astype(np.int64)
    sizes = np.stack([np.bincount(position, minlength=len(classes)) - small, small], axis=1)
    split: npt.NDArray[np.bool_] = np.all(sizes > 0, axis=1)
    margin = np.where(split[position], np.where(marked, 0.5, -0.5), 0.0).astype(np.float32)
    unsplit = {
        label: "no sample marked" if sizes[c, 1] == 0 else "all samples marked"
        for c, label in enumerate(classes.tolist())
        if not split[c]
    }
    return Partition(marked, names, classes, sizes, np.zeros(len(classes)), margin, unsplit)


def _of_clusters(
    found: TwoMeans, names: npt.NDArray[Any], classes: npt.NDArray[Any], position: npt.NDArray[Any]
) -> Partition:
    """Return the partition that clusters define; no array here is larger than the answer."""
    sizes = found.sizes.numpy()
    split = sizes[:, 1] > 0
    flip = sizes[:, 1] > sizes[:, 0]  # cluster 1, of the higher mean loss, is the minority of equals
    sizes = np.where(flip[:, None], sizes[:, ::-1], sizes)
    minority, margin, sign = found.assignment.cpu().numpy(), found.margin.cpu().numpy(), np.where(flip, -1, 1)
    for part in _parts(len(names)):
        minority[part] = (minority[part] ^ flip[position[part]]) & split[position[part]]
        margin[part] *= sign.astype(np.float32)[position[part]]
    inertia, total = found.inertia.numpy(), found.total.numpy()
    separation = np.where(split, 1 - np.divide(inertia, total, out=np.ones_like(total), where=total > 0), 0.0)
    unsplit = {
        label: _reason(int(sizes[c, 0]), float(total[c]))
        for c, label in enumerate(classes.tolist())
        if not split[c]
    }
    return Partition(minority, names, classes, sizes, separation.clip(0, 1), margin, unsplit)


def _of_numbers(values: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Partition:
    """Return the partition of one number per sample; no array here is larger than the numbers."""
    if len(values) == 0 or len(values) != len(labels):
        raise ValueError(
            f"losses and labels must hold one number each per sample, got {len(values)} {values.dtype} "
            f"and {len(labels)} labels"
        )
    values = values.astype(np.float32 if values.dtype.itemsize <= 4 else np.float64, copy=False)
    for part in _parts(len(values)):
        check_values(torch.from_numpy(values[part]), "losses", LARGEST, first_row=part.start)
    classes, position = class_positions(labels)
    minority, margin = np.zeros(len(values), bool), np.empty(len(values), np.float32)
    # The memory of the margins serves first to sort the numbers in, where they fit.
    buffer = margin if values.dtype == np.float32 else np.empty_like(values)
    cuts = _cuts(values, position, len(classes), buffer)
    sizes, separation = np.zeros((len(classes), 2), np.int64), np.zeros(len(classes))
    unsplit: dict[Any, str] = {}
    above, threshold = np.ones(len(classes), bool), np.full(len(classes), np.inf, values.dtype)
    middle, slope = np.zeros(len(classes)), np.zeros(len(classes))
    for c, (label, cut) in enumerate(zip(classes.tolist(), cuts, strict=True)):
        if cut.sizes[1] == 0 or cut.total == 0:  # differences whose squares are zero are none
            sizes[c, 0] = sum(cut.sizes)
            unsplit[label] = _reason(sum(cut.sizes), cut.total)
            continue
        sizes[c], separation[c] = sorted(cut.sizes, reverse=True), 1 - cut.inertia / cut.total
        above[c] = cut.sizes[1] <= cut.sizes[0]  # of equals, the one with the higher losses is the minority
        threshold[c], middle[c] = cut.threshold, sum(cut.means) / 2
        slope[c] = (1 if above[c] else -1) / (cut.means[1] - cut.means[0])
    for part in _parts(len(values)):
        member = position[part]
        minority[part] = (values[part] > threshold[member]) == above[member]
        margin[part] = (values[part] - middle[member]) * slope[member]
    return Partition(minority, labels, classes, sizes, separation.clip(0, 1), margin, unsplit)


def _cuts(
    values: npt.NDArray[Any], position: npt.NDArray[Any], num_classes: int, buffer: npt.NDArray[Any]
) -> list[Cut]:
    """Return the exact split of every class; `buffer`, as large as the values, gets the sorted values."""
    counts = np.zeros(num_classes, np.int64)
    for part in _parts(len(values)):
        counts += np.bincount(position[part], minlength=num_classes)
    ends = np.cumsum(counts)
    filled = ends - counts
    for part in _parts(len(values)):
        members = position[part]
        grouped = values[part][np.argsort(members, kind="stable")]
        sizes = np.bincount(members, minlength=num_classes)
        for c, piece in enumerate(np.split(grouped, np.cumsum(sizes)[:-1])):
            buffer[filled[c] : filled[c] + len(piece)] = piece
        filled += sizes
    with thread_pool() as pool:
        return list(pool.map(cut_in_two, np.split(buffer, ends[:-1])))


def _parts(num_samples: int) -> list[slice]:
    return [slice(start, start + _CHUNK) for start in range(0, num_samples, _CHUNK)]


def _reason(size: int, total: float) -> str:
    return "one sample" if size == 1 else "identical histories" if total == 0 else "a single cluster"


def _user_clusters(
    histories: npt.NDArray[Any], classes: npt.NDArray[Any], position: npt.NDArray[Any], cluster: Any
) -> npt.NDArray[np.bool_]:
    """Return the clusters that the caller's clustering gives every class that has anything to split."""
    split = getattr(cluster, "fit_predict", cluster)
    if not callable(split):
        raise ValueError(f"cluster must be a function or have a fit_predict, got {type(cluster).__name__}")
    check_lengths(len(histories), len(position), "losses")
    check_values(torch.from_numpy(histories), "losses", LARGEST)
    given = np.zeros(len(histories), dtype=bool)
    order = np.argsort(position, kind="stable")
    for label, rows in zip(classes, np.split(order, np.cumsum(np.bincount(position))[:-1]), strict=True):
        members = histories[rows]
        if (members == members[0]).all():
            continue
        answer = np.asarray(split(members))
        if answer.shape != (len(rows),) or not np.isin(answer, (0, 1)).all():
            raise ValueError(
                f"cluster must give 0 or 1 for each of the {len(rows)} samples of class {label}, "
                f"got shape {answer.shape} with values {np.unique(answer)[:5]}"
            )
        given[rows] = answer.astype(bool)
    return given


# -- rebalancing: every class's minority as often as its majority, or part of the way --------------------


@dataclass(frozen=True, eq=False)
class Balanced:
    """The rows of the balanced multiset as sample indices; behaves as an int array.

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
    """Return the rows of the balanced training set: every sample once, then copies of minority samples.

    - `partition`: the partition of the training samples.
    - `seed`: determines the copies. Each class draws from its own generator.

    Returns a `Balanced`, which works as an array of row numbers: `Subset(dataset, rebalance(parts))`. A class
    gets |majority| - |minority| copies, drawn uniformly from its minority, or fewer where the partition's
    strength is below 1. Held-out samples are left out. Raises ValueError for a negative seed.

    >>> parts = partition([[0.1], [0.2], [0.9]], [0, 0, 0])
    >>> rebalance(parts).indices.tolist()
    [0, 1, 2, 2]
    """
    originals = np.flatnonzero(partition.clustered)
    copies = [originals]
    missing = partition.repeated_sizes - partition.sizes[:, 1]
    for position, minority in enumerate(_minorities(partition)):
        if len(minority):
            copies.append(np.random.default_rng([seed, position]).choice(minority, missing[position]))
    return Balanced(np.concatenate(copies), num_original=len(originals))


def sample_weights(partition: Partition) -> npt.NDArray[np.float64]:
    """Return how often each sample appears in the balanced set on average.

    - `partition`: the partition of the training samples.

    Returns (samples,) float64: 1 for a majority sample, (|majority| / |minority|) ** strength for a minority
    sample, and 0 for a held-out sample. With a strength of 1, both clusters of a class weigh the same. The
    weights sum to the size of the balanced set, not to the number of samples.

    >>> sample_weights(partition([[0.1], [0.2], [0.9]], [0, 0, 0])).tolist()
    [1.0, 1.0, 2.0]
    """
    position = np.searchsorted(partition.classes, partition.labels)
    majority, minority = partition.sizes[position].T
    repeated = (majority / np.maximum(minority, 1)) ** partition.strength
    return np.where(partition.minority, repeated, partition.clustered.astype(np.float64))


def _minorities(partition: Partition) -> list[npt.NDArray[np.int64]]:
    """Return each class's minority samples in ascending order, found for all classes by one sort."""
    chosen = np.flatnonzero(partition.minority)
    position = np.searchsorted(partition.classes, partition.labels[chosen])
    order = np.argsort(position, kind="stable")
    return np.split(chosen[order], np.cumsum(partition.sizes[:, 1])[:-1])


class BalancedSampler(DistributedSampler[int]):
    """A sampler that draws both pseudo-groups of each class equally often.

    - `partition`: the partition of the dataset. With a strength below 1, samples are drawn in proportion to
      their `sample_weights`.
    - `num_samples`: draws per epoch, made anew in each. By default an epoch is the rows of
      `rebalance(partition, seed)`, shuffled.
    - `seed`: determines the copies and the order.
    - `num_replicas`, `rank`: the number of processes and the number of this one. By default those of
      torch.distributed. Pass 1 and 0 where the framework shards loaders itself.

    Call `set_epoch` before every epoch, or all epochs have the same order. Each process visits its own part
    of an epoch. Where the rows do not divide evenly, at most one row per process is visited twice. Raises
    ValueError for numbers that are out of range, or `num_replicas` without `rank`.

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
        """Return the number of rows that this process visits in an epoch; the same for every process."""
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
        """Return the number of processes and the rank of this one."""
        return self._given or (ranks.count(), ranks.number())
