"""two_means: every class's histories in two clusters, all classes in one call, without a seed.

Classes of at most 2048 samples are searched whole (search.py). A larger class is searched on a sample. Its
best splits are tried on all rows. From the best of them, every pass over all rows (passes.py) moves each row
to the nearer centroid, until moving the centroids lowers no class's inertia by much.

In memory, the rows of a class are put in an order that their values define, so that the order in which
samples come cannot matter, not even through rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.core import ranks
from evenhand.core.arrays import as_labels, as_matrix, as_numpy, as_real, class_positions
from evenhand.core.kernels import MOST_CLASSES, TritonPasses
from evenhand.core.passes import FirstPass, Passes, boundary, check_values, sample_limit, thread_pool
from evenhand.core.search import SEARCHED, Rows, best_split, candidate_centroids, standardised

STREAMED = 1 << 28  # numbers; a larger matrix is not copied into memory
_BUCKET = 1 << 18  # numbers worked on at once: what fits into the cache of a processor core
_PRECISION = {np.dtype(np.float16): np.float32, np.dtype(np.float32): np.float32}
_HUGE = 1 << 24  # numbers of a class that is worth all threads, or of histories that stay on a GPU
_PASSES = 100
# What moving the centroids must gain, relative to the inertia, for another pass: in memory, on a GPU, and in
# blocks, where a pass may read a file that is larger than memory.
_GAIN, _GAIN_ON_DEVICE, _GAIN_IN_BLOCKS = 1e-6, 1e-5, 1e-4
_NOISE = 1e-10  # of a class's total: what sums in float32 cannot resolve
_CHUNK = 1 << 22  # samples worked on at once


@dataclass(frozen=True, eq=False)
class TwoMeans:
    """The two clusters of every class; cluster 1 has the higher mean. A class left whole has no cluster 1."""

    assignment: Tensor  # (samples,) bool: in cluster 1
    margin: Tensor  # (samples,) float32: signed distance to the boundary over the distance of the centroids
    classes: npt.NDArray[Any]  # (classes,) the distinct labels, ascending
    sizes: Tensor  # (classes, 2) int64
    centroids: Tensor  # (classes, 2, epochs) float64; of a class left whole, its mean twice
    inertia: Tensor  # (classes,) float64: squared distances to the nearer centroid, summed
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
    Histories of more than a GiB are read in blocks, so that they need not fit into memory.
    Many histories on a GPU are split there, and `assignment` and `margin` stay there.

    >>> clusters = two_means([[0.1, 0.0], [0.2, 0.0], [2.0, 1.5]])
    >>> clusters.assignment.tolist(), clusters.sizes.tolist()
    ([False, False, True], [[2, 1]])
    """
    return split_classes(histories, labels, assignment=assignment)


