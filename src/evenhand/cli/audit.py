"""The `audit` command: find and test the shortcuts in your own data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evenhand.cli.common import START, Device, Epochs, Json, Quiet, Seed, Verbose, app, print_table, say

SHOWN = 20  # classes in the table; summary.json holds all of them
LISTS = ("minority", "mislabelled")


@app.command(rich_help_panel=START)
def audit(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="A folder of class folders, a table, an .npy of embeddings, or a task."
        ),
    ],
    labels: Annotated[
        Path | None, typer.Option(metavar="LABELS.npy", help="The classes of embeddings in an .npy file.")
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the classes.")] = None,
    text: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of texts to classify.")] = None,
    image: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of paths of images to classify.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of known groups. Used for scoring only.")
    ] = None,
    header: Annotated[bool, typer.Option(help="Whether the first line of a CSV names its columns.")] = True,
    missing: Annotated[
        bool, typer.Option("--missing", help="Accept missing numbers. A gap is a value of its own.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="cnn, resnet18, … or module:function (a network or an estimator). "
            "With --text: a folder of a Hugging Face model."
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(help="Side of an image in pixels.", min=8)] = None,
    frozen: Annotated[
        bool | None,
        typer.Option("--frozen/--fine-tune", help="Train only the last layer of a backbone, or all of it."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")] = Path("audit"),
    seed: Seed = 0,
    epochs: Epochs = None,
    device: Device = "auto",
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Find shortcuts in your data: which samples break them, and does retraining help?"""
    from evenhand.audit.run import audit as audit_
    from evenhand.audit.write import write
    from evenhand.training.progress import choose

    if labels is not None:
        data = f"embeddings:path={Path(data).absolute()},labels={labels.absolute()}"
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
    from evenhand.audit.words import advice_sentence, list_notes, recommendation

    classes = []
    lists, labels = done.triage.verdict, done.evidence.y["train"]
    for number, each in enumerate(done.verdict.classes[:SHOWN]):
        own = lists[labels == number]
        counts = [f"{count:,}" for count in (len(own), *((own == kind).sum() for kind in LISTS))]
        classes.append((each.name, *counts, f"{each.gap:.2f}", f"{each.threshold:.2f}", each.words))
    columns = ("class", "samples", "minority", "mislabelled", "gap", "threshold", "evidence")
    print_table("Do some samples of a class stand apart?", columns, classes, words=("class", "evidence"))
    if len(done.verdict.classes) > SHOWN:
        say(f"… and {len(done.verdict.classes) - SHOWN} more classes in summary.json")
    models = []
    for name, part, what in ROWS:
        both = [summary["models"][key][part].get(what) for key in ("baseline", "balanced")]
        if all(both):
            models.append((name, *(f"{100 * each['accuracy']:.1f}%" for each in both)))
    print_table("Both models on held-out samples", ("accuracy", "as collected", "balanced"), models)
    counts = summary["triage"]
    for note in done.data.notes:
        say(f"Note: {note}.")
    say(advice_sentence(done.verdict))
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
