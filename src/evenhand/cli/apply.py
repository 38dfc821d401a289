"""Commands for data and losses that come from elsewhere: partition and predict."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import typer

from evenhand.cli.common import OWN, Device, Json, Verbose, app, print_table, say

SHOWN = 20  # classes in the table; summary.json holds all of them


@app.command(rich_help_panel=OWN)
def partition(
    losses: Annotated[Path, typer.Argument(metavar="LOSSES.npy", help="Array (samples, epochs) of numbers.")],
    labels: Annotated[
        Path, typer.Argument(metavar="LABELS.npy", help="Array (samples,) of integers or strings.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")] = Path("partition"),
    seed: Annotated[int, typer.Option(help="Determines which copies are drawn.", min=0)] = 0,
    json_: Json = False,
    verbose: Verbose = False,
) -> None:
    """Find the minority of each class in losses that you recorded."""
    from evenhand.integrations.files import partition_files

    summary = partition_files(losses, labels, out, seed=seed)
    if json_:
        typer.echo(json.dumps(summary, indent=1))
        return
    rows = [
        (
            str(row["label"]),
            f"{row['majority']:,}",
            f"{row['minority']:,}",
            row["unsplit"] or f"{row['separation']:.2f}",
        )
        for row in summary["classes"][:SHOWN]
    ]
    title = f"{summary['samples']:,} samples, {summary['epochs']} epochs"
    print_table(title, ("class", "majority", "minority", "separation"), rows)
    if len(summary["classes"]) > SHOWN:
        say(f"… and {len(summary['classes']) - SHOWN:,} more classes, in summary.json")
    say(
        f"{out} holds samples.csv, weights.csv and indices.npy, the {summary['balanced_rows']:,} rows "
        "to train on again."
    )


@app.command(rich_help_panel=OWN)
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run, or of an audit.")],
    inputs: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="An .npy or .npz file, an image, or a folder of images. For an audit of a table: a table.",
        ),
    ],
    model: Annotated[
        Literal["baseline", "balanced"] | None,
        typer.Option(help="Which model of an audit to use. Default: the recommended one."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Table to write.")] = Path("predictions.csv"),
    trust: Annotated[
        list[str],
        typer.Option(
            metavar="MODULE",
            help="Method or model of your own (package.module or package.module:function) that the run names "
            "and that may be imported. Give it once for each.",
        ),
    ] = [],  # noqa: B006
    device: Device = "auto",
    verbose: Verbose = False,
) -> None:
    """Classify new data with a trained model."""
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
        raise ValueError(f"--model chooses between the two models of an audit, but {run} is no audit")
    else:
        found, used = predict_(run, inputs, device=device, trust=trust), ""
    rows = zip(found.ids, found.classes, (f"{value:.4f}" for value in found.confidence), strict=True)
    write_bytes(out, csv_bytes(("id", "predicted", "confidence"), list(rows)))
    say(f"{out}: {len(found.ids):,} predictions{used}")
    for name, count in Counter(found.classes).most_common(SHOWN):
        say(f"  {name}: {count:,}")
