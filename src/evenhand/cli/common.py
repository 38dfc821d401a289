"""Common: the program itself, shared options, and output."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from evenhand.training.log import printable

if TYPE_CHECKING:
    from evenhand.report.render import Table
    from evenhand.training.record import Record

START, TRAIN, RESULTS, OWN = "Start here", "Train and compare", "Read results", "Your own training or data"
STYLE: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": "markdown",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
app = typer.Typer(name="evenhand", add_completion=False, pretty_exceptions_enable=False, **STYLE)


def choices(kind: Any) -> str:
    """Return the values of a Literal for a help text. A long list as metavar would be broken inside a word.

    >>> choices(Literal["md", "csv", "html"])
    'md, csv or html'
    """
    *others, last = get_args(kind)
    return f"{', '.join(others)} or {last}"


Figure = Literal["validation", "selection", "training", "correlation", "cost", "eta", "minibatch"]
LONGEST = 2000  # characters of an error or a warning
MOST_SEED = 2**32 - 1
Seed = Annotated[
    int,
    typer.Option(
        metavar="SEED", help="Seed of the initial weights and the batch order.", min=0, max=MOST_SEED
    ),
]
Runs = Annotated[Path, typer.Option(help="Folder of runs.")]
Data = Annotated[Path | None, typer.Option(help="Folder of the datasets.", envvar="EVENHAND_DATA")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda|cuda:N|mps", help="Device to compute on.")]
Epochs = Annotated[int | None, typer.Option(help="Maximum number of epochs of each training.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Log what is read, reused and written.",
        callback=lambda on: on and _show_log(),
    ),
]
Limit = Annotated[int | None, typer.Option(help="Maximum number of samples of each split.", min=1)]


def _show_log() -> bool:
    from evenhand.training import log

    log.show()
    return True


def _show_version(on: bool) -> None:
    if on:
        from evenhand import __version__

        typer.echo(f"evenhand {__version__}")
        raise typer.Exit()


@app.callback()
def evenhand(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Train classifiers that stay accurate on the groups a dataset under-represents."""


def say(text: object, *, err: bool = False) -> None:
    """Print text that may contain names from data, without control characters."""
    typer.echo("\n".join(map(printable, str(text).split("\n"))), err=err)


def shortened(text: object) -> str:
    """Return a long text, such as an error that quotes a file, without its middle."""
    said = str(text)
    return said if len(said) <= LONGEST else f"{said[: LONGEST // 2]} … {said[-LONGEST // 2 :]}"


def plain_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning on one line, without the code that raised it."""
    return f"evenhand: warning: {printable(shortened(message))}\n"


def console() -> Any:
    """Return a rich console that prints plain text: no markup, no control characters."""
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            lines = "\n".join(map(printable, text.split("\n")))
            return super().render_str(lines, **{**options, "markup": False, "emoji": False})

    return Plain()


def show_table(table: Table) -> None:
    """Print a table, with 120 columns for files and pipes."""
    from evenhand.report.render import terminal

    out = console()
    if not out.is_terminal:
        out.width = 120
    out.print(*terminal(table, out.width), sep="\n")


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[str] | None = None
) -> None:
    """Print texts as a table. The columns in `words`, by default the first, are left-aligned and may wrap."""
    from evenhand.report.render import Column, Section, Table

    words = columns[:1] if words is None else words
    heads = [Column(name, words=name in words) for name in columns]
    listing = [dict(zip(columns, row, strict=True)) for row in rows]
    show_table(Table("", title, heads, [Section("", listing)]))


def print_results(records: list[Record], json_: bool) -> None:
    """Print the scores of one task's runs as a table, or as JSON with fractions between 0 and 1."""
    rows = [_row(record) for record in records]
    if json_:
        typer.echo(json.dumps({"results": rows}, indent=1))
        return
    over = "class" if records[0].metrics["test"]["wga_over"] == "classes" else "group"
    shown = {
        f"worst {over}": "wga",
        "weighted": "accuracy_weighted",
        "balanced": "accuracy_balanced",
        "identified": "identified",
        "purity": "purity",
    }
    cells = [
        (
            row["method"],
            *("–" if row[key] is None else f"{100 * row[key]:.1f}%" for key in shown.values()),
            f"{row['seconds']:.1f}",
        )
        for row in rows
    ]
    title = f"{rows[0]['task']}, seed {rows[0]['seed']}: accuracies on the test set"
    print_table(title, ("method", *shown, "seconds"), cells)


def _row(record: Record) -> dict[str, Any]:
    test, found = record.metrics["test"], record.metrics["identification"] or {}
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