def split_classes(
    histories: Tensor | npt.ArrayLike,
    labels: Tensor | npt.ArrayLike | None,
    *,
    assignment: Tensor | npt.ArrayLike | None = None,
    name: str = "histories",
    largest: float = float("inf"),
    across_ranks: bool = False,
) -> TwoMeans:
    """`two_means` for `partition`. Errors call the histories `name`. Raises for values beyond `largest`.

    With `across_ranks`, every rank has a part of the samples. The fields of TwoMeans that describe classes
    are then of all ranks, and those that describe samples are of the rank's own.
    """
    if isinstance(histories, Tensor) and histories.is_cuda:
        if on_device(histories) and assignment is None and not across_ranks:
            return two_means_on_device(histories, labels, name=name, largest=largest)
        clusters = None if assignment is None else as_numpy(assignment, "assignment")
        options: dict[str, Any] = {"name": name, "largest": largest, "across_ranks": across_ranks}
        found = split_classes(histories.cpu(), labels, assignment=clusters, **options)
        device = histories.device
        return replace(found, assignment=found.assignment.to(device), margin=found.margin.to(device))
    real = as_real(histories, name)
    names = np.zeros(len(real), np.int8) if labels is None else as_labels(labels)
    if real.ndim == 2:
        check_lengths(len(real), len(names), name)
        if assignment is None and (real.size > STREAMED or across_ranks):
            return two_means_in_blocks(real, names, name=name, largest=largest, across_ranks=across_ranks)
    values = as_matrix(real, name)
    x = torch.from_numpy(values.astype(_PRECISION.get(values.dtype, np.float64), copy=False))
    check_values(x, name, largest)
    classes, position = class_positions(names)
    found = _unsplit(classes, x)
    counts = np.bincount(position, minlength=len(classes))
    order, starts = _canonical_order(x, position), np.cumsum(counts) - counts
    given = None if assignment is None else torch.as_tensor(np.asarray(assignment)).bool()

    def solve(bucket: npt.NDArray[np.int64], pool: ThreadPoolExecutor | None = None) -> None:
        row = np.arange(counts[bucket[0]])
        valid = torch.from_numpy(row < counts[bucket, None])
        member = torch.from_numpy(order[np.minimum(starts[bucket, None] + row, len(x) - 1)])
        if given is None and len(row) > SEARCHED:
            assert len(bucket) == 1, "large classes have a bucket of their own"
            _solve_large(x, int(bucket[0]), member[0], pool, found)
        else:
            _solve(x, torch.from_numpy(bucket), member, valid, given, found)

    buckets = _buckets(counts, x.shape[1])
    huge = [bucket for bucket in buckets if int(counts[bucket[0]]) * x.shape[1] > _HUGE]
    with thread_pool() as pool:
        for bucket in huge:
            solve(bucket, pool)
        list(pool.map(solve, buckets[len(huge) :]))  # the largest come first, so these are the others
    return found


def two_means_in_blocks(
    matrix: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    *,
    name: str = "histories",
    largest: float = float("inf"),
    across_ranks: bool = False,
) -> TwoMeans:
    """`two_means` of a matrix (samples, epochs) that need not fit into memory.

    Memory holds two blocks, a sample of at most a quarter of a GiB, and five bytes per sample of results.
    """
    classes, position = class_positions(labels)
    if across_ranks and ranks.count() > 1:
        lists: list[list[Any]] = ranks.from_all(classes.tolist())
        union = np.unique(np.array([label for part in lists for label in part]))
        union = union.astype(classes.dtype) if classes.dtype.kind != "U" else union
        table = np.searchsorted(union, classes).astype(np.min_scalar_type(len(union)))
        classes, position = union, table[position]
    small = None if len(classes) == 1 else as_positions(position, len(classes))
    with thread_pool() as pool:

        def passes(unit: float) -> Passes:
            return Passes(matrix, small, len(classes), unit=unit, pool=pool, across_ranks=across_ranks)

        # A large sample: it costs less than the passes over a file that a better start saves.
        sample, least = sample_limit(1), _GAIN_IN_BLOCKS
        first = passes(1.0)
        return _lloyd(first, passes, classes, pool, least=least, sample=sample, name=name, largest=largest)


def on_device(histories: object) -> TypeGuard[Tensor]:
    """Return whether histories are on a GPU and large enough to be split there."""
    if not isinstance(histories, Tensor):
        return False
    return histories.is_cuda and histories.ndim == 2 and histories.numel() > _HUGE


