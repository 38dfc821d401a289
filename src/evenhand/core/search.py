"""The best split of some rows in two: many exact splits along lines, improved step by step, the best kept.

With two clusters everything follows from one cluster's sum. Let the rows x be centred on their mean, and let
s be the sum of the n1 rows in cluster 1, the other having n0. The centroids are s / n1 and -s / n0, and the
inertia is the total variance less the part between the clusters, so the larger the better:

    between = n |s|^2 / (n0 n1).

- Lloyd's step puts x in cluster 1 where  2 x.s > |s|^2 (n0 - n1) / (n0 n1).
- Hartigan's test, whether moving x alone pays, only adds what x itself changes:
  x joins where  2 x.s + |x|^2 + e > the same threshold,  e = |s|^2 / (n0 n1),
  and stays where  2 x.s - |x|^2 - e > it. All that Lloyd's step moves passes this test, and more.

So two matrix products move any number of candidates of any number of classes by a step.
Arrays are padded with zero rows where classes differ in size, and shaped (classes, candidates, rows).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from evenhand.core.lines import TAIL, directions

SEARCHED = 2048  # larger classes are searched on a sample of their rows, in float32
_SAMPLE = 2048, 8192  # rows of such a sample: a quarter of the class, within these limits
_TRIED = 32  # cuts tried on all rows
_STEPS = 300
_PIECE = 1024  # rows added up in float32; sums of many more equal numbers drift
_ROUNDS = ((12, 0.02, 4), (8, 0.01, 30))  # in large classes: keep so many, within so much of the best; steps
_SAMPLE_ROUNDS = ((12, 5), (3, 50))  # on a weighted sample: keep so many of the best cuts; steps


class Candidates(NamedTuple):
    """Splits being tried."""

    inside: Tensor  # (classes, candidates, rows) 1 in cluster 1, 0 elsewhere
    sums: Tensor  # (classes, candidates, epochs) of cluster 1
    sizes: Tensor  # (classes, candidates) of cluster 1
    between: Tensor  # (classes, candidates)


class Rows:
    """Rows of some classes, (classes, rows, epochs), centred.

    A sample's first rows are its tail; each of the others stands for several of the `sampled_from` rows.
    """

    def __init__(self, x: Tensor, valid: Tensor | None, sampled_from: Tensor | None = None) -> None:
        self.x, self.transposed = x, x.transpose(1, 2)
        self.valid = None if valid is None else valid[:, None].to(x.dtype)  # (classes, 1, rows)
        self.norms = (x * x).sum(2)
        self.total = self.norms.sum(1, keepdim=True)  # of a sample, only of its own rows
        self.n = torch.full_like(self.total, x.shape[1]) if self.valid is None else self.valid.sum(2)
        self.weight: Tensor | None = None  # (classes, 1): rows that a row beyond the tail stands for
        self.mean: Tensor | None = None  # (classes, 1, epochs), which is not quite zero in a sample
        if sampled_from is not None:
            self.n = sampled_from
            self.weight = (self.n - TAIL) / (x.shape[1] - TAIL)
            rest = x[:, TAIL:].sum(1) * self.weight
            self.mean = ((x[:, :TAIL].sum(1) + rest) / self.n)[:, None]
        # Gains below what the arithmetic can tell are no gains; below what share inertia cannot be told.
        precise = x.dtype == torch.float64
        self.noise, self.tight = self.total * (1e-14 if precise else 1e-6), 1e-6 if precise else 1e-2
        self.gap = self.norms.amax(1)[:, None, None].sqrt() * (1e-14 if precise else 1e-6)
        self.slack = self.noise + 1e-6 * self.total

    def candidates(self, chosen: Tensor) -> Candidates:
        """Splits from what is true inside cluster 1."""
        inside = chosen.to(self.x.dtype)
        if self.valid is not None:
            inside *= self.valid
        if self.weight is not None:
            inside[:, :, TAIL:] *= self.weight[:, :, None]
        sums, sizes = added(inside, self.x), inside.sum(2)
        if self.mean is not None:
            sums -= sizes[:, :, None] * self.mean
        product = sizes * (self.n - sizes)
        product.masked_fill_(product == 0, torch.inf)  # an empty cluster is no split, whatever rounding says
        between = self.n * (sums * sums).sum(2) / product
        return Candidates(inside, sums, sizes, between)

    def at(self, index: Tensor) -> Tensor:
        """The rows at these positions, (classes, positions, epochs)."""
        return self.x.gather(1, index[:, :, None].expand(-1, -1, self.x.shape[2]))

    def sample(self, counts: Tensor) -> Rows:
        """The rows farthest from the mean, and evenly spaced ones of the others, by distance."""
        order = torch.from_numpy(np.argsort(-self.norms.numpy(), 1))
        size = min(max(self.x.shape[1] // 4, _SAMPLE[0]), _SAMPLE[1])
        spaced = torch.linspace(0, 1, size - TAIL, dtype=torch.float64) * (counts[:, None] - 1 - TAIL)
        spaced = order.gather(1, (spaced + TAIL).round().long())
        return Rows(self.at(torch.cat([order[:, :TAIL], spaced], 1)), None, sampled_from=self.n)

    def cuts(self, lines: Tensor) -> Tensor:
        """The two best cuts of the rows' projections on each line, far from one another, (…, 2 lines, 1).

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
        # What rounding alone may part stays together: a cut must lie in a gap that all arithmetic sees.
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
        """2 x.s of every row, and Lloyd's threshold for it; see the top of this file."""
        threshold = now.between / self.n * torch.add(self.n, now.sizes, alpha=-2)
        return torch.bmm(2 * now.sums, self.transposed), threshold[:, :, None]

    def improve(self, now: Candidates, steps: int, thorough: bool) -> Candidates:
        """Move all rows that pass Hartigan's test while it pays; if thorough, fewer where that overshoots."""
        for _ in range(steps):
            p, threshold = self.boundary(now)
            least = torch.add(self.slack, now.between, alpha=1 - 1e-6)  # a gain of a millionth of the inertia
            # A hair less than a row's own weight: one that is alone in its cluster must not leave it.
            own = torch.add(self.norms[:, None], (now.between / self.n)[:, :, None]).mul_(1 - 1e-6)
            new = self.candidates((p + own).addcmul_(now.inside, own, value=-2) > threshold)
            better = new.between > least
            now = new if better.all() else _choose(better, new, now)
            if thorough and not better.all():
                new = self.candidates(p > threshold)  # safe where moving all at once overshoots
                now = _choose(~better & (new.between > least), new, now)
                better |= new.between > least
            if thorough and not better.all():
                new = self._move_one(now, p)
                now = _choose(~better & (new.between > least), new, now)
                better |= new.between > least
            if not better.any():
                break
        return now

    def _move_one(self, now: Candidates, p: Tensor) -> Candidates:
        """Every candidate with that one row moved that gains most."""
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
        """The best candidates that differ, best first; `within`: of the best one's inertia."""
        if now.between.shape[1] == 1:
            return now
        order = self.ranking(now, keep, within)
        wide = order[:, :, None]
        return Candidates(
            now.inside.gather(1, wide.expand(-1, -1, now.inside.shape[2])),
            now.sums.gather(1, wide.expand(-1, -1, now.sums.shape[2])),
            now.sizes.gather(1, order),
            now.between.gather(1, order),
        )

    def ranking(self, now: Candidates, keep: int, within: float = torch.inf) -> Tensor:
        """Which candidates are the best that differ, (classes, at most keep)."""
        value, order = now.between.sort(dim=1, descending=True, stable=True)
        drop = value < value[:, :1] - within * (self.total - value[:, :1]).clamp(min=0)
        drop[:, 1:] |= value[:, 1:] >= value[:, :-1] - 3 * self.noise
        drop[:, 0] = False
        order = order.gather(1, drop.to(torch.int8).argsort(dim=1, stable=True))
        return order[:, : min(keep, int((~drop).sum(1).max()))]

    def settle(self, now: Candidates) -> Candidates:
        """Lloyd's steps until no row moves, so that every row is on its own cluster's side."""
        for _ in range(_STEPS):
            p, threshold = self.boundary(now)
            new = self.candidates(p > threshold)
            if torch.equal(new.inside, now.inside):
                break
            now = new
        return now


