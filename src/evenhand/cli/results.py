"""Commands that read records: table, figure and report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from evenhand.cli.common import RESULTS, Data, Figure, Verbose, app, choices, say, show_table

if TYPE_CHECKING:
    from evenhand.report.render import Table
    from evenhand.training.record import Record

Sources = Annotated[
    list[Path],
    typer.Option("--runs", metavar="PATH", help="Folder of runs, or .zip of packed records. Repeatable."),
]
Tasks = Annotated[
    list[str] | None, typer.Option("--task", metavar="TASK", help="Only this task. Repeatable.")
]
HERE = [Path("runs")]
TableName = Literal["1", "2", "datasets", "methods", "selected", "cost", "field", "compare"]
Criterion = Literal["accuracy", "wga", "worst_class", "worst_pseudo_group"]
Form = Literal["md", "csv", "latex", "json", "html"]
ENDINGS: dict[str, Form] = {".md": "md", ".csv": "csv", ".tex": "latex", ".json": "json", ".html": "html"}


@app.command(rich_help_panel=RESULTS)
def table(
    name: Annotated[TableName, typer.Argument(metavar="NAME", help=f"{choices(TableName)}.")],
    runs: Sources = HERE,
    task: Tasks = None,
    by: Annotated[
        Criterion | None,
        typer.Option(
            metavar="SCORE",
            help=f"Validation score that selects candidates: {choices(Criterion)}. "
            "The paper's criterion if omitted.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="For compare: the reference, a method such as erm or a name in the table."),
    ] = None,
    form: Annotated[Form | None, typer.Option("--format", help="Output format.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write. Its suffix determines the format.")
    ] = None,
    data: Data = None,
    verbose: Verbose = False,
) -> None:
    """Print a table of results beside the paper's numbers."""
    from evenhand.bench import results
    from evenhand.report import notes, tables

    form = form_of(form, out)
    optional = name in ("methods", "datasets")  # they need no runs
    records = [] if name == "methods" else _records(runs, optional=optional)
    folders = sorted({*runs, *(record.path.parents[2] for record in records)})  # packed ones are in the cache
    failed = notes.failures(folders)
    frame = results.frame(records)
    made = tables.make(name, frame, wanted=task or (), by=by, failed=failed, root=data, against=against)
    print_or_write(made, form, out)


def print_or_write(made: Table, form: Form | None, out: Path | None) -> None:
    """Write a table to a file, or print it, in a given format or fitted to a terminal."""
    from evenhand.report import render

    if out is not None:
        from evenhand.training.store import write_bytes

        write_bytes(out, render.write(made, form or "md").encode())
        say(out)
    elif form is None and sys.stdout.isatty():
        show_table(made)
    else:
        typer.echo(render.write(made, form or "md"), nl=False)


def form_of(form: Form | None, out: Path | None) -> Form | None:
    """Return the requested format, or that of the file's suffix; None for a table on the terminal."""
    if out is None:
        return form
    file = _file(out, "table.md")
    return form or _form(file)


@app.command(rich_help_panel=RESULTS)
def figure(
    name: Annotated[Figure | None, typer.Argument(metavar="NAME", help=f"{choices(Figure)}.")] = None,
    runs: Sources = HERE,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="TASK",
            help="Only this task. Repeatable for correlation, eta and minibatch.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help=".svg, .png or .pdf to write. NAME.svg if omitted.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the figures and what they show.")] = False,
    verbose: Verbose = False,
) -> None:
    """Draw one of the paper's figures."""
    from evenhand.bench.grid import FIGURES

    if list_:
        for each, what in FIGURES.items():
            say(f"{each:12} {what}")
        return
    if name is None:
        raise ValueError(f"give the name of a figure: {', '.join(FIGURES)}; --list describes them")
    from evenhand.bench import results
    from evenhand.report import drawing, figures

    file = _file(out or Path(f"{name}.svg"), f"{name}.svg")
    drawing.check_form(file)  # before anything is drawn
    frame = results.frame(_records(runs))
    say(drawing.save(figures.draw(name, frame, task or ()), file))


@app.command(rich_help_panel=RESULTS)
def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Folders of runs to show. All of --runs if omitted."),
    ] = None,
    runs: Sources = HERE,
    out: Annotated[Path, typer.Option("--out", "-o", help=".html file to write.")] = Path("report.html"),
    data: Data = None,
    trust: Annotated[
        list[str],
        typer.Option(
            metavar="MODULE",
            help="User-defined task (package.module) that may be imported, to show its samples. Repeatable.",
        ),
    ] = [],  # noqa: B006
    verbose: Verbose = False,
) -> None:
    """Write one HTML page about all runs."""
    from evenhand.report.page import build, task_loader
    from evenhand.training.record import Record, is_finished

    if _file(out, "report.html").suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out must end with .html or .htm, got {str(out)!r}")
    for folder in folders or []:
        if not is_finished(folder):
            raise ValueError(
                f"{folder} must be the folder of a finished run, but it contains no metrics.json; "
                f"for a folder of runs use --runs {folder}"
            )
    records = [Record(folder) for folder in folders] if folders else _records(runs)
    say(build(records, out, load_task=task_loader(data, trust)))


def _records(sources: Sequence[Path], optional: bool = False) -> list[Record]:
    """Return all finished runs of folders and packed files."""
    from evenhand.bench.pack import load

    for source in sources:
        if not source.exists() and not optional:
            raise ValueError(
                f"{source} must be a folder of runs or a packed .zip file, but it does not exist; "
                "make a run with: evenhand run digits_even_odd tab"
            )
    try:
        return load(*sources)
    except ValueError:
        if optional:
            return []
        raise


def _file(out: Path, example: str) -> Path:
    if out.is_dir():
        raise ValueError(f"--out must be a file to write, got the folder {out}; try {out / example}")
    return out


def _form(out: Path) -> Form:
    """Return the format of a file's suffix."""
    if out.suffix.lower() not in ENDINGS:
        raise ValueError(
            f"--out must end with {', '.join(ENDINGS)}, got {str(out)!r}; for another suffix give --format"
        )
    return ENDINGS[out.suffix.lower()]
