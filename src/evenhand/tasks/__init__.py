"""Tasks: every module of this package with a `load` function is one, and its name is the module's.

A task is written `name` or `name:key=value,…`, such as `even_odd:p=0.95` or `celeba:fraction=0.15,size=96`;
the options are the keyword-only arguments of its `load`. A name with a dot, `package.module`, is a task of
your own: any importable module with a `load(root, *, …) -> Task`. Every task takes `limit=n`: at most n
samples of each split.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from evenhand.training import journal, plugins

if TYPE_CHECKING:
    from evenhand.tasks.samples import Samples
    from evenhand.training.data import Task

__all__ = ["cache_root", "data_root", "describe", "listing", "load", "module", "names"]


def names() -> list[str]:
    """The tasks that come with evenhand."""
    return list(describe())


def describe() -> dict[str, str]:
    """Every task's name and what it is, read without importing anything."""
    return plugins.describe(__name__, "load")


def module(name: str) -> types.ModuleType:
    """The module of a task: one of ours by name, or a user's own by its dotted path."""
    return plugins.load(__name__, name, "load")


def load(spec: str, root: Path | str | None = None, limit: int | None = None) -> Task:
    """The task that `spec` names, with its options applied.

    `root` is the folder that holds the datasets; without it `$EVENHAND_DATA`, then the user's data folder.

    >>> load("digits_even_odd:p=0.9").name
    'digits_even_odd-p0.9'
    """
    from evenhand.tasks.samples import limited

    name, given = parse(spec)
    task_module = module(name)
    limit = _converted(name, "limit", given.pop("limit"), int) if "limit" in given else limit
    known = _options(task_module.load)
    for key in given:
        if key not in known:
            options = ", ".join([*known, "limit"])
            raise ValueError(f"task {name!r} has no option {key!r}; it has {options}")
    values = {key: _converted(name, key, text, known[key][1]) for key, text in given.items()}
    changed = {key: values[key] for key in known if key in values and values[key] != known[key][0]}
    task: Task = task_module.load(None if root is None else Path(root), **values)
    if limit is not None:
        task = limited(task, limit)
        changed["limit"] = limit
    sizes = [len(split) for split in (task.train, task.val, task.test)]
    journal.detail("loaded %s: %d, %d and %d samples, checksum %s", spec, *sizes, task.checksum)
    return dataclasses.replace(task, name=_folder(name, changed), spec=_spec(name, changed))


def listing(spec: str, root: Path | str | None = None) -> Samples | None:
    """What a task's lists say of its samples, none of which is opened; None where there are no such lists."""
    name, given = parse(spec)
    function = getattr(module(name), "listing", None)
    if function is None or "." in name or "limit" in given:
        return None
    known = _options(function)
    values = {key: _converted(name, key, text, known[key][1]) for key, text in given.items() if key in known}
    found: Samples = function(None if root is None else Path(root), **values)
    return found


def data_root(root: Path | str | None = None) -> Path:
    """The folder of the datasets: the argument, else `$EVENHAND_DATA`, else the user's data folder."""
    if root is None:
        root = os.environ.get("EVENHAND_DATA") or platformdirs.user_data_dir("evenhand")
    return Path(root).expanduser()


def cache_root() -> Path:
    """The folder of unpacked and decoded images: `$EVENHAND_CACHE`, else the user's cache folder."""
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


def _options(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """The keyword-only arguments of a task's function: name -> (default, type)."""
    hints = typing.get_type_hints(function)
    return {
        key: (parameter.default, hints.get(key, type(parameter.default)))
        for key, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def _converted(task: str, key: str, text: str, kind: Any) -> Any:
    """The option's text as a value of its argument's type."""
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


def _folder(name: str, changed: Mapping[str, Any]) -> str:
    """What the run folder is called: the name and the options that differ from the defaults."""
    return re.sub(r"[^\w.-]+", "_", "-".join([name, *(f"{key}{value}" for key, value in changed.items())]))


def _spec(name: str, changed: Mapping[str, Any]) -> str:
    options = ",".join(f"{key}={value}" for key, value in changed.items())
    return f"{name}:{options}" if options else name