def added(inside: Tensor, x: Tensor) -> Tensor:
    """What (classes, candidates, rows) choose of (classes, rows, epochs), added up piece by piece."""
    total = x.new_zeros(*inside.shape[:2], x.shape[2], dtype=torch.float64)
    for part, rows in zip(torch.split(inside, _PIECE, 2), torch.split(x, _PIECE, 1), strict=True):
        total += torch.bmm(part, rows)
    return total.to(x.dtype)


def best_split(rows: Rows, counts: Tensor) -> Tensor:
    """The best split found of every class, (classes, rows) 0/1."""
    large = rows.x.shape[1] > SEARCHED
    searched = rows.sample(counts) if large else rows
    lines = directions(searched)
    cuts = searched.cuts(lines)
    lines = torch.cat([lines, lines], 1)
    now = searched.candidates(torch.bmm(lines, searched.transposed) > cuts)
    if not large:
        now = rows.improve(rows.best(now, 80), 3, thorough=True)
        now = rows.improve(rows.best(now, 16), _STEPS, thorough=True)
        return rows.settle(rows.best(now, 1)).inside[:, 0]
    order = searched.ranking(now, _TRIED)[:, :, None]
    lines, cuts = lines.gather(1, order.expand(-1, -1, lines.shape[2])), cuts.gather(1, order)
    now = rows.candidates(torch.bmm(lines, rows.transposed) > cuts)
    for keep, within, steps in _ROUNDS:
        now = rows.best(now, keep, within)
        if now.between.shape[1] > 1:
            now = rows.improve(now, steps, thorough=False)
    now = rows.improve(rows.best(now, 1), _STEPS, thorough=True)
    return rows.settle(now).inside[:, 0]


