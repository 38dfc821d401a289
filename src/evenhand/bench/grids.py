"""What is searched over: the grids of methods and tasks, and points of them as a reader sees them."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from evenhand import tasks
from evenhand.training import plugins
from evenhand.training.recipe import Recipe

PAIR = ("lr", "weight_decay")  # every method whose grid lacks them inherits ERM's selected ones
Settings = dict[str, Any]


def named(settings: Mapping[str, Any]) -> str:
    """Settings in one line.

    >>> named({"lr": 0.001, "weight_decay": 0.0})
    'lr=0.001, weight_decay=0'
    """
    return ", ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in settings.items()
    )


def rule(method: str) -> str:
    """What the paper selects a method by: validation WGA if it is told the groups, else accuracy."""
    return "wga" if is_told_groups(method) else "accuracy"


def is_told_groups(method: str) -> bool:
    """Whether a method sees groups of training or validation samples; of one that is not loaded, no."""
    return bool(plugins.groups_needed(method_module(method)))


def grid_of(task: str, method: str) -> dict[str, list[Any]] | None:
    """The search space of a method on a task, given as its spec; None where nobody here knows it."""
    override = getattr(task_module(task), "GRIDS", {}).get(method)
    own = getattr(method_module(method), "GRID", None)
    return own if override is None else override


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """Every point of a grid, the last key changing fastest.

    >>> combinations({"q": [0.1, 0.5]})
    [{'q': 0.1}, {'q': 0.5}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def task_recipe(spec: str) -> Recipe | None:
    """The task's own recipe, the paper's; None for a task that is not here."""
    return getattr(task_module(spec), "RECIPE", None)


def task_module(spec: str) -> ModuleType | None:
    """The task's module, if it is one of ours or is already loaded."""
    return _module(parse(spec)[0], "tasks", "load")


def parse(spec: str) -> tuple[str, dict[str, str]]:
    """A task's name and options as a record gives them; what cannot be read is all name.

    >>> parse("even_odd:p=0.9"), parse("own: task")
    (('even_odd', {'p': '0.9'}), ('own: task', {}))
    """
    try:
        return tasks.parse(spec)
    except ValueError:
        return spec, {}


def method_module(name: str) -> ModuleType | None:
    """The method's module, if it is one of ours or is already loaded."""
    return _module(name, "methods", "train")


def _module(name: str, package: str, function: str) -> ModuleType | None:
    """A plug-in named by a record. Records may be anybody's: a dotted path is never imported for one."""
    if "." in name:
        return sys.modules.get(name)
    return _ours(name, f"evenhand.{package}", function)


@functools.cache  # asked for every record of a bench
def _ours(name: str, package: str, function: str) -> ModuleType | None:
    known = name in plugins.describe(package, function)
    return plugins.load(package, name, function) if known else None
