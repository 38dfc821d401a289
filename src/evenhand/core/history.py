"""LossHistory: every sample's loss in every epoch, in memory or in a file that grows epoch by epoch."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.core import ranks
from evenhand.core.arrays import as_real

_HEAD = 128  # bytes before the data in a history's file: an .npy header, padded so that it never grows
_NUMPY = {torch.float32: "<f4", torch.float16: "<f2", torch.bool: "|b1"}


class LossHistory:
    """Per-sample losses of every epoch; call `record` for every batch and `end_epoch` after each epoch.

    A sample that is seen several times in an epoch has the mean of its losses. One that is not seen keeps
    its last value; one that has never been seen has the mean over the samples seen in that epoch.
    With `path`, epochs are appended to an .npy file in Fortran order, which `numpy.load(path, mmap_mode="r")`
    can read at any time and which the next `LossHistory(…, path=path)` continues. An epoch that has not
    been ended is not kept. float16 halves the memory at a relative error of at most 2**-11 (losses above
    65504 become 65504); bool keeps whether the mean is at least one half.

    `across_ranks`: every rank of a distributed training records what it has seen and keeps a part of the
    samples, one stretch of the rows, in memory or in the one file that all of them write to. `end_epoch`, and
    without a file also `losses`, then exchange values, so every rank must call them.

    >>> history = LossHistory(3)
    >>> history.record([0, 2], [0.5, 1.5]); history.record([1], [0.25]); history.end_epoch()
    >>> history.losses.tolist()
    [[0.5], [0.25], [1.5]]
    """

    def __init__(
        self,
        num_samples: int,
        *,
        path: str | Path | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        across_ranks: bool = False,
    ) -> None:
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        if dtype not in _NUMPY:
            raise ValueError(f"dtype must be float32, float16 or bool, got {dtype}")
        self.num_samples, self.dtype = num_samples, dtype
        self.path = None if path is None else Path(path)
        self._device = None if device is None else torch.device(device)
        # Of the current epoch, made on the device of the first losses; the first and the last place count
        # indices out of range, so that a device need not be asked about them before the epoch ends.
        self._sum: Tensor | None = None  # (samples + 2,)
        self._count: Tensor | None = None
        self._ones: Tensor | None = None
        self._recorded = False
        self._columns: list[Tensor] = []  # of a history without a file
        self._shared = across_ranks and ranks.count() > 1
        self._own = slice(*ranks.part(num_samples)) if self._shared else slice(0, num_samples)
        self._num_epochs = ranks.from_first(self._read_header) if self._shared else self._read_header()

    @property
    def num_epochs(self) -> int:
        """How many epochs have been ended."""
        return self._num_epochs

    def __len__(self) -> int:
        return self.num_samples

    @property
    def losses(self) -> Tensor:
        """(samples, epochs) on the CPU; with a file, memory-mapped and not to be written to."""
        if self._num_epochs == 0:
            return torch.empty(self.num_samples, 0, dtype=self.dtype)
        if self.path is None:
            columns = torch.stack(self._columns)
            if self._shared:
                whole = torch.zeros(self._num_epochs, self.num_samples, dtype=torch.float32)
                whole[:, self._own] = columns.float()
                columns = ranks.add(whole).to(self.dtype)
            return columns.t()
        mapped = np.load(self.path, mmap_mode="c", allow_pickle=False)  # private pages: the file is safe
        return torch.from_numpy(mapped)

    def record(self, index: Tensor | npt.ArrayLike, losses: Tensor | npt.ArrayLike) -> None:
        """Take the losses of one batch, one per sample; nothing waits for the device.

        Wrong values raise a ValueError: at once on the CPU, at `end_epoch` on another device.
        """
        values, where = _tensor(losses, "losses").detach(), _tensor(index, "index")
        if values.ndim != 1:
            raise ValueError(
                f"losses must hold one value per sample, got shape {tuple(values.shape)}; "
                "compute the loss with reduction='none'"
            )
        if where.shape != values.shape:
            raise ValueError(
                f"index and losses must be equally long, got {tuple(where.shape)} and {tuple(values.shape)}"
            )
        if where.is_floating_point() or where.is_complex() or where.dtype == torch.bool:
            raise ValueError(f"index must hold whole numbers, got {where.dtype}")
        sums, counts, ones = self._buffers(values)
        values = values.to(sums.device, torch.float32, non_blocking=sums.is_cuda)
        where = where.to(sums.device, torch.int64, non_blocking=sums.is_cuda)
        if not sums.is_cuda:
            _check(where, values, self.num_samples)
        where = where.clamp(-1, self.num_samples) + 1
        sums.index_add_(0, where, values)
        counts.index_add_(0, where, ones[: len(where)])
        self._recorded |= len(where) > 0

    def end_epoch(self) -> None:
        """Close the epoch: its losses become the history's next column."""
        broken = self._check_epoch()
        if broken:
            self._forget()
            raise ValueError(broken)
        sums, counts = (buffer[1:-1] for buffer in self._buffers(torch.empty(0))[:2])
        if self._shared:
            sums, counts = ranks.add_parts(sums), ranks.add_parts(counts)
        seen, column = counts > 0, sums / counts.clamp(min=1)
        if self._num_epochs == 0 and not self._shared:
            self._check_first(seen, counts)
        column = torch.where(seen, column, self._unseen(column, seen))
        if self.dtype == torch.bool:
            column = column >= 0.5
        elif self.dtype == torch.float16:
            limit = torch.finfo(torch.float16).max
            column = column.clamp(-limit, limit)
        self._append(column.to("cpu", self.dtype))
        self._forget()  # last: what could not be written is still there to be written again

    def truncate(self, num_epochs: int) -> None:
        """Drop all epochs after the first `num_epochs`, and what has been recorded of the current one."""
        if not 0 <= num_epochs <= self._num_epochs:
            raise ValueError(f"cannot truncate to {num_epochs} epochs, the history has {self._num_epochs}")
        self._forget()
        self._columns = self._columns[:num_epochs]
        if self.path is not None and self.path.exists() and (ranks.first() or not self._shared):
            with self.path.open("r+b") as file:
                file.write(self._header(num_epochs))
                file.truncate(_HEAD + num_epochs * self._column_bytes)
        self._num_epochs = num_epochs

    # -- inside --------------------------------------------------------------------------------------

    def _check_epoch(self) -> str:
        """What is wrong with the epoch, if anything; the one time in it that a device is waited for."""
        wrong = False
        if self._sum is not None and self._count is not None:
            outside = self._count[0] + self._count[-1] > 0
            wrong = bool(outside | ~self._sum.isfinite().all())
        facts = torch.tensor([self._recorded, wrong], dtype=torch.float32)
        recorded, wrong = (ranks.add(facts) if self._shared else facts).bool().tolist()
        if not recorded:
            return "end_epoch needs losses, but none was recorded since the last one"
        return (
            f"losses must be finite and indices between 0 and {self.num_samples - 1}, "
            "but some of this epoch were not; the epoch is dropped"
            if wrong
            else ""
        )

    def _check_first(self, seen: Tensor, counts: Tensor) -> None:
        """The commonest mistake shows in the first epoch: something else was taken for positions."""
        missing = self.num_samples - int(seen.sum())
        recorded = int(counts.sum())
        hint = "are the positions those of evenhand.indexed(dataset), and is num_samples its length?"
        if recorded >= self.num_samples and missing > 0.9 * self.num_samples:
            self._forget()
            raise ValueError(
                f"index must hold samples' positions, but {recorded} losses went to only "
                f"{self.num_samples - missing} of {self.num_samples} samples; {hint}"
            )
        if missing:
            warnings.warn(
                f"{missing} of {self.num_samples} samples had no loss in the first epoch and get the mean of "
                f"the others until they have; {hint}",
                stacklevel=3,
            )

    def _unseen(self, column: Tensor, seen: Tensor) -> Tensor:
        """What samples get that were not seen: their last value, or else the mean of those that were."""
        if self._num_epochs > 0:
            return column if bool(seen.all()) else self._last_column().to(column.device, torch.float32)
        if not self._shared:
            return column[seen].mean()
        total, number = ranks.add(torch.stack([column[seen].double().sum(), seen.double().sum()]))
        mean: Tensor = total / number
        return mean.float()

    @property
    def _column_bytes(self) -> int:
        return self.num_samples * np.dtype(_NUMPY[self.dtype]).itemsize

    def _buffers(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self._sum is None or self._count is None:
            device = self._device or like.device
            self._sum = torch.zeros(self.num_samples + 2, device=device)
            self._count = torch.zeros(self.num_samples + 2, device=device)
        if self._ones is None or len(self._ones) < len(like):
            self._ones = torch.ones(len(like), device=self._sum.device)
        return self._sum, self._count, self._ones

    def _forget(self) -> None:
        for buffer in (self._sum, self._count):
            if buffer is not None:
                buffer.zero_()
        self._recorded = False

    def _last_column(self) -> Tensor:
        return self._columns[-1] if self.path is None else self.losses[self._own, -1]

    def _append(self, column: Tensor) -> None:
        if self.path is None:
            self._columns.append(column)
        elif self._shared:
            self._append_part(column)
        elif self._num_epochs == 0:
            self._create(self._header(1) + column.numpy().tobytes())
        else:
            with self.path.open("r+b") as file:
                file.seek(_HEAD + self._num_epochs * self._column_bytes)
                _write(file, column.numpy().tobytes())
                file.truncate()
                # The header counts the column only when all of it is on the disk.
                file.seek(0)
                file.write(self._header(self._num_epochs + 1))
        self._num_epochs += 1

    def _create(self, content: bytes) -> None:
        """A new file appears whole: a crash leaves no file that is not yet a history."""
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(self.path.name + ".new")
        with new.open("wb") as file:
            _write(file, content)
        new.replace(self.path)

    def _append_part(self, part: Tensor) -> None:
        """Write this rank's part of the column; the header counts it when all parts are on the disk."""
        assert self.path is not None
        if ranks.first() and self._num_epochs == 0:
            self._create(self._header(0))
        ranks.barrier()
        with self.path.open("r+b") as file:
            item = np.dtype(_NUMPY[self.dtype]).itemsize
            file.seek(_HEAD + self._num_epochs * self._column_bytes + self._own.start * item)
            _write(file, part.numpy().tobytes())
            ranks.barrier()
            if ranks.first():
                file.seek(0)
                _write(file, self._header(self._num_epochs + 1))
        ranks.barrier()

    def _header(self, num_epochs: int) -> bytes:
        shape = f"({self.num_samples}, {num_epochs})"
        text = f"{{'descr': '{_NUMPY[self.dtype]}', 'fortran_order': True, 'shape': {shape}, }}"
        return (
            b"\x93NUMPY\x01\x00"
            + (_HEAD - 10).to_bytes(2, "little")
            + text.encode().ljust(_HEAD - 11)
            + b"\n"
        )

    def _read_header(self) -> int:
        if self.path is None or not self.path.exists():
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
        if shape[0] != self.num_samples or dtype != np.dtype(_NUMPY[self.dtype]):
            raise ValueError(
                f"{self.path} should hold {self.num_samples} samples as {np.dtype(_NUMPY[self.dtype])}, "
                f"but it holds {shape[0]} as {dtype}; choose another path"
            )
        whole = (self.path.stat().st_size - _HEAD) // self._column_bytes
        if whole < shape[1]:  # a disk that failed lost the end; what is left is good
            with self.path.open("r+b") as file:
                _write(file, self._header(whole))
        return int(min(shape[1], whole))


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _check(index: Tensor, losses: Tensor, num_samples: int) -> None:
    """Raise for a wrong index or loss; on the CPU, where looking costs nothing."""
    wrong = (index < 0) | (index >= num_samples)
    if bool(wrong.any()):
        raise ValueError(f"index must be between 0 and {num_samples - 1}, got {int(index[wrong][0])}")
    finite = losses.isfinite()
    if not bool(finite.all()):
        at = int((~finite).nonzero()[0])
        raise ValueError(f"losses must be finite, got {float(losses[at])} for sample {int(index[at])}")


def _tensor(values: Tensor | npt.ArrayLike, name: str) -> Tensor:
    return values if isinstance(values, Tensor) else torch.from_numpy(np.array(as_real(values, name)))
