"""two_means of more histories than a search can hold: a start from a sample, then Lloyd's steps on all rows.

The sample is chosen by the rows' distances from a point amid them: of every class the farthest rows, for few
rows far out can be a cluster, and others evenly spaced in that order. No seed is drawn, and the order of the
samples decides nothing but ties. The best splits of the sample are tried on all rows. From the best of them,
every pass over all rows (passes.py) moves each to the nearer centroid, until no class's inertia falls by more
than 1e-5 of itself in a pass.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.core.kmeans import TwoMeans, class_positions
from evenhand.core.lines import TAIL
from evenhand.core.passes import MOST_CLASSES, Fused, Plain
from evenhand.core.pieces import side_by_side
from evenhand.core.search import centroids_of_sample

SAMPLE = 81920  # rows on which the start is searched, all classes together
_LEAST, _MOST = 2 * TAIL, 32768  # of them, of one class
_SETTLED = 1e-5  # an inertia that falls by less, relatively, has settled
_NOISE = 1e-6  # of a class's total: what sums in float32 cannot tell
_PASSES = 100
_TRIED = 8  # starts tried on all rows


def two_means_on_device(histories: Tensor, labels: Tensor | npt.ArrayLike | None = None) -> TwoMeans:
    """two_means where the histories, (samples, epochs), lie; `assignment` and `margin` stay there too."""
    if histories.ndim != 2 or 0 in histories.shape:
        raise ValueError(f"histories must be shaped (samples, epochs), got {tuple(histories.shape)}")
    samples = len(histories)
    classes, position = _positions(labels, samples, histories.device)
    if position is not None and len(position) != samples:
        raise ValueError(f"histories and labels must be equally long, got {samples} and {len(position)}")
    if len(classes) <= MOST_CLASSES:
        return _solve(_passes(histories, position, len(classes)), classes)
    assert position is not None
    found = _empty(classes, histories)
    for start in range(0, len(classes), MOST_CLASSES):
        own = slice(start, min(start + MOST_CLASSES, len(classes)))
        rows = ((position >= own.start) & (position < own.stop)).nonzero()[:, 0]
        part = two_means_on_device(histories.T[:, rows].T, position[rows] - start)
        found.assignment[rows], found.margin[rows] = part.assignment, part.margin
        found.sizes[own], found.centroids[own] = part.sizes, part.centroids
        found.inertia[own], found.total[own] = part.inertia, part.total
    return found


def _passes(histories: Tensor, position: Tensor | None, num_classes: int) -> Plain:
    """The fastest passes there are for such histories."""
    index = torch.linspace(0, len(histories) - 1, min(len(histories), 1024), dtype=torch.float64).long()
    origin = histories[index.to(histories.device)].double().mean(0).cpu()
    kind = Fused if Fused.takes(histories, num_classes) else Plain
    return kind(histories, position, num_classes, origin)


def _positions(
    labels: Tensor | npt.ArrayLike | None, samples: int, device: torch.device
) -> tuple[npt.NDArray[Any], Tensor | None]:
    """The distinct labels and, unless there is only one, each sample's; counted where the labels lie."""
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
    classes, position = class_positions(labels)
    if len(classes) == 1 and len(position) == samples:
        return classes, None
    return classes, torch.from_numpy(position.astype(np.uint8 if len(classes) <= 256 else np.int32)).to(
        device
    )


def _empty(classes: npt.NDArray[Any], histories: Tensor) -> TwoMeans:
    """All classes whole, for parts to fill in."""
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


def _solve(data: Plain, classes: npt.NDArray[Any]) -> TwoMeans:
    """Start, passes until settled, and a last one that marks every row."""
    counts, sums, squares, keys = data.moments()
    if not bool(squares.isfinite().all()):
        low, high = (float(end) for end in torch.aminmax(data.x))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(
                f"histories must be finite, got {low:g} to {high:g}; "
                "a training that diverges needs a lower learning rate"
            )
        wide = Plain(data.x, data.position, data.num_classes, torch.zeros_like(data.origin))
        wide.dtype = torch.float64  # squares of these numbers overflow in float32
        return _solve(wide, classes)
    mean = sums / counts[:, None]
    total = (squares - counts * (mean + data.shift - data.origin).square().sum(1)).clamp(min=0)
    starts = _start(data, keys, counts) - data.shift
    del keys
    centroids = _best_start(data, starts, counts, mean)
    total[(centroids[:, 0] == centroids[:, 1]).all(1)] = 0  # identical rows; what else is left is rounding
    inertia = torch.full_like(total, torch.inf)
    for _ in range(_PASSES):
        sizes, sums = data.split(*_boundary(centroids)[:2])
        centroids, between = _updated(centroids, counts, mean, sizes, sums)
        before, inertia = inertia, total - between
        if bool((before - inertia <= _SETTLED * inertia.clamp(min=0) + _NOISE * total).all()):
            break
    return _marked(data, classes, centroids, counts, mean, total)


