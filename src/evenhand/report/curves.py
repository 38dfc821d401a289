"""Learning curves of every training, each drawn once however many runs share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from evenhand.report import figures
from evenhand.report.figures import Chart, Series
from evenhand.report.study import Study
from evenhand.report.words import count, duration, listed
from evenhand.training.record import Record

MOST_TRAININGS = 12


@dataclass(frozen=True)
class Curves:
    """One training: its loss, and its accuracy on training and validation samples."""

    title: str
    users: str  # which runs use it, and for how many epochs
    time: str
    loss: Chart
    accuracy: Chart


def curves(study: Study, prefix: str) -> tuple[list[Curves], int]:
    """The curves of the study's trainings, and how many more there are."""
    folders: dict[str, list[tuple[Record, str]]] = {}
    for record in study.records:
        for stage in record.config["stages"]:
            folders.setdefault(record.stage(stage).name, []).append((record, stage))
    shown: list[Curves] = []
    for uses in folders.values():
        if len(shown) == MOST_TRAININGS:
            break
        drawn = _curves(study, uses, f"{prefix}-training-{len(shown)}")
        if drawn is not None:
            shown.append(drawn)
    return shown, len(folders) - len(shown)


def _curves(study: Study, uses: list[tuple[Record, str]], name: str) -> Curves | None:
    longest, stage = max(uses, key=lambda use: use[0].config["stages"][use[1]]["epochs"])
    try:
        rows = longest.epochs(stage)
    except FileNotFoundError:
        return None  # packed records may come without their stages
    if not rows:
        return None
    epochs = np.array([row["epoch"] for row in rows], dtype=np.int64)
    users = [
        f"{study.variant_of(run).label} ({count(run.config['stages'][own]['epochs'], 'epoch')})"
        for run, own in uses
    ]
    several = len({run.seed for run in study.records}) > 1
    return Curves(
        title=f"Training “{stage}”" + (f", seed {longest.seed}" if several else ""),
        users=f"Used by {listed(users)}.",
        time=duration(_seconds(longest, stage)),
        loss=figures.chart(
            f"{name}-loss",
            "Training loss",
            epochs,
            [Series("loss", "loss", _column(rows, "loss"))],
            height=150,
        ),
        accuracy=figures.chart(
            f"{name}-accuracy",
            "Accuracy",
            epochs,
            [
                Series("training", "train", _column(rows, "accuracy")),
                Series("validation", "val", _column(rows, "val_accuracy")),
            ],
            height=150,
            share=True,
        ),
    )


def _column(rows: list[dict[str, Any]], name: str) -> figures.Floats:
    return np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=np.float64)


def _seconds(record: Record, stage: str) -> float | None:
    try:
        return float(record.timing["stages"][stage])
    except (FileNotFoundError, KeyError):
        return None
