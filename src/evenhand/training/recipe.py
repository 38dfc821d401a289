"""Recipe: how a model is trained, as a frozen value that can be hashed, stored and compared."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Precision = Literal["auto", "fp32", "bf16"]
RESOLVED = ("slices", "precision", "compile")  # fields of which only what they resolve to is in a key


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of one training; a task's own recipe starts from the paper's appendix.

    Only values that differ from the defaults below enter a run's key, so adding a field with a default
    that keeps today's behaviour never orphans old records. `slices`, `precision` and `compile` enter it as
    they are resolved (keys.py).

    >>> Recipe(epochs=20).changed()
    {'epochs': 20}
    """

    model: str = "cnn"  # a name of training/models.py, or "package.module:function"
    weights: str | None = None  # "pretrained", a weights file, or None for fresh weights
    epochs: int = 100  # at most
    batch_size: int = 128
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.9  # of sgd

    # Early stopping: no gain above `delta` in the last `patience` checks.
    # Validation accuracy is checked every `check_every` epochs, training accuracy (identifier) every epoch.
    check_every: int = 5
    patience: int = 5
    delta: float = 0.001
    # Which weights a stopped training hands over: the last, or those of the best check.
    keep: Literal["last", "best"] = "last"
    average: bool = False  # validate and hand over weights averaged over about the last epoch of steps

    # The learning rate is multiplied by `plateau_factor` when the training loss plateaus for this long.
    plateau_epochs: int = 10
    plateau_factor: float = 0.1

    # A step's gradient is the sum over so many slices of its batch: less memory, and the same bits whether
    # one process computes two slices in turn or two ranks one each. 1: the whole batch, or one slice a rank;
    # the paper's CNN on a CPU has two then, so that two ranks find what one process finds.
    slices: int = 1

    augment: bool = True  # the task's own training augmentation
    clean_losses: bool = False  # record losses in a pass of their own after each epoch, in evaluation mode
    precision: Precision = "auto"  # bf16 on a GPU, fp32 elsewhere
    compile: Literal["auto", "on", "off"] = "auto"  # torch.compile for long trainings on a GPU; our kernels

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            kinds = {"int": (int,), "float": (int, float)}.get(str(field.type))
            value = getattr(self, field.name)
            if kinds and (not isinstance(value, kinds) or isinstance(value, bool)):
                number = "a whole number" if kinds == (int,) else "a number"
                raise ValueError(f"{field.name} must be {number}, got {value!r}")
            if field.type == "float":  # 1 and 1.0 are one setting, and must have one key
                object.__setattr__(self, field.name, float(value))
            if field.type == "bool" and not isinstance(value, bool):
                raise ValueError(f"{field.name} must be true or false, got {value!r}")
        if not isinstance(self.model, str) or not isinstance(self.weights, str | None):
            raise ValueError(f"model and weights must be names, got {self.model!r} and {self.weights!r}")
        for name in ("epochs", "batch_size", "check_every", "patience", "plateau_epochs", "slices"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "plateau_factor"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("weight_decay", "momentum", "delta"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        choices = {
            "optimizer": ("adam", "sgd"),
            "keep": ("last", "best"),
            "precision": ("auto", "fp32", "bf16"),
            "compile": ("auto", "on", "off"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")

    def replace(self, **changes: Any) -> Recipe:
        """A copy with some fields changed; an unknown field lists the known ones."""
        known = {field.name for field in dataclasses.fields(self)}
        for name in changes:
            if name not in known:
                raise ValueError(f"a recipe has no {name!r}; it has {', '.join(sorted(known))}")
        return dataclasses.replace(self, **changes)

    def changed(self) -> dict[str, Any]:
        """The fields that differ from the defaults, without those that the arithmetic resolves."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in RESOLVED and getattr(self, field.name) != field.default
        }
