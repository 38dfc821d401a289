"""The folder of an audit: every file whole, the summary last."""

from __future__ import annotations

import io
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import evenhand
from evenhand.audit import page
from evenhand.audit.place import WRITING
from evenhand.audit.run import Audited
from evenhand.audit.words import list_notes
from evenhand.core.rebalance import sample_weights
from evenhand.integrations.files import csv_bytes
from evenhand.training import manifest
from evenhand.training.store import json_bytes, write_bytes

HEADER = (
    "id", "split", "label", "predicted_baseline", "predicted_balanced", "pseudo_group", "margin",
    "first_loss", "last_loss", "mean_loss", "epoch_learned", "times_forgotten", "confidence_unseen", "triage",
)  # fmt: skip


def write(done: Audited, out: Path) -> dict[str, Any]:
    """Write all files and give the summary; its existence means that the others are there."""
    summary = summarise(done)
    files = contents(done)  # all of them before the first is written, so that a mistake leaves none behind
    write_bytes(out / WRITING, b"")  # killed from here on, the same command must know the folder again
    (out / "summary.json").unlink(missing_ok=True)  # of an earlier audit, whose files are replaced now
    _remove_models(out)
    for name, content in files.items():
        write_bytes(out / name, content)
    last = json_bytes(summary)
    manifest.seal(out, {**files, "summary.json": last})
    write_bytes(out / "summary.json", last)
    (out / WRITING).unlink()
    return summary


def _remove_models(out: Path) -> None:
    """An earlier audit's models, which may be of another kind and would stay beside the new ones."""
    for name in ("baseline", "balanced"):
        shutil.rmtree(out / name, ignore_errors=True)
        for suffix in ("joblib", "safetensors"):
            (out / f"{name}.{suffix}").unlink(missing_ok=True)


def contents(done: Audited) -> dict[str, bytes]:
    """Every file but the summary, by its name."""
    found, train = done.evidence, done.data.rows(0)
    weights = sample_weights(found.parts)
    rows = ((done.data.ids[row], round(float(weight), 6)) for row, weight in zip(train, weights, strict=True))
    return {
        **found.files,
        "samples.csv": _samples(done),
        "weights.csv": csv_bytes(("id", "weight"), rows),
        # Rows of samples.csv, not of the training set: what was held out stays held out.
        "indices.npy": _npy(train[np.asarray(found.balanced_rows)]),
        "curves.npz": _curves(done),
        "report.html": page.content(done),
    }


def summarise(done: Audited) -> dict[str, Any]:
    """Everything but the samples, as plain values."""
    found, data = done.evidence, done.data
    counts = {kind: len(done.triage.rows(kind)) for kind in ("minority", "mislabelled")}
    return {
        "evenhand": evenhand.__version__,
        "data": {
            "source": done.title,
            "kind": data.kind,
            "samples": {part: len(found.y[part]) for part in ("train", "val", "test")},
            "classes": list(data.class_names),
            "notes": list(data.notes),
            "reading": dict(data.reading),
        },
        "seed": done.seed,
        "training": dict(found.about),
        "verdict": asdict(done.verdict),
        "triage": {
            **counts,
            "late": int(found.late.sum()),
            "doubted": done.verdict.doubted,
            "notes": list_notes(done.triage),
        },
        "models": done.models,
        "ship": done.ship,
    }


def _samples(done: Audited) -> bytes:
    """One line for each sample, in the order of the data; held-out samples have no history of training."""
    found, data, triage, course = done.evidence, done.data, done.triage, done.triage.course
    names = data.class_names
    lines: list[tuple[Any, ...]] = [()] * len(data.ids)
    for number, part in enumerate(("train", "val", "test")):
        parts = {"train": found.parts, "val": found.val_parts}.get(part)
        losses = {"train": found.losses, "val": found.val_losses}.get(part)
        for position, row in enumerate(data.rows(number).tolist()):
            lines[row] = (
                data.ids[row],
                part,
                names[int(found.y[part][position])],
                names[int(found.baseline[part][position])],
                names[int(found.balanced[part][position])],
                "" if parts is None else "minority" if parts.minority[position] else "majority",
                "" if parts is None else round(float(parts.margin[position]), 4),
                *(("", "", "") if losses is None else _course(losses[position])),
                *(
                    (
                        int(course.learned[position]),
                        int(course.forgotten[position]),
                        round(float(found.unseen[position, int(found.y[part][position])]), 4),
                        triage.verdict[position].item(),
                    )
                    if part == "train"
                    else ("", "", "", "")
                ),
            )
    return csv_bytes(HEADER, lines)


def _course(losses: np.ndarray) -> tuple[float, float, float]:
    return tuple(round(float(value), 4) for value in (losses[0], losses[-1], losses.mean()))  # type: ignore[return-value]


def _curves(done: Audited) -> bytes:
    """Training and validation losses in half precision; `rows` says which lines of samples.csv they are."""
    buffer = io.BytesIO()
    found, data = done.evidence, done.data
    np.savez_compressed(
        buffer,
        rows=data.rows(0),
        losses=found.losses.astype(np.float16),
        val_rows=data.rows(1),
        val_losses=found.val_losses.astype(np.float16),
    )
    return buffer.getvalue()


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
