"""Grid: the values that are searched, and the runs that a bench or a figure needs. Imports no torch.

A bench has two waves. Methods whose grid has no learning rate and no weight decay inherit the values
selected for ERM, so their runs are planned once all ERM runs have ended.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenhand import tasks
from evenhand.training import plugins
from evenhand.training.plugins import Declared
from evenhand.training.recipe import Recipe

PAIR = ("lr", "weight_decay")  # a method whose grid lacks them inherits the values selected for ERM
SPLITS = ("train", "val")  # whose groups a method may see
# The paper's methods, in the order in which their runs start. TAB follows ERM and G-DRO because it completes
# the training that it shares with JTT and MaskTune. LfF shares no training and so waits for none. MaskTune
# is last because short runs let all workers end at about the same time.
PAPER = ("erm", "gdro", "tab", "lff", "jtt", "masktune")
Settings = dict[str, Any]


def named(settings: Mapping[str, Any]) -> str:
    """Format settings on one line.

    >>> named({"lr": 0.001, "weight_decay": 0.0})
    'lr=0.001, weight_decay=0'
    """
    return ", ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in settings.items()
    )


def rule(method: str) -> str:
    """Return the paper's selection criterion: validation WGA for methods that read groups, else accuracy."""
    return "wga" if reads_groups(method) else "accuracy"


def reads_groups(method: str) -> bool:
    """Return whether a method reads groups of training or validation samples; False if it is not loaded."""
    found = method_file(method)
    return bool(found and plugins.groups_needed(found.constants))


@functools.cache
def title(method: str) -> str:
    """Return a method's display name from its file: `tab` is TAB. A user's method keeps its module name.

    >>> title("erm"), title("mine.method")
    ('ERM', 'mine.method')
    """
    line = plugins.describe("evenhand.methods", "train").get(method, "")
    found = re.split(r"[:,(]", line)[0].strip()
    return found if found and len(found) <= 20 else method


def grid_of(task: str, method: str) -> dict[str, list[Any]] | None:
    """Return the search space of a method on a task, which is given as its spec; None if unknown."""
    found, override = method_file(method), task_file(task)
    grids: dict[str, dict[str, list[Any]]] = getattr(override and override.constants, "GRIDS", {})
    own: dict[str, list[Any]] | None = getattr(found and found.constants, "GRID", None)
    return grids.get(method, own)


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """Return every point of a grid, the last key changing fastest.

    >>> combinations({"q": [0.1, 0.5]})
    [{'q': 0.1}, {'q': 0.5}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def task_recipe(spec: str) -> Recipe | None:
    """Return the task's default recipe, which is the paper's; None for an unknown task."""
    found = task_file(spec)
    recipe: Recipe | None = getattr(found and found.constants, "RECIPE", None)
    return recipe


def parse(spec: str) -> tuple[str, dict[str, str]]:
    """Return a task's name and options from the spec in a record; an invalid spec is all name.

    >>> parse("even_odd:p=0.9"), parse("own: task")
    (('even_odd', {'p': '0.9'}), ('own: task', {}))
    """
    try:
        return tasks.parse(spec)
    except ValueError:
        return spec, {}


def task_file(spec: str) -> Declared | None:
    """Return what the task's file declares; None unless the task is built in or already loaded."""
    return plugins.known("evenhand.tasks", parse(spec)[0], "load")


def method_file(name: str) -> Declared | None:
    """Return what the method's file declares; None unless the method is built in or already loaded."""
    return plugins.known("evenhand.methods", name, "train")


def declared_method(name: str) -> Declared:
    """Return what a method's file declares. It imports users' modules; unknown names raise ValueError."""
    return _declared("evenhand.methods", name, "train")


def declared_task(spec: str) -> Declared:
    """Return what a task's file declares. It imports users' modules; unknown names raise ValueError."""
    return _declared("evenhand.tasks", tasks.parse(spec)[0], "load")


def _declared(package: str, name: str, function: str) -> Declared:
    found = plugins.known(package, name, function)
    if found is None:
        plugins.load(package, name, function)
        found = plugins.known(package, name, function)
    assert found is not None
    return found


