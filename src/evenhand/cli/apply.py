"""Commands for other data and losses: partition and predict."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import typer

from evenhand.cli.common import OWN, Device, Json, Verbose, app, print_table, say

SHOWN = 20  # classes in the table; summary.json contains all


@app.command(rich_help_panel=OWN)
def partition(
    losses: Annotated[Path, typer.Argument(metavar="LOSSES.npy", help="Array (samples, epochs) of numbers.")],
    labels: Annotated[
        Path, typer.Argument(metavar="LABELS.npy", help="Array (samples,) of integers or strings.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")] = Path("partition"),
    seed: Annotated[int, typer.Option(help="Seed of the drawn copies.", min=0)] = 0,
    json_: Json = False,
    verbose: Verbose = False,
) -> None:
    """Find the minority of each class in recorded losses."""
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
        f"{out} contains samples.csv, weights.csv and indices.npy, the {summary['balanced_rows']:,} rows of "
        "the balanced training set."
    )


@app.command(rich_help_panel=OWN)
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run, or of an audit.")],
    inputs: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="An .npy or .npz file, an image or a folder of images; for an audit of a table, a table.",
        ),
    ],
    model: Annotated[
        Literal["baseline", "balanced"] | None,
        typer.Option(help="Model of an audit. The recommended one if omitted."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Table to write.")] = Path("predictions.csv"),
    trust: Annotated[
        list[str],
        typer.Option(
            metavar="MODULE",
            help="User-defined method or model (package.module or package.module:function) that may be "
            "imported. Repeatable.",
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
        used = f" by the {name} model"
    elif model is not None:
        raise ValueError(f"--model selects one of the two models of an audit, but {run} is not an audit")
    else:
        found, used = predict_(run, inputs, device=device, trust=trust), ""
    rows = zip(found.ids, found.classes, (f"{value:.4f}" for value in found.confidence), strict=True)
    write_bytes(out, csv_bytes(("id", "predicted", "confidence"), list(rows)))
    say(f"{out}: {len(found.ids):,} predictions{used}")
    for name, count in Counter(found.classes).most_common(SHOWN):
        say(f"  {name}: {count:,}")
