"""What a bench runs: the grid of every method times the seeds, in two waves."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from evenhand import tasks
from evenhand.bench.grid import PAIR, combinations, grid_of, named
from evenhand.training import plugins

if TYPE_CHECKING:
    from evenhand.training.data import Task

# The paper's methods, in the order in which their runs begin. After ERM and G-DRO, TAB, because it brings the
# training that it shares with JTT and MaskTune to its end; then LfF, because it shares none and so waits for
# nobody; MaskTune last, because short runs even out when the workers end.
PAPER = ("erm", "gdro", "tab", "lff", "jtt", "masktune")


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
        return " ".join(filter(None, [self.spec, self.method, named(self.settings), f"seed {self.seed}"]))

    def as_json(self) -> dict[str, Any]:
        """Plain values, from which `Planned(**values)` is the same run again."""
        return asdict(self)


def locate(planned: Planned, task: Task, runs: Path, device: str = "auto") -> Path:
    """The folder in which `execute` keeps this run."""
    from evenhand.training.keys import identify
    from evenhand.training.sync import resolve_device

    recipe = task.recipe.replace(**planned.changes)
    identity = identify(task, planned.method, planned.settings, recipe, resolve_device(device))
    return identity.folder(runs, planned.seed)


@functools.cache
def method_module(method: str) -> ModuleType:
    """The module of a method, ours or a user's own."""
    return plugins.load("evenhand.methods", method, "train")


@functools.cache
def grid(spec: str, method: str) -> dict[str, list[Any]]:
    """The values that a method's search tries on a task: the task's own grid, or else the method's."""
    tasks.module(tasks.parse(spec)[0]), method_module(method)  # a user's own modules are loaded by this
    return grid_of(spec, method) or {}


def product(
    spec: str, methods: Sequence[str], seeds: Sequence[int], changes: dict[str, Any] | None = None
) -> list[Planned]:
    """Every candidate of these methods with every seed; the seeds of one candidate stand together."""
    planned = [
        Planned(spec, parse_method(text)[0], settings, seed, dict(changes or {}))
        for text in methods
        for settings in _longest_first(combinations(part_of_grid(spec, text)))
        for seed in seeds
    ]
    return list({one.words(): one for one in planned}.values())  # parts of a grid may overlap


def part_of_grid(spec: str, text: str) -> dict[str, list[Any]]:
    """A method's grid on a task, or the part of it that has the given settings.

    >>> part_of_grid("even_odd", "jtt:upweight=10")
    {'identifier_epochs': [1, 5, 10, 25, 50], 'upweight': [10]}
    """
    method, settings = parse_method(text)
    whole = grid(spec, method)
    part = dict(whole)
    for key, value in settings.items():
        part[key] = [one for one in whole.get(key, []) if one == value and not isinstance(value, bool)]
        if not part[key]:
            known = "; ".join(f"{name}: {', '.join(map(str, whole[name]))}" for name in whole) or "nothing"
            raise ValueError(
                f"{key}={value} is not in {method}'s grid on {spec}, which has {known}; "
                "for a setting outside the grid add --no-search"
            )
    return part


def fixed(
    spec: str, methods: Sequence[str], seeds: Sequence[int], changes: dict[str, Any] | None = None
) -> list[Planned]:
    """Every method once with every seed, at the task's own recipe: no search."""
    return [
        Planned(spec, name, settings, seed, dict(changes or {}))
        for name, settings in map(parse_method, methods)
        for seed in seeds
    ]


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
    """A method's name and settings.

    >>> parse_method("tab:summary=loss,balanced_epochs=true")
    ('tab', {'summary': 'loss', 'balanced_epochs': True})
    """
    name, _, rest = text.partition(":")
    return name, plugins.parse_assignments(rest.split(",") if rest else [])


def split_methods(text: str) -> list[str]:
    """Methods with commas between, which may have settings with commas between.

    >>> split_methods("erm,tab:summary=loss,balanced_epochs=true,jtt")
    ['erm', 'tab:summary=loss,balanced_epochs=true', 'jtt']
    """
    found: list[str] = []
    for part in filter(None, text.split(",")):
        if found and ":" in found[-1] and ":" not in part and "=" in part:
            found[-1] += f",{part}"
        else:
            found.append(part)
    if not found:
        raise ValueError(f"methods must be names with commas between, such as erm,tab, got {text!r}")
    return found


def _longest_first(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """JTT's runs differ a hundredfold: early errors are many, and each is repeated `upweight` times."""

    def size(values: dict[str, Any]) -> float:
        upweight = values.get("upweight", 0)
        return upweight / values.get("identifier_epochs", 1) if isinstance(upweight, int) else 0

    return sorted(settings, key=size, reverse=True)  # stable: all others keep the order of their grid


@dataclass(frozen=True)
class Waves:
    """A task's part of a bench: the runs that can begin, and the methods that wait for ERM's selection."""

    task: Task
    seeds: tuple[int, ...]
    changes: dict[str, Any]
    first: list[Planned]
    methods: list[str]  # of the second wave, with the settings that were given
    notes: list[str]  # what is not, or nevertheless, planned, and why

    def second(self, pair: dict[str, Any]) -> list[Planned]:
        """The runs of the second wave, with the learning rate and weight decay that were selected for ERM."""
        return product(self.task.spec, self.methods, self.seeds, {**self.changes, **pair})


def waves(task: Task, methods: Sequence[str], seeds: Sequence[int], changes: dict[str, Any]) -> Waves:
    """Divide a task's runs: methods that search learning rate or weight decay begin, others inherit ERM's."""
    first, second, notes = [], [], []
    for text in sorted(dict.fromkeys(methods), key=_rank):
        method = parse_method(text)[0]
        needed = plugins.groups_needed(method_module(method))
        if any(getattr(task, split).group is None for split in needed):
            notes.append(f"{task.spec} has no groups, which {method} needs: not planned")
        elif method == "erm" or set(PAIR) & part_of_grid(task.spec, text).keys():
            first.append(text)
        else:
            second.append(text)
    if second and not any(parse_method(text)[0] == "erm" for text in first):
        first.insert(0, "erm")
        notes.append(f"{task.spec}: {', '.join(second)} inherit from erm, so its grid is planned too")
    for text in [*first, *second]:
        for key in changes.keys() & part_of_grid(task.spec, text).keys():
            method = parse_method(text)[0]
            raise ValueError(
                f"{method}'s grid on {task.spec} has {key}, so {key}={changes[key]} would be ignored; "
                f"--methods {method}:{key}=VALUE searches a part of the grid, --no-search runs one setting "
                "(both without --figure)"
            )
    planned = product(task.spec, first, seeds, changes)
    return Waves(task, tuple(seeds), dict(changes), planned, second, notes)


def _rank(text: str) -> tuple[bool, int]:
    """The paper's methods in its order; before them what resembles TAB in having nothing to search."""
    method = parse_method(text)[0]
    return (method in PAPER[3:], PAPER.index(method) if method in PAPER else len(PAPER))
