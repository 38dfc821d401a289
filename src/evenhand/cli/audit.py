"""The `audit` command: find and test the shortcuts in your own data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evenhand.cli.common import START, Device, Epochs, Json, Quiet, Seed, Verbose, app, print_table, say

SHOWN = 20  # classes in the table; summary.json holds all of them
SHARED = 2  # properties of a class in the table; summary.json holds more
LISTS = ("minority", "mislabelled")


@app.command(rich_help_panel=START)
def audit(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="A folder of class folders, a table, embeddings, or a task by name."
        ),
    ],
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Classes of embeddings in an .npy file: .npy, or .txt with lines."),
    ] = None,
    embedding: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of embeddings in an .npz, Parquet file or Dataset."),
    ] = None,
    ids: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="What to call the samples of embeddings.")
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the classes.")] = None,
    text: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of texts to classify.")] = None,
    image: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of paths of images to classify.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of known groups. The advice never reads it.")
    ] = None,
    hide_group: Annotated[
        bool, typer.Option("--hide-group", help="Keep the group column from the model.")
    ] = False,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Column to leave out. May be repeated.")
    ] = None,
    aim: Annotated[
        str, typer.Option(help="What decides which model to ship: worst-group or accuracy.")
    ] = "worst-group",
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images that cannot be read.")
    ] = False,
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
    slices: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Also write slices.csv: history, or, of embeddings, domino, spotlight or facts.",
        ),
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
    from evenhand.audit.audit import run, summarise
    from evenhand.training.log import choose_progress

    if labels is not None or embedding is not None or Path(data).suffix in (".npy", ".npz"):
        beside = {"labels": label if labels is None else str(labels.absolute()), "column": embedding}
        beside |= {"groups": group, "ids": ids, "images": image, "texts": text}
        data, label, group, image, text = _embeddings(data, beside), None, None, None, None
    done = run(
        data,
        label=label,
        text=text,
        image=image,
        group=group,
        hide_group=hide_group,
        drop=tuple(drop or ()),
        aim=aim,
        skip_bad=skip_bad,
        header=header,
        missing=missing,
        model=model,
        size=size,
        frozen=frozen,
        out=out,
        seed=seed,
        epochs=epochs,
        device=device,
        slices=slices,
        show=choose_progress(quiet or json_),
    )
    summary = summarise(done)
    if json_:
        typer.echo(json.dumps(summary, indent=1))
        return
    _print(done, summary, out)


def _embeddings(data: str, beside: dict[str, str | None]) -> str:
    """Return the task of embeddings in a file, and of the files or columns beside them."""
    given = {"path": str(Path(data).absolute()), **{key: value for key, value in beside.items() if value}}
    if commas := [value for value in given.values() if "," in value]:
        raise ValueError(
            f"names of files and columns must not hold commas here, got {commas[0]!r}; rename it"
        )
    return "embeddings:" + ",".join(f"{key}={value}" for key, value in given.items())


def _print(done: Any, summary: dict[str, Any], out: Path) -> None:
    from evenhand.audit.judge import HEADLINES, recommendation

    judged, described, labels = done.judgement, done.description, done.evidence.y["train"]
    classes = []
    for number, each in enumerate(judged.classes[:SHOWN]):
        own = done.lists[labels == number]
        counts = [f"{count:,}" for count in (len(own), *((own == kind).sum() for kind in LISTS))]
        classes.append((each.name, *counts, f"{each.gap:.2f}", f"{each.threshold:.2f}", each.words))
    columns = ("class", "samples", "minority", "mislabelled", "gap", "threshold", "evidence")
    print_table("Do some samples of a class stand apart?", columns, classes, words=("class", "evidence"))
    if len(judged.classes) > SHOWN:
        say(f"… and {len(judged.classes) - SHOWN} more classes in summary.json")
    if described.overall:
        shared = [
            (
                name,
                each.words,
                f"{each.late:,} of {each.num_late:,}",
                f"{each.others:,} of {each.num_others:,}",
            )
            for name, found in (("all", described.overall), *described.classes.items())
            for each in found[:SHARED]
        ]
        names = ("class", "late samples", "late", "others")
        print_table("What do late samples share?", names, shared[:SHOWN], words=names[:2])
    models = []
    for name, part, what in ROWS:
        both = [summary["models"][key][part].get(what) for key in ("baseline", "balanced")]
        if all(both):
            models.append((name, *(f"{100 * each['accuracy']:.1f}%" for each in both)))
    print_table("Both models on held-out samples", ("accuracy", "as collected", "balanced"), models)
    slices = [
        (str(number), str(len(one.first)), f"{100 * one.accuracy:.1f}%", ", ".join(_ids(done, one)))
        for number, one in enumerate(done.slices[:SHOWN], start=1)
    ]
    if slices:
        print_table(
            f"Slices by {done.slices[0].method} (slices.csv)",
            ("slice", "samples", "accuracy unseen", "most typical"),
            slices,
            words=("most typical",),
        )
    for note in (*done.data.notes, *described.notes):
        say(f"Note: {note}.")
    say(HEADLINES[judged.advice])
    if described.headline:
        say(described.headline)
    for reason in judged.reasons:
        say(f"  {reason}")
    counts = summary["triage"]
    say(
        f"Triage: {counts['minority']:,} samples are likely a minority, "
        f"{counts['mislabelled']:,} are likely mislabelled (samples.csv)."
    )
    for note in counts["notes"]:
        say(f"  {note}")
    say(recommendation(judged))
    say(f"\nOpen {out / 'report.html'} to see them; {out} also holds both models and summary.json.")


def _ids(done: Any, one: Any) -> list[str]:
    return [str(done.data.ids[done.data.rows(0)[row]]) for row in one.first[:3]]


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
