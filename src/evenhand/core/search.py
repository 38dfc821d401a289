"""The best split of some rows in two: many exact splits along lines, improved step by step, the best kept.

With two clusters everything follows from one cluster's sum. Let the rows x be centered on their mean, and let
s be the sum of the n1 rows in cluster 1, the other having n0. The centroids are s / n1 and -s / n0, and the
inertia is the total variance less the part between the clusters, so the larger the better:

    between = n |s|^2 / (n0 n1).

- Lloyd's step puts x in cluster 1 where  2 x.s > |s|^2 (n0 - n1) / (n0 n1).
- Hartigan's test, whether moving x alone pays, only adds what x itself changes:
  x joins where  2 x.s + |x|^2 + e > the same threshold,  e = |s|^2 / (n0 n1),
  and stays where  2 x.s - |x|^2 - e > it. All that Lloyd's step moves passes this test, and more.

So two matrix products move any number of candidates of any number of classes by a step.
Arrays are padded with zero rows where classes differ in size, and shaped (classes, candidates, rows).

A small class is searched whole, in float64 (`best_split`). A larger one is searched on a sample of its rows,
in float32 (`candidate_centroids`), which gives starts for the passes over all rows (twomeans.py). Numbers,
one per sample, are split exactly (`cut_in_two`).
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SEARCHED = 2048  # rows of the largest class that is searched whole
TAIL = 1024  # rows of a sample that are the farthest from the mean: few rows far out can be a cluster
_CHUNK = 1 << 22  # numbers worked on at once
_STEPS = 300
_SUMMED = 1024  # rows added up in float32; sums of many more equal numbers drift
_SAMPLE_ROUNDS = ((12, 5), (8, 50))  # on a weighted sample: keep so many of the best cuts; steps
_CLOSE, _ALIKE = 0.02, 0.995  # starts: inertia relative to the best; rows that two may have in common


class Candidates(NamedTuple):
    """Candidate splits."""

    inside: Tensor  # (classes, candidates, rows) 1 in cluster 1, 0 elsewhere
    sums: Tensor  # (classes, candidates, epochs) of cluster 1
    sizes: Tensor  # (classes, candidates) of cluster 1
    between: Tensor  # (classes, candidates)


class Rows:
    """Rows of some classes, (classes, rows, epochs), centered.

    The first rows of a sample are its tail; each of the others represents several of the `sampled_from` rows.
    """

    def __init__(self, x: Tensor, valid: Tensor | None, sampled_from: Tensor | None = None) -> None:
        self.x, self.transposed = x, x.transpose(1, 2)
        self.valid = None if valid is None else valid[:, None].to(x.dtype)  # (classes, 1, rows)
        self.norms = (x * x).sum(2)
        self.total = self.norms.sum(1, keepdim=True)
        self.n = torch.full_like(self.total, x.shape[1]) if self.valid is None else self.valid.sum(2)
        self.weight: Tensor | None = None  # (classes, 1): rows that a row beyond the tail represents
        self.mean: Tensor | None = None  # (classes, 1, epochs), which is not quite zero in a sample
        if sampled_from is not None:
            self.n = sampled_from
            self.weight = (self.n - TAIL) / (x.shape[1] - TAIL)
            rest = x[:, TAIL:].sum(1) * self.weight
            self.mean = ((x[:, :TAIL].sum(1) + rest) / self.n)[:, None]
            self.total = self.total + (self.weight - 1) * self.norms[:, TAIL:].sum(1, keepdim=True)
        # Gains below the noise of the arithmetic are no gains; inertia below `tight` of the total is noise.
        precise = x.dtype == torch.float64
        self.noise, self.tight = self.total * (1e-14 if precise else 1e-6), 1e-6 if precise else 1e-2
        self.gap = self.norms.amax(1)[:, None, None].sqrt() * (1e-14 if precise else 1e-6)
        self.slack = self.noise + 1e-6 * self.total

    def candidates(self, chosen: Tensor) -> Candidates:
        """Make splits from masks that are true inside cluster 1."""
        inside = chosen.to(self.x.dtype)
        if self.valid is not None:
            inside *= self.valid
        if self.weight is not None:
            inside[:, :, TAIL:] *= self.weight[:, :, None]
        sums, sizes = added(inside, self.x), inside.sum(2)
        if self.mean is not None:
            sums -= sizes[:, :, None] * self.mean
        product = sizes * (self.n - sizes)
        product.masked_fill_(product == 0, torch.inf)  # an empty cluster is no split, despite rounding
        between = self.n * (sums * sums).sum(2) / product
        return Candidates(inside, sums, sizes, between)

    def at(self, index: Tensor) -> Tensor:
        """Return the rows at these positions, (classes, positions, epochs)."""
        return self.x.gather(1, index[:, :, None].expand(-1, -1, self.x.shape[2]))

    def cut(self) -> Candidates:
        """Return the splits along many lines, two cuts of each line."""
        lines = _directions(self)
        cuts, lines = self._cuts(lines), torch.cat([lines, lines], 1)
        return self.candidates(torch.bmm(lines, self.transposed) > cuts)

    def _cuts(self, lines: Tensor) -> Tensor:
        """Return the two best, well separated cuts of the projections on each line, (…, 2 lines, 1).

        The first is the exact two-means in one dimension.
        """
        p = torch.bmm(lines, self.transposed)
        if self.valid is not None:
            p.masked_fill_(self.valid == 0, torch.inf)
        if self.weight is not None:
            # The last bit of a projection says whether its row is of the tail: so the sort need not carry it.
            bits = p.view(torch.int32)
            bits &= -2
            bits[:, :, :TAIL] |= 1
        p = torch.from_numpy(np.sort(p.numpy(), 2))
        if self.weight is None:
            left = torch.arange(1, p.shape[2] + 1, dtype=p.dtype)
            sums = p if self.valid is None else p.masked_fill(p.isinf(), 0)
        else:
            weight = self.weight[:, :, None]
            weights = torch.where((p.view(torch.int32) & 1).bool(), 1.0, weight)
            left, sums = weights.cumsum(2), p * weights
        sums = sums.cumsum(2)
        n, left = self.n[:, :, None], left[..., :-1]
        apart = torch.addcmul(sums[:, :, :-1], left, sums[:, :, -1:] / -n)
        score = apart.square_().div_((n - left).mul_(left).clamp_(min=0.5))
        # A cut must lie in a gap larger than rounding errors.
        gap = self.gap * torch.linalg.vector_norm(lines, dim=2)[:, :, None]
        score.masked_fill_(p[:, :, 1:] - p[:, :, :-1] <= gap, -1)
        if self.valid is not None:
            score.masked_fill_(left >= n, -1)
        best, first = score.max(2, keepdim=True)
        odds = torch.logit(left / n, eps=1e-9).expand_as(score)  # so that tails count as far from the middle
        score.masked_fill_((odds - odds.gather(2, first)).abs_() < 0.7, -1)
        other, second = score.max(2, keepdim=True)
        p, at = torch.cat([p, p], 1), torch.cat([first, second], 1)
        cut = (p.gather(2, at) + p.gather(2, at + 1)) / 2
        return cut.masked_fill_(torch.cat([best, other], 1) < 0, torch.inf)

    def boundary(self, now: Candidates) -> tuple[Tensor, Tensor]:
        """Return 2 x.s of every row, and Lloyd's threshold for it; see the top of this file."""
        threshold = now.between / self.n * torch.add(self.n, now.sizes, alpha=-2)
        return torch.bmm(2 * now.sums, self.transposed), threshold[:, :, None]

    def improve(self, now: Candidates, steps: int) -> Candidates:
        """Move all rows that pass Hartigan's test while it pays, and fewer where that overshoots."""
        for _ in range(steps):
            p, threshold = self.boundary(now)
            least = torch.add(self.slack, now.between, alpha=1 - 1e-6)  # a gain of a millionth of the inertia
            # Slightly less than what the row changes: one that is alone in its cluster must not leave it.
            weight = torch.add(self.norms[:, None], (now.between / self.n)[:, :, None]).mul_(1 - 1e-6)
            new = self.candidates((p + weight).addcmul_(now.inside, weight, value=-2) > threshold)
            better = new.between > least
            now = new if better.all() else _choose(better, new, now)
            if not better.all():
                new = self.candidates(p > threshold)  # safe where moving all at once overshoots
                now = _choose(~better & (new.between > least), new, now)
                better |= new.between > least
            if not better.all():
                new = self._move_one(now, p)
                now = _choose(~better & (new.between > least), new, now)
                better |= new.between > least
            if not better.any():
                break
        return now

    def _move_one(self, now: Candidates, p: Tensor) -> Candidates:
        """Move in every candidate the one row that gains most."""
        others, square = self.n - now.sizes, (now.sums * now.sums).sum(2)
        joining = (self.norms[:, None] + p).masked_fill_(now.inside > 0, -torch.inf)
        leaving = (self.norms[:, None] - p).masked_fill_(now.inside == 0, -torch.inf)
        if self.valid is not None:
            joining.masked_fill_(self.valid == 0, -torch.inf)
        (joined, joiner), (left, leaver) = joining.max(2), leaving.max(2)
        joined = torch.where(others > 1, (square + joined) / ((now.sizes + 1) * (others - 1)), 0.0)
        left = torch.where(now.sizes > 1, (square + left) / ((now.sizes - 1) * (others + 1)), 0.0)
        joins = joined >= left
        row, sign = torch.where(joins, joiner, leaver), torch.where(joins, 1, -1).to(p.dtype)
        return Candidates(
            now.inside.scatter(2, row[:, :, None], joins.to(p.dtype)[:, :, None]),
            now.sums + sign[:, :, None] * self.at(row),
            now.sizes + sign,
            self.n * torch.maximum(joined, left),
        )

    def best(self, now: Candidates, keep: int, within: float = torch.inf) -> Candidates:
        """Return the best candidates that differ, best first; `within`: of the best one's inertia."""
        if now.between.shape[1] == 1:
            return now
        value, order = now.between.sort(dim=1, descending=True, stable=True)
        drop = value < value[:, :1] - within * (self.total - value[:, :1]).clamp(min=0)
        drop[:, 1:] |= value[:, 1:] >= value[:, :-1] - 3 * self.noise
        drop[:, 0] = False
        order = order.gather(1, drop.to(torch.int8).argsort(dim=1, stable=True))
        order = order[:, : min(keep, int((~drop).sum(1).max()))]
        wide = order[:, :, None]
        return Candidates(
            now.inside.gather(1, wide.expand(-1, -1, now.inside.shape[2])),
            now.sums.gather(1, wide.expand(-1, -1, now.sums.shape[2])),
            now.sizes.gather(1, order),
            now.between.gather(1, order),
        )

    def lloyd(self, now: Candidates, steps: int, least: Tensor | None = None) -> Candidates:
        """Run Lloyd's steps until no row moves, or until none gains more than `least`."""
        for _ in range(steps):
            p, threshold = self.boundary(now)
            new = self.candidates(p > threshold)
            if least is not None and not (new.between > now.between + least).any():
                break
            if torch.equal(new.inside, now.inside):
                break
            now = new
        return now

    def describe(self, inside: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return sizes, centroids, margins and variance between of a split (classes, rows), standardized."""
        now = self.candidates(inside[:, None])
        p, threshold = self.boundary(now)
        chosen = (inside > 0).sum(1)  # counted, since float32 holds no whole number above 2**24
        sizes = torch.stack([counts - chosen, chosen], 1)
        sums, between = now.sums.double(), now.between[:, :, None]
        centroids = torch.cat([-sums, sums], 1) / sizes.double().clamp(min=1)[:, :, None]
        margin = torch.where(between > 0, (p - threshold) / (2 * between), 0.0)[:, 0]
        return sizes, centroids, margin.float(), now.between[:, 0].double()


def added(inside: Tensor, x: Tensor) -> Tensor:
    """Sum the rows of (classes, rows, epochs) that (classes, candidates, rows) choose, part by part."""
    total = x.new_zeros(*inside.shape[:2], x.shape[2], dtype=torch.float64)
    for part, rows in zip(torch.split(inside, _SUMMED, 2), torch.split(x, _SUMMED, 1), strict=True):
        total += torch.bmm(part, rows)
    return total.to(x.dtype)


def standardised(
    x: Tensor, valid: Tensor | None, counts: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return centered rows within -1 and 1, their class means and their scale; overwrites x.

    Equal rows become exactly zero. Classes too large to be searched whole become float32, after centering.
    `weights`, (classes, 1, rows), are the rows that each represents.
    """
    x = x.double() if x.shape[1] <= SEARCHED and weights is None else x
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
    x = x if x.shape[1] <= SEARCHED and weights is None else x.float()
    shift = added(x.new_ones(len(x), 1, x.shape[1]) if weights is None else weights, x)
    shift /= counts[:, None, None]
    x -= shift
    if valid is not None:
        x *= valid[:, :, None]
    mean = origin[:, 0].double() + shift[:, 0].double() * scale[:, None].double()
    return x, mean * unit[:, None], scale.double() * unit


def best_split(rows: Rows) -> Tensor:
    """Return the best split found of every class, (classes, rows) 0/1."""
    if rows.x.shape[1] == 1:
        return torch.zeros_like(rows.x[:, :, 0])
    now = rows.improve(rows.best(rows.cut(), 80), 3)
    now = rows.improve(rows.best(now, 16), _STEPS)
    return rows.lloyd(rows.best(now, 1), _STEPS).inside[:, 0]


def candidate_centroids(x: Tensor, count: int, tailed: bool) -> Tensor:
    """Return the centroids, (starts, 2, epochs) float64, of the best splits of `count` rows, best first.

    x, (rows, epochs), is a sample of the rows. Tailed, it begins with its tail; else it is taken for the
    whole class. Equal centroids where nothing can be split.
    """
    n = torch.tensor([[float(count if tailed else len(x))]])
    weights = None
    if tailed:
        weights = torch.full((1, 1, len(x)), (count - TAIL) / max(len(x) - TAIL, 1))
        weights[:, :, :TAIL] = 1
    x, mean, scale = standardised(x[None], None, n[0], weights)
    rows = Rows(x, None, sampled_from=n if tailed else None)
    now = _best_starts(rows) if tailed else rows.candidates(best_split(rows)[:, None])
    sums, size = now.sums[0].double(), now.sizes[0].double()[:, None]
    centroids = torch.stack([-sums / (n - size).clamp(min=1), sums / size.clamp(min=1)], 1)
    centroids[((size == 0) | (size == n))[:, 0]] = 0
    return mean + scale * centroids


def _best_starts(rows: Rows) -> Candidates:
    """Return the best cuts that a weighted sample cannot rank, improved by Lloyd's steps."""
    now = rows.cut()
    for keep, steps in _SAMPLE_ROUNDS:
        now = rows.lloyd(rows.best(now, keep), steps, rows.slack)
    now = rows.best(now, _SAMPLE_ROUNDS[-1][0], _CLOSE)
    sign = torch.where(now.inside[0] > 0, 1.0, -1.0)
    alike = (sign @ sign.T).abs() / sign.shape[1] > 2 * _ALIKE - 1
    kept = ~alike.tril(-1).any(1)
    return Candidates(*(part[:, kept] for part in now))


def _choose(take: Tensor, new: Candidates, old: Candidates) -> Candidates:
    wide = take[:, :, None]
    return Candidates(
        torch.where(wide, new.inside, old.inside),
        torch.where(wide, new.sums, old.sums),
        torch.where(take, new.sizes, old.sizes),
        torch.where(take, new.between, old.between),
    )


def _directions(rows: Rows) -> Tensor:
    """Return lines along which good cuts often lie, (classes, directions, epochs), without randomness.

    Between all pairs of few rows; else mixtures of the principal axes, towards the farthest rows, the
    epochs of the largest variance, and the mean over epochs.
    """
    x = rows.x
    classes, count, epochs = x.shape
    if count <= 16:
        first, second = torch.triu_indices(count, count, 1)
        return x[:, first] - x[:, second]
    weighted = x
    if rows.weight is not None:
        weighted = x.clone()
        weighted[:, TAIL:] *= rows.weight[:, :, None]
    axes, deviation = _principal(x, weighted, min(8, epochs, count))
    signs, mixtures = _mixtures(axes.shape[1])
    real = deviation > (1e-6 if x.dtype == torch.float64 else 3e-3) * deviation[:, :1]
    evened = torch.where(real, 1 / deviation.clamp(min=1e-30), 0.0)[:, :, None] * axes
    strongest = (x * weighted).sum(1).topk(min(epochs, 10), 1).indices
    return torch.cat(
        [
            signs.to(x.dtype) @ evened[:, : signs.shape[1]],
            mixtures.to(x.dtype) @ (deviation[:, :, None] * axes),
            rows.at(rows.norms.topk(4, 1).indices),
            torch.nn.functional.one_hot(strongest, epochs).to(x.dtype),
            x.new_ones(classes, 1, epochs),
        ],
        1,
    )


def _principal(x: Tensor, weighted: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the first principal axes, (classes, axes, epochs), and the deviations along them."""
    few = x.shape[1] < x.shape[2]  # rows than epochs: their products are the smaller matrix
    square, vectors = torch.linalg.eigh(x @ x.transpose(1, 2) if few else x.transpose(1, 2) @ weighted)
    deviation = square[:, -count:].flip(1).clamp(min=0).sqrt()
    axes = vectors[:, :, -count:].flip(2).transpose(1, 2)
    return axes @ x / deviation.clamp(min=1e-30)[:, :, None] if few else axes, deviation


@cache
def _mixtures(count: int) -> tuple[Tensor, Tensor]:
    """Return the mixing weights of the axes: all signs of the first three, and fixed weights of all."""
    signs = itertools.product((0, 1, -1), repeat=min(count, 3))
    one_way = [sign for sign in signs if next((s for s in sign if s), 0) == 1]
    weights = np.random.default_rng(0).standard_normal((48 if count <= 3 else 16, 8))[:, :count]
    return torch.tensor(one_way), torch.from_numpy(weights)


class Cut(NamedTuple):
    """The best split of numbers in two: those above `threshold`, and the others."""

    threshold: float  # the largest number below the cut; nan where all numbers are equal
    means: tuple[float, float]  # below and above
    sizes: tuple[int, int]
    inertia: float  # squared distances to the own mean, summed
    total: float  # squared distances to the mean of all


def cut_in_two(values: npt.NDArray[np.floating[Any]]) -> Cut:
    """Return the exact two-means of numbers by one sort, regardless of their order.

    Sorts `values` in place. Of equally good cuts, the lowest one.

    >>> cut_in_two(np.array([5.0, 1.0, 1.5, 5.5]))[:3]
    (1.5, (1.25, 5.25), (2, 2))
    """
    values.sort()
    n = len(values)
    origin = float(values[0])
    if not (math.isfinite(origin) and math.isfinite(float(values[-1]))):
        raise ValueError("values must be finite")
    total = squares = 0.0  # about the lowest value, so that large offsets cost no digits
    for chunk in _chunks(values):
        shifted = chunk.astype(np.float64) - origin
        total += float(shifted.sum())
        squares += float((shifted * shifted).sum())
    spread = max(squares - total * total / n, 0.0)
    best, size, lower = -1.0, 0, 0.0
    done, before = 0, 0.0
    for start, chunk in zip(range(0, n, _CHUNK), _chunks(values), strict=True):
        sums = np.cumsum(chunk.astype(np.float64) - origin) + before
        left = np.arange(done + 1, done + len(chunk) + 1, dtype=np.float64)
        follow = values[start + 1 : start + len(chunk) + 1]
        apart = (chunk[: len(follow)] < follow).nonzero()[0]  # never between equal numbers
        if len(apart):
            s, m = sums[apart], left[apart]
            between = (s - m * (total / n)) ** 2 / (m * (n - m)) * n
            k = int(between.argmax())
            if between[k] > best:
                best, size, lower = float(between[k]), int(m[k]), float(s[k])
        done, before = done + len(chunk), float(sums[-1])
    if size == 0:
        return Cut(math.nan, (origin, math.nan), (n, 0), 0.0, 0.0)
    means = (origin + lower / size, origin + (total - lower) / (n - size))
    return Cut(float(values[size - 1]), means, (size, n - size), max(spread - best, 0.0), spread)


def _chunks(values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    return [values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK)]
