"""Bench commands: run a whole comparison, and carry its records from one machine to another."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenhand.cli.common import MOST_SEED, Data, Device, Json, Limit, Quiet, Runs, Verbose, app, console, say

if TYPE_CHECKING:
    from evenhand.bench.agenda import Agenda
    from evenhand.bench.work import Place


@app.command()
def bench(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TASK]...", help="Tasks, such as digits or even_odd:p=0.95."),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Which methods, with commas between; the paper's six if none is named. "
            "erm:lr=0.001 searches a part of its grid."
        ),
    ] = None,
    no_search: Annotated[
        bool,
        typer.Option(
            "--no-search",
            help="Each method once, at the task's own recipe; --methods tab,tab:summary=loss gives settings.",
        ),
    ] = False,
    seeds: Annotated[str, typer.Option(help="Which seeds, with commas between.")] = "0,1,2",
    runs: Runs = Path("runs"),
    data: Data = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time; under Ray: on each GPU.", min=1)] = 1,
    engine: Annotated[str, typer.Option(help="local processes, or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; one of its own if none.")] = None,
    device: Device = "auto",
    figure: Annotated[
        str | None, typer.Option(help="Run what this figure needs, on even_odd if no task is named.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="Another way to name a task.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    limit: Limit = None,
    epochs: Annotated[int | None, typer.Option(help="At most so many epochs a training.", min=1)] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A field of the recipe for all runs, such as model=mobilenet_v2.",
        ),
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Begin no run after so many minutes.")] = None,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Search every method's grid with every seed, and select fairly. Called again, it does what is missing.

    Exit code 1: some runs failed; their folders hold failure.json, and the same command tries them again.
    """
    from evenhand.bench import show, summary
    from evenhand.bench.launch import launch
    from evenhand.bench.work import Place
    from evenhand.core import ranks
    from evenhand.training import models
    from evenhand.training.plugins import parse_assignments
    from evenhand.training.store import check_folder

    if engine not in ("local", "ray"):
        raise ValueError(f"engine must be local or ray, got {engine!r}")
    if ranks.launched():
        raise ValueError("a bench starts its own processes, --jobs of them; run it without torchrun")
    if address is not None and engine != "ray":
        raise ValueError("--address is for --engine ray; give both, or leave it out")
    if minutes is not None and not minutes >= 0:
        raise ValueError(f"--minutes must be 0 or more, got {minutes}")
    check_folder(runs, "--runs")
    place = Place(runs.absolute(), data and data.absolute(), device)
    changes = parse_assignments(settings or [])
    if "model" in changes:
        models.check_name(str(changes["model"]))
    if epochs is not None:
        if "epochs" in changes:
            raise ValueError(f"--epochs {epochs} and --set epochs={changes['epochs']} say the same; give one")
        changes["epochs"] = epochs
    agenda = _agenda(
        place,
        _tasks([*(tasks or []), *(task or [])], figure, limit),
        methods,
        _seeds(seeds),
        figure,
        changes,
        no_search,
    )
    if dry_run:
        _print_plan(agenda, json_)
        return
    with _engine(engine, jobs, place, address) as started, show.choose(jobs, quiet) as watch:
        launch(agenda, started, watch, math.inf if minutes is None else minutes)
    records, failures = agenda.records(), agenda.failures()
    rows = summary.results(records) if records else []
    if json_:
        failed = [{"run": entry.planned.words(), "error": entry.error} for entry in failures]
        content = {"results": summary.as_json(rows), "failed": failed, "left": agenda.left()}
        typer.echo(json.dumps({**content, "notes": agenda.notes}, indent=1))
    elif no_search and records:
        from evenhand.report import formats, tables

        for part in formats.terminal(tables.make("compare", records, root=data)):
            _print_table(part)
    else:
        _print_table(summary.results_table(rows))
    _say_what_is_missing(agenda, runs)
    if failures:
        raise typer.Exit(1)


