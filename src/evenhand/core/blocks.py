"""Blocks: a matrix that may be larger than memory, read stretch by stretch of its rows."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BYTES = 1 << 26  # of a block; two are in memory at any time


class _File(NamedTuple):
    """Where a mapped matrix lies."""

    path: str
    offset: int  # bytes before the matrix
    by_column: bool


class Blocks:
    """The rows of a matrix, (samples, epochs), in blocks of consecutive rows.

    A matrix that is mapped from a file and lies in one piece is read by calls into buffers of our own, so
    that its pages do not become this process's memory. (One that is mapped with mode "c" may differ from its
    file, and is read through the mapping.) The next block is read while one is worked on.

    >>> [(start, block.tolist()) for start, block in Blocks(np.array([[1.0, 2.0], [3.0, 4.0]]))]
    [(0, [[1.0, 3.0], [2.0, 4.0]])]
    """

    def __init__(self, matrix: npt.NDArray[Any]) -> None:
        self.matrix = matrix
        self.num_rows, self.num_columns = matrix.shape
        self._file = _mapped(matrix)
        self._by_column = matrix.strides[0] < matrix.strides[1] or self.num_columns == 1
        self._size = max(1, min(self.num_rows, _BYTES // (self.num_columns * matrix.itemsize)))

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        return self.read()

    def read(self, *, backwards: bool = False) -> Iterator[tuple[int, Tensor]]:
        """The first row and the content, (epochs, rows), of every block; the next one overwrites it.

        A pass after another had better go the other way: it begins with what is still in the page cache.
        """
        starts = list(range(0, self.num_rows, self._size))
        yield from self._stretches(
            [(start, min(start + self._size, self.num_rows)) for start in starts[:: -1 if backwards else 1]]
        )

    def spread(self, stretches: list[tuple[int, int]]) -> Iterator[tuple[int, Tensor]]:
        """The same of some stretches of rows, none longer than a block."""
        limit = self._size
        yield from self._stretches([(start, min(end, start + limit)) for start, end in stretches])

    def _stretches(self, stretches: list[tuple[int, int]]) -> Iterator[tuple[int, Tensor]]:
        shape = (self.num_columns, self._size) if self._by_column else (self._size, self.num_columns)
        buffers = [np.empty(shape, self.matrix.dtype) for _ in range(2)]
        with ExitStack() as stack:
            reader = stack.enter_context(ThreadPoolExecutor(1))
            file = None
            if self._file is not None:
                file = os.open(self._file.path, os.O_RDONLY)
                stack.callback(os.close, file)
            jobs = [(start, end, buffers[i % 2]) for i, (start, end) in enumerate(stretches)]
            ahead = reader.submit(self._fill, file, *jobs[0]) if jobs else None
            for number, (start, _, _) in enumerate(jobs):
                assert ahead is not None
                block = ahead.result()
                if number + 1 < len(jobs):
                    ahead = reader.submit(self._fill, file, *jobs[number + 1])
                yield start, torch.from_numpy(block)

    def _fill(self, file: int | None, start: int, end: int, buffer: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """These rows, (epochs, rows), in the buffer."""
        if not self._by_column:
            block = buffer[: end - start]
            if file is None or self._file is None:
                np.copyto(block, self.matrix[start:end])
            else:
                _read(file, block, self._file.offset + start * block.strides[0])
            return block.T
        # A part of the buffer that is one piece, so that short stretches are too.
        block = buffer.reshape(-1)[: self.num_columns * (end - start)].reshape(self.num_columns, -1)
        if file is None or self._file is None:
            np.copyto(block, self.matrix[start:end].T)
            return block
        item = self.matrix.itemsize
        places = [
            self._file.offset + (column * self.num_rows + start) * item for column in range(self.num_columns)
        ]
        if hasattr(os, "posix_fadvise"):  # so that the disk can work on all of them at once
            for place in places:
                os.posix_fadvise(file, place, (end - start) * item, os.POSIX_FADV_WILLNEED)
        for column, place in zip(block, places, strict=True):
            _read(file, column, place)
        return block


def _read(file: int, into: npt.NDArray[Any], place: int) -> None:
    view = memoryview(into.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    done = 0
    while done < len(view):
        count = os.preadv(file, [view[done:]], place + done)
        if count == 0:
            raise ValueError("the file of the histories ended early; was it changed while it was read?")
        done += count


def _mapped(matrix: npt.NDArray[Any]) -> _File | None:
    """The file that a matrix is mapped from, if reading the file gives what the matrix holds."""
    if not hasattr(os, "preadv") or not (matrix.flags.f_contiguous or matrix.flags.c_contiguous):
        return None
    root: Any = matrix
    while root is not None and not (isinstance(root, np.memmap) and isinstance(root.base, mmap.mmap)):
        root = getattr(root, "base", None)
    if root is None or root.mode == "c" or not isinstance(root.filename, str | os.PathLike):
        return None
    offset = root.offset + matrix.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return _File(os.fspath(root.filename), offset, bool(matrix.flags.f_contiguous))
