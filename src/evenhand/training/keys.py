"""Descriptions: what a function, a network or an estimator is, in plain values that a key hashes."""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenhand.training.data import Split, Task, checksum, fixed_randomness
from evenhand.training.plugins import definition
from evenhand.training.record import key_of

PLAIN = (bool, int, float, str, type(None))
# Weights are described as tensors. Of what every module has, only hooks change its outputs besides them.
_HOOKS = {"_forward_hooks", "_forward_pre_hooks"}
_OF_EVERY_MODULE = {*vars(nn.Module())} - _HOOKS


class Description:
    """What a value is.

    - `content`: plain values, equal for equal values.
    - `complete`: whether they say all of it. They do not where it holds an object of an unknown kind.
    - `ours`: whether all functions and classes in it are this package's own, or a library's with a version.

    >>> Description(functools.partial(nn.Linear, 3, bias=False)).content["arguments"]
    [[3], {'bias': False}]
    """

    def __init__(self, value: object) -> None:
        self.complete = self.ours = True
        self._around: list[object] = []  # the values that hold the one that is being described
        self._objects: dict[int, object] = {}  # those that were described; an object may be in several places
        self.content = self._describe(value)

    def _describe(self, value: Any) -> Any:
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, np.generic):
            return self._describe(value.item())
        if isinstance(value, (torch.dtype, torch.device, Path)):
            return str(value)
        if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind != "O"):
            return f"array {checksum(_on_cpu(value) if isinstance(value, Tensor) else value)}"
        if any(value is other for other in self._around):
            return "one of those around it"
        self._around.append(value)
        try:
            return self._describe_parts(value)
        finally:
            self._around.pop()

    def _describe_parts(self, value: Any) -> Any:
        if isinstance(value, (list, tuple, np.ndarray)):
            return [self._describe(each) for each in value]
        if isinstance(value, (set, frozenset)):
            return sorted((self._describe(each) for each in value), key=str)
        if isinstance(value, dict):
            return {str(name): self._describe(each) for name, each in value.items()}
        if isinstance(value, functools.partial):
            arguments = [self._describe(value.args), self._describe(value.keywords)]
            return {**self._describe(value.func), "arguments": arguments}
        if hasattr(value, "__qualname__"):
            return self._describe_function(value)
        return self._describe_object(value)

    def _describe_object(self, value: Any) -> Any:
        """An instance by its class and its attributes; a network also by its weights."""
        if id(value) in self._objects:
            return f"object {list(self._objects).index(id(value))}"
        self._objects[id(value)] = value
        if isinstance(value, nn.Module):
            self.ours = False
            tensors = {**dict(value.named_parameters()), **dict(value.named_buffers())}
            layers = {name: self._describe_attributes(layer) for name, layer in value.named_modules()}
            return {"layers": layers, "tensors": checksum(*tensors, *map(_on_cpu, tensors.values()))}
        if hasattr(value, "get_params"):
            return self._describe_estimator(value)
        self.ours = self.ours and is_ours(type(value))
        if isinstance(value, (Split, Task)) or not hasattr(value, "__dict__"):
            self.complete = False
            return definition(value)
        return self._describe_attributes(value)

    def _describe_attributes(self, value: object) -> Any:
        own = {name: each for name, each in vars(value).items() if name not in _OF_EVERY_MODULE}
        if type(value).__module__.startswith("torch."):  # whose private attributes change with its version
            own = {name: each for name, each in own.items() if name in _HOOKS or not name.startswith("_")}
        return {**definition(value), "attributes": self._describe(own)}

    def _describe_function(self, function: Any) -> Any:
        """A function or a class, with those of the values it closes over that are plain or arrays."""
        self.ours = self.ours and is_ours(function)
        cells = getattr(function, "__closure__", None) or ()
        names = function.__code__.co_freevars if cells else ()
        values = {}
        for name, cell in zip(names, cells, strict=True):
            with contextlib.suppress(ValueError):  # of a name that has no value yet
                values[name] = cell.cell_contents
        known = (*PLAIN, Tensor, np.ndarray)
        values = {name: value for name, value in values.items() if isinstance(value, known)}
        return definition(function) | ({"values": self._describe(values)} if values else {})

    def _describe_estimator(self, estimator: Any) -> Any:
        """The class, the version of its library, and its parameters."""
        package = sys.modules.get(type(estimator).__module__.partition(".")[0])
        library = str(getattr(package, "__version__", ""))
        self.ours = self.ours and bool(library)  # a user's class may read what its file does not show
        parameters = self._describe(estimator.get_params(deep=False))
        return {**definition(estimator), "library": library, "parameters": parameters}


def describe_callable(function: object) -> dict[str, Any]:
    """An objective or a score by its name, the version of its module, and the arguments of a partial.

    The state of an object, and what a function closes over, are the run's own.
    """
    is_partial = isinstance(function, functools.partial)
    content: dict[str, Any] = Description(function).content if is_partial else definition(function)
    return content


def is_named(function: object) -> bool:
    """Whether a function is this package's own and means the same whenever it is named with its arguments."""
    if isinstance(function, nn.Module):
        return False
    description = Description(function)
    return description.ours and description.complete


def is_ours(function: Any) -> bool:
    """Whether this is a function or a class of this package, under its own name."""
    module, name = getattr(function, "__module__", "") or "", getattr(function, "__qualname__", "")
    return module.startswith("evenhand.") and getattr(sys.modules.get(module), name, None) is function


def describe_inputs(task: Task) -> dict[str, Any]:
    """What of a task, besides its data, decides the numbers: how inputs are prepared, and its own network."""
    given = {"mean": task.mean, "std": task.std, "augment": task.augment}
    parts = {name: Description(part).content for name, part in given.items() if part is not None}
    if task.make_model is not None:
        with fixed_randomness():
            parts["model"] = key_of(Description(task.make_model()).content)
    return parts


def _on_cpu(tensor: Tensor) -> Tensor:
    """A tensor that numpy can read."""
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor
