"""Bench commands: run a comparison, and carry its records to other machines."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from evenhand.cli.common import (
    MOST_SEED,
    RESULTS,
    TRAIN,
    Data,
    Device,
    Epochs,
    Figure,
    Json,
    Limit,
    Quiet,
    Runs,
    Verbose,
    app,
    choices,
    print_table,
    say,
    show_table,
)

if TYPE_CHECKING:
    from evenhand.bench.grid import Planned, Waves
    from evenhand.bench.sweep import Agenda


@app.command(rich_help_panel=TRAIN)
def bench(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(metavar="TASK", help="Tasks, such as digits or even_odd:p=0.95."),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas. The paper's six if omitted. "
            "erm:lr=0.001 searches a part of ERM's grid."
        ),
    ] = None,
    no_search: Annotated[
        bool,
        typer.Option(
            "--no-search",
            help="Run each method once, with the task's recipe. --methods tab,tab:summary=loss sets values.",
        ),
    ] = False,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2",
    runs: Runs = Path("runs"),
    data: Data = None,
    jobs: Annotated[int, typer.Option(help="Concurrent runs. With Ray: per GPU.", min=1)] = 1,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Execute runs in local processes or with Ray.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="Address of a running Ray cluster. Starts a local one if omitted."),
    ] = None,
    device: Device = "auto",
    figure: Annotated[
        Figure | None,
        typer.Option(
            metavar="FIGURE",
            help=f"Run what a figure needs: {choices(Figure)}. The task is even_odd if omitted.",
        ),
    ] = None,
    task: Annotated[list[str] | None, typer.Option(metavar="TASK", help="Another way to give TASK.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and exit.")] = False,
    limit: Limit = None,
    epochs: Epochs = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Recipe field of all runs, such as model=mobilenet_v2. Repeatable.",
        ),
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Start no run after this many minutes.")] = None,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Search the grid of every method with every seed.

    Resumes if interrupted. Finished runs are not repeated. Exit code 1: some runs failed. Their folders
    contain failure.json, and the same command retries them.
    """
    from evenhand.bench.sweep import Agenda, Local, Ray, Sweep, launch, outline
    from evenhand.cli import progress
    from evenhand.training.plugins import parse_assignments
    from evenhand.training.store import check_folder

    if "RANK" in os.environ:  # this import loads torch, which a dry run avoids
        from evenhand.core import ranks

        if ranks.launched():
            raise ValueError("a bench starts its own processes, as many as --jobs; run it without torchrun")
    if address is not None and engine != "ray":
        raise ValueError("--address needs --engine ray; give both, or omit --address")
    if minutes is not None and not minutes >= 0:
        raise ValueError(f"--minutes must be 0 or more, got {minutes}")
    check_folder(runs, "--runs")
    changes = parse_assignments(settings or [])
    if "model" in changes:
        from evenhand.training import models

        models.check_name(str(changes["model"]))
    if epochs is not None:
        if "epochs" in changes:
            raise ValueError(
                f"--epochs {epochs} and --set epochs={changes['epochs']} set the same field; give only one"
            )
        changes["epochs"] = epochs
    specs = _tasks([*(tasks or []), *(task or [])], figure, limit)
    root = data and data.absolute()
    planned, waves = _plan(specs, root, methods, _seeds(seeds), figure, changes, no_search)
    end = math.inf if minutes is None else time.time() + 60 * minutes
    sweep = Sweep(runs.absolute(), root, device, planned, waves, end)
    if dry_run:
        _print_plan(outline(sweep), json_)
        return
    agenda = Agenda(sweep)
    workers = Local(jobs) if engine == "local" else Ray(jobs, device, address)
    with workers, contextlib.nullcontext() if quiet else progress.choose(jobs) as watcher:
        launch(agenda, workers, watcher)
    _print_results(agenda, no_search, data, json_)
    if left := agenda.left():
        say(f"evenhand: {left} runs are left; repeat the command to continue", err=True)
    for entry in agenda.failures():
        where = runs / entry.path.relative_to(agenda.sweep.runs) / "failure.json"
        say(f"evenhand: failed: {entry.planned.words()}: {entry.error} ({where})", err=True)
    if agenda.failures():
        raise typer.Exit(1)


def _plan(
    specs: list[str],
    data: Path | None,
    methods: str | None,
    seeds: list[int],
    figure: str | None,
    changes: dict[str, Any],
    no_search: bool,
) -> tuple[list[Planned], list[Waves]]:
    """Return the requested runs: every method's grid, single runs, or the runs of a figure."""
    from evenhand.bench import grid
    from evenhand.bench.sweep import facts, load

    names: Sequence[str] = grid.PAPER if methods is None else grid.split_methods(methods)
    planned: list[Planned] = []
    if figure is not None:
        if methods is not None or no_search:
            raise ValueError("--figure determines the runs; omit --methods and --no-search")
        for spec in specs:
            planned += grid.runs_of_figure(figure, spec, seeds)
            if figure in grid.LEARNED:
                from evenhand.training.execute import has_conflicts

                if not has_conflicts(load(spec, data)):
                    raise grid.nothing_conflicts(figure, spec)
        planned = [dataclasses.replace(one, changes={**one.changes, **changes}) for one in planned]
        names = grid.SEARCHED.get(figure, ())
    elif no_search:
        return [one for spec in specs for one in grid.fixed(spec, names, seeds, changes)], []
    known = [facts(spec, data) for spec in dict.fromkeys(specs)] if names else []
    return planned, [grid.waves(task.spec, names, seeds, changes, task.grouped) for task in known]


