"""What figures need to be run: `needs` lists runs, `searches` the methods whose grids they show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evenhand import tasks
from evenhand.bench.grid import parse, task_file
from evenhand.bench.plan import Planned

FIGURES = {
    "validation": "accuracy of aligned and conflicting validation samples by epoch (figure 2)",
    "selection": "WGA of every hyperparameterisation, with its rank by validation accuracy (figure 3)",
    "training": "loss by epoch, errors that remain, and what the clusters hold (figure 4)",
    "correlation": "accuracy and WGA against the strength p of the correlation (figure 5, left)",
    "cost": "time of the longest run and of the whole search (figure 5, right)",
    "eta": "TAB with and without transformed copies (appendix H)",
    "minibatch": "TAB with mini-batch k-means (appendix I)",
}
STRENGTHS = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995)  # p of the sweeps
DYNAMICS: dict[str, Any] = {"epochs": 50, "patience": 1000}  # figures 2 and 4 do not stop early
LEARNED = ("validation", "training")  # figures of how conflicting samples are learned
SWEPT = {
    "correlation": ("erm", "tab", "eta_tab", "minibatch_tab"),
    "eta": ("erm", "erm_randaug", "tab", "eta_tab"),
    "minibatch": ("erm", "tab", "minibatch_tab"),
}
SEARCHED = {
    "selection": ("erm", "tab", "masktune", "lff", "jtt"),
    "cost": ("erm", "gdro", "lff", "jtt", "masktune", "tab"),
}


def check(name: str) -> None:
    """Refuse a figure that does not exist."""
    if name not in FIGURES:
        raise ValueError(f"there is no figure {name!r}; there are {', '.join(FIGURES)}")


def needs(name: str, task: str, seeds: Sequence[int] = (0, 1, 2)) -> list[Planned]:
    """The runs that a figure of a task is drawn from; none where it shows whole searches instead."""
    check(name)
    if name in SEARCHED:
        return []
    if name in LEARNED:
        methods = ("erm",) if name == "validation" else ("erm", "tab")
        return [Planned(task, method, {}, seed, dict(DYNAMICS)) for method in methods for seed in seeds]
    return [
        Planned(spec, method, {}, seed) for spec in swept(task) for method in SWEPT[name] for seed in seeds
    ]


def nothing_conflicts(name: str, task: str) -> ValueError:
    """That a figure cannot be drawn of this task, whatever is run."""
    return ValueError(
        f"the figure {name!r} shows samples that break a shortcut, and {task} does not say which do; "
        "use a task that does, such as digits_even_odd"
    )


def searches(name: str) -> tuple[str, ...]:
    """The methods whose whole grids a figure shows; empty for figures of single runs."""
    check(name)
    return SEARCHED.get(name, ())


def swept(task: str) -> list[str]:
    """The task with every strength of its correlation.

    >>> swept("cmnist:palette=hues")[0]
    'cmnist:palette=hues,p=0.5'
    """
    name, options = tasks.parse(task)
    found = task_file(name)
    default = found.options.get("p") if found is not None else None
    if default is None:
        raise ValueError(f"{task} has no strength p to vary; use even_odd, cmnist, digits_even_odd or digits")
    specs = []
    for p in STRENGTHS:
        given = {**options, **({} if p == default else {"p": f"{p:g}"})}
        if p == default:
            given.pop("p", None)
        text = ",".join(f"{key}={value}" for key, value in given.items())
        specs.append(f"{name}:{text}" if text else name)
    return specs


def base(spec: str) -> tuple[tuple[str, frozenset[tuple[str, str]]], float | None]:
    """A task without its p, and its p: what runs of one sweep have in common, and what sets them apart."""
    name, options = parse(spec)
    found = task_file(name)
    default = found.options.get("p") if found is not None else None
    options = dict(options)
    p = options.pop("p", None)
    strength = float(p) if p is not None else None if default is None else float(default)
    return (name, frozenset(options.items())), strength
