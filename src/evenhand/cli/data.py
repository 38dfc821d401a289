"""The `data` commands: see, fetch, prepare and verify datasets."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer

from evenhand.cli.common import Data, Json, Verbose, app, console, say

data_app = typer.Typer(
    help="See, fetch, prepare and verify datasets.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(data_app, name="data")

Task = Annotated[str, typer.Argument(help="A task, such as even_odd or celeba:size=96.")]


@data_app.command("list")
def data_list(data: Data = None, json_: Json = False) -> None:
    """List what every task needs, and what is there."""
    from evenhand.tasks import fetch

    lines = fetch.data_list(data)
    if json_:
        typer.echo(json.dumps([dataclasses.asdict(line) for line in lines], indent=1, default=str))
    else:
        console().print(fetch.list_table(lines))


@data_app.command("fetch")
def data_fetch(task: Task, data: Data = None) -> None:
    """Get a task's data, or say how. Exit code 1: they are not here yet."""
    from evenhand.tasks import fetch

    done = fetch.fetch(task, data)
    for message in done.messages:
        say(message)
    raise typer.Exit(0 if done.present else 1)


@data_app.command("prepare")
def data_prepare(task: Task, data: Data = None, json_: Json = False, verbose: Verbose = False) -> None:
    """Unpack and decode a task's images once; killed, it continues."""
    from evenhand.tasks.verify import prepare

    _print_checks(prepare(task, data), json_)


@data_app.command("verify")
def data_verify(task: Task, data: Data = None, json_: Json = False, verbose: Verbose = False) -> None:
    """Check a task's files and counts beside the paper's. Exit code 1: something is damaged."""
    from evenhand.tasks.verify import verify

    _print_checks(verify(task, data), json_)


def _print_checks(report: Any, json_: bool) -> None:
    if json_:
        typer.echo(json.dumps({"ok": report.ok, **dataclasses.asdict(report)}, indent=1, default=str))
    else:
        console().print(report)
    raise typer.Exit(0 if report.ok else 1)
