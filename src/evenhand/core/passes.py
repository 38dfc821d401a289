"""Passes over all histories, for a step of two-means in every class at once.

A class's boundary is a direction d and a threshold t: a row x lies in cluster 1 where x.d > t. A pass reads
every row once and gives, per class, how many rows lie in cluster 1 and their sum; all that a step of k-means
needs follows from these and from the class's own sum (twomeans.py).

`Passes` works in plain torch: on an array, on a memory-mapped file larger than memory, on a tensor of any
device, and across ranks that hold a part of the rows each. kernels.py has the same for a GPU, in Triton.
All are deterministic: no sum depends on the number of threads, or on which of them finishes first.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.core import ranks
from evenhand.core.search import SEARCHED, TAIL

T = TypeVar("T")

_BLOCK_BYTES = 1 << 26  # of a block that is read from a file; two are in memory at any time
_ROWS = 4096  # of a class, whose sum is taken in float32
_ON_DEVICE = 1 << 24  # numbers of a block on a GPU
_SAMPLE = 81920  # rows of the samples of all classes together
_CLASS_SAMPLE = 2 * TAIL, 32768  # rows of the sample of a class, at least and at most
_SAMPLE_BYTES = 1 << 28  # of the samples of all classes together


class FirstPass(NamedTuple):
    """The result of the first pass for every class, in the unit of the passes."""

    counts: Tensor  # (classes,) float64
    sums: Tensor  # (classes, epochs) float64, of rows less `shift`
    squares: Tensor  # (classes,) float64: squared distances to `origin`, summed
    samples: list[Tensor]  # of every class, (rows, epochs) less `shift`; see `sample_sizes`
    tailed: list[bool]  # of every class, whether its sample begins with a tail


class _Chosen(NamedTuple):
    """Rows that a sample may hold."""

    x: Tensor  # (rows, epochs)
    rows: Tensor  # (rows,) int64, counted over all ranks
    distances: Tensor  # (rows,) to the origin, squared

    def joined(self, other: _Chosen) -> _Chosen:
        return _Chosen(*(torch.cat(both) for both in zip(self, other, strict=True)))

    def at(self, index: Tensor) -> _Chosen:
        return _Chosen(*(part.index_select(0, index) for part in self))

    def farthest(self) -> _Chosen:
        """Return the farthest rows, at most as many as a tail has; ties go to the first."""
        return self.at(self.distances.argsort(stable=True, descending=True)[:TAIL])


class Passes:
    """Passes over histories (samples, epochs): a tensor on any device, or an array that is read in blocks.

    `position`, (samples,) uint8 or int32, is the class of each row; without it all rows are one class.
    Sums are of rows divided by `unit`, less `shift`, (epochs,), which keeps digits where all rows are far
    from zero. `origin` is a point among the rows.
    """

    def __init__(
        self,
        histories: Tensor | npt.NDArray[Any],
        position: Tensor | None,
        num_classes: int,
        *,
        unit: float = 1.0,
        pool: ThreadPoolExecutor | None = None,
        across_ranks: bool = False,
    ) -> None:
        self.x, self.position, self.num_classes, self.unit = histories, position, num_classes, unit
        self.dtype = torch.float32
        self.num_samples: int = histories.shape[0]
        self.num_epochs: int = histories.shape[1]
        self.device = histories.device if isinstance(histories, Tensor) else torch.device("cpu")
        self._map: Callable[..., Any] = map if pool is None else pool.map
        self._shared = across_ranks and ranks.count() > 1
        sizes = torch.zeros(ranks.count() if self._shared else 1, dtype=torch.int64)
        rank = ranks.number() if self._shared else 0
        sizes[rank] = self.num_samples
        self._first_row = int(self._add(sizes)[:rank].sum())
        head = histories[:1024]
        head = (head if isinstance(head, Tensor) else torch.from_numpy(np.array(head))).double() / unit
        middle = head.median(0).values[None] if len(head) else head
        self.origin = (ranks.concatenate(middle.cpu()) if self._shared else middle.cpu())[0].float().double()
        self.shift = self.origin
        self._backwards = False
        self._buffers = threading.local()

    # -- the passes ----------------------------------------------------------------------------------------

    def first_pass(self, sample: int) -> FirstPass:
        """Return sizes, sums and squares, and a sample of every class; see `sample_sizes`."""
        counts = self.counts()
        size, tailed = sample_sizes(counts, self.num_epochs, sample)
        rate = ((size - TAIL * tailed) / counts.clamp(min=1)).to(self.device)
        empty = _Chosen(torch.empty(0, self.num_epochs), torch.empty(0, dtype=torch.int64), torch.empty(0))
        tails, rest = [empty] * self.num_classes, [list[_Chosen]() for _ in range(self.num_classes)]
        nearest = torch.where(tailed, -torch.inf, torch.inf).tolist()  # of each tail's rows

        def measure(c: int, rows: Tensor | slice, x: Tensor) -> tuple[int, Tensor, Tensor, _Chosen, _Chosen]:
            row = torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            every = _Chosen(x, row.to(self.device) + self._first_row, x.square().sum(1))
            far = empty
            if nearest[c] < torch.inf:
                far = every.at((every.distances > nearest[c]).nonzero()[:, 0]).farthest()
            chosen = every.at((_uniform(every.rows) < rate[c]).nonzero()[:, 0])
            return c, x.sum(0).double(), every.distances.sum().double(), far, chosen

        sums = torch.zeros(self.num_classes, self.num_epochs, dtype=torch.float64, device=self.device)
        squares = torch.zeros(self.num_classes, dtype=torch.float64, device=self.device)
        for c, part, square, far, chosen in self._each(measure):
            sums[c] += part
            squares[c] += square
            rest[c].append(_Chosen(*(part.cpu() for part in chosen)))
            if len(far.rows):
                tails[c] = tails[c].joined(_Chosen(*(part.cpu() for part in far))).farthest()
                nearest[c] = float(tails[c].distances[-1]) if len(tails[c].rows) == TAIL else -torch.inf
        samples = []
        for tail, found in zip(tails, rest, strict=True):
            others = _Chosen(*(torch.cat(parts) for parts in zip(empty, *found, strict=True)))
            found.clear()  # so that only one class's rows are in memory twice
            samples.append(self._sample(tail, others))
        return FirstPass(counts, self._add(sums.cpu()), self._add(squares.cpu()), samples, tailed.tolist())

    def split(self, direction: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        """Return the size of cluster 1 and its sum, for several boundaries of every class.

        direction (boundaries, classes, epochs) and threshold (boundaries, classes) give arrays of the same
        shapes in float64.
        """
        d, t = direction.to(self.device, self.dtype), threshold.to(self.device, self.dtype)

        def step(c: int, _: Tensor | slice, x: Tensor) -> tuple[int, Tensor, Tensor]:
            inside = (x @ d[:, c].T > t[:, c]).to(x.dtype)
            return c, inside.sum(0), inside.T @ x

        sums = torch.zeros(direction.shape, dtype=torch.float64, device=self.device)
        sizes = torch.zeros(threshold.shape, dtype=torch.float64, device=self.device)
        for c, number, part in self._each(step):
            sizes[:, c] += number
            sums[:, c] += part
        return self._add(sizes.cpu()), self._add(sums.cpu())

    def mark(
        self, direction: Tensor, threshold: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return sizes and sums for one boundary per class, and each row's (x.d - t) * scale and cluster.

        The arrays of rows are overwritten by the next pass.
        """
        d, t, s = (given.to(self.device, self.dtype) for given in (direction, threshold, scale))
        margin, inside = self._marks()

        def step(c: int, rows: Tensor | slice, x: Tensor) -> tuple[int, Tensor, Tensor]:
            p = torch.mv(x, d[c]) - t[c]
            chosen = p > 0
            margin[rows], inside[rows] = (p * s[c]).float(), chosen
            return c, chosen.sum(), chosen.to(x.dtype) @ x

        sums = torch.zeros(direction.shape, dtype=torch.float64, device=self.device)
        sizes = torch.zeros(threshold.shape, dtype=torch.float64, device=self.device)
        for c, number, part in self._each(step):
            sizes[c] += number
            sums[c] += part
        return self._add(sizes.cpu()), self._add(sums.cpu()), margin, inside

    def counts(self) -> Tensor:
        """Return how many rows every class has, (classes,) float64."""
        counts = torch.zeros(self.num_classes, dtype=torch.int64)
        if self.position is None:
            counts += self.num_samples
        else:
            for part in self.position.split(1 << 22):
                counts += torch.bincount(part, minlength=self.num_classes).cpu()
        return self._add(counts).double()

    def check_range(self, name: str, largest: float) -> float:
        """Return the largest absolute value; raises if a value is not finite or beyond `largest`."""
        wrong, most = "", 0.0
        for start, block in self._blocks():
            wrong, highest = _value_range(block, start)
            most = max(most, highest)
            if wrong:
                break
        if self._shared:
            values = ranks.concatenate(torch.tensor([most], dtype=torch.float64))
            most = float(values.max())
            wrong = wrong or ("" if math.isfinite(most) else "others on another rank")
        _refuse(wrong, most, name, largest)
        return most

    # -- inside --------------------------------------------------------------------------------------------

    def _add(self, values: Tensor) -> Tensor:
        """Return the sum over the ranks, if they share the samples."""
        return ranks.add(values) if self._shared else values

    def _marks(self) -> tuple[Tensor, Tensor]:
        if not hasattr(self, "_margin"):
            self._margin = torch.empty(self.num_samples, device=self.device)
            self._inside = torch.empty(self.num_samples, dtype=torch.bool, device=self.device)
        return self._margin, self._inside

    def _sample(self, tail: _Chosen, rest: _Chosen) -> Tensor:
        """Return the sample of rows, with the tail first."""
        if self._shared:
            tail = _Chosen(*(ranks.concatenate(part) for part in tail)).farthest()
            rest = _Chosen(*(ranks.concatenate(part) for part in rest))
        return torch.cat([tail.x, rest.x[~torch.isin(rest.rows, tail.rows)]])

    def _each(self, work: Callable[[int, Tensor | slice, Tensor], T]) -> Iterator[T]:
        """Apply `work(class, rows, x)` to some rows of one class at a time, in a fixed order.

        x is (rows, epochs) less `shift`. Every other pass goes backwards: it begins with those blocks of a
        file that are still in the page cache.
        """
        step = _ON_DEVICE // self.num_epochs if self.device.type == "cuda" else _ROWS
        size = step * self.num_classes

        def pieces(start: int, raw: Tensor) -> list[T]:
            if self.position is None:
                return [work(0, slice(start, start + len(raw)), self._relative(raw))]
            position = self.position[start : start + len(raw)]
            order = _stable_order(position)
            x, rows = self._relative(self._gathered(raw, order), gathered=True), order + start
            sizes, found, begin = torch.bincount(position, minlength=self.num_classes).tolist(), list[T](), 0
            for c, count in enumerate(sizes):
                for first in range(begin, begin + count, step):
                    part = slice(first, min(first + step, begin + count))
                    found.append(work(c, rows[part], x[part]))
                begin += count
            return found

        for start, block in self._blocks(backwards=self._backwards):
            starts = range(0, len(block), size)
            for results in self._map(
                pieces, (start + begin for begin in starts), (block[begin : begin + size] for begin in starts)
            ):
                yield from results
        self._backwards = not self._backwards

    def _blocks(self, *, backwards: bool = False) -> Iterator[tuple[int, Tensor]]:
        """Yield the first row and the content, (rows, epochs), of every block."""
        if not isinstance(self.x, Tensor):
            yield from read_blocks(self.x, backwards=backwards)
        elif self.device.type == "cpu":
            yield 0, self.x
        else:
            size = max(1, _ON_DEVICE // self.num_epochs)
            for start in range(0, self.num_samples, size):
                yield start, self.x[start : start + size]

    def _gathered(self, raw: Tensor, order: Tensor) -> Tensor:
        """Return the rows in this order, in a buffer that the thread overwrites with the next ones."""
        by_epoch = raw.stride(0) == 1  # as a block of a file may be stored
        stored = raw.T if by_epoch else raw
        if getattr(self._buffers, "size", 0) < raw.numel():
            self._buffers.size, self._buffers.rows = raw.numel(), torch.empty_like(stored).view(-1)
        out: Tensor = self._buffers.rows[: raw.numel()].view(stored.shape)
        torch.index_select(stored, int(by_epoch), order, out=out)
        return out.T if by_epoch else out

    def _relative(self, raw: Tensor, *, gathered: bool = False) -> Tensor:
        """Return rows in the unit of the passes, less `shift`; `gathered` rows may be overwritten."""
        halves = (torch.float16, torch.bfloat16, torch.float32)
        if self.unit == 1.0 and raw.dtype in halves and self.dtype == torch.float32:
            shift = self.shift.to(raw.device, torch.float32)
            return raw.sub_(shift) if gathered and raw.dtype == torch.float32 else raw.float() - shift
        return (raw.double() / self.unit - self.shift.to(raw.device)).to(self.dtype)


def boundary(centroids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return directions with a largest entry of 1, thresholds, and margin factors of the centroids.

    A row's margin is (x.d - t) times the factor.
    """
    low, high = centroids[..., 0, :], centroids[..., 1, :]
    d = high - low
    size = d.abs().amax(-1).clamp(min=1e-300)
    square = d.square().sum(-1)
    t = (d * (high + low)).sum(-1) / 2
    return d / size[..., None], t / size, torch.where(square > 0, size / square.clamp(min=1e-300), 0.0)


def _value_range(x: Tensor, first_row: int) -> tuple[str, float]:
    """Describe a non-finite value of x, (samples, epochs) or (samples,), if any; return also the maximum."""
    low, high = (float(value) for value in x.aminmax())
    if math.isfinite(low) and math.isfinite(high):
        return "", max(-low, high)
    at = (~x.isfinite()).nonzero()[0].tolist()
    epoch = f" in epoch {at[1]}" if x.ndim == 2 else ""
    return f"{float(x[tuple(at)])} for sample {first_row + at[0]}{epoch}", math.inf


def check_values(x: Tensor, name: str, largest: float, *, first_row: int = 0) -> None:
    """Raise for values, (samples, epochs) or (samples,), that are not finite or lie beyond `largest`."""
    _refuse(*_value_range(x, first_row), name, largest)


def _refuse(wrong: str, most: float, name: str, largest: float) -> None:
    hint = "a training that diverges needs a lower learning rate"
    if wrong:
        raise ValueError(f"{name} must be finite, got {wrong}; {hint}")
    if most > largest:
        raise ValueError(f"{name} must lie between -{largest:g} and {largest:g}, got {most:g}; {hint}")


def sample_sizes(counts: Tensor, epochs: int, sample: int) -> tuple[Tensor, Tensor]:
    """Return the sample size of every class, and whether the sample begins with the farthest rows.

    A small class is its own sample. The sample of a larger one has at most `sample` rows: the rows farthest
    from the middle, since few rows far out can be a cluster, and some of the others.
    """
    room = max(32, _SAMPLE_BYTES // (4 * len(counts) * epochs))
    least, most = _CLASS_SAMPLE
    return counts.clamp(max=min(max(sample, least), most, room)), (counts > SEARCHED) & (room >= least)


def sample_limit(num_classes: int) -> int:
    """Return the largest sample size of a class that keeps the samples of all classes small enough."""
    return _SAMPLE // num_classes


@contextmanager
def thread_pool() -> Iterator[ThreadPoolExecutor]:
    """Provide threads whose operations take one thread each, faster than threads inside operations.

    The caller's own operations take one thread, too: on a busy machine, two of them wait for each other.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)


def _uniform(rows: Tensor) -> Tensor:
    """Return a number from 0 to 1 for every row, as if drawn at random, but always the same."""
    mixed = rows * -0x61C8864680B583EB
    mixed = (mixed ^ (mixed >> 32)) * -0x4B47D0C5A1A6E2CB
    return ((mixed ^ (mixed >> 29)) & (2**53 - 1)).double() / 2**53


def _stable_order(position: Tensor) -> Tensor:
    """Return the order of rows by class, which keeps the order within a class."""
    if position.is_cuda:
        return position.argsort(stable=True)
    return torch.from_numpy(np.argsort(position.numpy(), kind="stable"))  # much faster for few bits


def read_blocks(matrix: npt.NDArray[Any], *, backwards: bool = False) -> Iterator[tuple[int, Tensor]]:
    """Yield the first row and content, (rows, epochs), of every block; the next block overwrites it.

    A matrix that is mapped from a file and contiguous is read by calls into buffers of our own, so that its
    pages do not become this process's memory. (One that is mapped with mode "c" may differ from its file, and
    is read through the mapping.) The next block is read while one is worked on.
    """
    samples, epochs = matrix.shape
    by_epoch = matrix.strides[0] < matrix.strides[1] or epochs == 1
    size = max(1, min(samples, _BLOCK_BYTES // (epochs * matrix.itemsize)))
    buffers = [np.empty(size * epochs, matrix.dtype) for _ in range(2)]
    mapped = _mapped_file(matrix)
    with ExitStack() as stack:
        reader = stack.enter_context(ThreadPoolExecutor(1))
        file = None
        if mapped is not None:
            file = os.open(mapped[0], os.O_RDONLY)
            stack.callback(os.close, file)

        def fill(number: int, start: int) -> Tensor:
            rows = min(size, samples - start)
            block = buffers[number % 2][: rows * epochs].reshape(
                (epochs, rows) if by_epoch else (rows, epochs)
            )
            if file is None or mapped is None:
                np.copyto(block, matrix[start : start + rows].T if by_epoch else matrix[start : start + rows])
            else:
                offset = mapped[1] + start * matrix.itemsize * (1 if by_epoch else epochs)
                _read(file, block if by_epoch else block.reshape(1, -1), offset, samples * matrix.itemsize)
            return torch.from_numpy(block.T if by_epoch else block)

        starts = list(range(0, samples, size))[:: -1 if backwards else 1]
        ahead = reader.submit(fill, 0, starts[0]) if starts else None
        for number, start in enumerate(starts):
            assert ahead is not None
            block = ahead.result()
            if number + 1 < len(starts):
                ahead = reader.submit(fill, number + 1, starts[number + 1])
            yield start, block


def _read(file: int, parts: npt.NDArray[Any], offset: int, step: int) -> None:
    """Fill each part from the file, where the parts are `step` bytes apart."""
    offsets = [offset + number * step for number in range(len(parts))]
    if hasattr(os, "posix_fadvise"):  # so that the disk can work on all of them at once
        for begin in offsets:
            os.posix_fadvise(file, begin, parts[0].nbytes, os.POSIX_FADV_WILLNEED)
    for part, begin in zip(parts, offsets, strict=True):
        view, done = memoryview(part.view(np.uint8)), 0
        while done < len(view):
            count = os.preadv(file, [view[done:]], begin + done)
            if count == 0:
                raise ValueError("the file of the histories ended early; was it changed while it was read?")
            done += count


def _mapped_file(matrix: npt.NDArray[Any]) -> tuple[str, int] | None:
    """Return the file that a matrix is mapped from and its offset, if their contents are the same."""
    if not hasattr(os, "preadv") or not (matrix.flags.f_contiguous or matrix.flags.c_contiguous):
        return None
    root: Any = matrix
    while root is not None and not (isinstance(root, np.memmap) and isinstance(root.base, mmap.mmap)):
        root = getattr(root, "base", None)
    if root is None or root.mode == "c" or not isinstance(root.filename, str | os.PathLike):
        return None
    offset = root.offset + matrix.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return os.fspath(root.filename), offset
