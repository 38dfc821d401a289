"""Plain PyTorch: datasets that give indices, a recorder for several processes, balanced loaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, distributed
from torch.utils.data import DataLoader, Dataset, IterableDataset

from evenhand.core.arrays import as_batch
from evenhand.core.history import LossHistory
from evenhand.core.partition import BalancedSampler, Partition

# fmt: off
_LOADER_SETTINGS = (
    "batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn",
    "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers",
)
# fmt: on

__all__ = ["BalancedSampler", "Indexed", "Recorder", "balanced_loader", "indexed"]


def indexed(dataset: Any) -> Indexed:
    """Wrap a dataset so that each item also contains its position.

    - `dataset`: a map-style dataset, with a length. A `datasets.Dataset` of dicts works too.

    Returns a dataset of `(*item, index)` for tuples and lists, of dicts with an "index" for dicts, and of
    `(item, index)` for anything else. Take subsets of the result, not before it, where positions must refer
    to the whole dataset. Raises ValueError for a stream, and for dicts that have an "index" already.

    >>> from torch.utils.data import TensorDataset
    >>> indexed(TensorDataset(torch.tensor([5., 6.]), torch.tensor([0, 1])))[1]
    (tensor(6.), tensor(1), 1)
    """
    if isinstance(dataset, Indexed):
        return dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"dataset must be map-style, with a length and positions, got {type(dataset).__name__}; "
            "read a stream into a list first"
        )
    return Indexed(dataset)


class Indexed(Dataset[Any]):
    """What `indexed` gives; the dataset itself is its `dataset`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, position: int) -> Any:
        position = range(len(self))[position]  # -1 is the last
        return _with_index(self.dataset[position], position)

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Many at once, as loaders ask for them; as fast as the dataset's own way."""
        together = getattr(self.dataset, "__getitems__", None)
        if not callable(together):
            return [self[position] for position in positions]
        return [
            _with_index(item, int(position))
            for item, position in zip(together(positions), positions, strict=True)
        ]


def _with_index(item: Any, position: int) -> Any:
    if isinstance(item, Mapping):
        if "index" in item:
            raise ValueError('the samples have an "index" already; rename it, or use it as it is')
        return {**item, "index": position}
    return (*item, position) if isinstance(item, (tuple, list)) else (item, position)


def balanced_loader(
    loader: DataLoader[Any],
    partition: Partition,
    *,
    num_samples: int | None = None,
    seed: int = 0,
    shard: bool = True,
) -> DataLoader[Any]:
    """A loader like the given one that draws balanced samples, for the second training.

    - `loader`: the loader of the first training, which stays as it is.
    - `partition`: the partition of the loader's dataset.
    - `num_samples`: samples per epoch, drawn anew in each. By default the rows of `rebalance`, shuffled.
    - `seed`: determines the order and the draws.
    - `shard`: whether each process gets its own part of an epoch. Pass False where the framework shards
      loaders itself, as `accelerator.prepare` does.

    Raises ValueError for a loader without a batch size, and for a partition of other samples.
    """
    if loader.batch_sampler is None or loader.batch_size is None:
        raise ValueError(
            "loader must have a batch_size, got one with batching of its own; "
            "make it again with sampler=BalancedSampler(partition)"
        )
    size = len(loader.dataset)  # type: ignore[arg-type]
    if size != len(partition.labels):
        raise ValueError(
            f"partition must be of the loader's {size} samples, got one of {len(partition.labels)}; "
            "load the dataset whose losses were recorded"
        )
    settings = {name: getattr(loader, name) for name in _LOADER_SETTINGS}
    whole = {} if shard else {"num_replicas": 1, "rank": 0}
    sampler = BalancedSampler(partition, num_samples=num_samples, seed=seed, **whole)
    return DataLoader(loader.dataset, sampler=sampler, **settings)


