"""LossHistory: every sample's loss in every epoch, in memory or in a file that grows epoch by epoch."""

from __future__ import annotations

import warnings
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.core import ranks
from evenhand.core.arrays import as_real
from evenhand.core.history_file import NUMPY, HistoryFile, writer

_LOG = 1 << 20  # losses noted before they are added up


class LossHistory:
    """Per-sample losses of every epoch; call `record` for every batch and `end_epoch` after each epoch.

    A sample that is seen several times in an epoch has the mean of its losses. One that is not seen keeps
    its last value; one that has never been seen has the mean over the samples seen in that epoch.
    With `path`, epochs are appended to an .npy file in Fortran order, which `numpy.load(path, mmap_mode="r")`
    can read at any time and which the next `LossHistory(…, path=path)` continues. An epoch that has not
    been ended is not kept. A device holds 8 bytes per sample and a log of 12 MiB, however many epochs.
    float16 halves the memory at a relative error of at most 2**-11, and 2**-25 near zero (losses above 65504
    become 65504); bool keeps whether the mean is at least one half.

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
        if dtype not in NUMPY:
            raise ValueError(f"dtype must be float32, float16 or bool, got {dtype}")
        self.num_samples, self.dtype = num_samples, dtype
        self.path = None if path is None else Path(path)
        self._device = None if device is None else torch.device(device)
        # Of the current epoch, on the CPU; the first and the last place count indices out of range, so that a
        # device need not be asked about them before the epoch ends.
        self._sum = torch.zeros(num_samples + 2)
        self._count = torch.zeros(num_samples + 2)
        # What was recorded last, on the device of the first losses, to be added up together: noting it takes
        # a step two copies and no more.
        self._index: Tensor | None = None  # (log,) int64
        self._losses: Tensor | None = None  # (log,) float32
        self._noted = 0
        self._recorded = False
        self._columns: list[Tensor] = []  # of a history without a file
        self._shared = across_ranks and ranks.count() > 1
        self._own = slice(*ranks.part(num_samples)) if self._shared else slice(0, num_samples)
        self._file = None if self.path is None else HistoryFile(self.path, num_samples, dtype)
        self._writing: tuple[Tensor, Future[None] | None] | None = None  # a column, and who writes it
        self._num_epochs = ranks.from_first(self._epochs_on_disk) if self._shared else self._epochs_on_disk()

    @property
    def num_epochs(self) -> int:
        """How many epochs have been ended."""
        return self._num_epochs + (self._writing is not None)

    def __len__(self) -> int:
        return self.num_samples

    @property
    def losses(self) -> Tensor:
        """(samples, epochs) on the CPU; with a file, memory-mapped and not to be written to."""
        self.flush()
        if self._num_epochs == 0:
            return torch.empty(self.num_samples, 0, dtype=self.dtype)
        if self._file is None:
            columns = torch.stack(self._columns)
            if self._shared:
                whole = torch.zeros(self._num_epochs, self.num_samples, dtype=torch.float32)
                whole[:, self._own] = columns.float()
                columns = ranks.add(whole).to(self.dtype)
            return columns.t()
        return torch.from_numpy(self._file.mapped())

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
        if (self._device or values.device).type == "cpu":
            _check(where, values, self.num_samples)
        self._note(where, values)
        self._recorded |= len(where) > 0

    def end_epoch(self, *, wait: bool = True) -> None:
        """Close the epoch: its losses become the history's next column.

        Unless told to `wait` for the disk, the file is written while the training goes on. What reads or
        continues the history waits for it, and so does `flush`; what went wrong is raised there.
        """
        self.flush()
        self._add_up()
        broken = self._check_epoch()
        if broken:
            self._forget()
            raise ValueError(broken)
        sums, counts = self._sum[1:-1], self._count[1:-1]
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
        column = column.to(self.dtype)
        if wait or self._shared or self._file is None:
            self._append(column)
        else:
            self._writing = column, writer().submit(self._file.append, column, self._num_epochs)
        self._forget()  # last: what could not be written is still there to be written again

    def flush(self) -> None:
        """Wait until every ended epoch is on the disk; call again to try again what failed."""
        if self._writing is None:
            return
        column, job = self._writing
        self._writing = column, None
        if job is None:
            assert self._file is not None
            self._file.append(column, self._num_epochs)
        else:
            job.result()
        self._writing = None
        self._num_epochs += 1

    def truncate(self, num_epochs: int) -> None:
        """Drop all epochs after the first `num_epochs`, and what has been recorded of the current one."""
        self.flush()
        if not 0 <= num_epochs <= self._num_epochs:
            raise ValueError(f"cannot truncate to {num_epochs} epochs, the history has {self._num_epochs}")
        self._forget()
        self._columns = self._columns[:num_epochs]
        if self._file is not None and (ranks.first() or not self._shared):
            self._file.truncate(num_epochs)
        self._num_epochs = num_epochs

    # -- inside --------------------------------------------------------------------------------------

    def _epochs_on_disk(self) -> int:
        return 0 if self._file is None else self._file.num_epochs()

    def _check_epoch(self) -> str:
        """What is wrong with the epoch, if anything."""
        wrong = bool((self._count[0] + self._count[-1] > 0) | ~self._sum.isfinite().all())
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
            return column if bool(seen.all()) else self._last_column().float()
        if not self._shared:
            return column[seen].mean()
        total, number = ranks.add(torch.stack([column[seen].double().sum(), seen.double().sum()]))
        mean: Tensor = total / number
        return mean.float()

    def _note(self, where: Tensor, values: Tensor) -> None:
        """Keep copies, since callers use their tensors again; they are converted on the way."""
        if self._index is None or self._losses is None or self._noted + len(where) > len(self._index):
            self._add_up()
            if self._index is None or self._losses is None or len(where) > len(self._index):
                size, device = max(min(self.num_samples, _LOG), len(where)), self._device or values.device
                self._index = torch.empty(size, dtype=torch.int64, device=device)
                self._losses = torch.empty(size, device=device)
        part = slice(self._noted, self._noted + len(where))
        self._index[part].copy_(where, non_blocking=self._index.is_cuda)
        self._losses[part].copy_(values, non_blocking=self._index.is_cuda)
        self._noted += len(where)

    def _add_up(self) -> None:
        """Add what was noted to the sums, in its order; the one thing that waits for a device."""
        if self._noted == 0:
            return
        assert self._index is not None and self._losses is not None
        where = self._index[: self._noted].cpu().clamp(-1, self.num_samples) + 1
        values = self._losses[: self._noted].cpu()
        self._sum.index_add_(0, where, values)
        self._count.index_add_(0, where, torch.ones_like(values))
        self._noted = 0

    def _forget(self) -> None:
        self._sum.zero_(), self._count.zero_()
        self._noted, self._recorded = 0, False

    def _last_column(self) -> Tensor:
        return self._columns[-1] if self.path is None else self.losses[self._own, -1]

    def _append(self, column: Tensor) -> None:
        if self._file is None:
            self._columns.append(column)
        elif self._shared:
            self._file.append_part(column, self._own.start, self._num_epochs)
        else:
            self._file.append(column, self._num_epochs)
        self._num_epochs += 1


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
