"""two_means: every class's histories in two clusters, all classes at once, without a seed.

With two clusters, everything follows from one cluster's sum. Let the rows x of a class be centred on their
mean, and let s be the sum of the n1 rows in cluster 1, the other cluster having n0. The two centroids are
s / n1 and -s / n0, and the clustering is better the larger the part of the variance between them,

    between = n / (n0 n1) * |s|^2.

- Lloyd's step puts x in cluster 1 where  2 x.s > |s|^2 (n0 - n1) / (n0 n1).
- Moving the single row x pays where  2 x.s + |x|^2 > |s|^2 (n0 - n1 - 1) / (n0 n1)  (Hartigan's test;
  for a row that leaves, both signs of the terms in 1 turn round). It accepts all that Lloyd's does and more.

So one product of the data with a few candidate sums, and one product of the assignments with the data, move
any number of candidates a step. The search starts many candidates from exact splits along directions that
do not depend on chance, improves them step by step, and keeps the best. Large classes are searched on a
sample of their rows, and the best few candidates are then improved on all rows.

The rows of a class are first put in an order that depends on their values alone, so the answer does not
depend on the order in which samples come.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SEARCHED = 1024  # rows of a class on which all starts are tried
_BUCKET = 1 << 22  # numbers handled at once: fits the last-level cache of a usual processor
_STEPS = 300


@dataclass(frozen=True)
class TwoMeans:
    """The two clusters of every class; cluster 1 has the higher mean loss."""

    assignment: Tensor  # (samples,) bool: in cluster 1
    classes: Tensor  # (classes,) the distinct labels, ascending
    sizes: Tensor  # (classes, 2) int64; a class that cannot be split has (n, 0)
    centroids: Tensor  # (classes, 2, epochs) float64
    inertia: Tensor  # (classes,) float64: sum of squared distances to the own centroid
    total: Tensor  # (classes,) float64: sum of squared distances to the class's mean
    margin: Tensor  # (samples,) float32: signed distance to the boundary / distance of the centroids


def two_means(
    histories: Tensor | npt.ArrayLike,
    labels: Tensor | npt.ArrayLike | None = None,
    given: Tensor | None = None,
) -> TwoMeans:
    """Split every class's histories, (samples, epochs), in two by k-means; the same answer every time.

    Without labels, all samples are one class. A class whose histories are all equal is not split.

    >>> clusters = two_means([[0.1, 0.0], [0.2, 0.0], [2.0, 1.5]])
    >>> clusters.assignment.tolist(), clusters.sizes.tolist()
    ([False, False, True], [[2, 1]])
    """
    x = histories if isinstance(histories, Tensor) else torch.as_tensor(np.asarray(histories))
    if not x.is_floating_point():
        x = x.double()
    elif x.dtype not in (torch.float32, torch.float64):
        x = x.float()
    x = x.detach()
    if labels is None:
        classes, position = torch.zeros(1, dtype=torch.int64), torch.zeros(len(x), dtype=torch.int64)
    else:
        y = labels if isinstance(labels, Tensor) else torch.as_tensor(np.asarray(labels))
        classes, position = torch.unique(y.to(x.device), return_inverse=True)
    counts = torch.bincount(position, minlength=len(classes))
    order = torch.argsort(position, stable=True)
    starts = counts.cumsum(0) - counts

    num_classes, epochs = len(classes), x.shape[1]
    result = {
        "assignment": torch.zeros(len(x), dtype=torch.bool),
        "margin": torch.zeros(len(x)),
        "sizes": torch.zeros(num_classes, 2, dtype=torch.int64),
        "centroids": torch.zeros(num_classes, 2, epochs, dtype=torch.float64),
        "inertia": torch.zeros(num_classes, dtype=torch.float64),
        "total": torch.zeros(num_classes, dtype=torch.float64),
    }
    for chosen in _buckets(counts.tolist(), epochs):
        c = torch.tensor(chosen, device=x.device)
        rows = torch.arange(int(counts[c].max()), device=x.device)
        valid = rows < counts[c, None]
        member = order[(starts[c, None] + rows).clamp(max=len(x) - 1)]
        block = _Block.prepare(x, member, valid)
        split = block.solve() if given is None else given[block.member] & block.valid
        found = block.statistics(split)
        swap = found["centroids"][:, 1].mean(1) < found["centroids"][:, 0].mean(1)
        swap &= found["sizes"][:, 1] > 0
        for name in ("sizes", "centroids"):
            flip = swap.view(-1, *[1] * (found[name].ndim - 1))
            found[name] = torch.where(flip, found[name].flip(1), found[name])
        found["margin"] = torch.where(swap[:, None], -found["margin"], found["margin"])
        found["assignment"] = split ^ swap[:, None]
        for name, values in found.items():
            if name in ("assignment", "margin"):
                result[name][block.member[block.valid]] = values[block.valid]
            else:
                result[name][c] = values
    return TwoMeans(classes=classes, **result)


def _buckets(counts: list[int], epochs: int) -> list[list[int]]:
    """Classes of similar size together, so that little padding makes them one dense array."""
    order = sorted(range(len(counts)), key=lambda c: -counts[c])
    buckets: list[list[int]] = []
    for c in order:
        largest = counts[buckets[-1][0]] if buckets else 0
        if (
            not buckets
            or counts[c] * 1.25 + 4 < largest
            or (len(buckets[-1]) + 1) * largest * max(epochs, 64) > _BUCKET
        ):
            buckets.append([])
        buckets[-1].append(c)
    return buckets


@dataclass(frozen=True)
class _Block:
    """Some classes of similar size: their rows centred, scaled and in canonical order, padded with zeros."""

    x: Tensor  # (classes, rows, epochs) float32 or float64, within [-1, 1]
    norms: Tensor  # (classes, rows) squared norms
    n: Tensor  # (classes, 1) rows that are not padding
    total: Tensor  # (classes, 1) sum of the squared norms
    valid: Tensor  # (classes, rows) bool
    member: Tensor  # (classes, rows) which sample a row is
    mean: Tensor  # (classes, epochs) float64
    scale: Tensor  # (classes,) float64

    @staticmethod
    def prepare(data: Tensor, member: Tensor, valid: Tensor) -> _Block:
        raw = data[member].double() if member.shape[1] <= SEARCHED else data[member]
        order = _canonical(raw, valid)
        member = member.gather(1, order)
        raw = raw.gather(1, order[:, :, None].expand(-1, -1, raw.shape[2]))
        n = valid.sum(1, keepdim=True)
        origin = raw[:, :1]
        x = (raw - origin).masked_fill_(~valid[:, :, None], 0)
        shift = x.sum(1, dtype=torch.float64) / n
        mean = origin[:, 0].double() + shift
        equal = x.abs().amax((1, 2)) == 0
        x = (x - shift.to(x.dtype)[:, None]).masked_fill_(~valid[:, :, None], 0)
        scale = torch.where(equal, 1.0, x.abs().amax((1, 2)).double())
        x = (x / scale[:, None, None]).to(torch.float64 if x.shape[1] <= SEARCHED else torch.float32)
        norms = (x * x).sum(2)
        return _Block(x, norms, n.to(x.dtype), norms.sum(1, keepdim=True), valid, member, mean, scale)

    def head(self, rows: int) -> _Block:
        """The first rows of every class, centred anew; the canonical order makes them a fair sample."""
        x, valid = self.x[:, :rows].double(), self.valid[:, :rows]
        n = valid.sum(1, keepdim=True).double()
        x = (x - (x.sum(1) / n)[:, None]).masked_fill_(~valid[:, :, None], 0)
        norms = (x * x).sum(2)
        return _Block(x, norms, n, norms.sum(1, keepdim=True), valid, self.member, self.mean, self.scale)

    # -- candidates: (classes, candidates, rows) bool --------------------------------------------------

    def solve(self) -> Tensor:
        """The best split found, (classes, rows) bool."""
        if self.x.shape[1] <= SEARCHED:
            split = self.search(1)
        else:
            sample = self.head(SEARCHED)
            split = sample.search(8)
            s, n1 = sample.moments(split)
            share = n1 / sample.n
            threshold = (
                (s * s).sum(2) * (1 - 2 * share) / (2 * share * (1 - share) * sample.n).clamp(min=1e-300)
            )
            p = torch.bmm(s.to(self.x.dtype), self.x.transpose(1, 2))
            split = (p > threshold.to(p.dtype)[:, :, None]) & self.valid[:, None]
            far = self.rows(self.norms.topk(3, 1).indices)
            split = torch.cat([split, self.along(far)], 1)
            split, between = self.ascend(split, 3)
            split = self.best(split, between, 3)
            split = self.best(*self.ascend(split, _STEPS), 1)
        return split[:, 0]

    def search(self, keep: int) -> Tensor:
        directions = self.directions()
        split = self.along(directions)
        split, between = self.ascend(split, 3)
        split = self.best(split, between, 16)
        return self.best(*self.ascend(split, _STEPS), keep)

    def rows(self, index: Tensor) -> Tensor:
        return self.x.gather(1, index[:, :, None].expand(-1, -1, self.x.shape[2]))

    def directions(self) -> Tensor:
        """(classes, starts, epochs)"""
        classes, rows, epochs = self.x.shape
        if rows <= 16:
            i, j = torch.triu_indices(rows, rows, 1)
            return self.x[:, i] - self.x[:, j]
        x = self.x
        variance, axes = torch.linalg.eigh(torch.bmm(x.transpose(1, 2), x))
        k = min(epochs, 8)
        axes = axes[:, :, -k:].flip(2).transpose(1, 2)
        deviation = variance[:, -k:].flip(1).clamp(min=0).sqrt()
        real = deviation > 1e-6 * deviation[:, :1]
        white = torch.where(real, 1 / deviation.clamp(min=1e-300), 0)[:, :, None] * axes
        top = min(k, 3)
        signs = [c for c in itertools.product((0, 1, -1), repeat=top) if next((v for v in c if v), 0) == 1]
        mixes = np.random.default_rng(0).standard_normal((16, 8))[:, :k]
        found = [
            torch.tensor(signs, dtype=x.dtype) @ white[:, :top],
            torch.as_tensor(mixes) @ (deviation[:, :, None] * axes),
            self.rows(self.norms.topk(4, 1).indices),
            torch.nn.functional.one_hot((x * x).sum(1).topk(min(epochs, 4), 1).indices, epochs).to(x.dtype),
            torch.ones(classes, 1, epochs, dtype=x.dtype),
        ]
        return torch.cat(found, 1)

    def along(self, directions: Tensor) -> Tensor:
        """The best split by a threshold along each direction: exact two-means in one dimension."""
        p = torch.bmm(directions, self.x.transpose(1, 2)).masked_fill_(~self.valid[:, None], torch.inf)
        v = torch.from_numpy(np.sort(p.numpy(), 2))
        n = self.n[:, :, None].double()
        k = torch.arange(1, v.shape[2], dtype=torch.float64)
        left = v.double().masked_fill(v.isinf(), 0).cumsum(2)
        mean = left[:, :, -1:] / n
        score = (left[:, :, :-1] - k * mean) ** 2 / (k * (n - k)).clamp(min=1)
        score = score.masked_fill_((v[:, :, 1:] <= v[:, :, :-1]) | (k >= n), -1)
        cut = v.gather(2, score.argmax(2, keepdim=True))
        return (p > cut) & self.valid[:, None]

    def moments(self, split: Tensor) -> tuple[Tensor, Tensor]:
        f = split.to(self.x.dtype)
        return torch.bmm(f, self.x), f.sum(2)

    def between(self, s: Tensor, n1: Tensor) -> Tensor:
        inside = n1 * (self.n - n1)
        return torch.where(inside > 0, self.n * (s * s).sum(2) / inside.clamp(min=1), 0)

    def ascend(self, split: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        s, n1 = self.moments(split)
        between = self.between(s, n1)
        double = self.x.dtype == torch.float64
        floor = self.total * (1e-14 if double else 2e-6)
        for _ in range(steps):
            ss = (s * s).sum(2)
            n0 = self.n - n1
            e = ss / (n0 * n1).clamp(min=1)
            p2 = torch.bmm(2 * s, self.x.transpose(1, 2))
            threshold = (e * (n0 - n1))[:, :, None]
            least = between + 1e-6 * (self.total - between) + floor
            better = torch.zeros_like(between, dtype=torch.bool)
            gain = (self.norms[:, None] + e[:, :, None]) * (1 - 1e-6)
            trial = (p2 + torch.where(split, -gain, gain) > threshold) & self.valid[:, None]
            for attempt in range(3):
                if attempt == 1:
                    trial = (p2 > threshold) & self.valid[:, None]
                if attempt == 2:
                    trial, ts, tn = self.single(split, s, n1, ss, p2)
                else:
                    ts, tn = self.moments(trial)
                tb = self.between(ts, tn)
                take = (tb > least) & ~better
                split = torch.where(take[:, :, None], trial, split)
                s = torch.where(take[:, :, None], ts, s)
                n1, between = torch.where(take, tn, n1), torch.where(take, tb, between)
                better |= take
                if better.all():
                    break
            if not better.any():
                break
        return split, between

    def single(
        self, split: Tensor, s: Tensor, n1: Tensor, ss: Tensor, p2: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        n0 = self.n - n1
        score = torch.where(split, self.norms[:, None] - p2, self.norms[:, None] + p2)
        score = score.masked_fill_(~self.valid[:, None], -torch.inf)
        join, j = score.masked_fill(split, -torch.inf).max(2)
        leave, l = score.masked_fill(~split, -torch.inf).max(2)
        bj = torch.where(n0 > 1, self.n * (ss + join) / ((n1 + 1) * (n0 - 1)).clamp(min=1), 0)
        bl = torch.where(n1 > 1, self.n * (ss + leave) / ((n1 - 1) * (n0 + 1)).clamp(min=1), 0)
        joins = bj >= bl
        who = torch.where(joins, j, l)
        sign = torch.where(joins, 1, -1).to(s.dtype)
        trial = split.scatter(2, who[:, :, None], joins[:, :, None])
        return trial, s + sign[:, :, None] * self.rows(who), n1 + sign

    def best(self, split: Tensor, between: Tensor, keep: int) -> Tensor:
        """The best distinct candidates, best first."""
        value, order = between.sort(dim=1, descending=True, stable=True)
        repeated = torch.zeros_like(value, dtype=torch.bool)
        close = 1e-9 if value.dtype == torch.float64 else 1e-5
        repeated[:, 1:] = value[:, 1:] >= value[:, :-1] - close * self.total
        order = order.gather(1, repeated.to(torch.int8).argsort(dim=1, stable=True))[:, :keep]
        if keep > 1:
            distinct = int((~repeated).sum(1).max())
            order = order[:, :distinct]
        return split.gather(1, order[:, :, None].expand(-1, -1, split.shape[2]))

    def statistics(self, split: Tensor) -> dict[str, Tensor]:
        """What a split (classes, rows) amounts to, in the units of the data."""
        s, n1 = self.moments(split[:, None])
        s, n1 = s[:, 0].double(), n1[:, 0].double()
        n0 = self.n[:, 0].double() - n1
        low, high = -s / n0.clamp(min=1)[:, None], s / n1.clamp(min=1)[:, None]  # centroids, data centred
        own = torch.where(split[:, :, None], high.to(self.x.dtype)[:, None], low.to(self.x.dtype)[:, None])
        inertia = (
            (self.x - own).square_().masked_fill_(~self.valid[:, :, None], 0).sum((1, 2), dtype=torch.float64)
        )
        apart = high - low
        square = (apart * apart).sum(1, keepdim=True)
        middle = ((low + high) / 2 * apart).sum(1, keepdim=True)
        along = torch.bmm(self.x, apart.to(self.x.dtype)[:, :, None])[:, :, 0].double()
        units = self.scale[:, None, None]
        return {
            "margin": torch.where(square > 0, (along - middle) / square.clamp(min=1e-300), 0.0).float(),
            "sizes": torch.stack([n0, n1], 1).long(),
            "centroids": self.mean[:, None]
            + torch.stack([low, torch.where(square > 0, high, low)], 1) * units,
            "inertia": inertia * self.scale**2,
            "total": self.norms.sum(1, dtype=torch.float64) * self.scale**2,
        }


def _canonical(raw: Tensor, valid: Tensor) -> Tensor:
    """An order of each class's rows, (classes, rows), that depends on their values alone; padding last."""
    bits = raw.contiguous().numpy().view(np.int32 if raw.dtype == torch.float32 else np.int64)
    factors = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, bits.shape[2], dtype=np.int64) | 1
    key = torch.from_numpy(bits.astype(np.int64) @ factors) >> 1
    key.masked_fill_(~valid, 2**63 - 1)
    return key.argsort(dim=1, stable=True)
