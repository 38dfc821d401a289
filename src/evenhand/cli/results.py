"""Commands that read records: the page, the tables, the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenhand.cli.common import Data, Runs, app


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