def _agenda(
    place: Place,
    tasks: list[str],
    methods: str | None,
    seeds: list[int],
    figure: str | None,
    changes: dict[str, Any],
    no_search: bool,
) -> Agenda:
    """What is asked for: every method's grid or single runs of it, or what a figure shows."""
    from evenhand.bench.agenda import Agenda
    from evenhand.bench.needs import LEARNED, needs, nothing_conflicts, searches
    from evenhand.bench.plan import PAPER, fixed, split_methods, waves
    from evenhand.bench.work import load
    from evenhand.training.evaluation import has_conflicts

    agenda = Agenda(place)
    names: Sequence[str] = PAPER if methods is None else split_methods(methods)
    if no_search and figure is None:
        agenda.add(one for task in tasks for one in fixed(task, names, seeds, changes))
        return agenda
    if figure is not None:
        if methods is not None or no_search:
            raise ValueError("--figure says what is run; leave --methods and --no-search out")
        planned = [one for task in tasks for one in needs(figure, task, seeds)]
        for spec in tasks if figure in LEARNED else ():
            if not has_conflicts(load(spec, place.data)):
                raise nothing_conflicts(figure, spec)
        agenda.add(dataclasses.replace(one, changes={**one.changes, **changes}) for one in planned)
        names = searches(figure)
    if names:
        loaded = [load(spec, place.data) for spec in dict.fromkeys(tasks)]
        agenda.add_waves([waves(task, names, seeds, changes) for task in loaded])
    return agenda


def _tasks(given: list[str], figure: str | None, limit: int | None) -> list[str]:
    if not given and figure is None:
        raise ValueError("name at least one task, such as: evenhand bench digits_even_odd digits")
    specs = given or ["even_odd"]
    return specs if limit is None else [f"{spec}{',' if ':' in spec else ':'}limit={limit}" for spec in specs]


def _seeds(text: str) -> list[int]:
    numbers = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) <= MOST_SEED for part in numbers):
        raise ValueError(
            f"seeds must be whole numbers below 2**32 with commas between, such as 0,1,2, got {text!r}"
        )
    return list(dict.fromkeys(map(int, numbers)))


def _engine(name: str, jobs: int, place: Place, address: str | None) -> Any:
    if name == "local":
        from evenhand.bench.local import Local

        return Local(jobs, place)
    from evenhand.bench.ray_engine import Ray

    return Ray(jobs, place, address)


def _print_plan(agenda: Agenda, json_: bool) -> None:
    from evenhand.bench import summary

    lines = summary.estimates(agenda)
    if json_:
        typer.echo(json.dumps({"plan": summary.as_json(lines), "notes": agenda.notes}, indent=1))
        return
    _print_table(summary.estimates_table(lines))
    say("An epoch is one pass over the task's training samples; trainings stop early, so these are bounds.")
    notes = [f"{line.method}: {line.note}" for line in lines if line.note]
    if agenda.later:
        notes.append("the second wave waits for erm's selection, so which of its runs are done is not known")
    for note in dict.fromkeys([*notes, *agenda.notes]):
        say(f"- {note}")


def _print_table(table: Any) -> None:
    out = console()
    if not out.is_terminal:  # a file has no width that a table must fit
        out.width = 120
    out.print(table)


def _say_what_is_missing(agenda: Agenda, runs: Path) -> None:
    left = agenda.left()
    if left:
        say(f"evenhand: {left} runs are left; the same command continues", err=True)
    for entry in agenda.failures():
        where = runs / entry.path.relative_to(agenda.place.runs) / "failure.json"
        say(f"evenhand: failed: {entry.planned.words()}: {entry.error} ({where})", err=True)


@app.command()
def pack(
    runs: Runs = Path("runs"),
    out: Annotated[Path, typer.Option("--out", "-o", help="The .zip file to write.")] = Path("records.zip"),
) -> None:
    """Write what tables, figures and pages need of all finished runs into one small file."""
    from evenhand.bench import records

    if out.suffix != ".zip":  # by which `load` knows it again
        raise ValueError(f"a packed file must end with .zip, got {str(out)!r}; try {out.with_suffix('.zip')}")
    found = records.load(runs)
    records.pack(found, out, failures=sorted(runs.glob("*/*/*/failure.json")))
    say(f"{len(found)} runs in {out}, {out.stat().st_size / 1e6:.1f} MB")


@app.command()
def unpack(
    file: Annotated[Path, typer.Argument(help="A file that `evenhand pack` wrote.")],
    runs: Runs = Path("runs"),
) -> None:
    """Put packed runs into a runs folder, so that a bench goes on from there; what is there is kept."""
    from evenhand.bench import records

    added, kept = records.unpack(file, runs)
    say(f"{added} runs added to {runs}, {kept} were there")
    if older := sum(record.older for record in records.load(file)):
        say(f"{older} of them are older records, which tables show, but from which no bench goes on")
