"""Batches on the device: data that fit stay there, other data are prefetched."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand.training.data import Batch, Items, Split, Task, as_input, checksum, content_of

Transform = Callable[
    [Tensor, Batch, torch.Generator], Tensor
]  # of a method: (x in [0, 1], batch, generator) -> x


class Source:
    """Gives the inputs of any rows of one storage, on the device."""

    def __init__(self, storage: Tensor | np.ndarray | Items, device: torch.device) -> None:
        self.device = device
        self._host: Any = storage
        self._resident: Tensor | None = None
        if isinstance(storage, Tensor) and (device.type == "cpu" or storage.device == device):
            self._resident = storage
        elif isinstance(storage, (Tensor, np.ndarray)) and device.type == "cuda" and self._fits(storage):
            self._resident = _moved(storage, device)

    @property
    def resident(self) -> bool:
        """Return whether the whole storage is on the device."""
        return self._resident is not None

    def _fits(self, storage: Tensor | np.ndarray) -> bool:
        free, _ = torch.cuda.mem_get_info(self.device)
        return bool(storage.nbytes < 0.4 * free)  # the rest is for activations and a second copy of the model

    def inputs(self, rows: Tensor, sizes: list[int]) -> Iterator[Tensor]:
        """Yield the rows in batches of these sizes; `rows` is (samples,) int64 on the CPU."""
        if self._resident is not None:
            on_device = rows.to(self.device)
            start = 0
            for size in sizes:
                yield self._resident[on_device[start : start + size]]
                start += size
        elif isinstance(self._host, (Tensor, np.ndarray)):
            yield from _ahead(self._fetch(rows, sizes))
        else:  # in this thread, so that a dataset that augments at random does so in a reproducible order
            yield from self._fetch(rows, sizes)

    def _fetch(self, rows: Tensor, sizes: list[int]) -> Iterator[Tensor]:
        start = 0
        for size in sizes:
            chosen = rows[start : start + size]
            start += size
            if isinstance(self._host, np.ndarray):
                batch = torch.from_numpy(self._host[chosen.numpy()])
            elif isinstance(self._host, Tensor):
                batch = self._host[chosen]
            else:
                batch = torch.stack([as_input(self._host[row]) for row in chosen.tolist()])
            if self.device.type == "cuda":
                batch = batch.pin_memory()
            yield batch.to(self.device, non_blocking=True)


def _moved(storage: Tensor | np.ndarray, device: torch.device) -> Tensor:
    """Copy to the device in chunks, so that a memory-mapped array is never in memory as a whole."""
    if isinstance(storage, Tensor):
        return storage.to(device)
    moved = torch.empty(storage.shape, dtype=torch.from_numpy(np.array(storage[:1])).dtype, device=device)
    for start in range(0, len(storage), 4096):
        moved[start : start + 4096] = torch.from_numpy(np.array(storage[start : start + 4096])).to(device)
    return moved


def _ahead(batches: Iterator[Tensor], depth: int = 2) -> Iterator[Tensor]:
    """Yield the same batches, prefetched by a thread."""
    with ThreadPoolExecutor(1) as worker:
        ready = deque(worker.submit(next, batches, None) for _ in range(depth))
        while (batch := ready.popleft().result()) is not None:
            ready.append(worker.submit(next, batches, None))
            yield batch


def batch_sizes(num_samples: int, batch_size: int) -> list[int]:
    """Return the batch sizes; a last batch of one joins its predecessor, for batch normalization.

    >>> batch_sizes(9, 4), batch_sizes(6, 4), batch_sizes(1, 4)
    ([4, 5], [4, 2], [1])
    """
    sizes = [batch_size] * (num_samples // batch_size)
    rest = num_samples % batch_size
    if rest == 1 and sizes and batch_size > 1:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return sizes


def _per_channel(values: tuple[float, ...], split: Split, device: torch.device) -> Tensor:
    """Return one value per channel of images, or per dimension of vectors, in a shape for broadcasting."""
    vectors = isinstance(split.x, (Tensor, np.ndarray)) and split.x.ndim == 2
    return torch.tensor(values, device=device).view(-1, *([] if vectors else [1, 1]))


class Batches:
    """The batches of one split, ready for the model."""

    def __init__(
        self,
        split: Split,
        task: Task,
        source: Source,
        *,
        batch_size: int,
        transform: Transform | None = None,
        environments: Tensor | None = None,
        augment: bool = False,
    ) -> None:
        self.split, self.task, self.source, self.batch_size = split, task, source, batch_size
        self._transform = transform
        self._augment = task.augment if augment and not split.ready else None
        device = source.device
        self._y, self._index = split.y.to(device), split.index.to(device)
        self._group = None if split.group is None else split.group.to(device)
        self._environment = None if environments is None else environments.to(device)
        self._mean, self._std = (
            None if values is None or split.ready else _per_channel(values, split, device)
            for values in (task.mean, task.std)
        )

    def plain(self) -> Batches:
        """Return the same samples without transform or augmentation."""
        return Batches(self.split, self.task, self.source, batch_size=self.batch_size)

    def __call__(
        self,
        order: Tensor,
        generator: torch.Generator,
        sizes: list[int] | None = None,
        *,
        epoch: int = 0,
        steps: list[int] | None = None,
    ) -> Iterator[Batch]:
        """Yield the rows of the split, (samples,) int64 on the CPU, in this order and these batch sizes.

        `steps`: the number of the step that each batch belongs to.
        """
        sizes = batch_sizes(len(order), self.batch_size) if sizes is None else sizes
        on_device = order.to(self.source.device)
        start = 0
        numbers = itertools.repeat(0) if steps is None else steps
        for x, step in zip(self.source.inputs(self.split.rows[order], sizes), numbers, strict=False):
            row = on_device[start : start + len(x)]
            start += len(x)
            batch = Batch(
                x=x,
                y=self._y[row],
                index=self._index[row],
                row=row,
                group=None if self._group is None else self._group[row],
                environment=None if self._environment is None else self._environment[row],
                epoch=epoch,
                step=step,
            )
            yield self._ready(batch, generator)

    def _ready(self, batch: Batch, generator: torch.Generator) -> Batch:
        x = batch.x
        if x.dtype == torch.uint8:
            x = x.float() / 255
        elif x.is_floating_point():
            x = x.float()
        if self._transform is not None:
            x = self._transform(x, batch, generator)
        if self._augment is not None:
            x = self._augment(x, generator)
        if self._mean is not None and self._std is not None:
            x = (x - self._mean) / self._std
        if x.ndim == 4 and x.is_cuda:
            x = x.contiguous(memory_format=torch.channels_last)
        return dataclasses.replace(batch, x=x)


class Inputs:
    """The inputs of a run's splits: each storage is moved to the device once and hashed once."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self._task, self._device = task, device
        self._sources: dict[int, Source] = {}
        self._checksums: dict[int, tuple[object, str]] = {}

    def batches(self, split: Split, batch_size: int, **options: Any) -> Batches:
        """Return the batches of a split; `options` are those of `Batches`."""
        source = self._sources.get(id(split.x))
        if source is None:
            source = self._sources[id(split.x)] = Source(split.x, self._device)
        return Batches(split, self._task, source, batch_size=batch_size, **options)

    def name(self, split: Split) -> str:
        """Return a split's name in keys: the name of the task's own split, or else a checksum."""
        ready = " ready" if split.ready else ""  # neither augmented nor normalized
        for name in ("train", "val"):
            if split.x is getattr(self._task, name).x:
                return name + ready
        known = self._checksums.get(id(split.x))
        if known is None:  # kept with the inputs, so that no others get their identity
            known = self._checksums[id(split.x)] = (split.x, checksum(*content_of(split)))
        return known[1] + ready