def _marked(
    data: Plain, classes: npt.NDArray[Any], centroids: Tensor, counts: Tensor, mean: Tensor, total: Tensor
) -> TwoMeans:
    """The last pass: every row to the nearer of these centroids, and the clusters that this makes."""
    sizes, sums, margin, inside = data.mark(*_boundary(centroids))
    centroids, between = _updated(centroids, counts, mean, sizes, sums)
    whole = (sizes == 0) | (sizes == counts)
    swap = ~whole & (centroids[:, 1].mean(1) < centroids[:, 0].mean(1))
    if bool((whole & (sizes > 0)).any() or swap.any()):  # rare: a pass over the rows that is seldom needed
        own = torch.zeros(1, dtype=torch.long) if data.position is None else data.position.long()
        sign = torch.where(whole, 0.0, torch.where(swap, -1.0, 1.0)).float().to(margin.device)
        inside = (inside ^ swap.to(inside.device)[own]) & ~whole.to(inside.device)[own]
        margin = margin * sign[own]
    sizes = torch.where(whole, 0.0, torch.where(swap, counts - sizes, sizes))
    centroids = torch.where(swap[:, None, None], centroids.flip(1), centroids)
    centroids = torch.where(whole[:, None, None], mean[:, None].expand_as(centroids), centroids)
    return TwoMeans(
        assignment=inside,
        margin=margin,
        classes=classes,
        sizes=torch.stack([counts - sizes, sizes], 1).long(),
        centroids=centroids + data.shift,
        inertia=torch.where(whole, total, (total - between).clamp(min=0)),
        total=total,
    )


def _start(data: Plain, keys: Tensor, counts: Tensor) -> Tensor:
    """Centroids for every class, (tried, classes, 2, epochs): a sample's; equal ones leave it whole."""
    most = min(max(SAMPLE // data.num_classes, _LEAST), _MOST)
    sizes = [int(count) for count in counts]
    tailed = [size > most for size in sizes]
    chosen = []
    for c, size in enumerate(sizes):
        own = None if data.position is None else (data.position == c).nonzero()[:, 0]
        order = (keys if own is None else keys[own]).argsort(stable=True, descending=True)
        number, tail = min(size, most), TAIL if tailed[c] else 0
        spaced = torch.linspace(tail, size - 1, number - tail, dtype=torch.float64).round().long()
        rows = order[torch.cat([torch.arange(tail), spaced]).to(order.device)]
        chosen.append(rows if own is None else own[rows])
    samples = torch.split(data.rows(torch.cat(chosen)), [len(rows) for rows in chosen])
    with side_by_side() as pool:
        found = pool.map(centroids_of_sample, samples, sizes, tailed, itertools.repeat(_TRIED))
        return torch.stack(list(found), 1)


def _best_start(data: Plain, starts: Tensor, counts: Tensor, mean: Tensor) -> Tensor:
    """Of every class the start that is best after a step on all rows: on a sample, good ones look alike."""
    best, most = starts[0], torch.zeros(data.num_classes, dtype=torch.float64)
    for start in starts:
        sizes, sums = data.split(*_boundary(start)[:2])
        moved, between = _updated(start, counts, mean, sizes, sums)
        best = torch.where((between > most)[:, None, None], moved, best)
        most = torch.maximum(most, between)
    return best


def _boundary(centroids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Directions, whose largest entry is 1; thresholds; and what turns (x.d - t) into margins."""
    low, high = centroids[:, 0], centroids[:, 1]
    d = high - low
    size = d.abs().amax(1).clamp(min=1e-300)
    square = d.square().sum(1)
    t = (d * (high + low)).sum(1) / 2
    return d / size[:, None], t / size, torch.where(square > 0, size / square.clamp(min=1e-300), 0.0)


def _updated(
    centroids: Tensor, counts: Tensor, mean: Tensor, sizes: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """The centroids of clusters of these sizes and sums, and the variance between them.

    A class with an empty cluster keeps its centroids.
    """
    others = counts - sizes
    apart = sums - sizes[:, None] * mean  # s at the top of search.py
    split = (sizes > 0) & (others > 0)
    product = torch.where(split, sizes * others, 1.0)
    between = torch.where(split, counts * apart.square().sum(1) / product, 0.0)
    new = torch.stack(
        [mean - apart / others.clamp(min=1)[:, None], mean + apart / sizes.clamp(min=1)[:, None]], 1
    )
    return torch.where(split[:, None, None], new, centroids), between
