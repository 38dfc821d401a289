"""One number per sample instead of its whole history, and the exact split of such numbers in two."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.core import ranks
from evenhand.core.arrays import as_batch, value_device, whole_number

Of = Literal["loss", "error"]  # the loss itself, or 1 - exp(-loss): the probability of any other label
_CHUNK = 1 << 22  # numbers worked on at once


class LossSummary:
    """The mean of every sample's recorded losses, or of its probabilities of error: O(samples) memory.

    `record` as LossHistory does, but nothing is kept per epoch. Summaries of several processes, or of the
    parts of a training that was interrupted, are merged by adding their sums and counts.

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
        """What a checkpoint must hold."""
        return {"sums": self.sums, "counts": self.counts}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a checkpoint."""
        if state["sums"].shape != self.sums.shape:
            raise ValueError(f"the state has {len(state['sums'])} samples, expected {self.num_samples}")
        self.sums.copy_(state["sums"])
        self.counts.copy_(state["counts"])

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """Every sample's mean, (samples,); of one never seen, the mean of the others."""
        seen = self.counts > 0
        if not seen.any():
            raise ValueError("nothing has been recorded; call record(index, losses) for every batch")
        means = self.sums / self.counts.clamp(min=1)
        means[~seen] = means[seen].mean()
        if not torch.isfinite(means).all():
            raise ValueError("losses must be finite; lower the learning rate or check the inputs")
        return means.cpu().numpy()


def summarise(losses: npt.NDArray[Any] | Tensor, of: Of) -> npt.NDArray[np.float32]:
    """The same of a recorded history, (samples, epochs), read epoch by epoch: O(samples) memory."""
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


class Cut(NamedTuple):
    """The best split of numbers in two: those above `threshold`, and the others."""

    threshold: float  # the largest number below the cut; nan where all numbers are equal
    means: tuple[float, float]  # below and above
    sizes: tuple[int, int]
    inertia: float  # squared distances to the own mean, summed
    total: float  # squared distances to the mean of all


def cut_in_two(values: npt.NDArray[np.floating[Any]]) -> Cut:
    """The exact two-means of numbers, by one sort: no start, no iteration, the same whatever their order.

    Sorts `values` in place. Of equally good cuts, the lowest one.

    >>> cut_in_two(np.array([5.0, 1.0, 1.5, 5.5]))[:3]
    (1.5, (1.25, 5.25), (2, 2))
    """
    values.sort()
    n = len(values)
    origin = float(values[0])
    if not (math.isfinite(origin) and math.isfinite(float(values[-1]))):
        raise ValueError("values must be finite")
    total = squares = 0.0  # about the lowest value, so that large offsets cost no digits
    for chunk in _chunks(values):
        shifted = chunk.astype(np.float64) - origin
        total += float(shifted.sum())
        squares += float((shifted * shifted).sum())
    spread = max(squares - total * total / n, 0.0)
    best, size, lower = -1.0, 0, 0.0
    done, before = 0, 0.0
    for start, chunk in zip(range(0, n, _CHUNK), _chunks(values), strict=True):
        sums = np.cumsum(chunk.astype(np.float64) - origin) + before
        left = np.arange(done + 1, done + len(chunk) + 1, dtype=np.float64)
        follow = values[start + 1 : start + len(chunk) + 1]
        apart = (chunk[: len(follow)] < follow).nonzero()[0]  # never between equal numbers
        if len(apart):
            s, m = sums[apart], left[apart]
            between = (s - m * (total / n)) ** 2 / (m * (n - m)) * n
            k = int(between.argmax())
            if between[k] > best:
                best, size, lower = float(between[k]), int(m[k]), float(s[k])
        done, before = done + len(chunk), float(sums[-1])
    if size == 0:
        return Cut(math.nan, (origin, math.nan), (n, 0), 0.0, 0.0)
    means = (origin + lower / size, origin + (total - lower) / (n - size))
    return Cut(float(values[size - 1]), means, (size, n - size), max(spread - best, 0.0), spread)


def _chunks(values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    return [values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK)]