# -- the runs of a bench -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """One requested run: `settings` of its candidate and `changes` to the task's recipe.

    >>> Planned("even_odd:p=0.95", "jtt", {"upweight": 10}, seed=1, changes={"epochs": 50}).words()
    'even_odd:p=0.95 jtt upweight=10 seed 1'
    """

    spec: str  # the task, as `tasks.load` takes it
    method: str
    settings: Settings = field(default_factory=dict)
    seed: int = 0
    changes: Settings = field(default_factory=dict)

    def words(self) -> str:
        """Return the run's name in messages."""
        return " ".join(filter(None, [self.spec, self.method, named(self.settings), f"seed {self.seed}"]))


@dataclass(frozen=True)
class Waves:
    """The runs of one task: those that can start, and the methods that wait for ERM's selection."""

    spec: str
    seeds: tuple[int, ...]
    changes: Settings
    first: list[Planned]
    methods: list[str]  # of the second wave, with their given settings
    notes: list[str]  # what is planned beyond the request, or not planned, and why

    def second(self, pair: Settings) -> list[Planned]:
        """Return the runs of the second wave, with the learning rate and weight decay selected for ERM."""
        return product(self.spec, self.methods, self.seeds, {**self.changes, **pair})


def waves(
    spec: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    changes: Settings,
    grouped: Container[str] = SPLITS,
) -> Waves:
    """Divide the runs of a task: methods that search learning rate or weight decay start, others inherit.

    `grouped`: which of the splits "train" and "val" have known groups.
    """
    first, second, notes = [], [], []
    for text in sorted(dict.fromkeys(methods), key=_rank):
        method = parse_method(text)[0]
        if any(split not in grouped for split in plugins.groups_needed(declared_method(method).constants)):
            notes.append(f"{spec} has no groups, so {method}, which needs them, is not planned")
        elif method == "erm" or set(PAIR) & part_of_grid(spec, text).keys():
            first.append(text)
        else:
            second.append(text)
    if second and not any(parse_method(text)[0] == "erm" for text in first):
        first.insert(0, "erm")
        notes.append(f"{spec}: {', '.join(second)} inherit from erm, so its grid is planned too")
    for text in [*first, *second]:
        for key in changes.keys() & part_of_grid(spec, text).keys():
            method = parse_method(text)[0]
            raise ValueError(
                f"{method}'s grid on {spec} has {key}, so {key}={changes[key]} would be ignored; "
                f"--methods {method}:{key}=VALUE searches a part of the grid, --no-search runs one setting "
                "(both without --figure)"
            )
    return Waves(spec, tuple(seeds), dict(changes), product(spec, first, seeds, changes), second, notes)


def product(
    spec: str, methods: Sequence[str], seeds: Sequence[int], changes: Settings | None = None
) -> list[Planned]:
    """Return every candidate of these methods with every seed; the seeds of one candidate are adjacent."""
    planned = [
        Planned(spec, parse_method(text)[0], settings, seed, dict(changes or {}))
        for text in methods
        for settings in sorted(combinations(part_of_grid(spec, text)), key=_length, reverse=True)
        for seed in seeds
    ]
    return list({one.words(): one for one in planned}.values())  # given parts of a grid may overlap


def fixed(
    spec: str, methods: Sequence[str], seeds: Sequence[int], changes: Settings | None = None
) -> list[Planned]:
    """Return every method once with every seed, with the task's default recipe: no search."""
    return [
        Planned(spec, name, settings, seed, dict(changes or {}))
        for name, settings in map(parse_method, methods)
        for seed in seeds
    ]


def part_of_grid(spec: str, text: str) -> dict[str, list[Any]]:
    """Return a method's grid on a task, restricted to the given settings.

    >>> part_of_grid("even_odd", "jtt:upweight=10")
    {'identifier_epochs': [1, 5, 10, 25, 50], 'upweight': [10]}
    """
    method, settings = parse_method(text)
    declared_task(spec), declared_method(method)  # imports a user's modules
    whole = grid_of(spec, method) or {}
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


def parse_method(text: str) -> tuple[str, Settings]:
    """Split a method from its settings.

    >>> parse_method("tab:summary=loss,balanced_epochs=true")
    ('tab', {'summary': 'loss', 'balanced_epochs': True})
    """
    name, _, rest = text.partition(":")
    return name, plugins.parse_assignments(rest.split(",") if rest else [])


