"""Keys: what decides the numbers of a run or a training, in plain values."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import typing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from evenhand.core.kernels import has_triton
from evenhand.training import hub, plugins
from evenhand.training.data import Split, Task, checksum, fixed_randomness
from evenhand.training.models import is_own
from evenhand.training.plugins import definition
from evenhand.training.recipe import Recipe, check_types
from evenhand.training.record import key_of

NUMERICS = 1  # part of every key; raise it when the engine computes other numbers from the same settings
COMPILE = 3000  # steps from which compiling, half a minute once a process, pays over several trainings
PLAIN = (bool, int, float, str, type(None))
# Weights are described as tensors. Of what every module has, only hooks change its outputs besides them.
_HOOKS = {"_forward_hooks", "_forward_pre_hooks"}
_OF_EVERY_MODULE = {*vars(nn.Module())} - _HOOKS


# -- how a training is computed -------------------------------------------------------------------------


@dataclass(frozen=True)
class Arithmetic:
    """The settings that change the last bits of a training, and with them its later course.

    Neither the number of ranks, which come to the same up to rounding, nor CUDA graphs, which replay the same
    kernels, are part of it.
    """

    device: str  # "cpu" or "cuda"
    precision: Literal["fp32", "bf16"]
    compute: Literal["eager", "compiled", "kernels"]  # kernels: our own, where they suit the inputs
    slices: int  # a step's gradient is the sum over so many parts of its batch


def resolve(
    task: Task, recipe: Recipe, device: torch.device, steps: int | None = None, *, own_model: bool = False
) -> Arithmetic:
    """Return the arithmetic of a training, with every open choice made.

    `steps`: of the whole run, if this is one of its stages. By default those of a training on the task's own
    training set, so that all methods and stages of a comparison are computed alike. `own_model`: the network
    is the method's, which is compiled only if the recipe says so.
    """
    gpu = device.type == "cuda"
    cnn = recipe.model == "cnn" and task.make_model is None and not own_model
    precision: Literal["fp32", "bf16"] = "fp32"
    if recipe.precision != "auto":
        precision = recipe.precision
    elif gpu and torch.cuda.is_bf16_supported():
        precision = "bf16"
    compute: Literal["eager", "compiled", "kernels"] = "eager"
    if gpu and cnn:
        if recipe.compile != "off" and precision == "bf16" and has_triton():
            compute = "kernels"
    elif recipe.compile == "on" or (
        gpu
        and not own_model
        and recipe.compile == "auto"
        and (num_steps(task, recipe) if steps is None else steps) > COMPILE
    ):
        compute = "compiled"
    # On a CPU the paper's CNN has two slices, so that two ranks leave the bits of one process.
    halved = cnn and not gpu and recipe.compile != "on"
    slices = 2 if halved and recipe.slices == 1 else recipe.slices
    return Arithmetic(device.type, precision, compute, slices)


def num_steps(task: Task, recipe: Recipe) -> int:
    """Return the maximum number of steps of a training on the task's own training set."""
    return recipe.epochs * (len(task.train) // recipe.batch_size)


# -- what a run is -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """A task, a method, its settings and a recipe, with every open choice made."""

    module: ModuleType
    settings: dict[str, Any]  # the method's own, where they differ from its defaults
    recipe: Recipe
    content: dict[str, Any]  # what the key hashes

    def folder(self, runs: str | Path, seed: int) -> Path:
        """Return the folder of such a run."""
        name = f"{key_of(self.content)}-s{seed}"
        return Path(runs) / str(self.content["task"]) / str(self.content["method"]) / name


def identify(
    task: Task, method: str, given: dict[str, Any], recipe: Recipe | None, device: torch.device
) -> Identity:
    """Return the identity of a run; `given` are the method's settings and fields of the recipe."""
    module = plugins.load("evenhand.methods", method, "train")
    settings, changes = sort_settings(method, module, given)
    recipe = (recipe or task.recipe).replace(**changes)
    hub.check_weights(recipe.model, recipe.weights)
    arithmetic = resolve(task, recipe, device)
    recipe = recipe.replace(precision=arithmetic.precision)
    shared = trained(task, recipe, arithmetic, describe_inputs(task))
    content = {"method": method, "hyperparameters": settings, **shared}
    version = plugins.version(module)
    content["version" if isinstance(version, int) else "source"] = version
    groups = {split: getattr(task, split).group for split in plugins.groups_needed(module)}
    if read := {split: checksum(group) for split, group in groups.items() if group is not None}:
        content["groups"] = read
    return Identity(module, settings, recipe, content)


def trained(task: Task, recipe: Recipe, arithmetic: Arithmetic, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return what determines the numbers of a run and of each of its trainings.

    `inputs` is what `describe_inputs` gives for the task.
    """
    content: dict[str, Any] = {
        "task": task.name,
        "data": task.checksum,
        "recipe": recipe.changed(),
        "numerics": NUMERICS,
        "arithmetic": dataclasses.asdict(arithmetic),
    }
    if inputs:
        content["inputs"] = inputs
    if recipe.model.startswith(hub.HUB):
        content["model_source"] = hub.digest(Path(recipe.model.removeprefix(hub.HUB)))
    elif is_own(recipe.model):  # it may have been edited
        content["model_source"] = plugins.version(plugins.import_own(recipe.model.partition(":")[0]))
    if weights := [split.weight for split in (task.val, task.test) if split.weight is not None]:
        content["scoring_weights"] = checksum(*weights)
    return content


def sort_settings(
    method: str, module: ModuleType, given: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide settings into the method's own that differ from its defaults, and changes of the recipe."""
    defaults = plugins.keywords(module.train)
    fields = {field.name for field in dataclasses.fields(Recipe)}
    for name in given:
        if name not in defaults and name not in fields:
            raise ValueError(
                f"method {method!r} has no setting {name!r}; it has "
                f"{', '.join(defaults) or 'none of its own'}, and the recipe has {', '.join(sorted(fields))}"
            )
    values = {name: value for name, value in given.items() if name in defaults}
    values = check_types(values, typing.get_type_hints(module.train), f" of method {method!r}")
    settings = {name: value for name, value in values.items() if value != defaults[name]}
    return settings, {name: value for name, value in given.items() if name not in defaults}


# -- what a function, a network or an estimator is -----------------------------------------------------


class Description:
    """The description of a value.

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
        """Describe an instance by its class and its attributes; a network also by its weights."""
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
        found = {name: each for name, each in vars(value).items() if name not in _OF_EVERY_MODULE}
        if type(value).__module__.startswith("torch."):  # whose private attributes change with its version
            found = {name: each for name, each in found.items() if name in _HOOKS or not name.startswith("_")}
        return {**definition(value), "attributes": self._describe(found)}

    def _describe_function(self, function: Any) -> Any:
        """Describe a function or class, with its closure's values and its plain or array defaults.

        Other values, and the object of a bound method, are not described.
        """
        self.ours = self.ours and is_ours(function)
        cells = getattr(function, "__closure__", None) or ()
        names = function.__code__.co_freevars if cells else ()
        values = {}
        for name, cell in zip(names, cells, strict=True):
            with contextlib.suppress(ValueError):  # of a name that has no value yet
                values[name] = cell.cell_contents
        if not self.ours:  # the version of our own modules covers their defaults
            defaults = enumerate(getattr(function, "__defaults__", None) or ())
            values |= {f"default {number}": value for number, value in defaults}
            values |= getattr(function, "__kwdefaults__", None) or {}
        known = (*PLAIN, np.generic, Tensor, np.ndarray)
        described = {name: value for name, value in values.items() if isinstance(value, known)}
        if len(described) < len(values) or getattr(function, "__self__", None) is not None:
            self.complete = False
        return definition(function) | ({"values": self._describe(described)} if described else {})

    def _describe_estimator(self, estimator: Any) -> Any:
        """Describe an estimator by its class, the version of its library, and its parameters."""
        package = sys.modules.get(type(estimator).__module__.partition(".")[0])
        library = str(getattr(package, "__version__", ""))
        self.ours = self.ours and bool(library)  # a user's class may read what its file does not show
        own = estimator.get_params(deep=False)
        content = {**definition(estimator), "library": library, "parameters": self._describe(own)}
        if "__sklearn_clone__" in vars(type(estimator)):  # a copy stays fitted, as that of FrozenEstimator
            content["fitted"] = [self._describe(vars(each)) for each in own.values() if hasattr(each, "fit")]
        return content


def describe_callable(function: object) -> dict[str, Any]:
    """Describe an objective or a score by its name, its module's version, and the arguments of a partial.

    A callable object is described by its attributes. The state of a module, and what a function closes over,
    are the run's own.
    """
    by_name = isinstance(function, nn.Module) or hasattr(function, "__qualname__")
    content: dict[str, Any] = definition(function) if by_name else Description(function).content
    return content


def is_named(function: object) -> bool:
    """Return whether a function is this package's own and is fully defined by its name and arguments."""
    if isinstance(function, nn.Module):
        return False
    description = Description(function)
    return description.ours and description.complete


def is_ours(function: Any) -> bool:
    """Return whether this is a function or a class of this package, under its own name."""
    module, name = getattr(function, "__module__", "") or "", getattr(function, "__qualname__", "")
    return module.startswith("evenhand.") and getattr(sys.modules.get(module), name, None) is function


def describe_inputs(task: Task) -> dict[str, Any]:
    """Describe how a task prepares its inputs, and its own network; its data are not included."""
    given = {"mean": task.mean, "std": task.std, "augment": task.augment}
    parts = {name: Description(part).content for name, part in given.items() if part is not None}
    if task.make_model is not None:
        with fixed_randomness():
            parts["model"] = key_of(Description(task.make_model()).content)
    return parts


def _on_cpu(tensor: Tensor) -> Tensor:
    """Return a tensor that numpy can read."""
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor
