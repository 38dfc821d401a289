"""The first pass over histories that are larger than memory: their sums, and a sample to search a start on.

A class's sample is every row of a small class. Of a larger one it is the rows farthest from the mean, for few
rows far out can be a cluster, and others evenly spaced by their place among the class's rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.core import ranks
from evenhand.core.lines import TAIL
from evenhand.core.pieces import TOGETHER, Piece, Stream, counted, projected

_SAMPLE = 1 << 15  # rows of a class at most
_SAMPLE_BYTES = 1 << 28  # of all classes together


class Survey(NamedTuple):
    """What the first pass found, relative to the stream's origin and in its unit."""

    sums: Tensor  # (classes, epochs) float64
    squares: Tensor  # (classes,) float64: squared distances to the origin, summed
    samples: list[Tensor]  # of every class (rows, epochs); one of a part of its class begins with its tail
    tailed: Tensor  # (classes,) bool: whether it does

    @property
    def finite(self) -> bool:
        """Whether float32 could hold all of it."""
        return bool(self.sums.isfinite().all() and self.squares.isfinite().all())


def survey(stream: Stream, means: Tensor) -> Survey:
    """Read all rows once; `means` are those of `Stream.centre`."""
    classes, epochs = means.shape
    limit = min(_SAMPLE, max(32, _SAMPLE_BYTES // (4 * classes * epochs)))
    tailed = (stream.counts > limit) & (limit >= 2 * TAIL)
    spaced, farthest = _Spaced(stream, limit, tailed), _Farthest(stream, tailed)
    sums, squares = torch.zeros_like(means), torch.zeros(classes, dtype=torch.float64)
    towards, own_squares = -2 * means.float(), means.square().sum(1).float()

    def look(piece: Piece) -> tuple[Piece, Tensor, Tensor, Tensor]:
        norms = piece.x.square().sum(0)
        number = min(TOGETHER, classes - piece.first)
        member = torch.zeros(number, len(norms)).scatter_(0, piece.own[None], 1.0)
        distances = norms + projected(piece, towards) + own_squares[piece.first :][piece.own]
        return piece, (member @ piece.x.t()).double(), piece.own.bincount(norms.double(), number), distances

    for piece, total, square, distances in stream.each(look):
        part = slice(piece.first, piece.first + len(square))
        sums[part] += total
        squares[part] += square
        spaced.take(piece)
        farthest.take(piece, distances)
    found = Survey(stream.add(sums), stream.add(squares), [], tailed)
    if not found.finite:
        return found
    tails = farthest.gathered()
    for c, (places, others) in enumerate(spaced.gathered()):
        rows, x = tails.get(c, (places[:0], others[:0]))
        found.samples.append(torch.cat([x, others[~torch.isin(places, rows)]]) if len(x) else others)
    return found


class _Spaced:
    """Rows at evenly spaced places among those of their class, over all ranks."""

    def __init__(self, stream: Stream, limit: int, tailed: Tensor) -> None:
        self.stream, self.samples = stream, list[Tensor]()
        self.wanted, self.rows = list[npt.NDArray[np.int64]](), list[Tensor]()
        for count, tail in zip(stream.counts.tolist(), tailed.tolist(), strict=True):
            number = min(count, limit - TAIL if tail else limit)
            self.wanted.append(np.linspace(0, max(count - 1, 0), number).round().astype(np.int64))
            self.samples.append(torch.zeros(number, stream.blocks.num_columns))
            self.rows.append(torch.zeros(number, dtype=torch.int64))
        self.seen = np.zeros(stream.num_classes, np.int64)  # rows of each class that came before
        if stream.shared:
            own = counted(stream.position, stream.num_classes)
            each = torch.zeros(ranks.count(), stream.num_classes, dtype=torch.int64)
            each[ranks.number()] = own
            self.seen += stream.add(each)[: ranks.number()].sum(0).numpy()

    def take(self, piece: Piece) -> None:
        own = piece.own.numpy()
        counts = np.bincount(own)
        order = np.argsort(own.astype(np.uint8), kind="stable")  # few bits are sorted much faster
        wanted, begin = list[tuple[int, int, npt.NDArray[np.int64]]](), 0
        for name, count in enumerate(counts.tolist(), piece.first):
            before, targets = int(self.seen[name]), self.wanted[name]
            low, high = targets.searchsorted((before, before + count)).tolist()
            if high > low:
                wanted.append((name, low, order[begin + targets[low:high] - before]))
            self.seen[name] += count
            begin += count
        if wanted:
            at = torch.from_numpy(np.concatenate([places for _, _, places in wanted]))
            sizes = [len(places) for _, _, places in wanted]
            x, rows = piece.x.index_select(1, at).t(), self.stream.offset + piece.places[at]
            parts = zip(wanted, torch.split(x, sizes), torch.split(rows, sizes), strict=True)
            for (name, low, _), sample, row in parts:
                self.samples[name][low : low + len(row)] = sample
                self.rows[name][low : low + len(row)] = row

    def gathered(self) -> list[tuple[Tensor, Tensor]]:
        """Every class's rows, as where they are and what they hold."""
        return [
            (self.stream.add(rows), self.stream.add(sample))
            for rows, sample in zip(self.rows, self.samples, strict=True)
        ]


class _Far(NamedTuple):
    """Rows, side by side."""

    names: Tensor  # (rows,) int64: their classes
    rows: Tensor  # (rows,) int64: where they are
    distances: Tensor  # (rows,) float32, squared
    x: Tensor  # (rows, epochs) float32


class _Farthest:
    """The rows of each large class that are farthest from its mean.

    They are kept in arrays made once: many small ones, kept between large ones that come and go, would leave
    holes in the memory that nothing fits into.
    """

    def __init__(self, stream: Stream, tailed: Tensor) -> None:
        self.stream, room = stream, 2 * TAIL * int(tailed.sum())
        self.floor = torch.where(tailed, -torch.inf, torch.inf)
        names, rows = torch.zeros(2, room, dtype=torch.int64)
        self.found = _Far(names, rows, torch.zeros(room), torch.zeros(room, stream.blocks.num_columns))
        self.number = 0  # of the rows there that are used

    def take(self, piece: Piece, distances: Tensor) -> None:
        names = piece.own + piece.first
        far = (distances > self.floor[names]).nonzero()[:, 0]
        if len(far):
            rows = self.stream.offset + piece.places[far]
            self._put(_Far(names[far], rows, distances[far], piece.x.index_select(1, far).t()))

    def _put(self, more: _Far) -> None:
        done = 0
        while done < len(more.rows):
            count = min(len(more.rows) - done, len(self.found.rows) - self.number)
            for kept, part in zip(self.found, more, strict=True):
                kept[self.number : self.number + count] = part[done : done + count]
            self.number, done = self.number + count, done + count
            if self.number == len(self.found.rows):
                self._keep()

    def _keep(self) -> _Far:
        """Drop all but the farthest; of equally far ones, those that come first stay."""
        found = _Far(*(part[: self.number] for part in self.found))
        keys = (found.rows.numpy(), -found.distances.numpy(), found.names.numpy())
        order = torch.from_numpy(np.lexsort(keys))
        names = found.names[order]
        counts = names.bincount(minlength=len(self.floor))
        place = torch.arange(len(names)) - (counts.cumsum(0) - counts)[names]
        order = order[place < TAIL]
        self.number = len(order)
        for kept, part in zip(self.found, found, strict=True):
            kept[: self.number] = part[order]
        full = (counts >= TAIL).nonzero()[:, 0]
        last = (counts.clamp(max=TAIL).cumsum(0) - 1)[full]
        self.floor[full] = self.found.distances[last]
        return _Far(*(part[: self.number] for part in self.found))

    def gathered(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Of every large class, over all ranks: where the rows are, and what they hold."""
        found = self._exchange(self._keep()) if self.stream.shared else self._keep()
        own = {int(c): found.names == c for c in found.names.unique()}
        return {c: (found.rows[chosen], found.x[chosen]) for c, chosen in own.items()}

    def _exchange(self, own: _Far) -> _Far:
        """Each rank's rows, one rank after the other."""
        own = _Far(*(part.clone() for part in own))
        sizes = torch.zeros(ranks.count(), dtype=torch.int64)
        sizes[ranks.number()] = len(own.rows)
        for rank, size in enumerate(self.stream.add(sizes).tolist()):
            mine = rank == ranks.number()
            parts = [part.clone() if mine else part.new_zeros(size, *part.shape[1:]) for part in own]
            parts = [self.stream.add(part) for part in parts]
            if not mine:
                self._put(_Far(*parts))
        return self._keep()