def two_means_on_device(
    histories: Tensor, labels: Tensor | npt.ArrayLike | None = None, **options: Any
) -> TwoMeans:
    """`two_means` on the GPU that holds the histories; `assignment` and `margin` stay there."""
    if histories.ndim != 2 or 0 in histories.shape:
        raise ValueError(f"histories must be shaped (samples, epochs), got {tuple(histories.shape)}")
    classes, position = _device_positions(labels, len(histories), histories.device)
    name = options.get("name", "histories")
    check_lengths(len(histories), len(histories) if position is None else len(position), name)
    if len(classes) > MOST_CLASSES and histories.is_cuda:
        assert position is not None
        found = _unsplit(classes, histories)
        for start in range(0, len(classes), MOST_CLASSES):
            these = slice(start, min(start + MOST_CLASSES, len(classes)))
            rows = ((position >= these.start) & (position < these.stop)).nonzero()[:, 0]
            part = two_means_on_device(histories.T[:, rows].T, position[rows] - start, **options)
            found.assignment[rows], found.margin[rows] = part.assignment, part.margin
            found.sizes[these], found.centroids[these] = part.sizes, part.centroids
            found.inertia[these], found.total[these] = part.inertia, part.total
        return found

    def passes(unit: float) -> Passes:
        return Passes(histories, position, len(classes), unit=unit)

    with thread_pool() as pool:
        taken = TritonPasses.takes(histories, len(classes))
        data = TritonPasses(histories, position, len(classes)) if taken else passes(1.0)
        return _lloyd(data, passes, classes, pool, least=_GAIN_ON_DEVICE, **options)


# -- large classes ---------------------------------------------------------------------------------------


def _lloyd(
    data: Passes,
    passes: Callable[[float], Passes],
    classes: npt.NDArray[Any],
    pool: ThreadPoolExecutor | None,
    *,
    least: float,
    name: str = "histories",
    largest: float = float("inf"),
    sample: int | None = None,
    larger_sample: int = 0,
) -> TwoMeans:
    """Run Lloyd's passes over all rows until they settle, from the best start of a sample.

    `passes` gives passes in another unit, for numbers whose squares float32 cannot hold. `least`: the gain,
    relative to the inertia, that is worth another pass. `larger_sample` is taken where a sample gives several
    starts that are about equally good.
    """
    sample = sample or sample_limit(data.num_classes)
    first = data.first_pass(sample)
    if not bool(first.squares.isfinite().all()):
        data = passes(data.check_range(name, largest))
        first = data.first_pass(sample)
    counts, mean = first.counts, first.sums / first.counts[:, None]
    total = (first.squares - counts * (mean + data.shift - data.origin).square().sum(1)).clamp(min=0)
    total[[bool((x == x[:1]).all()) for x in first.samples]] = 0  # identical rows, despite rounding
    starts = _starts(first, pool)
    if larger_sample > sample and len(starts) > 1:
        starts = _starts(data.first_pass(larger_sample), pool)
    centroids = _best_start(data, starts, counts, mean)
    for _ in range(_PASSES):
        sizes, sums, margin, inside = data.mark(*boundary(centroids))
        before = centroids
        centroids, between = _updated(before, counts, mean, sizes, sums)
        moved = (centroids - before).square().sum(2)
        gain = (counts - sizes) * moved[:, 0] + sizes * moved[:, 1]
        if bool((gain <= least * (total - between).clamp(min=0) + _NOISE * total).all()):
            break
    return _described(data, classes, centroids, counts, mean, total, (sizes, between, margin, inside))


def _starts(first: FirstPass, pool: ThreadPoolExecutor | None) -> Tensor:
    """Return centroids of the best splits of the samples, (starts, classes, 2, epochs); frees the samples."""
    given = (first.samples, first.counts.tolist(), first.tailed)
    found = list((pool.map if pool else map)(candidate_centroids, *given))
    first.samples.clear()
    number = max(len(each) for each in found)
    return torch.stack([each[torch.arange(number).clamp(max=len(each) - 1)] for each in found], 1)


def _best_start(data: Passes, starts: Tensor, counts: Tensor, mean: Tensor) -> Tensor:
    """Return each class's best start after a step on all rows, (classes, 2, epochs)."""
    if len(starts) == 1:
        return starts[0]
    direction, threshold, _ = boundary(starts)
    starts, between = _updated(starts, counts, mean, *data.split(direction, threshold))
    return starts[between.argmax(0), torch.arange(data.num_classes)]


