"""Commands that read records: the tables, the figures, the page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenhand.cli.common import RESULTS, Data, Verbose, app, console, say

if TYPE_CHECKING:
    from evenhand.report.render import Table
    from evenhand.training.record import Record

Sources = Annotated[
    list[Path],
    typer.Option("--runs", help="A folder of runs, or a packed .zip of records; may be given several times."),
]
Tasks = Annotated[
    list[str] | None, typer.Option("--task", help="Only this task; may be given several times.")
]
HERE = [Path("runs")]
ENDINGS = {".md": "md", ".csv": "csv", ".tex": "latex", ".json": "json", ".html": "html"}  # of a table's file


@app.command(rich_help_panel=RESULTS)
def table(
    name: Annotated[str, typer.Argument(help="1, 2, datasets, methods, selected, cost or compare.")],
    runs: Sources = HERE,
    task: Tasks = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Select by validation accuracy, wga, worst_class or worst_pseudo_group; "
            "by default as the paper does."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="compare: what the others are compared with, such as erm, or a name in the table."),
    ] = None,
    form: Annotated[str | None, typer.Option("--format", help="md, csv, latex, json or html.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file to write.")] = None,
    data: Data = None,
    verbose: Verbose = False,
) -> None:
    """Print one of the paper's tables, with our numbers beside the paper's."""
    from evenhand.bench import results
    from evenhand.report import tables

    tables.check(name)
    if by is not None and by not in results.CRITERIA:
        raise ValueError(f"--by must be one of {', '.join(results.CRITERIA)}, got {by!r}")
    _checked(form, out)
    optional = name in ("methods", "datasets")  # they say something without any run
    records = [] if name == "methods" else _records(runs, optional=optional)
    folders = sorted({*runs, *(record.path.parents[2] for record in records)})  # packed ones lie elsewhere
    failed = tables.failures(folders)
    frame = results.frame(records)
    made = tables.make(name, frame, wanted=task or (), by=by, failed=failed, root=data, against=against)
    print_or_write(made, form, out)


def print_or_write(made: Table, form: str | None, out: Path | None) -> None:
    """Print a table, or write it to a file, whose ending says the form unless `form` does."""
    from evenhand.report import render

    form = _checked(form, out)
    if out is not None:
        from evenhand.training.store import write_bytes

        write_bytes(out, render.write(made, form or "md").encode())
        say(out)
    elif form is None and sys.stdout.isatty():
        for part in render.terminal(made, console().width):
            console().print(part)
    else:
        typer.echo(render.write(made, form or "md"), nl=False)


def _checked(form: str | None, out: Path | None) -> str | None:
    """The form of a table's file; raises ValueError for a form or a file that cannot be written."""
    from evenhand.report import render

    if form is not None and form not in render.FORMATS:
        raise ValueError(f"--format must be one of {', '.join(render.FORMATS)}, got {form!r}")
    return form if out is None else form or _form(_file(out, "table.md"))


@app.command(rich_help_panel=RESULTS)
def figure(
    name: Annotated[str | None, typer.Argument(help="Which figure; --list shows them.")] = None,
    runs: Sources = HERE,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", help="Only this task; several times for correlation, eta and minibatch."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The .svg, .png or .pdf to write; NAME.svg if none.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Say which figures there are.")] = False,
    verbose: Verbose = False,
) -> None:
    """Draw one of the paper's figures."""
    from evenhand.bench.grid import FIGURES, check_figure

    if list_:
        for each, what in FIGURES.items():
            say(f"{each:12} {what}")
        return
    if name is None:
        raise ValueError(f"name a figure: {', '.join(FIGURES)}; --list says what they show")
    check_figure(name)
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
        typer.Argument(metavar="[RUN]...", help="Run folders; all of --runs if none is given."),
    ] = None,
    runs: Sources = HERE,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .html to write.")] = Path("report.html"),
    data: Data = None,
    verbose: Verbose = False,
) -> None:
    """Write one self-contained page: what was found, and what it changed."""
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
    say(build(records, out, load_task=task_loader(data)))


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


def _form(out: Path) -> str:
    """The form that a file's name asks for."""
    if out.suffix.lower() not in ENDINGS:
        raise ValueError(
            f"a table's file must end with {', '.join(ENDINGS)}, got {str(out)!r}; "
            "or say with --format what it is to hold"
        )
    return ENDINGS[out.suffix.lower()]