def centroids_of_sample(x: Tensor, count: int, tailed: bool, keep: int = 1) -> Tensor:
    """The centroids, (keep, 2, epochs) float64, of the best splits of a class of `count` rows, best first.

    x is a sample of the rows. Tailed, it begins with its tail; else it is taken for the whole class. Equal
    centroids where nothing can be split. Fewer splits than asked for are repeated.
    """
    small = len(x) <= SEARCHED and not tailed
    x = x.double() if small else x
    origin, x = x[:1].double(), x - x[:1]
    scale = x.abs().max()
    if scale == 0:
        return origin.expand(keep, 2, -1)
    x = x.div_(scale) if small else x.div_(scale).float()
    n = torch.tensor([[float(count if tailed else len(x))]])
    mean = x.mean(0, dtype=torch.float64)
    if tailed:
        weight = (count - TAIL) / (len(x) - TAIL)
        mean = (x[:TAIL].double().sum(0) + weight * x[TAIL:].sum(0, dtype=torch.float64)) / count
    rows = Rows((x - mean.to(x.dtype))[None], None, sampled_from=n if tailed else None)
    counts = torch.tensor([len(x)])
    now = _best_starts(rows, keep) if tailed else rows.candidates(best_split(rows, counts)[:, None])
    sums, size = now.sums[0].double(), now.sizes[0].double()[:, None]
    centroids = torch.stack([-sums / (n - size).clamp(min=1), sums / size.clamp(min=1)], 1)
    centroids[((size == 0) | (size == n))[:, 0]] = 0
    return origin + scale.double() * (mean + centroids[torch.arange(keep).clamp(max=len(centroids) - 1)])


def _best_starts(rows: Rows, keep: int) -> Candidates:
    """The best of several cuts of a weighted sample, each improved by Lloyd's steps."""
    lines = directions(rows)
    cuts, lines = rows.cuts(lines), torch.cat([lines, lines], 1)
    now = rows.candidates(torch.bmm(lines, rows.transposed) > cuts)
    for kept, steps in _SAMPLE_ROUNDS:
        now = rows.best(now, max(kept, keep))
        for _ in range(steps):
            p, threshold = rows.boundary(now)
            new = rows.candidates(p > threshold)
            if not (new.between > now.between + rows.slack).any():
                break
            now = new
    return rows.best(now, keep)


def _choose(take: Tensor, new: Candidates, old: Candidates) -> Candidates:
    wide = take[:, :, None]
    return Candidates(
        torch.where(wide, new.inside, old.inside),
        torch.where(wide, new.sums, old.sums),
        torch.where(take, new.sizes, old.sizes),
        torch.where(take, new.between, old.between),
    )
