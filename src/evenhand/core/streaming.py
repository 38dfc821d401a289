"""two_means of histories larger than memory: a start from a sample, then Lloyd's passes over the blocks.

Held in memory are two blocks, a sample of at most a quarter of a GiB, and five bytes per sample of results.
The passes end when no row changes its cluster, or when moving the centroids lowers the inertia of no class by
more than a ten-thousandth. Everything that is added up is small, so ranks that hold a part of the samples
each need exchange nothing else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.core import ranks
from evenhand.core.arrays import compact_positions
from evenhand.core.kmeans import TwoMeans, as_labels
from evenhand.core.pieces import Piece, Stream, projected, side_by_side
from evenhand.core.search import centroids_of_sample
from evenhand.core.survey import Survey, survey

STREAMED = 1 << 28  # numbers; a larger matrix is not copied into memory
_PASSES = 100
_SETTLED = 1e-4
_CHUNK = 1 << 22


class _State(NamedTuple):
    """Of every class's cluster 1, relative to the stream's origin."""

    sums: Tensor  # (classes, epochs) float64
    sizes: Tensor  # (classes,) float64


def streamed(
    matrix: npt.NDArray[Any],
    labels: npt.NDArray[Any] | None,
    *,
    name: str = "histories",
    largest: float = float("inf"),
    across_ranks: bool = False,
) -> TwoMeans:
    """The same as two_means, of a matrix (samples, epochs) that need not fit into memory.

    The margins are those to the boundary that the last pass has used. With `across_ranks`, every rank has a
    part of the samples; what is told of a class is of all ranks, and what is told of samples is of its own.
    `largest`: numbers beyond it are refused.
    """
    names = np.zeros(len(matrix), np.int8) if labels is None else as_labels(labels)
    if len(names) != len(matrix):
        raise ValueError(f"{name} and labels must be equally long, got {len(matrix)} and {len(names)}")
    classes, position = compact_positions(names)
    if across_ranks and ranks.count() > 1:
        classes, position = _common(classes, position)
    with side_by_side() as pool:
        stream = Stream(matrix, position, len(classes), pool=pool, across_ranks=across_ranks)
        found = survey(stream, stream.centre())
        if not found.finite:
            stream.measure(name, largest)
            found = survey(stream, stream.centre())
        return _settled(stream, found, classes)


def _settled(stream: Stream, found: Survey, classes: npt.NDArray[Any]) -> TwoMeans:
    """Lloyd's passes from the best start on the sample, until nothing is gained."""
    total = (found.squares - found.sums.square().sum(1) / stream.counts).clamp(min=0)
    total[[bool((x == x[:1]).all()) for x in found.samples]] = 0  # whatever rounding says
    centroids = _start(stream, found)
    found.samples.clear()
    margin = torch.zeros(len(stream.position))
    now = _State(torch.zeros_like(found.sums), torch.zeros_like(total))
    for number in range(_PASSES):
        now, moved = _pass(stream, now, centroids, margin, backwards=number % 2 == 0)
        before, centroids = centroids, _centroids(stream.counts, found.sums, now)
        inertia = total - torch.minimum(_between(stream.counts, now, centroids), total)
        saved = (_sizes(stream.counts, now) * (centroids - before).square().sum(2)).sum(1)
        if moved == 0 or (saved <= _SETTLED * inertia).all():
            break
    return _described(stream, classes, total, now, centroids, margin)


