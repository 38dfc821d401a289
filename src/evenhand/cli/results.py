"""Commands that read records: the tables, the figures, the page."""

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
            help=f"Score on the validation set that selects: {choices(Criterion)}. "
            "The paper's choice if omitted.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="For compare: the row to compare with, such as erm or a name in the table."),
    ] = None,
    form: Annotated[Form | None, typer.Option("--format", help="Output format.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write. Its ending sets the format.")
    ] = None,
    data: Data = None,
    verbose: Verbose = False,
) -> None:
    """Print a table of results beside the paper's numbers."""
    from evenhand.bench import results
    from evenhand.report import tables

    form = form_of(form, out)
    optional = name in ("methods", "datasets")  # they say something without any run
    records = [] if name == "methods" else _records(runs, optional=optional)
    folders = sorted({*runs, *(record.path.parents[2] for record in records)})  # packed ones lie elsewhere
    failed = tables.failures(folders)
    frame = results.frame(records)
    made = tables.make(name, frame, wanted=task or (), by=by, failed=failed, root=data, against=against)
    print_or_write(made, form, out)


def print_or_write(made: Table, form: Form | None, out: Path | None) -> None:
    """Write a table to a file, or print it: fitted to a terminal, or in a form for a pipe."""
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
    """The form that was asked for, or that the file's ending says; None for a table on the terminal."""
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
        raise ValueError(f"name a figure: {', '.join(FIGURES)}; --list says what they show")
    from evenhand.bench import results
    from evenhand.report import figures

    file = _file(out or Path(f"{name}.svg"), f"{name}.svg")
    figures.check_form(file)  # before anything is drawn
    frame = results.frame(_records(runs))
    say(figures.save(figures.draw(name, frame, task or ()), file))


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
            help="Task of your own (package.module) that the runs name and that may be imported, to show "
            "its samples.",
        ),
    ] = [],  # noqa: B006
    verbose: Verbose = False,
) -> None:
    """Write one page: what was found, and what it changed."""
    from evenhand.report.page import build, task_loader
    from evenhand.training.record import Record, is_finished

    if _file(out, "report.html").suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"the page's file must end with .html or .htm, got {str(out)!r}")
    for folder in folders or []:
        if not is_finished(folder):
            raise ValueError(
                f"{folder} should be the folder of a finished run, but it holds no metrics.json; "
                f"for a folder of runs use --runs {folder}"
            )
    records = [Record(folder) for folder in folders] if folders else _records(runs)
    say(build(records, out, load_task=task_loader(data, trust)))


def _records(sources: Sequence[Path], optional: bool = False) -> list[Record]:
    """All finished runs of folders and packed files."""
    from evenhand.bench.pack import load

    for source in sources:
        if not source.exists() and not optional:
            raise ValueError(
                f"{source} should be a folder of runs or a packed .zip file, but it is not there; "
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
    """The format that a file's ending stands for."""
    if out.suffix.lower() not in ENDINGS:
        raise ValueError(
            f"a table's file must end with {', '.join(ENDINGS)}, got {str(out)!r}; "
            "or say with --format what it is to hold"
        )
    return ENDINGS[out.suffix.lower()]
