"""EpochLog: what is recorded of one epoch, noted on the device and added up on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

_LOG = 1 << 20  # losses noted before they are added up


class EpochLog:
    """Samples' sums and counts of one epoch; a step only notes its losses, and nothing waits for the device.

    The first and the last place of `sums` and `counts` are for indices out of range, so that a device need
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
            place, values = index.clamp(-1, self.num_samples) + 1, losses.float()
            self.sums.index_add_(0, place, values)
            self.counts.index_add_(0, place, torch.ones_like(values))
        self._fetched = []

    def clear(self) -> None:
        """Forget the epoch."""
        self.sums.zero_(), self.counts.zero_()
        self._noted, self._size, self._fetched = [], 0, []
        self.recorded = False
