"""LossHistory: every sample's loss in every epoch, in memory or in a file. LossSummary: only their mean."""

from __future__ import annotations

import math
import os
import warnings
import weakref
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.core import ranks
from evenhand.core.arrays import HistoryFile, as_batch, value_device, whole_number

NUMPY = {torch.float32: "<f4", torch.float16: "<f2", torch.bool: "|b1"}
_MOST_LOGGED = 1 << 20  # losses of an epoch that are kept before they are added up
Of = Literal["loss", "error"]  # the loss, or 1 - exp(-loss): the probability of all other labels


class LossHistory:
    """The loss of every training sample in every epoch, which `partition` splits.

    Call `record` for every batch and `end_epoch` after each epoch. `losses` is then (samples, epochs).

    - `num_samples`: the number of training samples.
    - `path`: an .npy file to which each epoch is appended, in Fortran order. `numpy.load(path,
      mmap_mode="r")` can read it at any time, and the next `LossHistory(…, path=path)` continues it. By
      default the history is kept in memory.
    - `device`: where the losses of the current epoch are collected, at most a million at a time. By default
      the device of the recorded losses.
    - `dtype`: float32, float16 or bool. float16 halves the memory at a relative error of at most 2**-11
      (an absolute error of 2**-25 near zero) and stores losses above 65504 as 65504. bool stores whether the
      mean loss is at least one half.
    - `across_ranks`: for distributed training. Each rank records the samples that it sees, and stores one
      range of the rows, in memory or in the common file. All ranks must then call `end_epoch`, and without a
      file also `losses`, because these exchange values.

    A sample that is recorded several times in an epoch gets the mean of its losses. A sample that is not
    recorded keeps its last value, or gets the mean of the recorded samples if it has none. With `path`, an
    epoch that was ended and waited for survives the end of the process, and after `sync` a power failure.

    Raises ValueError for another dtype, for a file that is not a history of `num_samples` samples, for
    positions outside the samples, and for losses that are not finite.

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
        if dtype not in NUMPY:
            raise ValueError(f"dtype must be float32, float16 or bool, got {dtype}")
        self.num_samples = num_samples = whole_number(num_samples, "num_samples", least=1)
        self.dtype = dtype
        self.path = None if path is None else Path(path).absolute()
        self._device = None if device is None else value_device(device)
        self._log = self._new_log()  # of the current epoch
        self._ended: EpochLog | None = None  # the last one, whose column is still to be made
        self._failed = False  # to write it
        self._spare: EpochLog | None = None  # to use again
        self._columns: list[Tensor] = []  # of a history without a file
        self._shared = across_ranks and ranks.count() > 1
        self._shard = slice(*ranks.part(num_samples)) if self._shared else slice(0, num_samples)
        self._file = None if self.path is None else HistoryFile(self.path, num_samples, NUMPY[dtype])
        self._num_epochs = ranks.from_first(self._epochs_on_disk) if self._shared else self._epochs_on_disk()
        self._begun_at = self._num_epochs

    @property
    def num_epochs(self) -> int:
        """Return how many epochs have been ended."""
        return self._num_epochs + (self._ended is not None)

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
                whole[:, self._shard] = columns.float()
                columns = ranks.add(whole).to(self.dtype)
            return columns.t()
        return torch.from_numpy(self._file.mapped())

    def record(
        self, index: Tensor | npt.ArrayLike, losses: Tensor | npt.ArrayLike, *, later: bool = False
    ) -> None:
        """Take the losses of one batch, one per sample; nothing waits for the device.

        Wrong values raise a ValueError: at once in the first epoch on the CPU, else when it is written. With
        `later` the tensors are neither copied nor looked at before the epoch ends, and must not change
        until then.
        """
        where, values = as_batch(index, losses)
        if self.num_epochs == self._begun_at and not later and (self._device or values.device).type == "cpu":
            _check(where, values, self.num_samples)
        self._log.note(where, values, copy=not later)

    def end_epoch(self, *, wait: bool = True) -> None:
        """End the epoch: its losses become the history's next column.

        Without `wait`, the column is made and written at the next `fetch`, when a device has
        been given other work, or when something needs it; what is wrong with it is raised there, and what
        has not been written when the process ends is lost, so call `flush` at the end. The first epoch,
        where mistakes show, is always waited for. An epoch that could not be written can be tried again, by
        this call or any other, and is not mixed with the next one.
        """
        again = self._failed
        self.flush()
        if again and not self._log.recorded:
            return
        self._log.fetch()
        empty = not self._log.recorded
        self._ended, self._log, self._spare = self._log, self._spare or self._new_log(), None
        if self._log.recorded:  # Ctrl-C came before it was cleared
            self._log.clear()
        _unwritten.add(self)
        if wait or self._shared or self._num_epochs == 0 or empty:
            self.flush()

    def fetch(self) -> None:
        """Call this after the last steps of an epoch were launched on a device.

        The device then copies the recorded losses to the CPU, while the CPU writes the previous epoch.
        """
        self._log.fetch()
        self.flush()

    def flush(self) -> None:
        """Write every ended epoch; call it again to retry after a failure."""
        log = self._ended
        if log is None:
            return
        self._failed = True
        try:
            column = self._column(log)
        except ValueError:  # the epoch is dropped
            self._ended, self._spare, self._failed = None, log, False
            log.clear()
            raise
        if self._file is None:
            self._columns[self._num_epochs :] = [column]
        elif self._shared:
            self._append_together(self._file, column.numpy())
        else:
            self._file.append(column.numpy(), self._num_epochs)
        self._ended, self._spare, self._num_epochs, self._failed = None, log, self._num_epochs + 1, False
        log.clear()

    def sync(self) -> None:
        """Write every ended epoch to disk and sync it, so that it survives a power failure."""
        self.flush()
        if self._file is not None and self._num_epochs > 0:
            self._file.sync()

    def truncate(self, num_epochs: int) -> None:
        """Drop all epochs after the first `num_epochs`, including the current one."""
        num_epochs = whole_number(num_epochs, "num_epochs")
        if num_epochs > self.num_epochs:
            raise ValueError(f"cannot truncate to {num_epochs} epochs, the history has {self.num_epochs}")
        if num_epochs > self._num_epochs:
            self.flush()
        self._ended, self._failed = None, False
        self._log.clear()
        self._columns = self._columns[:num_epochs]
        if self._file is not None and (ranks.first() or not self._shared):
            self._file.truncate(num_epochs)
        self._num_epochs = self._begun_at = num_epochs

    def __getstate__(self) -> dict[str, Any]:
        self.flush()
        return self.__dict__

    # -- inside --------------------------------------------------------------------------------------

    def _epochs_on_disk(self) -> int:
        return 0 if self._file is None else self._file.num_epochs()

    def _new_log(self) -> EpochLog:
        return EpochLog(self.num_samples, self._device)

    def _column(self, log: EpochLog) -> Tensor:
        """Return every sample's loss in the epoch, as it is stored."""
        log.add_up()
        self._check_epoch(log)
        sums, counts = log.sums[1:-1], log.counts[1:-1]
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
        return column.to(self.dtype)

    def _append_together(self, file: HistoryFile, part: npt.NDArray[Any]) -> None:
        """Append a column to which every rank writes its part; the first rank then counts it."""
        if ranks.first() and self._num_epochs == 0:
            file.create()
        ranks.barrier()
        file.write_part(part, self._shard.start, self._num_epochs)
        ranks.barrier()
        if ranks.first():
            file.count(self._num_epochs + 1)
        ranks.barrier()

    def _check_epoch(self, log: EpochLog) -> None:
        wrong = bool((log.counts[0] + log.counts[-1] > 0) | ~log.sums.isfinite().all())
        facts = torch.tensor([log.recorded, wrong], dtype=torch.float32, device="cpu")
        recorded, wrong = (ranks.add(facts) if self._shared else facts).bool().tolist()
        if not recorded:
            raise ValueError("end_epoch needs losses, but none was recorded since the last one")
        if wrong:
            beyond, broken = int(log.counts[0] + log.counts[-1]), (~log.sums[1:-1].isfinite()).nonzero()
            found = f"{beyond} indices were not" if beyond else "some of this epoch were not"
            if len(broken):
                at = int(broken[0])
                found = f"sample {at} had {float(log.sums[at + 1])} (and {len(broken) - 1} others)"
            raise ValueError(
                f"losses must be finite and indices between 0 and {self.num_samples - 1}, "
                f"but {found}; the epoch is dropped"
            )

    def _check_first(self, seen: Tensor, counts: Tensor) -> None:
        """Check the first epoch for the most common mistake: positions that are something else."""
        missing = self.num_samples - int(seen.sum())
        recorded = int(counts.sum())
        hint = "are the positions those of evenhand.indexed(dataset), and is num_samples its length?"
        if recorded >= self.num_samples and missing > 0.9 * self.num_samples:
            raise ValueError(
                f"index must hold samples' positions, but {recorded} losses went to only "
                f"{self.num_samples - missing} of {self.num_samples} samples; {hint}"
            )
        if missing:
            warnings.warn(
                f"{missing} of {self.num_samples} samples had no loss in the first epoch and get the mean of "
                f"the others until they have; {hint}",
                stacklevel=5,
            )

    def _unseen(self, column: Tensor, seen: Tensor) -> Tensor:
        """Return the values of unseen samples: their last value, or else the mean of the others."""
        if self._num_epochs > 0:
            return column if bool(seen.all()) else self._last_column().float()
        if not self._shared:
            return column[seen].mean()
        total, number = ranks.add(torch.stack([column[seen].double().sum(), seen.double().sum()]))
        mean: Tensor = total / number
        return mean.float()

    def _last_column(self) -> Tensor:
        if self._file is None:
            return self._columns[-1]
        return torch.from_numpy(self._file.mapped()[self._shard, -1])


