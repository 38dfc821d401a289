"""Hugging Face transformers: every training sample's loss in every epoch of a `Trainer`."""

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

FILE = "loss_history.ckpt"  # in every checkpoint folder of the Trainer
Losses = Callable[[Any, Mapping[str, Any]], Tensor]  # (the model's outputs, the inputs) -> (batch,)


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "record_losses needs transformers and accelerate: pip install 'evenhand[transformers]'"
        ) from error


def record_losses(trainer: Any, *, losses: Losses | None = None, path: str | Path | None = None) -> Recorder:
    """Make a `transformers.Trainer` record each training sample's loss; call it before `trainer.train()`.

    The losses come from the outputs of the training step itself: the cross entropy of `logits` and
    `labels`, or what `losses(outputs, inputs)` gives. `trainer.train_dataset` is replaced by one whose
    samples carry their index, and `compute_loss` and `train` of this one trainer are wrapped, because no
    TrainerCallback sees a batch. Checkpoints carry the history, and `train(resume_from_checkpoint=…)`
    continues it; any other call of `train` starts a new one. Afterwards `history.losses` of the result is
    (samples, epochs), in every process. With `path` it is a file.

    For the second training, give a new trainer `torch.utils.data.Subset(dataset, rebalance(parts))`.
    """
    transformers = _transformers()
    if not isinstance(trainer, transformers.Trainer):
        raise ValueError(f"trainer must be a transformers.Trainer, got {type(trainer).__name__}")
    if trainer.train_dataset is None:
        raise ValueError("trainer must have a train_dataset, got None; there is nothing to record")
    if getattr(trainer.compute_loss, "records", False):
        raise ValueError("trainer records its losses already; use what the first record_losses gave")
    trainer.train_dataset = indexed(trainer.train_dataset)
    # The trainer drops what the model's forward does not take; the index must pass until compute_loss.
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
        if not model.training:  # an evaluation
            return compute_loss(model, inputs, return_outputs=return_outputs, **settings)
        if index is None:
            raise ValueError(
                'the data_collator must keep "index", but its batch has none; '
                "use transformers.default_data_collator or DataCollatorWithPadding, or pass it on"
            )
        given = dict(inputs)  # compute_loss may take the labels out
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
            # A checkpoint of an epoch's last step is made before that epoch is said to have ended.
            if recorder.history.num_epochs < int(state.epoch or 0):
                recorder.end_epoch()

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            recorder.end_epoch()

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            content = recorder.state_dict()  # in all processes, since they gather it together
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            if state.is_world_process_zero and folder.is_dir():
                save_checkpoint(folder / FILE, content)

    return EpochEnds()
