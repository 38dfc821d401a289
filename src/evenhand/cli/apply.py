"""Commands for what others have made: recorded losses, and new data for a trained model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from evenhand.cli.common import Device, Json, Verbose, app, console, say

SHOWN = 20  # classes in the table; the rest is in summary.json


@app.command()
def partition(
    losses: Annotated[Path, typer.Argument(metavar="LOSSES.npy", help="(samples, epochs) numbers.")],
    labels: Annotated[
        Path, typer.Argument(metavar="LABELS.npy", help="(samples,) whole numbers or strings.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")] = Path("partition"),
    seed: Annotated[int, typer.Option(help="Which copies are drawn depends on it.", min=0)] = 0,
    json_: Json = False,
    verbose: Verbose = False,
) -> None:
    """Split losses that you have recorded: which samples are learned late, and what to repeat."""
    from evenhand.integrations.files import partition_files

    summary = partition_files(losses, labels, out, seed=seed)
    if json_:
        typer.echo(json.dumps(summary, indent=1))
        return
    _print_classes(summary)
    say(
        f"\n{out} holds samples.csv, weights.csv and indices.npy, the {summary['balanced_rows']:,} rows "
        "to train on again."
    )


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run, or of an audit.")],
    inputs: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="An .npy or .npz file, an image, a folder of images; for an audit of a table, a table.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Of an audit: baseline or balanced; else the one that it recommends."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The table to write.")] = Path("predictions.csv"),
    device: Device = "auto",
    verbose: Verbose = False,
) -> None:
    """Use a trained model on new data: a table of ids, predicted classes and confidences."""
    from evenhand.audit import predict as audited
    from evenhand.integrations.files import csv_bytes
    from evenhand.integrations.prediction import predict as predict_
    from evenhand.training.store import write_bytes

    if out.is_dir():
        raise ValueError(
            f"--out must be a file to write, got the folder {out}; try {out / 'predictions.csv'}"
        )
    if audited.is_audit(run):
        name, found = audited.predict(run, inputs, model=model, device=device)
        used = f" of the {name} model"
    elif model is not None:
        raise ValueError(f"--model chooses between the two models of an audit, but {run} is none")
    else:
        found, used = predict_(run, inputs, device=device), ""
    rows = zip(found.ids, found.classes, (f"{value:.4f}" for value in found.confidence), strict=True)
    write_bytes(out, csv_bytes(("id", "predicted", "confidence"), list(rows)))
    counts = Counter(found.classes).most_common(SHOWN)
    say(f"{out}: {len(found.ids):,} predictions{used}")
    for name, count in counts:
        say(f"  {name}: {count:,}")


def _print_classes(summary: dict[str, Any]) -> None:
    from rich.table import Table

    title = f"{summary['samples']:,} samples, {summary['epochs']} epochs"
    table = Table("class", title=title, title_justify="left")
    for name in ("majority", "minority", "separation"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in summary["classes"][:SHOWN]:
        separation = row["unsplit"] or f"{row['separation']:.2f}"
        sizes = (f"{row['majority']:,}", f"{row['minority']:,}")
        table.add_row(str(row["label"]), *sizes, separation)
    console().print(table)
    if len(summary["classes"]) > SHOWN:
        say(f"… and {len(summary['classes']) - SHOWN:,} more classes, in summary.json")
