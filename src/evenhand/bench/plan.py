"""What a bench runs: the grid of every method times the seeds, in two waves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from evenhand import tasks
from evenhand.training import plugins

if TYPE_CHECKING:
    from evenhand.training.data import Task

PAPER = ("erm", "gdro", "tab", "lff", "jtt", "masktune")  # in the order in which their runs begin


@dataclass(frozen=True)
class Planned:
    """One run that is wanted; `settings` are the candidate's, `changes` those of the task's recipe.

    >>> Planned("even_odd:p=0.95", "jtt", {"upweight": 10}, seed=1, changes={"epochs": 50}).words()
    'even_odd:p=0.95 jtt upweight=10 seed 1'
    """

    spec: str  # the task, as `tasks.load` takes it
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    changes: dict[str, Any] = field(default_factory=dict)

    def words(self) -> str:
        """How a person names the run."""
        values = [f"{name}={value}" for name, value in self.settings.items()]
        return " ".join([self.spec, self.method, *values, f"seed {self.seed}"])

    def as_json(self) -> dict[str, Any]:
        """Plain values, from which `Planned(**values)` is the same run again."""
        return asdict(self)


def locate(planned: Planned, task: Task, runs: Path, device: str = "auto") -> Path:
    """The folder in which `execute` keeps this run."""
    from evenhand.training.data import checksum
    from evenhand.training.execute import resolve_device, resolve_precision, sort_settings
    from evenhand.training.record import key_of

    module = method_module(planned.method)
    settings, changes = sort_settings(planned.method, module, planned.settings)
    recipe = task.recipe.replace(**planned.changes).replace(**changes)
    recipe = resolve_precision(recipe, resolve_device(device))
    identity = {
        "task": task.name,
        "data": task.checksum,
        "method": planned.method,
        "hyperparameters": settings,
        "recipe": recipe.changed(),
    }
    sources = plugins.source(planned.method) + plugins.source(recipe.model)
    if sources:
        identity["source"] = checksum(sources)
    return runs / task.name / planned.method / f"{key_of(identity)}-s{planned.seed}"


def method_module(method: str) -> ModuleType:
    """The module of a method, ours or a user's own."""
    return plugins.load("evenhand.methods", method, "train")


def grid(spec: str, method: str) -> dict[str, list[Any]]:
    """The values that a method's search tries on a task: the task's own grid, or else the method's."""
    own: dict[str, list[Any]] = getattr(method_module(method), "GRID", {})
    name, _ = tasks.parse(spec)
    found: dict[str, list[Any]] = getattr(tasks.module(name), "GRIDS", {}).get(method, own)
    return found


def points(values: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Every combination of a grid's values; an empty grid has one, without settings.

    >>> points({"lr": [1e-3], "weight_decay": [0.0, 1.0]})
    [{'lr': 0.001, 'weight_decay': 0.0}, {'lr': 0.001, 'weight_decay': 1.0}]
    """
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


def inherits(spec: str, method: str) -> bool:
    """Whether a method trains with ERM's selected learning rate and weight decay, as it searches neither."""
    return not {"lr", "weight_decay"} & grid(spec, method).keys()


def product(
    spec: str, methods: Sequence[str], seeds: Sequence[int], changes: dict[str, Any] | None = None
) -> list[Planned]:
    """Every candidate of these methods with every seed; the seeds of one candidate stand together."""
    return [
        Planned(spec, method, settings, seed, dict(changes or {}))
        for method in methods
        for settings in points(grid(spec, method))
        for seed in seeds
    ]
