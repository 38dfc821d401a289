"""Training commands: the demo, one run, and the lists of tasks and methods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from evenhand.cli.common import (
    START,
    TRAIN,
    Data,
    Device,
    Epochs,
    Json,
    Limit,
    Quiet,
    Runs,
    Seed,
    Verbose,
    app,
    print_results,
    say,
)


@app.command(rich_help_panel=START)
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and report.html.")] = Path("demo"),
    seed: Seed = 0,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train on colored digits and write a page in a minute."""
    from evenhand import tasks
    from evenhand.core import ranks
    from evenhand.report.page import build
    from evenhand.training.execute import execute
    from evenhand.training.log import choose_progress

    task = tasks.load("digits_even_odd")
    show = choose_progress(quiet)
    records = [
        execute(task, method, seed=seed, runs=out / "runs", show=show) for method in ("erm", "evenhand")
    ]
    if not ranks.first():
        return
    page = build(records, out / "report.html")
    print_results(records, json_)
    if not json_:
        say(f"\nOpen {page} to see which samples break the shortcut.")


@app.command(rich_help_panel=TRAIN)
def run(
    task: Annotated[str, typer.Argument(help="A task, such as digits or even_odd:p=0.95.")],
    method: Annotated[str, typer.Argument(help="A method, such as erm or tab.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Hyperparameters of the method, or recipe fields."),
    ] = None,
    seed: Seed = 0,
    runs: Runs = Path("runs"),
    data: Data = None,
    device: Device = "auto",
    epochs: Epochs = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per step.")] = None,
    model: Annotated[
        str | None, typer.Option(help="cnn, resnet18, mobilenet_v2, … or module:function.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="pretrained, none, or a weights file.")] = None,
    precision: Annotated[
        Literal["auto", "fp32", "bf16"] | None, typer.Option(help="Numeric precision.")
    ] = None,
    limit: Limit = None,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train one method on one task.

    Resumes if interrupted. Returns the cached result once finished. For several processes use torchrun:
    torchrun --nproc-per-node=2 -m evenhand run …
    """
    from evenhand import tasks
    from evenhand.core import ranks
    from evenhand.training.execute import execute
    from evenhand.training.log import choose_progress
    from evenhand.training.plugins import parse_assignments

    options = {"epochs": epochs, "batch_size": batch_size, "model": model, "precision": precision}
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    assigned = parse_assignments(settings or [])
    for name in changes:
        if name in assigned:
            raise ValueError(f"{name} is given twice: as {name}={assigned[name]} and as an option")
    if weights is not None:
        changes["weights"] = None if weights == "none" else weights
    loaded = tasks.load(task, data, limit)
    record = execute(
        loaded,
        method,
        assigned,
        recipe=loaded.recipe.replace(**changes),
        seed=seed,
        runs=runs,
        device=device,
        show=choose_progress(quiet),
    )
    if not ranks.first():
        return
    print_results([record], json_)
    if not json_:
        say(f"\nThe run is in {record.path}. To make a page: evenhand report --runs {runs}")


@app.command("tasks", rich_help_panel=TRAIN)
def list_tasks(json_: Json = False) -> None:
    """List the tasks."""
    from evenhand.tasks import describe

    _print_names(describe(), json_)


@app.command("methods", rich_help_panel=TRAIN)
def list_methods(json_: Json = False) -> None:
    """List the methods."""
    from evenhand.training.plugins import describe

    _print_names(describe("evenhand.methods", "train"), json_)


def _print_names(described: dict[str, str], json_: bool) -> None:
    if json_:
        typer.echo(json.dumps(described, indent=1))
        return
    width = max(map(len, described))
    for name, line in described.items():
        say(f"{name:{width}}  {line}")
