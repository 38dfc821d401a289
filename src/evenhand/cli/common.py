"""What all commands share: the program itself, options of one meaning, and how results are printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenhand.training.log import printable

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
MOST_SEED = 2**32 - 1
Seed = Annotated[
    int, typer.Option(help="Initial weights and batch order depend on it.", min=0, max=MOST_SEED)
]
Runs = Annotated[Path, typer.Option(help="Where runs are kept; a finished one is never done again.")]
Data = Annotated[
    Path | None, typer.Option(help="The folder that holds the datasets.", envvar="EVENHAND_DATA")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Say what is read, reused and written.",
        callback=lambda on: on and _show_log(),
    ),
]
Limit = Annotated[int | None, typer.Option(help="At most so many samples of each split.", min=1)]


def _show_log() -> bool:
    from evenhand.training import log

    log.show()
    return True


def say(text: object, *, err: bool = False) -> None:
    """Print lines in which names may stand that come from data: nothing in them steers the terminal."""
    typer.echo("\n".join(map(printable, str(text).split("\n"))), err=err)


def plain_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as one line without the code that gave it, which a user cannot change."""
    return f"evenhand: warning: {printable(message)}\n"


def console() -> Any:
    """Rich's console, to which a text is nothing but text: no markup, no control characters."""
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            lines = "\n".join(map(printable, text.split("\n")))
            return super().render_str(lines, **{**options, "markup": False, "emoji": False})

    return Plain()


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


def print_results(records: list[Record], json_: bool) -> None:
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
    console().print(table)
