"""What a loss history is made of: the log of one epoch, and an .npy file to which epochs are appended."""

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
_LOG = 1 << 20  # losses in the log of an epoch before they are added up
NUMPY = {torch.float32: "<f4", torch.float16: "<f2", torch.bool: "|b1"}


class EpochLog:
    """Samples' sums and counts of one epoch; a step only notes its losses, and nothing waits for the device.

    The first and the last entry of `sums` and `counts` are for indices out of range, so that a device need
    not be asked about them before the epoch ends.
    """

    def __init__(self, num_samples: int, device: torch.device | None) -> None:
        self.num_samples, self._device = num_samples, device
        with torch.inference_mode(False):  # whatever the caller's mode and defaults are
            self.sums, self.counts = torch.zeros(2, num_samples + 2, dtype=torch.float32, device="cpu")
        self.recorded = False
        self._noted: list[tuple[Tensor, Tensor]] = []  # index and losses of batches, on one device
        self._size = 0  # samples noted
        # The same on the CPU, once the event has come.
        self._fetched: list[tuple[Tensor, Tensor, torch.cuda.Event | None]] = []

    def note(self, index: Tensor, losses: Tensor, *, copy: bool) -> None:
        """Keep a batch, and `copy` it if the caller will use its tensors again."""
        if len(index) == 0:
            return
        if self._size + len(index) > _LOG:
            self.add_up()
        device = self._device or (self._noted[0][1].device if self._noted else losses.device)
        ahead = device.type == "cuda"
        self._noted.append(
            (
                index.to(device, non_blocking=ahead, copy=copy),
                losses.to(device, non_blocking=ahead, copy=copy),
            )
        )
        self._size += len(index)
        self.recorded = True

    def fetch(self) -> None:
        """Let the device copy to the CPU what was noted; nothing waits."""
        if not self._noted:
            return
        index, losses = (torch.cat(each) for each in zip(*self._noted, strict=True))
        event = None
        if losses.is_cuda:
            stream = torch.cuda.current_stream(losses.device)  # which need not be the current device
            index, losses = (
                torch.empty_like(each, device="cpu", pin_memory=True).copy_(each, non_blocking=True)
                for each in (index, losses)
            )
            event = torch.cuda.Event()
            event.record(stream)
        self._fetched.append((index.cpu(), losses.cpu(), event))
        self._noted, self._size = [], 0

    def add_up(self) -> None:
        """Add what was noted to the sums, in its order; the one thing that waits for a device."""
        self.fetch()
        for index, losses, event in self._fetched:
            if event is not None:
                event.synchronize()
            slot, values = index.clamp(-1, self.num_samples) + 1, losses.float()
            self.sums.index_add_(0, slot, values)
            self.counts.index_add_(0, slot, torch.ones_like(values))
        self._fetched = []

    def clear(self) -> None:
        """Forget the epoch."""
        self.sums.zero_(), self.counts.zero_()
        self._noted, self._size, self._fetched = [], 0, []
        self.recorded = False


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
