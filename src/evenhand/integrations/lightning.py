"""Lightning: a callback that records the loss of every sample, and a balanced data module."""

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
    """Import Lightning under either package name. The name that is already imported comes first."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: sys.modules.get(name) is None):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError("the Lightning callback needs lightning: pip install 'evenhand[lightning]'")


Callback: Any = _lightning().Callback


class LossRecorder(Callback):  # type: ignore[misc]
    """A callback that records the loss of every training sample in every epoch of `Trainer.fit`.

    - `num_samples`: the number of training samples.
    - `losses`: the key under which `training_step` returns one loss per sample, next to "loss". Alternatively
      a function(module, batch) that returns (batch,) losses. It is called before each step, in evaluation
      mode and without gradients, and costs a second forward pass.
    - `index`: where a batch holds the positions of its samples: a key, a position, or a function(batch). By
      default "index" of a dict, and the last item of anything else, as `evenhand.indexed(dataset)` returns.
    - `path`: an .npy file for the history. By default the history is kept in memory.

    Checkpoints contain the history, or only its length if there is a `path`. `Trainer.fit(ckpt_path=…)`
    continues the history, and a fit from epoch 0 starts a new one. In distributed training every process has
    the complete history. Strategies that spawn processes need a `path`, because the memory of a spawned
    process is lost when it ends. Raises ValueError during training if a batch has no losses or no positions.

    Example: `Trainer(callbacks=[recorder := LossRecorder(len(dataset))])`, then
    `evenhand.partition(recorder.history.losses, labels)`.
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
        self._state: dict[str, Any] | None = None  # loaded from a checkpoint; used when the training starts

    @property
    def history(self) -> LossHistory:
        """The LossHistory of all finished epochs; `history.losses` is (samples, epochs)."""
        return self._recorder.history

    # -- hooks of Lightning ---------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._state = None  # discard a state that an earlier validation loaded

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

    # -- helpers -------------------------------------------------------------------------------------

    def _catch_up(self, trainer: Any) -> None:
        """End the epoch if Lightning did not: the checkpoint was saved at the last step of that epoch."""
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
    """Context manager for evaluation mode: no dropout, and no update of batch normalization statistics."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._training = [part for part in module.modules() if part.training]

    def __enter__(self) -> None:
        for part in self._training:
            part.training = False

    def __exit__(self, *_: object) -> None:
        for part in self._training:
            part.training = True


def balanced_datamodule(datamodule: Any, partition: Partition, *, seed: int = 0) -> Any:
    """Return a copy of a data module whose training loader draws the balanced set.

    - `datamodule`: a `LightningDataModule` with a `train_dataloader`.
    - `partition`: the partition of its training samples.
    - `seed`: determines the order and the repeated samples.

    Everything else is unchanged. Under DDP, Lightning does not replace the BalancedSampler.
    """
    kind = type(datamodule)

    def train_dataloader(self: Any) -> Any:
        return balanced_loader(kind.train_dataloader(self), partition, seed=seed)

    balanced = copy.copy(datamodule)
    balanced.__class__ = type(f"Balanced{kind.__name__}", (kind,), {"train_dataloader": train_dataloader})
    return balanced
