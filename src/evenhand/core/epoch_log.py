"""EpochLog: what is recorded of one epoch, noted on the device and added up on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

_LOG = 1 << 20  # losses noted before they are added up


class EpochLog:
    """Samples' sums and counts of one epoch. A step notes its losses by two copies and launches nothing else.

    The first and the last place of `sums` and `counts` are for indices out of range, so that a device need
    not be asked about them before the epoch ends.
    """

    def __init__(self, num_samples: int, device: torch.device | None) -> None:
        self.num_samples, self._device = num_samples, device
        self.sums = torch.zeros(num_samples + 2)
        self.counts = torch.zeros(num_samples + 2)
        self.recorded = False
        # What was recorded last, on the device of the first losses, and where a GPU copies it to.
        self._index: Tensor | None = None  # (log,) int64
        self._losses: Tensor | None = None  # (log,) float32
        self._noted = 0
        self._host: tuple[Tensor, Tensor] | None = None  # the same, pinned
        self._fetched: torch.cuda.Event | None = None

    def note(self, where: Tensor, values: Tensor) -> None:
        """Keep copies, since callers use their tensors again; they are converted on the way."""
        if self._index is None or self._losses is None or self._noted + len(where) > len(self._index):
            self.add_up()
            if self._index is None or self._losses is None or len(where) > len(self._index):
                size, device = max(min(self.num_samples, _LOG), len(where)), self._device or values.device
                self._index = torch.empty(size, dtype=torch.int64, device=device)
                self._losses = torch.empty(size, device=device)
                self._host = None
        part = slice(self._noted, self._noted + len(where))
        self._index[part].copy_(where, non_blocking=self._index.is_cuda)
        self._losses[part].copy_(values, non_blocking=self._index.is_cuda)
        self._noted += len(where)
        self.recorded |= len(where) > 0

    def fetch(self) -> None:
        """Let the device copy to the CPU what was noted; nothing waits. Until `add_up`, note nothing more."""
        if self._noted == 0 or self._index is None or self._losses is None or not self._index.is_cuda:
            return
        if self._host is None:
            self._host = (
                torch.empty(len(self._index), dtype=torch.int64, pin_memory=True),
                torch.empty(len(self._losses), pin_memory=True),
            )
        for there, here in zip(self._host, (self._index, self._losses), strict=True):
            there[: self._noted].copy_(here[: self._noted], non_blocking=True)
        self._fetched = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._fetched.record(torch.cuda.current_stream(self._index.device))

    def add_up(self) -> None:
        """Add what was noted to the sums, in its order; the one thing that waits for a device."""
        if self._noted == 0:
            return
        if self._fetched is None:
            self.fetch()
        source = (self._index, self._losses)
        if self._fetched is not None:
            self._fetched.synchronize()
            self._fetched = None
            assert self._host is not None
            source = self._host
        assert source[0] is not None and source[1] is not None
        where, values = source[0][: self._noted].cpu(), source[1][: self._noted].cpu()
        where = where.clamp(-1, self.num_samples) + 1
        self.sums.index_add_(0, where, values)
        self.counts.index_add_(0, where, torch.ones_like(values))
        self._noted = 0

    def clear(self) -> None:
        """Forget the epoch."""
        self.sums.zero_(), self.counts.zero_()
        self._noted, self.recorded, self._fetched = 0, False, None
