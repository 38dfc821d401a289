"""Identity: what a run is, apart from its seed; the same identity is the same folder."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from evenhand.core import ranks
from evenhand.training import plugins
from evenhand.training.arithmetic import NUMERICS, Arithmetic, resolve
from evenhand.training.data import Task, checksum
from evenhand.training.keys import describe_inputs
from evenhand.training.recipe import Recipe
from evenhand.training.record import key_of


@dataclass(frozen=True)
class Identity:
    """A task, a method, its settings and a recipe, with all that was left to choose chosen."""

    module: ModuleType
    settings: dict[str, Any]  # the method's own, where they differ from its defaults
    recipe: Recipe
    content: dict[str, Any]  # what the key hashes

    def folder(self, runs: str | Path, seed: int) -> Path:
        """Where such a run is kept."""
        name = f"{key_of(self.content)}-s{seed}"
        return Path(runs) / str(self.content["task"]) / str(self.content["method"]) / name


def identify(
    task: Task, method: str, given: dict[str, Any], recipe: Recipe | None, device: torch.device
) -> Identity:
    """The identity of a run; `given` are the method's settings and fields of the recipe."""
    module = plugins.load("evenhand.methods", method, "train")
    settings, changes = sort_settings(method, module, given)
    recipe = (recipe or task.recipe).replace(**changes)
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
    """What decides the numbers of a run and of each of its trainings alike.

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
    if ":" in recipe.model:  # a user's own, which may have been edited
        content["model_source"] = plugins.version(plugins.import_own(recipe.model.partition(":")[0]))
    if weights := [split.weight for split in (task.val, task.test) if split.weight is not None]:
        content["scoring_weights"] = checksum(*weights)
    return content


def sort_settings(
    method: str, module: ModuleType, given: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide settings into the method's own that differ from its defaults, and changes of the recipe."""
    own = plugins.keywords(module.train)
    fields = {field.name for field in dataclasses.fields(Recipe)}
    for name in given:
        if name not in own and name not in fields:
            raise ValueError(
                f"method {method!r} has no setting {name!r}; it has {', '.join(own) or 'none of its own'}, "
                f"and the recipe has {', '.join(sorted(fields))}"
            )
    values = {name: value for name, value in given.items() if name in own}
    values = plugins.check_values(module.train, values, f"method {method!r}")
    settings = {name: value for name, value in values.items() if value != own[name]}
    return settings, {name: value for name, value in given.items() if name not in own}


def resolve_device(device: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device):
        raise ValueError(f"device must be auto, cpu, cuda, cuda:N or mps, got {device!r}")
    where = torch.device(device)
    if where.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device mps was asked for, but torch sees no Apple GPU here; use --device cpu")
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {device} was asked for, but torch sees {torch.cuda.device_count() or 'no'} GPU here; "
            "use --device cpu or auto"
        )
    return where


def join_ranks(device: str) -> torch.device:
    """The device of this process; of several that torchrun has started, each takes a GPU of its own."""
    where = resolve_device(device)
    if ranks.launched() and where.type == "cuda":
        if where.index is not None:
            raise ValueError(f"ranks take a GPU each, but --device {device} is one GPU; use --device cuda")
        if ranks.local_number() >= torch.cuda.device_count():
            raise ValueError(
                f"ranks take a GPU each, but there are more of them than GPUs ({torch.cuda.device_count()}); "
                "lower torchrun's --nproc-per-node, or use --device cpu"
            )
        where = torch.device("cuda", ranks.local_number())
        torch.cuda.set_device(where)
    ranks.join(gpu=where.type == "cuda")
    return where
