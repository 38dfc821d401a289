"""Commands that repeat a run, or make the runs that are missing, from what records say."""

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
    """The command line that makes this run again, or the Python call where no task name leads back to it."""
    config = record.config
    settings = {**_recipe(record, task), **config.get("hyperparameters", {})}
    if not config.get("spec"):
        given = ", ".join(f"{name!r}: {value!r}" for name, value in settings.items())
        return f"execute(task, {config['method']!r}, {{{given}}}, seed={record.seed})"
    words = ["evenhand", "run", str(config["spec"]), str(config["method"])]
    words += [f"{name}={_written(value)}" for name, value in settings.items()]
    return shlex.join([*words, "--seed", str(record.seed), "--device", _device(record)])


def bench_command(rows: Frame, methods: Sequence[str]) -> str:
    """The bench command that makes what is missing of these methods."""
    spec, alike = str(rows.spec.iloc[0]), rows[rows.alike]
    words = ["evenhand", "bench", spec, "--methods", ",".join(methods)]
    words += ["--seeds", ",".join(map(str, results.seeds(rows)))]
    for name, value in results.recipe_changes(alike.recipe.iloc[0], spec).items():
        words += ["--epochs", _written(value)] if name == "epochs" else ["--set", f"{name}={_written(value)}"]
    first = alike.record.iloc[0]
    if not first.older:  # what is computed otherwise would not count beside these
        compiled = str(first.config.get("full_recipe", {}).get("compile", "auto"))
        words += ["--set", f"compile={compiled}"] if compiled != "auto" else []
        words += ["--device", _device(first)]
    runs = first.path.parents[2]
    words += ["--runs", str(runs)] if runs != Path("runs") and not is_packed(runs) else []
    return shlex.join(words)


def is_packed(runs: Path) -> bool:
    """Whether runs lie in the cache, where packed ones are read and from where no bench goes on."""
    return runs.absolute().is_relative_to(tasks.cache_root().absolute())


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
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
