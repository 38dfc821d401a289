"""two_means: every class's histories in two clusters, all classes in one call, without a seed.

The answer depends on the values alone: the rows of a class are put in an order that their values define, so
that the order in which samples come cannot matter, not even through rounding. How the best split is found
is said in search.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.core.arrays import as_numpy, as_real
from evenhand.core.search import SEARCHED, Rows, added, best_split

_BUCKET = 1 << 18  # numbers worked on at once: what fits into a processor core's own cache
_PRECISION = {np.dtype(np.float16): np.float32, np.dtype(np.float32): np.float32}
_HUGE = 1 << 24  # a class of more numbers is worth all threads


@dataclass(frozen=True, eq=False)
class TwoMeans:
    """The two clusters of every class; cluster 1 has the higher mean. A class left whole has no cluster 1."""

    assignment: Tensor  # (samples,) bool: in cluster 1
    margin: Tensor  # (samples,) float32: signed distance to the boundary over the distance of the centroids
    classes: npt.NDArray[Any]  # (classes,) the distinct labels, ascending
    sizes: Tensor  # (classes, 2) int64
    centroids: Tensor  # (classes, 2, epochs) float64
    inertia: Tensor  # (classes,) float64: squared distances to the own centroid, summed
    total: Tensor  # (classes,) float64: squared distances to the class's mean, summed


def two_means(
    histories: Tensor | npt.ArrayLike,
    labels: Tensor | npt.ArrayLike | None = None,
    *,
    assignment: Tensor | npt.ArrayLike | None = None,
) -> TwoMeans:
    """Split every class's histories, (samples, epochs), in two by k-means; the same answer every time.

    Without labels, all samples are one class. A class whose histories are all equal stays whole.
    With `assignment`, (samples,) bool, these clusters are described instead. Histories must be finite.
    Classes of more than 2048 samples are worked on in float32, others in float64.
    Histories of more than a GiB are read in blocks (see streaming.py), so that they need not fit into memory.
    Many histories on a GPU are split there (see large.py), and `assignment` and `margin` stay there.

    >>> clusters = two_means([[0.1, 0.0], [0.2, 0.0], [2.0, 1.5]])
    >>> clusters.assignment.tolist(), clusters.sizes.tolist()
    ([False, False, True], [[2, 1]])
    """
    if isinstance(histories, Tensor) and histories.is_cuda:
        return _from_device(histories, labels, assignment)
    from evenhand.core.streaming import STREAMED, streamed  # here, because it needs TwoMeans

    real = as_real(histories, "histories")
    if real.ndim == 2 and real.size > STREAMED and assignment is None:
        return streamed(real, None if labels is None else as_labels(labels))
    values = as_matrix(real, "histories")
    x = torch.from_numpy(values.astype(_PRECISION.get(values.dtype, np.float64), copy=False))
    low, high = float(x.min()), float(x.max())  # NaN where there is one
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"histories must be finite, got {low:g} to {high:g}")
    classes, position = class_positions(np.zeros(len(x), np.int64) if labels is None else labels)
    if len(position) != len(x):
        raise ValueError(f"histories and labels must be equally long, got {len(x)} and {len(position)}")
    counts = np.bincount(position, minlength=len(classes))
    order, starts = _canonical_order(x, position), np.cumsum(counts) - counts
    given = None if assignment is None else torch.as_tensor(np.asarray(assignment)).bool()
    found = TwoMeans(
        assignment=torch.zeros(len(x), dtype=torch.bool),
        margin=torch.zeros(len(x)),
        classes=classes,
        sizes=torch.zeros(len(classes), 2, dtype=torch.int64),
        centroids=torch.zeros(len(classes), 2, x.shape[1], dtype=torch.float64),
        inertia=torch.zeros(len(classes), dtype=torch.float64),
        total=torch.zeros(len(classes), dtype=torch.float64),
    )

    def solve(bucket: npt.NDArray[np.int64]) -> None:
        row = np.arange(counts[bucket[0]])
        padded = torch.from_numpy(row < counts[bucket, None])
        member = torch.from_numpy(order[np.minimum(starts[bucket, None] + row, len(x) - 1)])
        _solve(x, torch.from_numpy(bucket), member, padded, given, found)

    buckets = _buckets(counts, x.shape[1])
    huge = [bucket for bucket in buckets if int(counts[bucket[0]]) * x.shape[1] > _HUGE]
    for bucket in huge:
        solve(bucket)
    _side_by_side(solve, buckets[len(huge) :])  # largest first, so the others
    return found


def on_device(histories: object) -> TypeGuard[Tensor]:
    """Whether histories lie on a GPU and are so many that they are split there."""
    if not isinstance(histories, Tensor):
        return False
    return histories.is_cuda and histories.ndim == 2 and histories.numel() > _HUGE


def _from_device(
    histories: Tensor, labels: Tensor | npt.ArrayLike | None, assignment: Tensor | npt.ArrayLike | None
) -> TwoMeans:
    """The two clusters of histories on a GPU: found there if they are many, on the CPU if they are few."""
    if on_device(histories) and assignment is None:
        from evenhand.core.large import two_means_on_device

        return two_means_on_device(histories, labels)
    given = None if assignment is None else as_numpy(assignment, "assignment")
    found = two_means(histories.cpu(), labels, assignment=given)
    place = histories.device
    return replace(found, assignment=found.assignment.to(place), margin=found.margin.to(place))


def _side_by_side(
    solve: Callable[[npt.NDArray[np.int64]], None], buckets: list[npt.NDArray[np.int64]]
) -> None:
    """Each bucket on one thread: faster than threads inside each, and no sum depends on their number."""
    threads = torch.get_num_threads()

    def alone(bucket: npt.NDArray[np.int64]) -> None:
        torch.set_num_threads(1)
        solve(bucket)

    try:
        with ThreadPoolExecutor(max(1, min(threads, len(buckets)))) as pool:
            list(pool.map(alone, buckets))
    finally:
        torch.set_num_threads(threads)


def class_positions(labels: Tensor | npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The distinct labels, ascending, and which of them each sample has.

    >>> class_positions([7, 3, 7])
    (array([3, 7]), array([1, 0, 1]))
    """
    names = as_labels(labels)
    if names.dtype.kind == "i" and len(names):
        low, high = int(names.min()), int(names.max())
        if high - low < 4 * len(names):  # counting beats sorting
            shifted = names.astype(np.int64) - low
            present = np.bincount(shifted) > 0
            return (np.flatnonzero(present) + low).astype(names.dtype), (np.cumsum(present) - 1)[shifted]
    classes, position = np.unique(names, return_inverse=True)
    return classes, position.astype(np.int64)


