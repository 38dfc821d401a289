"""Commands that hand a finished run to others: export for the Hugging Face Hub, track for a tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from evenhand.cli.common import RESULTS, Verbose, app, say

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]


@app.command(rich_help_panel=RESULTS)
def export(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")] = Path("export"),
    name: Annotated[
        str, typer.Option(help="Title of the model card. Default: the task and the method.")
    ] = "",
    verbose: Verbose = False,
) -> None:
    """Write a model, its preprocessing and a card, ready for the Hugging Face Hub."""
    from evenhand.integrations.export import FILES
    from evenhand.integrations.export import export as export_

    export_(run, out, name=name)
    say(f"{out} holds {', '.join(FILES[:-1])} and {FILES[-1]}.")


@app.command(rich_help_panel=RESULTS)
def track(
    run: Run,
    to: Annotated[
        Literal["tensorboard", "wandb", "mlflow"], typer.Option(help="Tracker to send the run to.")
    ],
    place: Annotated[Path, typer.Option(help="Folder for the files of the tracker.")] = Path("tracked"),
    project: Annotated[str, typer.Option(help="Project of W&B, or experiment of MLflow.")] = "evenhand",
    online: Annotated[bool, typer.Option(help="Send to the server of W&B.")] = False,
    verbose: Verbose = False,
) -> None:
    """Send the curves, scores, tables and page of a run to TensorBoard, W&B or MLflow."""
    from evenhand.integrations.trackers import track as track_

    track_(run, to, place=place, project=project, online=online)
    say(f"{place} holds the run for {to}.")
