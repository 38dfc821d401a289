"""Recipe: how a model is trained, as a frozen value that can be hashed, stored and compared."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

Precision = Literal["auto", "fp32", "bf16"]
RESOLVED = ("slices", "precision", "compile")  # fields of which only what they resolve to is in a key


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of one training: model, optimizer, early stopping and precision.

    All fields are keyword arguments with defaults; each is explained below. A recipe is immutable, so
    `replace` returns a changed copy. Raises ValueError for a value of the wrong type or out of range.

    Only values that differ from the defaults are part of a run's key. A new field whose default keeps the
    current behavior therefore does not invalidate old records. `slices`, `precision` and `compile` enter the
    key with their resolved values (keys.py).

    >>> Recipe(epochs=20).replace(lr=0.01).changed()
    {'epochs': 20, 'lr': 0.01}
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
    # Which weights a stopped training keeps: the last, or those of the best check.
    keep: Literal["last", "best"] = "last"
    average: bool = False  # validate and keep weights averaged over about the last epoch of steps

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
        for name, value in check_types(vars(self), _hints()).items():
            object.__setattr__(self, name, value)
        for name in ("epochs", "batch_size", "check_every", "patience", "plateau_epochs", "slices"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "plateau_factor"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("weight_decay", "momentum", "delta"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    def replace(self, **changes: Any) -> Recipe:
        """Return a copy with some fields changed; an error for an unknown field lists the known ones."""
        known = {field.name for field in dataclasses.fields(self)}
        for name in changes:
            if name not in known:
                raise ValueError(f"a recipe has no {name!r}; it has {', '.join(sorted(known))}")
        return dataclasses.replace(self, **changes)

    def changed(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, without those that the arithmetic resolves."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in RESOLVED and getattr(self, field.name) != field.default
        }


@functools.cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(Recipe)


def check_types(values: dict[str, Any], hints: dict[str, Any], owner: str = "") -> dict[str, Any]:
    """Return the values as their type hints want them; one of another type is refused."""
    checked = {}
    for name, value in values.items():
        hint = hints.get(name, Any)
        if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            value = float(value)  # 1 and 1.0 are one setting; a checkpoint cannot hold a numpy scalar
        if not _fits(value, hint):
            raise ValueError(f"{name}{owner} must be {_describe(hint)}, got {value!r}")
        checked[name] = value
    return checked


def _describe(hint: Any) -> str:
    """Describe a type as a user would: a whole number or 'ratio'."""
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    arguments = typing.get_args(hint)
    return " or ".join(map(_describe, arguments)) if arguments else names.get(hint, str(hint))


def _fits(value: Any, hint: Any) -> bool:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return value in arguments
    if arguments and typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if hint in (int, float):
        return isinstance(value, hint) and not isinstance(value, bool)
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)