def _tasks(given: list[str], figure: str | None, limit: int | None) -> list[str]:
    if not given and figure is None:
        raise ValueError("give at least one task, such as: evenhand bench digits_even_odd digits")
    specs = given or ["even_odd"]
    return specs if limit is None else [f"{spec}{',' if ':' in spec else ':'}limit={limit}" for spec in specs]


def _seeds(text: str) -> list[int]:
    numbers = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) <= MOST_SEED for part in numbers):
        raise ValueError(
            f"--seeds must be integers below 2**32, separated by commas, such as 0,1,2, got {text!r}"
        )
    return list(dict.fromkeys(map(int, numbers)))


def _print_results(agenda: Agenda, no_search: bool, data: Path | None, json_: bool) -> None:
    from evenhand.bench.results import frame, summary

    runs = frame(agenda.records())
    rows = summary(runs)
    if json_:
        failed = [{"run": entry.planned.words(), "error": entry.error} for entry in agenda.failures()]
        content = {"results": rows, "failed": failed, "left": agenda.left(), "notes": agenda.notes}
        typer.echo(json.dumps(content, indent=1))
    elif no_search and len(runs):
        from evenhand.report import tables

        show_table(tables.make("compare", runs, root=data))
    else:
        cells = [
            (
                row["task"],
                row["method"],
                row["selected"] or "–",
                f"{100 * row['wga']:.1f} ± {100 * row['wga_deviation']:.1f}",
                str(row["seeds"]),
                "–" if row["pou"] is None else f"{row['pou']:.3f}",
                f"{100 * row['mms']:.1f}",
            )
            for row in rows
        ]
        words = ("task", "method", "selected")
        print_table("", (*words, "WGA", "seeds", "PoU", "MMS"), cells, words)


def _print_plan(agenda: Agenda, json_: bool) -> None:
    lines = estimates(agenda)
    if json_:
        plan = [{**line, "note": note} for line, note in lines]
        typer.echo(json.dumps({"plan": plan, "notes": agenda.notes}, indent=1))
        return
    words, numbers = ("task", "method"), ("candidates", "seeds", "runs", "done", "epochs")
    cells = [[line[name] for name in words] + [f"{line[name]:,}" for name in numbers] for line, _ in lines]
    totals = [f"{sum(line[name] for line, _ in lines):,}" for name in numbers[2:]]
    print_table("", (*words, *numbers[:-1], "epochs ≤"), [*cells, ["total", "", "", "", *totals]], words)
    say("An epoch is one pass over the task's training samples. Early stopping makes these upper bounds.")
    notes = [f"{line['method']}: {note}" for line, note in lines if note]
    if agenda.later:
        notes.append("the second wave depends on the selection of erm, so its finished runs are unknown")
    if any(line["done"] for line, _ in lines):
        notes.append(
            "done: finished runs with these settings; the bench also checks their data and arithmetic"
        )
    for note in dict.fromkeys([*notes, *agenda.notes]):
        say(f"- {note}")


def estimates(agenda: Agenda) -> list[tuple[dict[str, Any], str]]:
    """Return the plan of every task and method, with a note; epochs are upper bounds of unfinished runs."""
    from evenhand.bench.grid import declared_method
    from evenhand.bench.sweep import facts
    from evenhand.cli.progress import by_state

    lines = []
    planned = [entry.planned for entry in agenda.entries.values()] + agenda.expected()
    for (spec, method), counts in by_state(agenda).items():
        own = [one for one in planned if (one.spec, one.method) == (spec, method)]
        seeds = len({one.seed for one in own})
        recipe, left = facts(spec, agenda.sweep.data).recipe, counts.total() - counts["done"]
        epochs = max(recipe.replace(**one.changes).epochs for one in own)
        constants = declared_method(method).constants
        line = {
            "task": spec,
            "method": method,
            "candidates": len(own) // seeds,
            "seeds": seeds,
            "runs": len(own),
            "done": counts["done"],
            "epochs": round(left * epochs * getattr(constants, "COST", 1.0)),
        }
        lines.append((line, getattr(constants, "COST_NOTE", "")))
    return lines


@app.command(rich_help_panel=RESULTS)
def pack(
    runs: Runs = Path("runs"),
    out: Annotated[Path, typer.Option("--out", "-o", help=".zip file to write.")] = Path("records.zip"),
) -> None:
    """Pack the records of all finished runs into one file."""
    from evenhand.bench import pack as records

    if out.suffix != ".zip":  # `load` recognizes packed files by it
        raise ValueError(f"a packed file must end with .zip, got {str(out)!r}; try {out.with_suffix('.zip')}")
    found = records.load(runs)
    records.pack(found, out, failures=sorted(runs.glob("*/*/*/failure.json")))
    say(f"{len(found)} runs in {out}, {out.stat().st_size / 1e6:.1f} MB")


@app.command(rich_help_panel=RESULTS)
def unpack(
    file: Annotated[Path, typer.Argument(help="File written by `evenhand pack`.")],
    runs: Runs = Path("runs"),
) -> None:
    """Add packed runs to a runs folder.

    A bench with this folder continues from them.
    """
    from evenhand.bench import pack as records

    added, kept = records.unpack(file, runs)
    say(f"{added} runs added to {runs}, {kept} already there")
    if older := sum(record.older for record in records.load(file)):
        say(f"{older} of them are older records, which tables show but no bench continues")
