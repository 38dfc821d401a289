"""The command evaluate: any model's predictions, by group."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenhand.cli.common import OWN, app
from evenhand.cli.results import Form, form_of, print_or_write


@app.command(rich_help_panel=OWN)
def evaluate(
    predictions: Annotated[
        Path,
        typer.Argument(metavar="PREDICTIONS", help="A CSV or Parquet table with labels and predictions."),
    ],
    label: Annotated[str, typer.Option(help="Column of the true classes.")],
    groups: Annotated[str, typer.Option(help="Columns of known groups, with commas between them.")] = "",
    prediction: Annotated[
        str | None, typer.Option(help="Column of the predicted classes. Default: predicted or prediction.")
    ] = None,
    probability: Annotated[
        str,
        typer.Option(
            help="Column of the second class's probability, or how the columns of all classes begin."
        ),
    ] = "probability",
    least: Annotated[int, typer.Option(help="Leave out groups with fewer samples.", min=1)] = 10,
    depth: Annotated[int, typer.Option(help="Columns to intersect at most, with the label.", min=1)] = 3,
    most: Annotated[int, typer.Option(help="Groups to print. A file holds all of them.", min=1)] = 20,
    form: Annotated[Form | None, typer.Option("--format", help="Output format.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write. Its ending sets the format.")
    ] = None,
) -> None:
    """Score any model's predictions by group, with intervals, worst first."""
    from evenhand.by_group import evaluate as evaluate_

    form = form_of(form, out)
    columns = [name.strip() for name in groups.split(",") if name.strip()]
    settings = {"prediction": prediction, "probability": probability, "least": least, "depth": depth}
    made = evaluate_(predictions, label=label, groups=columns, **settings)  # type: ignore[arg-type]
    print_or_write(made.table(None if out or form else most), form, out)
