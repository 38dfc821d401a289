"""Rows of histories that may be larger than memory, in pieces, each worked on by one thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.core import ranks
from evenhand.core.blocks import Blocks

T = TypeVar("T")

TOGETHER = 16  # classes worked on at once: one matrix product for all of them
_PIECE = 1 << 20  # numbers worked on at once: what fits into a processor's cache
_STRETCHES, _STRETCH = 32, 2048  # what is looked at before the first pass, to centre all that follows


class Piece(NamedTuple):
    """Some rows of some neighbouring classes."""

    x: Tensor  # (epochs, rows) float32, relative to the origin
    rows: npt.NDArray[np.int64] | slice  # where they come from
    first: int  # class
    own: Tensor  # (rows,) int64: their classes, counted from the first

    @property
    def places(self) -> Tensor:
        """Where the rows come from, (rows,) int64."""
        if isinstance(self.rows, slice):
            return torch.arange(self.rows.start, self.rows.stop)
        return torch.from_numpy(self.rows)


class Stream:
    """A matrix, (samples, epochs), and the class of every row, read in pieces."""

    def __init__(
        self,
        matrix: npt.NDArray[Any],
        position: npt.NDArray[Any],
        num_classes: int,
        *,
        pool: ThreadPoolExecutor,
        across_ranks: bool,
    ) -> None:
        self.pool = pool
        self.blocks, self.position, self.num_classes = Blocks(matrix), position, num_classes
        self.shared = across_ranks and ranks.count() > 1
        self.counts = self.add(counted(position, num_classes))  # (classes,) of all ranks
        number, each = ranks.number(), torch.zeros(ranks.count() if self.shared else 1, dtype=torch.int64)
        each[number if self.shared else 0] = len(position)
        each = self.add(each)
        self.offset = int(each[: number if self.shared else 0].sum())  # rows of the ranks before this one
        self.total = int(each.sum())
        self.unit, self.origin = 1.0, torch.zeros(matrix.shape[1], dtype=torch.float64)

    def add(self, values: Tensor) -> Tensor:
        """The sum over the ranks, where they share the samples."""
        return ranks.add(values) if self.shared else values

    def relative(self, raw: Tensor) -> Tensor:
        """Numbers in float32, relative to the origin and in units, so that large ones keep their digits."""
        if self.unit == 1.0 and raw.dtype in (torch.float16, torch.float32):
            return raw.float() - self.origin.float()[:, None]
        return (raw.double() / self.unit - self.origin[:, None]).float()

    def each(self, work: Callable[[Piece], T], *, backwards: bool = False) -> Iterator[T]:
        """What `work` makes of every piece, in their order; several pieces are worked on side by side."""
        groups = -(-self.num_classes // TOGETHER)
        size = min(max(256, _PIECE // self.blocks.num_columns), 1 << 14) * groups

        def pieces(start: int, block: Tensor) -> list[T]:
            return [work(piece) for piece in self._grouped(start, self.relative(block), groups)]

        for start, block in self.blocks.read(backwards=backwards):
            begins = range(0, block.shape[1], size)
            parts = [block[:, begin : begin + size] for begin in begins]
            for results in self.pool.map(pieces, [start + begin for begin in begins], parts):
                yield from results

    def _grouped(self, start: int, x: Tensor, groups: int) -> Iterator[Piece]:
        """Rows of few classes each: all of them, or those of neighbouring classes."""
        rows = slice(start, start + x.shape[1])
        own = torch.from_numpy(self.position[rows].astype(np.int64))
        if groups == 1:
            yield Piece(x, rows, 0, own)
            return
        order = own.argsort(stable=True)
        ends = (own // TOGETHER).bincount(minlength=groups).cumsum(0).tolist()
        for group, (a, b) in enumerate(zip([0, *ends], ends, strict=False)):
            if b > a:
                chosen, first = order[a:b], group * TOGETHER
                yield Piece(x.index_select(1, chosen), chosen.numpy() + start, first, own[chosen] - first)

    def centre(self) -> Tensor:
        """Put the origin amid some rows; gives every class's mean of them, relative to it."""
        self.origin = torch.zeros_like(self.origin)
        sums = torch.zeros(self.num_classes, len(self.origin), dtype=torch.float64)
        counts = torch.zeros(self.num_classes, dtype=torch.float64)
        length = max(1, min(_STRETCH, self.total // _STRETCHES))
        begins = [number * self.total // _STRETCHES - self.offset for number in range(_STRETCHES)]
        spans = [(max(begin, 0), min(begin + length, self.blocks.num_rows)) for begin in begins]
        for start, block in self.blocks.spread([span for span in sorted(set(spans)) if span[0] < span[1]]):
            own = torch.from_numpy(self.position[start : start + block.shape[1]].astype(np.int64))
            sums.index_add_(0, own, (block.double() / self.unit).t())
            counts += own.bincount(minlength=self.num_classes)
        sums, counts = self.add(sums), self.add(counts)
        self.origin = (sums.sum(0) / counts.sum()).float().double()
        means = sums / counts.clamp(min=1)[:, None] - self.origin
        return torch.where(counts[:, None] > 0, means, 0.0)

    def measure(self, name: str, largest: float) -> None:
        """Take the largest number as the unit; raise where one is not finite, or larger than allowed."""
        wrong, most = "", 0.0
        for start, block in self.blocks:
            low, high = (float(value) for value in block.aminmax())
            if not (math.isfinite(low) and math.isfinite(high)):
                row, epoch = min((~block.isfinite()).t().nonzero().tolist())
                wrong = f"{float(block[epoch, row])} for sample {start + row} in epoch {epoch}"
                break
            most = max(most, -low, high)
        facts = torch.zeros(ranks.count() if self.shared else 1, 2, dtype=torch.float64)
        facts[ranks.number() if self.shared else 0] = torch.tensor(
            [float(bool(wrong)), most], dtype=torch.float64
        )
        facts = self.add(facts)
        hint = "a training that diverges needs a lower learning rate"
        if facts[:, 0].any():
            raise ValueError(f"{name} must be finite, got {wrong or 'others on another rank'}; {hint}")
        self.unit = float(facts[:, 1].max())
        if self.unit > largest:
            raise ValueError(
                f"{name} must lie between -{largest:g} and {largest:g}, got {self.unit:g}; {hint}"
            )


@contextmanager
def side_by_side() -> Iterator[ThreadPoolExecutor]:
    """Threads that work on one thing each: faster than threads inside each, and no sum depends on them.

    The caller's own operations take one thread, too: on a busy machine, two of them wait for each other.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)


def projected(piece: Piece, lines: Tensor) -> Tensor:
    """Every row's product with the line of its class, (rows,); lines are (classes, epochs) float32."""
    products = lines[piece.first : piece.first + TOGETHER] @ piece.x
    return products[0] if len(products) == 1 else products.gather(0, piece.own[None])[0]


def counted(position: npt.NDArray[Any], num_classes: int) -> Tensor:
    """How many rows every class has, (classes,) int64."""
    counts = torch.zeros(num_classes, dtype=torch.int64)
    for start in range(0, len(position), 1 << 22):
        counts += torch.from_numpy(np.bincount(position[start : start + (1 << 22)], minlength=num_classes))
    return counts
