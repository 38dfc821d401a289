"""How to do a run again: the exact command, from what its record says."""

from __future__ import annotations

import shlex
from typing import Any

from evenhand.training.data import Task
from evenhand.training.record import Record


def command(record: Record, task: Task | None) -> str:
    """The command line that makes this run again, or the Python call where no task name leads back to it."""
    config = record.config
    settings = {**_recipe(record, task), **config.get("hyperparameters", {})}
    if not config.get("spec"):
        given = ", ".join(f"{name!r}: {value!r}" for name, value in settings.items())
        return f"execute(task, {config['method']!r}, {{{given}}}, seed={record.seed})"
    words = ["evenhand", "run", str(config["spec"]), str(config["method"])]
    words += [f"{name}={_written(value)}" for name, value in settings.items()]
    words += ["--seed", str(record.seed), "--device", _device(record)]
    return shlex.join(words)


def _recipe(record: Record, task: Task | None) -> dict[str, Any]:
    """The fields of the recipe that must be named to get it again.

    With the task at hand those that differ from its own recipe; without it all of them, because nobody
    can say which ones the task sets by itself.
    """
    full = dict(record.config.get("full_recipe") or record.config.get("recipe", {}))
    if record.older:
        full.pop("compile", None)
    if _device(record) == "cpu" and full.get("precision") == "fp32":
        full.pop("precision")  # what `auto` gives there
    if task is None:
        return full
    return {name: value for name, value in full.items() if getattr(task.recipe, name, None) != value}


def _device(record: Record) -> str:
    if not record.older:
        return str(record.made_with["device"])
    return "cpu" if record.config.get("versions", {}).get("device", "cpu") == "cpu" else "cuda"


def _written(value: Any) -> str:
    """A value as the command line reads it back."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)