class EpochLog:
    """The sums and counts of one epoch. A step only notes its losses, and nothing waits for the device.

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
        if self._size + len(index) > _MOST_LOGGED:
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
        """Start copying the recorded losses to the CPU without waiting."""
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
        """Add the recorded losses to the sums, in order; this is the only call that waits for a device."""
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


# What is still to be written is this process's to write: one that is forked does not know of it.
_unwritten: weakref.WeakSet[LossHistory] = weakref.WeakSet()


def _forget() -> None:
    for history in _unwritten:
        history._ended, history._failed = None, False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _check(index: Tensor, losses: Tensor, num_samples: int) -> None:
    """Raise for a wrong index or loss; on the CPU, where checking all of them is cheap."""
    if len(index) == 0:
        return
    low, high = index.aminmax()
    if not 0 <= int(low) <= int(high) < num_samples:
        wrong = (index < 0) | (index >= num_samples)
        raise ValueError(f"index must be between 0 and {num_samples - 1}, got {int(index[wrong][0])}")
    if not math.isfinite(losses.sum().item()) and not bool((finite := losses.isfinite()).all()):
        at = int((~finite).nonzero()[0])
        raise ValueError(f"losses must be finite, got {float(losses[at])} for sample {int(index[at])}")


class LossSummary:
    """The mean loss of every sample over a training, in O(samples) memory.

    Use it in place of a LossHistory when the histories are too large to keep. Call `record` for every batch.
    `values` is then (samples,) float32, which `partition` splits.

    - `num_samples`: the number of training samples.
    - `of`: "error" averages 1 - exp(-loss), the probability of all other labels. "loss" averages the loss.
    - `device`: where the sums are kept.

    `merge` adds the summary of another process, or of an earlier part of an interrupted training. Raises
    ValueError for another value of `of`, for positions outside the samples, and, when `values` is read, for
    losses that are not finite.

    >>> summary = LossSummary(3, of="loss")
    >>> summary.record([0, 1, 2], [1.0, 2.0, 3.0]); summary.record([0, 1], [3.0, 2.0])
    >>> summary.values.tolist()
    [2.0, 2.0, 3.0]
    """

    def __init__(self, num_samples: int, *, of: Of = "error", device: str | torch.device = "cpu") -> None:
        _check_kind(of)
        self.num_samples, self.of = whole_number(num_samples, "num_samples", least=1), of
        self.sums = torch.zeros(self.num_samples, dtype=torch.float32, device=value_device(device))
        self.counts = torch.zeros_like(self.sums, dtype=torch.int32)

    def record(self, index: Tensor | npt.ArrayLike, losses: Tensor | npt.ArrayLike) -> None:
        """Add the losses of one batch, (batch,), of the samples at `index`, (batch,) integers."""
        where, values = as_batch(index, losses)
        where, values = where.to(self.sums.device), values.to(self.sums.device).float()
        if self.sums.device.type == "cpu" and len(where):  # a GPU checks by itself, without being waited for
            low, high = int(where.min()), int(where.max())
            if low < 0 or high >= self.num_samples:
                raise ValueError(f"index must lie in 0 … {self.num_samples - 1}, got {low} … {high}")
        self.sums.index_add_(0, where, _measured(values, self.of))
        self.counts.index_add_(0, where, torch.ones_like(where, dtype=torch.int32))

    def merge(self, other: LossSummary) -> None:
        """Take in what another process has recorded of the same samples."""
        if (other.num_samples, other.of) != (self.num_samples, self.of):
            raise ValueError(
                f"a summary of {self.num_samples} samples ({self.of}) cannot take in one of "
                f"{other.num_samples} ({other.of})"
            )
        self.sums += other.sums.to(self.sums.device)
        self.counts += other.counts.to(self.counts.device)

    def merge_ranks(self) -> None:
        """Take in what all ranks of a distributed training have recorded; every rank calls it, once."""
        ranks.add(self.sums)
        ranks.add(self.counts)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold."""
        return {"sums": self.sums, "counts": self.counts}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a checkpoint."""
        if state["sums"].shape != self.sums.shape:
            raise ValueError(f"the state has {len(state['sums'])} samples, expected {self.num_samples}")
        self.sums.copy_(state["sums"])
        self.counts.copy_(state["counts"])

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """Return every sample's mean, (samples,); unseen samples get the mean of the others."""
        seen = self.counts > 0
        if not seen.any():
            raise ValueError("nothing has been recorded; call record(index, losses) for every batch")
        means = self.sums / self.counts.clamp(min=1)
        means[~seen] = means[seen].mean()
        if not torch.isfinite(means).all():
            raise ValueError("losses must be finite; lower the learning rate or check the inputs")
        return means.cpu().numpy()


def summarise(losses: npt.NDArray[Any] | Tensor, of: Of) -> npt.NDArray[np.float32]:
    """Return each sample's mean over a history, (samples, epochs), read epoch by epoch: O(samples) memory."""
    _check_kind(of)
    if losses.ndim != 2 or 0 in losses.shape:
        raise ValueError(f"losses must be shaped (samples, epochs), got {tuple(losses.shape)}")
    total = torch.zeros(len(losses), dtype=torch.float64)
    for epoch in range(losses.shape[1]):
        total += _measured(torch.as_tensor(np.asarray(losses[:, epoch])).float(), of)
    mean: npt.NDArray[np.float32] = (total / losses.shape[1]).float().numpy()
    return mean


def _measured(losses: Tensor, of: Of) -> Tensor:
    return losses if of == "loss" else -torch.expm1(-losses)


def _check_kind(of: str) -> None:
    if of not in ("loss", "error"):
        raise ValueError(f"of must be 'loss' or 'error', got {of!r}")
