"""Tasks: every module of this package with a `load` function is one, and its name is the module's.

A task is written `name` or `name:key=value,…`, such as `even_odd:p=0.95` or `celeba:fraction=0.15,size=96`;
the options are the keyword-only arguments of its `load`. A name with a dot, `package.module`, is a task of
your own: any importable module with a `load(root, *, …) -> Task`. Every task takes `limit=n`: at most n
samples of each split.
"""

from __future__ import annotations

import dataclasses
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from evenhand.training import log, plugins

if TYPE_CHECKING:
    from evenhand.tasks.samples import Samples
    from evenhand.training.data import Task

__all__ = ["cache_root", "data_root", "describe", "listing", "load", "module", "names"]


def names() -> list[str]:
    """Return the names of the tasks that come with evenhand."""
    return list(describe())


def describe() -> dict[str, str]:
    """Return every task's name and description, without importing any task."""
    return plugins.describe(__name__, "load")


def module(name: str) -> types.ModuleType:
    """Return the module of a task, given by its name or by the dotted path of a user's own module."""
    return plugins.load(__name__, name, "load")


def load(spec: str, root: Path | str | None = None, limit: int | None = None) -> Task:
    """Load the task that `spec` names, with its options applied.

    `root` is the folder that holds the datasets; without it `$EVENHAND_DATA`, then the user's data folder.

    >>> load("digits_even_odd:p=0.9").name
    'digits_even_odd-p0.9'
    """
    from evenhand.training.data import limited

    name, given = parse(spec)
    task_module = module(name)
    limit = _converted(name, "limit", given.pop("limit"), int) if "limit" in given else limit
    known = plugins.keywords(task_module.load)
    for key in given:
        if key not in known:
            options = ", ".join([*known, "limit"])
            raise ValueError(f"task {name!r} has no option {key!r}; it has {options}")
    values = _values(name, task_module.load, given)
    changed = {key: value for key, value in values.items() if value != known[key]}
    task: Task = task_module.load(None if root is None else Path(root), **values)
    if limit is not None:
        task = limited(task, limit)
        changed["limit"] = limit
    sizes = [len(split) for split in (task.train, task.val, task.test)]
    log.detail("loaded %s: %d, %d and %d samples, checksum %s", spec, *sizes, task.checksum)
    # The run folder carries the options that differ from the defaults.
    folder = "-".join([name, *(f"{key}{value}" for key, value in changed.items())])
    options = ",".join(f"{key}={value}" for key, value in changed.items())
    spec = f"{name}:{options}" if options else name
    return dataclasses.replace(task, name=re.sub(r"[^\w.-]+", "_", folder), spec=spec)


def listing(spec: str, root: Path | str | None = None) -> Samples | None:
    """Return what a task's lists say about its samples, or None without lists. No sample is opened."""
    name, given = parse(spec)
    function = getattr(module(name), "listing", None)
    if function is None or "." in name or "limit" in given:
        return None
    found: Samples = function(None if root is None else Path(root), **_values(name, function, given))
    return found


def data_root(root: Path | str | None = None) -> Path:
    """Return the folder of the datasets: `root`, else `$EVENHAND_DATA`, else the user's data folder."""
    if root is None:
        root = os.environ.get("EVENHAND_DATA") or platformdirs.user_data_dir("evenhand")
    return Path(root).expanduser()


def cache_root() -> Path:
    """Return the folder of unpacked and decoded images: `$EVENHAND_CACHE`, else the user's cache folder."""
    return Path(os.environ.get("EVENHAND_CACHE") or platformdirs.user_cache_dir("evenhand")).expanduser()


def parse(spec: str) -> tuple[str, dict[str, str]]:
    """Split `name:key=value,…` into the name and its options.

    >>> parse("cmnist:p=0.98,palette=hues")
    ('cmnist', {'p': '0.98', 'palette': 'hues'})
    """
    name, _, rest = spec.partition(":")
    options: dict[str, str] = {}
    for item in rest.split(",") if rest else ():
        key, equals, value = item.partition("=")
        if not (key and equals and value):
            raise ValueError(f"a task is written name or name:key=value,…; cannot read {item!r} in {spec!r}")
        if key in options:
            raise ValueError(f"option {key!r} is given twice in {spec!r}")
        options[key] = value
    return name, options


def _values(task: str, function: Callable[..., Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Convert the options that the function takes to the types of its arguments."""
    hints = typing.get_type_hints(function)
    return {
        key: _converted(task, key, given[key], hints.get(key, type(default)))
        for key, default in plugins.keywords(function).items()
        if key in given
    }


def _converted(task: str, key: str, text: str, kind: Any) -> Any:
    """Convert the option's text to the type of its argument."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        if text in arguments:
            return text
        raise ValueError(f"{key} of task {task!r} must be one of {', '.join(arguments)}, got {text!r}")
    if arguments:  # `float | None`
        if text.lower() == "none" and type(None) in arguments:
            return None
        kind = next(argument for argument in arguments if argument is not type(None))
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ValueError(f"{key} of task {task!r} must be true or false, got {text!r}")
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{key} of task {task!r} must be of type {kind.__name__}, got {text!r}") from None