def as_labels(labels: Tensor | npt.ArrayLike) -> npt.NDArray[Any]:
    """One class per sample: whole numbers, truth values or strings."""
    names = as_numpy(labels, "labels")
    if names.ndim != 1:
        raise ValueError(f"labels must hold one class per sample, got shape {names.shape}")
    if names.dtype.kind not in "iubU":
        raise ValueError(f"labels must be whole numbers or strings, got {names.dtype}")
    if names.dtype.kind == "U" and names.nbytes:
        letters = np.ascontiguousarray(names).view(np.uint32)
        if letters.max() > 0x10FFFF:  # only a damaged file holds such; Python cannot even print them
            raise ValueError("labels must be strings of Unicode characters, but some hold others")
    return names


def as_matrix(values: Tensor | npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Real numbers shaped (samples, epochs), each sample's side by side in memory; copied if they are not."""
    array = as_real(values, name)
    if array.ndim != 2:
        raise ValueError(f"{name} must be shaped (samples, epochs), got {array.shape}")
    if 0 in array.shape:
        raise ValueError(f"{name} need at least one sample and one epoch, got shape {array.shape}")
    if array.flags.c_contiguous and array.flags.writeable:
        return array
    copy = np.empty(array.shape, array.dtype)
    for start in range(0, len(array), 1 << 16):  # by parts, so that columns of a mapped file are read in turn
        copy[start : start + (1 << 16)] = array[start : start + (1 << 16)]
    return copy


def _canonical_order(x: Tensor, position: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Samples by class, then by a hash of their values: any order would do that values alone decide."""
    values = x.numpy()
    if values.itemsize * values.shape[1] % 8:
        values = np.pad(values, ((0, 0), (0, 1)))
    bits = values.view(np.int64)
    factors = np.random.default_rng(0).integers(-(2**62), 2**62, bits.shape[1], dtype=np.int64) * 2 + 1
    order = np.argsort(bits @ factors, kind="stable")
    small = position.astype(np.int16) if position.max(initial=0) < 2**15 else position  # sorted much faster
    return order[np.argsort(small[order], kind="stable")]


def _buckets(counts: npt.NDArray[np.int64], epochs: int) -> list[npt.NDArray[np.int64]]:
    """Classes of similar size together, largest first: little padding makes them one dense array."""
    buckets: list[list[int]] = []
    largest = 0
    for c in np.argsort(-counts, kind="stable").tolist():
        similar = counts[c] * 1.25 + 4 >= largest
        if not buckets or not similar or (len(buckets[-1]) + 1) * largest * max(epochs, 64) > _BUCKET:
            buckets.append([])
            largest = int(counts[c])
        buckets[-1].append(c)
    return [np.array(bucket) for bucket in buckets]


def _solve(
    data: Tensor, classes: Tensor, member: Tensor, padded: Tensor, given: Tensor | None, found: TwoMeans
) -> None:
    """Split, or describe, the classes of one bucket; member (classes, rows) are their samples, padded."""
    valid = None if padded.all() else padded
    counts = padded.sum(1)
    x = data.index_select(0, member.flatten()).view(*member.shape, -1)
    x, mean, scale = _standardised(x, valid, counts)
    rows = Rows(x, valid)
    if given is not None:
        inside = given[member].to(x.dtype)
    elif x.shape[1] == 1:
        inside = torch.zeros_like(x[:, :, 0])
    else:
        inside = best_split(rows, counts)
    inside = inside * padded
    inside[(inside > 0).sum(1) == counts] = 0  # one cluster is no split
    sizes, centroids, margin, between = _described(rows, inside, counts)
    total = rows.norms.sum(1, dtype=torch.float64)
    inertia, tight = (total - between) * scale**2, total - between < rows.tight * total
    centroids, total = mean[:, None] + scale[:, None, None] * centroids, total * scale**2
    for c in (tight & (sizes[:, 1] > 0)).nonzero()[:, 0].tolist():
        centroids[c], inertia[c] = _exactly(data[member[c, padded[c]]], inside[c, padded[c]] > 0)
    swap = (sizes[:, 1] > 0) & (centroids[:, 1].mean(1) < centroids[:, 0].mean(1))
    found.sizes[classes] = torch.where(swap[:, None], sizes.flip(1), sizes)
    found.centroids[classes] = torch.where(swap[:, None, None], centroids.flip(1), centroids)
    found.inertia[classes], found.total[classes] = inertia, total
    real = slice(None) if valid is None else padded
    found.assignment[member[real]] = ((inside > 0) ^ swap[:, None])[real]
    found.margin[member[real]] = torch.where(swap[:, None], -margin, margin)[real]


def _exactly(values: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Centroids and inertia from the data, for clusters so tight that the difference of sums says little."""
    parts = [values[~inside].double(), values[inside].double()]
    means = [part.mean(0) for part in parts]
    squares = [(part - mean).square().sum() for part, mean in zip(parts, means, strict=True)]
    return torch.stack(means), squares[0] + squares[1]


def _standardised(x: Tensor, valid: Tensor | None, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows centred on their class's mean and within -1 and 1, their mean, and their scale.

    Equal rows become exactly zero. Large classes become float32, after centring.
    """
    x = x.double() if x.shape[1] <= SEARCHED else x
    unit = torch.ones(len(x), dtype=torch.float64)
    if float(x.abs().max()) > 1e15:  # squares of larger numbers may overflow
        unit = x.abs().amax((1, 2)).double().clamp(min=1.0)
        x = x / unit.to(x.dtype)[:, None, None]
    origin = x[:, :1].clone()
    x = x.sub_(origin)
    if valid is not None:
        x *= valid[:, :, None]
    scale = x.abs().amax((1, 2))
    scale = torch.where(scale > 0, scale, 1.0)
    x /= scale[:, None, None]
    x = x if x.shape[1] <= SEARCHED else x.float()
    shift = added(x.new_ones(len(x), 1, x.shape[1]), x) / counts[:, None, None]
    x -= shift
    if valid is not None:
        x *= valid[:, :, None]
    mean = origin[:, 0].double() + shift[:, 0].double() * scale[:, None].double()
    return x, mean * unit[:, None], scale.double() * unit


def _described(rows: Rows, inside: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sizes, centroids, margins and variance between, of a split (classes, rows) 0/1, in standard units."""
    now = rows.candidates(inside[:, None])
    p, threshold = rows.boundary(now)
    chosen = (inside > 0).sum(1)  # counted, since float32 holds no whole number above 2**24
    sizes = torch.stack([counts - chosen, chosen], 1)
    sums, between = now.sums.double(), now.between[:, :, None]
    centroids = torch.cat([-sums, sums], 1) / sizes.double().clamp(min=1)[:, :, None]
    margin = torch.where(between > 0, (p - threshold) / (2 * between), 0.0)[:, 0]
    return sizes, centroids, margin.float(), now.between[:, 0].double()
