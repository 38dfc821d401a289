"""Apply an audit's model to new data, with the preprocessing of the audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evenhand.audit import portable
from evenhand.integrations.prediction import Network, Predictions, named
from evenhand.tasks import table
from evenhand.tasks.folder import image_files
from evenhand.training import store
from evenhand.training.models import is_own
from evenhand.training.recipe import Recipe
from evenhand.training.store import Damaged, read_json, schema_error

MODELS = ("baseline", "balanced")
READING = {"header": bool, "text": (None, str), "image": (None, str)}
SUMMARY = {"ship": {"model": str}, "data": {"kind": str, "classes": [str], "reading": {str: object}}}


def is_audit(folder: Path) -> bool:
    """Return whether an audit wrote this folder, as opposed to a run."""
    return (folder / "summary.json").is_file() and not (folder / "config.json").is_file()


def predict(folder: Path, inputs: Path, *, model: str | None, device: str) -> tuple[str, Predictions]:
    """Return the name of the model that was used, by default the recommended one, and its predictions."""
    try:
        sealed = store.read_manifest(folder, known=None)["files"]
        summary = read_json(store.verified(folder, "summary.json", sealed))
    except Damaged as error:
        raise ValueError(f"{folder} should be the folder of an audit: {error}; audit again") from error
    if wrong := schema_error(summary, SUMMARY):
        raise ValueError(
            f"{folder / 'summary.json'} should be an audit's, but {wrong}; audit again with this version"
        )
    name = model or summary["ship"]["model"]
    if name not in MODELS:
        raise ValueError(f"--model must be {' or '.join(MODELS)}, got {name!r}")
    reading = {"header": True, "text": None, "image": None, **summary["data"]["reading"]}
    if wrong := schema_error(reading, READING):
        raise ValueError(f"{folder / 'summary.json'} should say how the table is read, but {wrong}")
    if (folder / name).is_dir():
        return name, _transformer(
            store.verified(folder, name, sealed), summary["data"]["classes"], inputs, reading, device
        )
    weights = folder / f"{name}.safetensors"
    if not weights.is_file():
        raise ValueError(_own(folder, name))
    store.verified(folder, weights.name, sealed)
    return name, _predicted(weights, summary["data"]["kind"], inputs, reading, device)


def _own(folder: Path, name: str) -> str:
    """Return what to do with a user's own estimator, which only a pickle can store."""
    file = folder / f"{name}.joblib"
    if not file.is_file():
        return f"expected a model {name!r} in {folder}, but there is none; audit again"
    return (
        f"{file} holds an estimator of your own as a pickle, which evenhand does not read; if you made it, "
        f"use it in Python: joblib.load({str(file)!r}).predict(table)"
    )


def _predicted(weights: Path, kind: str, inputs: Path, reading: dict[str, Any], device: str) -> Predictions:
    about = portable.read(weights, arrays=False).about
    if about["kind"] == "network":
        return _by_network(weights, about, kind, inputs, reading, device)
    file, frame = portable.read(weights), _table(inputs, reading)
    ids = [str(row) for row in frame.index]
    if about["kind"] == "words":
        texts = _column(frame, reading["text"], inputs, "texts")
        return named(ids, about["classes"], portable.linear_probabilities(file, texts))
    if about["kind"] == "trees":
        return named(ids, about["classes"], portable.boosting_probabilities(file, frame))
    raise ValueError(f"{weights} holds a model of an unknown kind, {about['kind']!r}; audit again")


def _by_network(
    weights: Path, about: dict[str, Any], kind: str, inputs: Path, reading: dict[str, Any], device: str
) -> Predictions:
    architecture = about.get("model")
    if not isinstance(architecture, str) or is_own(architecture):  # code that a file names is never run
        about = {**about, "own_model": True}
    network = Network(weights, about, Recipe(model=str(architecture)), weights)
    tabular = _is_table(inputs)
    if tabular and kind != "images":
        raise ValueError(
            f"the audit's model {architecture} reads numbers that were made of a table's columns; audit "
            "without --model to get one that reads tables, or give those numbers as an .npy file"
        )
    if not tabular:
        return network.predict(*network.read(inputs), device=device)
    paths = _column(_table(inputs, reading), reading["image"], inputs, "paths of images")
    return network.predict(
        *network.images(paths, image_files(paths, inputs, reading["image"])), device=device
    )


def _transformer(
    folder: Path, classes: list[str], inputs: Path, reading: dict[str, Any], device: str
) -> Predictions:
    from evenhand.audit.text_model import TextModel

    frame = _table(inputs, reading)
    texts = _column(frame, reading["text"], inputs, "texts")
    probabilities = TextModel(folder, tuple(classes)).probabilities(texts, device)
    return named([str(row) for row in frame.index], classes, probabilities)


def _is_table(inputs: Path) -> bool:
    return inputs.name.lower().endswith(table.SUFFIXES) and not inputs.is_dir()


def _table(inputs: Path, reading: dict[str, Any]) -> Any:
    if not _is_table(inputs):
        raise ValueError(
            "INPUT must be a table like the one that was audited, whose name ends in "
            f"{', '.join(table.SUFFIXES)}; got {inputs}"
        )
    return table.read(inputs, header=bool(reading["header"]))


def _column(frame: Any, name: Any, inputs: Path, what: str) -> list[str]:
    """Return the texts of one column; a gap is an empty text."""
    if name not in frame.columns:
        have = ", ".join(map(str, frame.columns[:40]))
        raise ValueError(
            f"expected {what} in the column {name!r}, as in the audit, but the columns of {inputs} are {have}"
        )
    return table.as_text(frame[name])
