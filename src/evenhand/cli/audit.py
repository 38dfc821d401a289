"""The `audit` command: the answer about one's own data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evenhand.cli.common import Device, Json, Quiet, Seed, Verbose, app, console, say

SHOWN = 20  # classes in the table; the rest is in summary.json
LISTS = ("minority", "mislabelled")


@app.command()
def audit(
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A folder of class folders, a CSV or Parquet table, or a task."),
    ],
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="A table's column of classes.")] = None,
    text: Annotated[str | None, typer.Option(metavar="COLUMN", help="Classify this column's texts.")] = None,
    image: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Classify the images whose paths are here.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Known groups: for scoring only, never for training.")
    ] = None,
    header: Annotated[bool, typer.Option(help="Whether a CSV's first line names its columns.")] = True,
    missing: Annotated[
        bool, typer.Option("--missing", help="Numbers may be missing: a gap is a value of its own.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="cnn, resnet18, … or module:function (a network or an estimator); "
            "with --text, a folder of a Hugging Face model."
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(help="Pixels on each side of an image.", min=8)] = None,
    frozen: Annotated[
        bool | None,
        typer.Option("--frozen/--fine-tune", help="Train only the last layer of a backbone, or all of it."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")] = Path("audit"),
    seed: Seed = 0,
    epochs: Annotated[int | None, typer.Option(help="At most so many epochs a training.")] = None,
    device: Device = "auto",
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Is there a shortcut in your data? Which samples break it, and does retraining help?"""
    from evenhand.audit.run import audit as audit_
    from evenhand.audit.write import write
    from evenhand.training.progress import choose

    done = audit_(
        data,
        label=label,
        text=text,
        image=image,
        group=group,
        header=header,
        missing=missing,
        model=model,
        size=size,
        frozen=frozen,
        out=out,
        seed=seed,
        epochs=epochs,
        device=device,
        show=choose(quiet or json_),
    )
    summary = write(done, out)
    if json_:
        typer.echo(json.dumps(summary, indent=1))
        return
    _print(done, summary, out)


def _print(done: Any, summary: dict[str, Any], out: Path) -> None:
    from rich.table import Table

    from evenhand.audit.words import advice_sentence, list_notes, recommendation

    classes = Table("class", title="Do some samples of a class stand apart?", title_justify="left")
    for name in ("samples", "minority", "mislabelled", "gap", "threshold"):
        classes.add_column(name, justify="right")
    classes.add_column("evidence")
    lists, labels = done.triage.verdict, done.evidence.y["train"]
    for number, each in enumerate(done.verdict.classes[:SHOWN]):
        own = lists[labels == number]
        counts = [f"{count:,}" for count in (len(own), *((own == kind).sum() for kind in LISTS))]
        classes.add_row(each.name, *counts, f"{each.gap:.2f}", f"{each.threshold:.2f}", each.words)
    console().print(classes)
    if len(done.verdict.classes) > SHOWN:
        say(f"… and {len(done.verdict.classes) - SHOWN} more classes in summary.json")
    models = Table("accuracy", title="Both models on held-out samples", title_justify="left")
    for name in ("as collected", "balanced"):
        models.add_column(name, justify="right", no_wrap=True)
    for name, part, what in ROWS:
        both = [summary["models"][key][part].get(what) for key in ("baseline", "balanced")]
        if all(both):
            models.add_row(name, *(f"{100 * each['accuracy']:.1f}%" for each in both))
    console().print(models)
    counts = summary["triage"]
    for note in done.data.notes:
        say(f"Note: {note}.")
    say(f"\n{advice_sentence(done.verdict)}")
    for reason in done.verdict.reasons:
        say(f"  {reason}")
    say(
        f"Triage: {counts['minority']:,} samples are likely a minority, "
        f"{counts['mislabelled']:,} are likely mislabelled (samples.csv)."
    )
    for note in list_notes(done.triage):
        say(f"  {note}")
    say(recommendation(done.ship, done.verdict))
    say(f"\nOpen {out / 'report.html'} to see them; {out} also holds both models and summary.json.")


ROWS = (
    ("validation", "val", "accuracy"),
    ("  worst class", "val", "worst_class"),
    ("  worst pseudo-group", "val", "worst_pseudo_group"),
    ("  learned late", "val", "late"),
    ("test", "test", "accuracy"),
    ("  worst class", "test", "worst_class"),
    ("  worst group, all classes", "test", "worst_value"),
    ("  worst true group", "test", "worst_group"),
)
