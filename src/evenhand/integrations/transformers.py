"""Hugging Face transformers: record the loss of every training sample in every epoch of a `Trainer`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from evenhand.integrations.torch import Recorder, indexed
from evenhand.training.checkpoint import load_checkpoint, save_checkpoint

__all__ = ["record_losses"]

FILE = "loss_history.ckpt"  # the history in each checkpoint folder of the Trainer
Losses = Callable[[Any, Mapping[str, Any]], Tensor]  # (model outputs, inputs) -> (batch,) losses


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "record_losses needs transformers and accelerate: pip install 'evenhand[transformers]'"
        ) from error


def record_losses(trainer: Any, *, losses: Losses | None = None, path: str | Path | None = None) -> Recorder:
    """Make a `transformers.Trainer` record the loss of each training sample in each epoch.

    Call it before `trainer.train()`.

    - `trainer`: a `transformers.Trainer` with a `train_dataset`.
    - `losses`: a function(outputs, inputs) that returns (batch,) losses. By default the cross entropy of
      `logits` and `labels`. It uses the outputs of the training step, without a second forward pass.
    - `path`: an .npy file for the history. By default the history is kept in memory.

    Returns a `Recorder`. After training, its `history.losses` is (samples, epochs), in every process.
    Checkpoints contain the history, and `train(resume_from_checkpoint=…)` continues it. Any other call of
    `train` starts a new history. Raises ValueError for a trainer without training data, and for one that
    records its losses already.

    The function replaces `trainer.train_dataset` with a dataset whose samples contain their index. It also
    wraps `compute_loss` and `train` of this trainer, because a TrainerCallback does not see the batches.

    Example: `recorder = record_losses(trainer)`, `trainer.train()`, then
    `parts = partition(recorder.history.losses, labels)`. For the second training, pass
    `torch.utils.data.Subset(dataset, rebalance(parts))` to a new trainer.
    """
    transformers = _transformers()
    if not isinstance(trainer, transformers.Trainer):
        raise ValueError(f"trainer must be a transformers.Trainer, got {type(trainer).__name__}")
    if trainer.train_dataset is None:
        raise ValueError("trainer must have a train_dataset, got None; there is nothing to record")
    if getattr(trainer.compute_loss, "records", False):
        raise ValueError("trainer records its losses already; use what the first record_losses gave")
    trainer.train_dataset = indexed(trainer.train_dataset)
    # The trainer drops columns that the model's forward does not take; compute_loss needs the index.
    trainer._set_signature_columns_if_needed()
    trainer._signature_columns.append("index")
    recorder = Recorder(len(trainer.train_dataset), path=path)
    _wrap_compute_loss(trainer, recorder, losses or _cross_entropy)
    _wrap_train(trainer, recorder, transformers)
    trainer.add_callback(_callback(transformers, recorder))
    return recorder


def _wrap_compute_loss(trainer: Any, recorder: Recorder, losses: Losses) -> None:
    compute_loss = trainer.compute_loss

    def recording(model: Any, inputs: Any, return_outputs: bool = False, **settings: Any) -> Any:
        inputs = dict(inputs)
        index = inputs.pop("index", None)
        if not model.training:  # evaluation
            return compute_loss(model, inputs, return_outputs=return_outputs, **settings)
        if index is None:
            raise ValueError(
                'the data_collator must keep "index", but its batch has none; '
                "use transformers.default_data_collator or DataCollatorWithPadding, or pass it on"
            )
        given = dict(inputs)  # a copy, because compute_loss may remove the labels
        loss, outputs = compute_loss(model, inputs, return_outputs=True, **settings)
        recorder.record(index, losses(outputs, given))
        return (loss, outputs) if return_outputs else loss

    recording.records = True  # type: ignore[attr-defined]
    trainer.compute_loss = recording


def _cross_entropy(outputs: Any, inputs: Mapping[str, Any]) -> Tensor:
    logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[1]
    labels = inputs.get("labels")
    if labels is None or logits.ndim != 2 or labels.ndim != 1 or labels.is_floating_point():
        got = None if labels is None else (labels.dtype, tuple(labels.shape))
        raise ValueError(
            "the model must classify: logits (batch, classes) and labels (batch,) of whole numbers, got "
            f"logits {tuple(logits.shape)} and labels {got}; give losses=function(outputs, inputs)"
        )
    return F.cross_entropy(logits.detach().float(), labels, reduction="none")


def _wrap_train(trainer: Any, recorder: Recorder, transformers: Any) -> None:
    train = trainer.train

    def resuming(resume_from_checkpoint: Any = None, *arguments: Any, **settings: Any) -> Any:
        folder = resume_from_checkpoint
        if folder is True:
            folder = transformers.trainer_utils.get_last_checkpoint(trainer.args.output_dir)
        if folder:
            file = Path(folder) / FILE
            if not file.is_file():
                raise ValueError(
                    f"{folder} should hold {FILE}, but it does not: it was made without record_losses; "
                    "start the training anew"
                )
            recorder.load_state_dict(load_checkpoint(file))
        else:
            recorder.truncate(0)
        return train(resume_from_checkpoint, *arguments, **settings)

    trainer.train = resuming


def _callback(transformers: Any, recorder: Recorder) -> Any:
    class EpochEnds(transformers.TrainerCallback):  # type: ignore[misc]
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            # The checkpoint of an epoch's last step is saved before on_epoch_end is called.
            if recorder.history.num_epochs < int(state.epoch or 0):
                recorder.end_epoch()

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            recorder.end_epoch()

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            content = recorder.state_dict()  # in all processes, because they gather it together
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            if state.is_world_process_zero and folder.is_dir():
                save_checkpoint(folder / FILE, content)

    return EpochEnds()