def _common(
    classes: npt.NDArray[Any], position: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The labels of all ranks, and the positions among them."""
    lists: list[list[Any]] = ranks.from_all(classes.tolist())
    union = np.unique(np.array([label for own in lists for label in own]))
    union = union.astype(classes.dtype) if classes.dtype.kind != "U" else union
    table = np.searchsorted(union, classes).astype(np.min_scalar_type(len(union) - 1))
    return union, table[position]


def _start(stream: Stream, found: Survey) -> Tensor:
    """Two centroids of every class, (classes, 2, epochs) float64; equal ones where nothing can be split."""
    given = (found.samples, stream.counts.tolist(), found.tailed.tolist())
    return torch.cat(list(stream.pool.map(centroids_of_sample, *given)))


def _pass(
    stream: Stream, now: _State, centroids: Tensor, margin: Tensor, *, backwards: bool
) -> tuple[_State, int]:
    """Put every row in the nearer cluster; its signed distance to the boundary replaces its margin."""
    apart = centroids[:, 1] - centroids[:, 0]
    square = apart.square().sum(1, keepdim=True)
    lines = torch.where(square > 0, apart / square.clamp(min=1e-300), 0.0)
    middle = (lines * centroids.sum(1) / 2).sum(1).float()
    lines = lines.float()

    def move(piece: Piece) -> tuple[slice, Tensor, Tensor, int]:
        value = projected(piece, lines) - middle[piece.first :][piece.own]
        other = ((value > 0) != (margin[piece.rows] > 0)).nonzero()[:, 0]
        margin[piece.rows] = value
        # Only rows that move change a sum: few, so they can be added in float64.
        own, sign = piece.own[other], torch.where(value[other] > 0, 1.0, -1.0).double()
        last = int(own.max()) + 1 if len(own) else 0
        member = torch.zeros(last, len(own), dtype=torch.float64).scatter_(0, own[None], sign[None])
        moved = member @ piece.x.index_select(1, other).double().t()
        return slice(piece.first, piece.first + last), moved, member.sum(1), len(own)

    sums, sizes = torch.zeros_like(now.sums), torch.zeros_like(now.sizes)
    count = torch.zeros(1, dtype=torch.int64)
    for part, joined, number, moved in stream.each(move, backwards=backwards):
        sums[part] += joined
        sizes[part] += number
        count += moved
    return _State(now.sums + stream.add(sums), now.sizes + stream.add(sizes)), int(stream.add(count))


def _centroids(counts: Tensor, sums: Tensor, now: _State) -> Tensor:
    """The means of both clusters; of a class with one cluster, twice its mean."""
    whole = (now.sizes == 0) | (now.sizes == counts)
    inside = torch.where(whole, counts.double(), now.sizes)
    outside = torch.where(whole, counts.double(), counts - now.sizes)
    one = torch.where(whole[:, None], sums, now.sums) / inside[:, None]
    zero = torch.where(whole[:, None], sums, sums - now.sums) / outside[:, None]
    return torch.stack([zero, one], 1)


def _sizes(counts: Tensor, now: _State) -> Tensor:
    return torch.stack([counts - now.sizes, now.sizes], 1).long()


def _between(counts: Tensor, now: _State, centroids: Tensor) -> Tensor:
    """The part of every class's variance between its clusters, (classes,)."""
    apart = (centroids[:, 1] - centroids[:, 0]).square().sum(1)
    return (counts - now.sizes) * now.sizes / counts * apart


def _described(
    stream: Stream,
    classes: npt.NDArray[Any],
    total: Tensor,
    now: _State,
    centroids: Tensor,
    margin: Tensor,
) -> TwoMeans:
    """The answer, in the units of the data; cluster 1 has the higher mean."""
    now.sizes[now.sizes == stream.counts] = 0
    between = torch.minimum(_between(stream.counts, now, centroids), total)
    split = now.sizes > 0
    swap = split & (centroids[:, 1].mean(1) < centroids[:, 0].mean(1))
    sizes = _sizes(stream.counts, now)
    assignment = torch.zeros(len(margin), dtype=torch.bool)
    for start in range(0, len(margin), _CHUNK):
        part = slice(start, start + _CHUNK)
        own = torch.from_numpy(stream.position[part].astype(np.int64))
        assignment[part] = (margin[part] > 0) & split[own] ^ swap[own]
        margin[part] *= torch.where(split, torch.where(swap, -1.0, 1.0), 0.0)[own]
    centroids = (stream.origin + torch.where(swap[:, None, None], centroids.flip(1), centroids)) * stream.unit
    return TwoMeans(
        assignment=assignment,
        margin=margin,
        classes=classes,
        sizes=torch.where(swap[:, None], sizes.flip(1), sizes),
        centroids=torch.where(split[:, None, None], centroids, _only_first(centroids)),
        inertia=(total - between) * stream.unit * stream.unit,
        total=total * stream.unit * stream.unit,
    )


def _only_first(centroids: Tensor) -> Tensor:
    """A class left whole has no second centroid; zeros stand in its place."""
    return torch.cat([centroids[:, :1], torch.zeros_like(centroids[:, 1:])], 1)
