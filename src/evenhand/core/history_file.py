"""The file of a loss history: an .npy in Fortran order, to which every epoch appends a column."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.core import ranks

_HEAD = 128  # bytes before the data: an .npy header, padded so that it never grows
NUMPY = {torch.float32: "<f4", torch.float16: "<f2", torch.bool: "|b1"}


class HistoryFile:
    """Columns on disk. The header counts a column only when all of it has been written.

    What is written outlives the process. A machine that dies may lose what was not synced: file systems
    lengthen a file on the disk when its data are there, and a count beyond the file's end is cut.
    """

    def __init__(self, path: Path, num_samples: int, dtype: torch.dtype) -> None:
        self.path, self.num_samples, self._dtype = path, num_samples, np.dtype(NUMPY[dtype])
        self._column_bytes = num_samples * self._dtype.itemsize

    def mapped(self) -> npt.NDArray[np.generic]:
        """All of it, (samples, epochs), memory-mapped; changes are private, so the file is safe."""
        array: npt.NDArray[np.generic] = np.load(self.path, mmap_mode="c", allow_pickle=False)
        return array

    def append(self, column: Tensor, num_epochs: int) -> None:
        """Write the column that follows so many."""
        data = column.numpy().tobytes()
        if num_epochs == 0:
            self._create(self._header(1) + data)
            return
        with self.path.open("r+b") as file:
            end = _HEAD + num_epochs * self._column_bytes
            if file.seek(0, os.SEEK_END) < end:
                raise ValueError(
                    f"{self.path} should hold {num_epochs} epochs, but somebody has cut it; "
                    "only one LossHistory may write to a file"
                )
            file.seek(end)
            _write(file, data)
            file.truncate()
            file.seek(0)
            file.write(self._header(num_epochs + 1))

    def append_part(self, part: Tensor, start: int, num_epochs: int) -> None:
        """The same of this rank's part, which begins at sample `start`; every rank must call it."""
        if ranks.first() and num_epochs == 0:
            self._create(self._header(0))
        ranks.barrier()
        with self.path.open("r+b") as file:
            file.seek(_HEAD + num_epochs * self._column_bytes + start * self._dtype.itemsize)
            _write(file, part.numpy().tobytes())
            ranks.barrier()
            if ranks.first():
                file.seek(0)
                _write(file, self._header(num_epochs + 1))
        ranks.barrier()

    def sync(self) -> None:
        """Have all columns, and their count, on the disk."""
        with self.path.open("r+b") as file:
            os.fsync(file.fileno())

    def truncate(self, num_epochs: int) -> None:
        """Drop the columns after so many."""
        if self.path.exists():
            with self.path.open("r+b") as file:
                file.write(self._header(num_epochs))
                file.truncate(_HEAD + num_epochs * self._column_bytes)

    def num_epochs(self) -> int:
        """How many columns there are; a file that is no history of these samples is a ValueError."""
        if not self.path.exists():
            return 0
        try:
            with self.path.open("rb") as file:
                version = np.lib.format.read_magic(file)
                assert version == (1, 0)
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
                usable = file.tell() == _HEAD and fortran and len(shape) == 2
        except Exception:  # numpy's parser of headers raises many kinds, among them tokenize.TokenError
            usable, shape, dtype = False, (), np.dtype("V1")
        if not usable:
            raise ValueError(f"{self.path} should be a loss history, but it is not one; choose another path")
        if shape[0] != self.num_samples or dtype != self._dtype:
            raise ValueError(
                f"{self.path} should hold {self.num_samples} samples as {self._dtype}, "
                f"but it holds {shape[0]} as {dtype}; choose another path"
            )
        whole = (self.path.stat().st_size - _HEAD) // self._column_bytes
        if whole < shape[1]:  # a disk that failed lost the end; what is left is good
            with self.path.open("r+b") as file:
                _write(file, self._header(whole))
        return int(min(shape[1], whole))

    def _create(self, content: bytes) -> None:
        """A new file appears whole: a crash leaves no file that is not yet a history."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(self.path.name + ".new")
        with new.open("wb") as file:
            _write(file, content)
            os.fsync(file.fileno())
        new.replace(self.path)

    def _header(self, num_epochs: int) -> bytes:
        shape = f"({self.num_samples}, {num_epochs})"
        text = f"{{'descr': '{self._dtype.str}', 'fortran_order': True, 'shape': {shape}, }}"
        return (
            b"\x93NUMPY\x01\x00"
            + (_HEAD - 10).to_bytes(2, "little")
            + text.encode().ljust(_HEAD - 11)
            + b"\n"
        )


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
