"""Commands that repeat a run or make missing runs, reconstructed from records."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenhand import tasks
from evenhand.bench import results
from evenhand.bench.results import Frame
from evenhand.training.record import Record

if TYPE_CHECKING:
    from evenhand.training.data import Task


def run_command(record: Record, task: Task | None) -> str:
    """Return the command that repeats this run, or a Python call if its task has no name."""
    config = record.config
    settings = {**_recipe(record, task), **config.get("hyperparameters", {})}
    if not config.get("spec"):
        given = ", ".join(f"{name!r}: {value!r}" for name, value in settings.items())
        return f"execute(task, {config['method']!r}, {{{given}}}, seed={record.seed})"
    words = ["evenhand", "run", str(config["spec"]), str(config["method"])]
    words += [f"{name}={_text(value)}" for name, value in settings.items()]
    return shlex.join([*words, "--seed", str(record.seed), "--device", _device(record)])


def bench_command(rows: Frame, methods: Sequence[str]) -> str:
    """Return the bench command that makes the missing runs of these methods."""
    spec, alike = str(rows.spec.iloc[0]), rows[rows.alike]
    words = ["evenhand", "bench", spec, "--methods", ",".join(methods)]
    words += ["--seeds", ",".join(map(str, results.seeds(rows)))]
    for name, value in results.recipe_changes(alike.recipe.iloc[0], spec).items():
        words += ["--epochs", _text(value)] if name == "epochs" else ["--set", f"{name}={_text(value)}"]
    first = alike.record.iloc[0]
    if not first.older:  # runs with another arithmetic would not be comparable
        compiled = str(first.config.get("full_recipe", {}).get("compile", "auto"))
        words += ["--set", f"compile={compiled}"] if compiled != "auto" else []
        words += ["--device", _device(first)]
    runs = first.path.parents[2]
    words += ["--runs", str(runs)] if runs != Path("runs") and not is_packed(runs) else []
    return shlex.join(words)


def is_packed(runs: Path) -> bool:
    """Return whether runs lie in the cache of packed records, from which no bench can continue."""
    return runs.absolute().is_relative_to(tasks.cache_root().absolute())


def _recipe(record: Record, task: Task | None) -> dict[str, Any]:
    """Return the recipe fields that the command must name.

    These are the fields that differ from the task's recipe, or all of them if the task is not available.
    """
    full = dict(record.config.get("full_recipe") or record.config.get("recipe", {}))
    if record.older:
        full.pop("compile", None)
    if _device(record) == "cpu" and full.get("precision") == "fp32":
        full.pop("precision")  # the value of `auto` there
    if task is None:
        return full
    return {name: value for name, value in full.items() if getattr(task.recipe, name, None) != value}


def _device(record: Record) -> str:
    if not record.older:
        return str(record.made_with["device"])
    return "cpu" if record.config.get("versions", {}).get("device", "cpu") == "cpu" else "cuda"


def _text(value: Any) -> str:
    """Return a value as the command line parses it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
