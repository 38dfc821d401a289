"""Lightning: a callback that records every sample's loss, and balanced data for the second training."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evenhand.core.history import LossHistory
from evenhand.core.partition import Partition
from evenhand.integrations.torch import Recorder, balanced_loader

__all__ = ["LossRecorder", "balanced_datamodule", "balanced_loader"]


def _lightning() -> Any:
    """Lightning under either of its names, the one that is in use first."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: sys.modules.get(name) is None):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError("the Lightning callback needs lightning: pip install 'evenhand[lightning]'")


Callback: Any = _lightning().Callback


class LossRecorder(Callback):  # type: ignore[misc]
    """Records the loss of every training sample in every epoch of a `Trainer.fit`, as `history`.

    `losses` is the key under which `training_step` returns one loss per sample beside its "loss". Where it
    returns none, `losses` is a function(module, batch) -> (batch,); it is called before each step, in
    evaluation mode and without gradients, and costs a second forward pass.
    `index` is where a batch holds its samples' positions in the dataset: a key, a position, or a
    function(batch). By default it is "index" of a dict and the last part of anything else, which is where
    `evenhand.indexed(dataset)` puts it.

    Checkpoints carry the history, and `Trainer.fit(ckpt_path=…)` continues it; with `path` it is a file, of
    which they carry only the length. A fit that starts from epoch 0 starts a new history. In distributed
    training every process has the complete history; strategies that spawn need a `path`, because what
    spawned processes have in memory is lost when they end.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        losses: str | Callable[[Any, Any], Tensor] = "losses",
        index: str | int | Callable[[Any], Tensor] | None = None,
        path: str | Path | None = None,
    ) -> None:
        super().__init__()
        self._recorder = Recorder(num_samples, path=path)
        self._losses, self._index = losses, index
        self._state: dict[str, Any] | None = None  # of a checkpoint, until the training starts

    @property
    def history(self) -> LossHistory:
        """The losses of all epochs that have ended, (samples, epochs) as `history.losses`."""
        return self._recorder.history

    # -- what Lightning calls ------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._state = None  # a validation may have loaded one, which is not this fit's

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._state is not None:
            self._recorder.load_state_dict(self._state)
        elif trainer.current_epoch == 0:
            self._recorder.truncate(0)
        elif self.history.num_epochs == 0:
            raise ValueError(
                f"LossRecorder must be there from the first epoch, but the training is at epoch "
                f"{trainer.current_epoch} and its checkpoint has no history; start the training anew"
            )
        self._state = None
        self._catch_up(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._catch_up(trainer)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if callable(self._losses):
            with torch.no_grad(), _evaluating(pl_module):
                self._recorder.record(self._where(batch), self._losses(pl_module, batch))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if callable(self._losses):
            return
        if not isinstance(outputs, Mapping) or self._losses not in outputs:
            found = ", ".join(map(str, outputs)) if isinstance(outputs, Mapping) else type(outputs).__name__
            raise ValueError(
                f"training_step must return a dict with one loss per sample as {self._losses!r}, "
                f"got {found}; return them beside 'loss', or give losses=function(module, batch)"
            )
        self._recorder.record(self._where(batch), outputs[self._losses])

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._recorder.end_epoch()

    def state_dict(self) -> dict[str, Any]:
        return dict(self._recorder.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict

    # -- inside --------------------------------------------------------------------------------------

    def _catch_up(self, trainer: Any) -> None:
        """End an epoch that Lightning takes for ended unsaid: the checkpoint was of its last step."""
        if self.history.num_epochs < trainer.current_epoch:
            self._recorder.end_epoch()

    def _where(self, batch: Any) -> Tensor:
        if callable(self._index):
            return self._index(batch)
        key = self._index if self._index is not None else "index" if isinstance(batch, Mapping) else -1
        try:
            where = batch[key]
        except (KeyError, IndexError, TypeError):
            where = None
        if not isinstance(where, Tensor) or where.ndim != 1 or where.is_floating_point():
            raise ValueError(
                f"a batch must hold its samples' positions as whole numbers at {key!r}, got "
                f"{type(batch).__name__} without; wrap the dataset: evenhand.indexed(dataset)"
            )
        return where


class _evaluating:
    """Evaluation mode for a while: no dropout, and batch normalisation learns nothing."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._training = [part for part in module.modules() if part.training]

    def __enter__(self) -> None:
        for part in self._training:
            part.training = False

    def __exit__(self, *_: object) -> None:
        for part in self._training:
            part.training = True


def balanced_datamodule(datamodule: Any, partition: Partition, *, seed: int = 0) -> Any:
    """The same data module with a balanced training loader, for the second training.

    Whatever else it does is as before; under DDP, Lightning leaves the BalancedSampler as it is.
    """
    kind = type(datamodule)

    def train_dataloader(self: Any) -> Any:
        return balanced_loader(kind.train_dataloader(self), partition, seed=seed)

    balanced = copy.copy(datamodule)
    balanced.__class__ = type(f"Balanced{kind.__name__}", (kind,), {"train_dataloader": train_dataloader})
    return balanced
