"""The `data` commands: list, fetch, prepare and verify datasets."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from evenhand.cli.common import STYLE, TRAIN, Data, Json, Verbose, app, print_table, say

if TYPE_CHECKING:
    from evenhand.tasks.datasets import Report

data_app = typer.Typer(help="List, fetch, prepare and verify datasets.", **STYLE)
app.add_typer(data_app, name="data", rich_help_panel=TRAIN)

Task = Annotated[str, typer.Argument(help="A task, such as even_odd or celeba:size=96.")]


@data_app.command("list")
def data_list(data: Data = None, json_: Json = False) -> None:
    """List the data of every task and whether they are available."""
    from evenhand.tasks import datasets

    lines = datasets.data_list(data)
    if json_:
        typer.echo(json.dumps([dataclasses.asdict(line) for line in lines], indent=1, default=str))
    else:
        rows = [
            (line.task, "yes" if line.present else "no", line.size, line.licence, line.url) for line in lines
        ]
        columns = ("task", "available", "needs", "license", "source")
        print_table("data", columns, rows, words=columns)


@data_app.command("fetch")
def data_fetch(task: Task, data: Data = None) -> None:
    """Download the data of a task, or explain how to get them.

    Exit code 1: the data are not available yet.
    """
    from evenhand.tasks import datasets

    done = datasets.fetch(task, data)
    for message in done.messages:
        say(message)
    raise typer.Exit(0 if done.present else 1)


@data_app.command("prepare")
def data_prepare(task: Task, data: Data = None, json_: Json = False, verbose: Verbose = False) -> None:
    """Unpack and decode the images of a task. Resumes if interrupted."""
    from evenhand.tasks import datasets

    _print_report(datasets.prepare(task, data), json_)


@data_app.command("verify")
def data_verify(task: Task, data: Data = None, json_: Json = False, verbose: Verbose = False) -> None:
    """Check the files of a task, and compare its counts with the paper's.

    Exit code 1: a file is damaged.
    """
    from evenhand.tasks import datasets

    _print_report(datasets.verify(task, data), json_)


def _print_report(report: Report, json_: bool) -> None:
    if json_:
        typer.echo(json.dumps({"ok": report.ok, **dataclasses.asdict(report)}, indent=1, default=str))
    else:
        print_report(report)
    raise typer.Exit(0 if report.ok else 1)


def print_report(report: Report) -> None:
    """Print counts and checks; of many groups, only the ten largest and the ten smallest."""
    ranked = sorted(report.groups, key=lambda group: -group.train)
    groups = report.groups if len(ranked) <= 24 else (*ranked[:10], *ranked[-10:])
    rows = [
        (
            f"{group.name} (conflicting)" if group.conflicting else group.name,
            f"{group.train:,}",
            f"{group.share:.2%}",
            f"{group.val:,}",
            f"{group.test:,}",
        )
        for group in groups
    ]
    print_table(report.task, (report.kind, "train", "share", "val", "test"), rows)
    columns = ("check", "expected", "found", "state")
    facts = [(check.name, check.expected, check.found, check.state) for check in report.checks]
    print_table("", columns, facts, words=columns)
    if report.note:
        say(f"Note: {report.note}.")
