"""What is searched over: the grids of methods and tasks, and points of them as a reader sees them."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from evenhand import tasks
from evenhand.training import plugins
from evenhand.training.plugins import Declared
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
    found = method_file(method)
    return bool(found and plugins.groups_needed(found.constants))


@functools.cache
def title(method: str) -> str:
    """A method's name as its own file writes it: `tab` is TAB, `gdro` G-DRO; a user's own keeps its name.

    >>> title("erm"), title("mine.method")
    ('ERM', 'mine.method')
    """
    line = plugins.describe("evenhand.methods", "train").get(method, "")
    found = re.split(r"[:,(]", line)[0].strip()
    return found if found and len(found) <= 20 else method


def grid_of(task: str, method: str) -> dict[str, list[Any]] | None:
    """The search space of a method on a task, given as its spec; None where nobody here knows it."""
    found, override = method_file(method), task_file(task)
    grids: dict[str, dict[str, list[Any]]] = getattr(override and override.constants, "GRIDS", {})
    own: dict[str, list[Any]] | None = getattr(found and found.constants, "GRID", None)
    return grids.get(method, own)


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """Every point of a grid, the last key changing fastest.

    >>> combinations({"q": [0.1, 0.5]})
    [{'q': 0.1}, {'q': 0.5}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def task_recipe(spec: str) -> Recipe | None:
    """The task's own recipe, the paper's; None for a task that is not here."""
    found = task_file(spec)
    recipe: Recipe | None = getattr(found and found.constants, "RECIPE", None)
    return recipe


def parse(spec: str) -> tuple[str, dict[str, str]]:
    """A task's name and options as a record gives them; what cannot be read is all name.

    >>> parse("even_odd:p=0.9"), parse("own: task")
    (('even_odd', {'p': '0.9'}), ('own: task', {}))
    """
    try:
        return tasks.parse(spec)
    except ValueError:
        return spec, {}


def task_file(spec: str) -> Declared | None:
    """What the task's file declares, if it is one of ours or is already loaded."""
    return plugins.known("evenhand.tasks", parse(spec)[0], "load")


def method_file(name: str) -> Declared | None:
    """What the method's file declares, if it is one of ours or is already loaded."""
    return plugins.known("evenhand.methods", name, "train")