class Recorder:
    """A LossHistory that several processes fill together and that a checkpoint can hold.

    - `num_samples`: the size of the training set.
    - `path`: a file for the history, which the first process writes and all must be able to read. A
      checkpoint then holds only the number of its epochs.

    Each process records the samples that it sees. All processes must call `end_epoch` and `state_dict`, which
    gather what was recorded. Afterwards `history` is complete in every process.

    >>> recorder = Recorder(2)
    >>> recorder.record([0, 1], [0.5, 1.5]); recorder.end_epoch()
    >>> recorder.history.losses.tolist()
    [[0.5], [1.5]]
    """

    def __init__(self, num_samples: int, *, path: str | Path | None = None) -> None:
        self.num_samples = LossHistory(num_samples).num_samples  # wrong values are refused now, not later
        self.path = None if path is None else Path(path)
        self._history: LossHistory | None = None
        self._seen: list[tuple[Tensor, Tensor]] = []  # of the epoch that has not been ended

    @property
    def history(self) -> LossHistory:
        """The epochs that have been ended."""
        if self._history is None:
            self._history = LossHistory(self.num_samples, path=self.path)
        return self._history

    def record(self, index: Tensor | npt.ArrayLike, losses: Tensor | npt.ArrayLike) -> None:
        """Take the losses of one batch, one per sample, as `LossHistory.record`; waits for no device."""
        where, values = as_batch(index, losses)
        # Copies, since a caller may use its buffers again, and a view would keep all of its batch in memory.
        self._seen.append((where.clone(), values.to(torch.float32, copy=True)))

    def end_epoch(self) -> None:
        """Close the epoch in all processes; where none has recorded anything, nothing happens."""
        index, losses = self._gathered()
        self._seen = []
        if len(index) == 0:
            return
        if self._writes():
            self.history.record(index, losses)
            self.history.end_epoch()
        self._follow()

    def truncate(self, num_epochs: int) -> None:
        """Drop all epochs after the first `num_epochs`, and what has been recorded of the current one."""
        self._seen = []
        if self._writes():
            self.history.truncate(num_epochs)
        self._follow()

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint needs, as tensors: the history or its file's length, and the unfinished epoch."""
        index, losses = self._gathered()
        history = self.history
        kept = torch.empty(self.num_samples, 0) if self.path else history.losses.float()
        epochs = torch.tensor(history.num_epochs)
        return {"losses": kept.contiguous(), "num_epochs": epochs, "index": index, "recorded": losses}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where `state_dict` was called, in any number of processes."""
        num_samples, num_epochs = len(state["losses"]), int(state["num_epochs"])
        if num_samples != self.num_samples:
            raise ValueError(
                f"the checkpoint should be of {self.num_samples} samples, but it is of {num_samples}; "
                "continue with the dataset that it was made with"
            )
        if self.path is not None:
            if self.history.num_epochs < num_epochs:
                raise ValueError(
                    f"{self.path} should hold the checkpoint's {num_epochs} epochs, but it holds "
                    f"{self.history.num_epochs}; start the training anew"
                )
            self.truncate(num_epochs)
        else:
            self._history, everyone = LossHistory(self.num_samples), torch.arange(self.num_samples)
            for column in state["losses"].T:
                self._history.record(everyone, column)
                self._history.end_epoch()
        self._seen = [(state["index"], state["recorded"])] if _rank() == 0 and len(state["index"]) else []

    # -- inside --------------------------------------------------------------------------------------

    def _writes(self) -> bool:
        return self.path is None or _rank() == 0

    def _follow(self) -> None:
        """Let the other processes see what the first has written."""
        if self.path is not None and _num_processes() > 1:
            distributed.barrier()
            if _rank() != 0:
                self._history = None

    def _gathered(self) -> tuple[Tensor, Tensor]:
        """What all processes have recorded of this epoch, on the CPU and in the order of their ranks."""
        index = torch.cat([torch.empty(0, dtype=torch.int64), *(where.cpu() for where, _ in self._seen)])
        losses = torch.cat([torch.empty(0), *(values.cpu() for _, values in self._seen)])
        if _num_processes() == 1:
            return index, losses
        parts: list[Any] = [None] * _num_processes()
        distributed.all_gather_object(parts, (index, losses))
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _num_processes() -> int:
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _rank() -> int:
    return distributed.get_rank() if _num_processes() > 1 else 0