def _updated(
    centroids: Tensor, counts: Tensor, mean: Tensor, sizes: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the centroids, (…, classes, 2, epochs), of these sizes and sums, and the variance between.

    A class with an empty cluster keeps its centroids.
    """
    others = counts - sizes
    apart = sums - sizes[..., None] * mean  # s at the top of search.py
    split = (sizes > 0) & (others > 0)
    product = torch.where(split, sizes * others, 1.0)
    between = torch.where(split, counts * apart.square().sum(-1) / product, 0.0)
    new = torch.stack(
        [mean - apart / others.clamp(min=1)[..., None], mean + apart / sizes.clamp(min=1)[..., None]], -2
    )
    return torch.where(split[..., None, None], new, centroids), between


def _described(
    data: Passes,
    classes: npt.NDArray[Any],
    centroids: Tensor,
    counts: Tensor,
    mean: Tensor,
    total: Tensor,
    marked: tuple[Tensor, Tensor, Tensor, Tensor],
) -> TwoMeans:
    """Return the clusters of the last pass in the units of the data; cluster 1 has the higher mean."""
    sizes, between, margin, inside = marked
    whole = (sizes == 0) | (sizes == counts)
    swap = ~whole & (centroids[:, 1].mean(1) < centroids[:, 0].mean(1))
    if bool((whole & (sizes > 0)).any() or swap.any()):
        sign = torch.where(whole, 0.0, torch.where(swap, -1.0, 1.0)).float().to(margin.device)
        for start in range(0, len(margin), _CHUNK):
            part = slice(start, start + _CHUNK)
            c = torch.zeros(1, dtype=torch.long) if data.position is None else data.position[part].long()
            inside[part] = (inside[part] ^ (sign < 0)[c]) & (sign != 0)[c]
            margin[part] *= sign[c]
    sizes = torch.where(whole, 0.0, torch.where(swap, counts - sizes, sizes))
    centroids = torch.where(swap[:, None, None], centroids.flip(1), centroids)
    centroids = torch.where(whole[:, None, None], mean[:, None].expand_as(centroids), centroids)
    return TwoMeans(
        assignment=inside,
        margin=margin,
        classes=classes,
        sizes=torch.stack([counts - sizes, sizes], 1).long(),
        centroids=(centroids + data.shift) * data.unit,
        inertia=torch.where(whole, total, (total - between).clamp(min=0)) * data.unit * data.unit,
        total=total * data.unit * data.unit,
    )


def _solve_large(x: Tensor, c: int, rows: Tensor, pool: ThreadPoolExecutor | None, found: TwoMeans) -> None:
    """Split one class of histories in memory."""
    standard, mean, scale = standardised(x[rows][None], None, torch.tensor([len(rows)]))

    def passes(unit: float) -> Passes:
        return Passes(standard[0], None, 1, unit=unit, pool=pool)

    samples = min(len(rows) // 4, sample_limit(len(found.classes))), sample_limit(1)
    part = _lloyd(
        passes(1.0), passes, found.classes[:1], pool, least=_GAIN, sample=samples[0], larger_sample=samples[1]
    )
    found.assignment[rows], found.margin[rows], found.sizes[c] = part.assignment, part.margin, part.sizes[0]
    found.centroids[c], found.total[c] = mean[0] + scale * part.centroids[0], part.total[0] * scale**2
    found.inertia[c] = part.inertia[0] * scale**2
    if part.sizes[0, 1] and part.inertia[0] < 1e-2 * part.total[0]:
        found.centroids[c], found.inertia[c] = _exactly(x[rows], part.assignment)


# -- small classes ---------------------------------------------------------------------------------------


def _solve(
    data: Tensor, classes: Tensor, member: Tensor, padded: Tensor, given: Tensor | None, found: TwoMeans
) -> None:
    """Split, or describe, the classes of one bucket; member (classes, rows) are their samples, padded."""
    valid = None if padded.all() else padded
    counts = padded.sum(1)
    x = data.index_select(0, member.flatten()).view(*member.shape, -1)
    x, mean, scale = standardised(x, valid, counts)
    rows = Rows(x, valid)
    inside = best_split(rows) if given is None else given[member].to(x.dtype)
    inside = inside * padded
    inside[(inside > 0).sum(1) == counts] = 0  # one cluster is no split
    sizes, centroids, margin, between = rows.describe(inside, counts)
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
    """Compute centroids and inertia from the data, for clusters too tight for a difference of sums."""
    parts = [values[~inside].double(), values[inside].double()]
    means = [part.mean(0) for part in parts]
    squares = [(part - mean).square().sum() for part, mean in zip(parts, means, strict=True)]
    return torch.stack(means), squares[0] + squares[1]


# -- classes and their rows ------------------------------------------------------------------------------


def check_lengths(samples: int, labels: int, name: str) -> None:
    """Raise unless there is a label for every sample."""
    if samples != labels:
        raise ValueError(f"{name} and labels must have one row per sample, got {samples} and {labels}")


def as_positions(position: npt.NDArray[Any], num_classes: int) -> Tensor:
    """Convert positions to the type that passes take."""
    return torch.from_numpy(position.astype(np.uint8 if num_classes <= 256 else np.int32, copy=False))


def _device_positions(
    labels: Tensor | npt.ArrayLike | None, samples: int, device: torch.device
) -> tuple[npt.NDArray[Any], Tensor | None]:
    """Return the distinct labels and, for several labels, the index of each sample's label."""
    if labels is None:
        return np.zeros(1, np.int64), None
    whole = isinstance(labels, Tensor) and not labels.dtype.is_floating_point and not labels.dtype.is_complex
    if isinstance(labels, Tensor) and whole and labels.is_cuda and labels.ndim == 1 and len(labels):
        low, high = (int(end) for end in torch.aminmax(labels))
        if high - low < 4096:
            offset = labels.to(torch.int32) - low if abs(low) < 2**30 else (labels - low).to(torch.int32)
            present = torch.bincount(offset, minlength=high - low + 1) > 0
            names = (present.nonzero()[:, 0].cpu() + low).to(labels.dtype).numpy()
            kind = torch.uint8 if len(names) <= 256 else torch.int32
            return names, (present.cumsum(0) - 1).to(kind).index_select(0, offset)
    classes, position = class_positions(as_labels(labels))
    if len(classes) == 1 and len(position) == samples:
        return classes, None
    return classes, as_positions(position, len(classes)).to(device)


def _unsplit(classes: npt.NDArray[Any], histories: Tensor) -> TwoMeans:
    """Return a result with all classes whole, for parts to fill in."""
    num_classes, (samples, epochs) = len(classes), histories.shape
    return TwoMeans(
        assignment=torch.zeros(samples, dtype=torch.bool, device=histories.device),
        margin=torch.zeros(samples, device=histories.device),
        classes=classes,
        sizes=torch.zeros(num_classes, 2, dtype=torch.int64),
        centroids=torch.zeros(num_classes, 2, epochs, dtype=torch.float64),
        inertia=torch.zeros(num_classes, dtype=torch.float64),
        total=torch.zeros(num_classes, dtype=torch.float64),
    )


def _canonical_order(x: Tensor, position: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Order samples by class, then by a hash of their values, which depends on nothing else."""
    values = x.numpy()
    if values.itemsize * values.shape[1] % 8:
        values = np.pad(values, ((0, 0), (0, 1)))
    bits = values.view(np.int64)
    factors = np.random.default_rng(0).integers(-(2**62), 2**62, bits.shape[1], dtype=np.int64) * 2 + 1
    order = np.argsort(bits @ factors, kind="stable")
    return order[np.argsort(position[order], kind="stable")]


def _buckets(counts: npt.NDArray[np.int64], epochs: int) -> list[npt.NDArray[np.int64]]:
    """Group classes of similar size, largest first, to form dense arrays with little padding."""
    buckets: list[list[int]] = []
    largest = 0
    for c in np.argsort(-counts, kind="stable").tolist():
        similar = counts[c] * 1.25 + 4 >= largest
        if not buckets or not similar or (len(buckets[-1]) + 1) * largest * max(epochs, 64) > _BUCKET:
            buckets.append([])
            largest = int(counts[c])
        buckets[-1].append(c)
    return [np.array(bucket) for bucket in buckets]