def split_methods(text: str) -> list[str]:
    """Split methods separated by commas, whose settings may be separated by commas too.

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


def _length(settings: Settings) -> float:
    """Return a relative run time. JTT's runs differ a hundredfold: early identifiers make many errors."""
    upweight = settings.get("upweight", 0)  # repetitions of each error
    return upweight / settings.get("identifier_epochs", 1) if isinstance(upweight, int) else 0


def _rank(text: str) -> tuple[bool, int]:
    """Return a sort key: PAPER's order, with other methods before those that share TAB's trainings."""
    method = parse_method(text)[0]
    return (method in PAPER[3:], PAPER.index(method) if method in PAPER else len(PAPER))


# -- the runs of a figure ----------------------------------------------------------------------------------


FIGURES = {
    "validation": "accuracy of aligned and conflicting validation samples by epoch (figure 2)",
    "selection": "WGA of every candidate, with its rank by validation accuracy (figure 3)",
    "training": "loss and remaining errors by epoch, and the composition of the clusters (figure 4)",
    "correlation": "accuracy and WGA against the strength p of the correlation (figure 5, left)",
    "cost": "time of the longest run and of the entire search (figure 5, right)",
    "eta": "TAB with and without transformed copies (appendix H)",
    "minibatch": "TAB with mini-batch k-means (appendix I)",
}
STRENGTHS = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995)  # p of the sweeps
DYNAMICS: Settings = {"epochs": 50, "patience": 1000}  # figures 2 and 4 do not stop early
LEARNED = ("validation", "training")  # figures that show how conflicting samples are learned
SWEPT = {
    "correlation": ("erm", "tab", "eta_tab", "minibatch_tab"),
    "eta": ("erm", "erm_randaug", "tab", "eta_tab"),
    "minibatch": ("erm", "tab", "minibatch_tab"),
}
SEARCHED = {  # the methods whose entire grids a figure shows
    "selection": ("erm", "tab", "masktune", "lff", "jtt"),
    "cost": ("erm", "gdro", "lff", "jtt", "masktune", "tab"),
}


def check_figure(name: str) -> None:
    """Raise ValueError for an unknown figure."""
    if name not in FIGURES:
        raise ValueError(f"there is no figure {name!r}; there are {', '.join(FIGURES)}")


def runs_of_figure(name: str, task: str, seeds: Sequence[int] = (0, 1, 2)) -> list[Planned]:
    """Return the runs that a figure of a task needs; empty for a figure of entire searches."""
    check_figure(name)
    if name in SEARCHED:
        return []
    if name in LEARNED:
        methods = ("erm",) if name == "validation" else ("erm", "tab")
        return fixed(task, methods, seeds, DYNAMICS)
    return [one for spec in swept(task) for one in fixed(spec, SWEPT[name], seeds)]


def nothing_conflicts(name: str, task: str) -> ValueError:
    """Return the error for a task that has no bias-conflicting samples for this figure."""
    return ValueError(
        f"the figure {name!r} needs bias-conflicting samples, but {task} does not mark any; "
        "use a task that does, such as digits_even_odd"
    )


def swept(task: str) -> list[str]:
    """Return the task at every strength of its correlation.

    >>> swept("cmnist:palette=hues")[0]
    'cmnist:palette=hues,p=0.5'
    """
    name, options = tasks.parse(task)
    default = _default_strength(name)
    if default is None:
        raise ValueError(f"{task} has no strength p to vary; use even_odd, cmnist, digits_even_odd or digits")
    options.pop("p", None)
    specs = []
    for p in STRENGTHS:
        given = options if p == default else {**options, "p": f"{p:g}"}
        text = ",".join(f"{key}={value}" for key, value in given.items())
        specs.append(f"{name}:{text}" if text else name)
    return specs


def base(spec: str) -> tuple[tuple[str, frozenset[tuple[str, str]]], float | None]:
    """Return a task without its p, which runs of one sweep have in common, and its p."""
    name, options = parse(spec)
    options = dict(options)
    p = options.pop("p", _default_strength(name))
    return (name, frozenset(options.items())), None if p is None else float(p)


def _default_strength(name: str) -> Any:
    found = task_file(name)
    return found.options.get("p") if found is not None else None
