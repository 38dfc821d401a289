"""Record: what a finished run has left on disk; every table, figure and page is derived from records."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenhand.training import plugins, store
from evenhand.training.store import (
    COUNT,
    NUMBER,
    SHARE,
    Damaged,
    parse_json,
    read_checked,
    schema_error,
    set_aside,
)

# What the files of a record must hold, so that nothing that a stranger wrote is trusted.
PART = {"name": str, "count": COUNT, "accuracy": SHARE, "interval": [NUMBER]}
SHARES = ("wga", "worst_class", "accuracy", "accuracy_weighted", "accuracy_balanced")
NAMES = {"wga_over": str, "worst_group": str}
SCORES = {**dict.fromkeys(SHARES, SHARE), **NAMES, "groups": (None, [PART]), "classes": [PART]}
RUN = {"task": str, "method": str, "seed": int}
IDENTIFICATION = (None, {str: (None, NUMBER)})
METRICS = {**RUN, "val": SCORES, "test": SCORES, "identification": IDENTIFICATION, "epochs": {str: int}}
STAGES = {str: {"folder": str, "epochs": int}}
CONFIG = {**RUN, "hyperparameters": {str: object}, "recipe": {str: object}, "stages": STAGES}
ARITHMETIC = {"device": str, "precision": str, "compute": str, "slices": int}
COMPUTED = {"numerics": int, "arithmetic": ARITHMETIC}  # in a config, unless it is of an earlier version
CURVE = {"count": int, "accuracy": [SHARE], "loss": [NUMBER]}
CURVES = {"aligned": CURVE, "conflicting": CURVE}
CLUSTER = {"class": str, "cluster": str, "size": int, "conflicting": int}
DYNAMICS = {"stages": {str: {"train": CURVES, "val": CURVES}}, "clusters": [CLUSTER]}
TIMING = {"seconds": NUMBER, "stages": {str: NUMBER}, "unshared": NUMBER}
EPOCH = {"epoch": int, "loss": NUMBER, "accuracy": NUMBER, "val_accuracy": (None, NUMBER)}
PER_CHANNEL = {"mean": (None, [NUMBER]), "std": (None, [NUMBER])}
INPUTS = {"shape": [int], "dtype": str, **PER_CHANNEL, "classes": [str], "own_model": bool}

if TYPE_CHECKING:
    from evenhand.core.partition import Partition


@dataclass(frozen=True)
class Record:
    """A finished run's folder, read as needed."""

    path: Path

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        return store.read_manifest(self.path)

    def file(self, name: str) -> Path:
        """Return the path of one of the run's files, or Damaged if it is not as it was written."""
        try:
            return store.verified(self.path, name, self._manifest["files"])
        except Damaged as error:
            raise Damaged(f"{error}; run the same again to make it anew") from error

    @cached_property
    def config(self) -> dict[str, Any]:
        """Task, data checksum, method, hyperparameters, recipe, arithmetic, seed, stages; versions."""
        content = read_checked(self.file("config.json"), CONFIG, "the settings of a run")
        method = str(content["method"])
        return {**content, "method": plugins.RENAMED.get(method, method)}

    @cached_property
    def older(self) -> bool:
        """Return whether the record does not say how it was computed, as those of earlier versions do not.

        Such records are read and shown, but never returned for a new run nor averaged with newer ones.
        """
        return bool(schema_error(self.config, COMPUTED))

    @property
    def sealed(self) -> bool:
        """Return whether the checksums of what the run has left are known."""
        return bool(self._manifest["files"])

    @property
    def made_with(self) -> dict[str, Any]:
        """Return how and by which version it was computed; records that differ in this are not averaged."""
        if self.older:
            return {}
        names = ("numerics", "version", "source", "model_source")
        return {**self.config["arithmetic"], **{n: self.config[n] for n in names if n in self.config}}

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The scores, reproducible to the byte."""
        return read_metrics(self.file("metrics.json"))

    @cached_property
    def timing(self) -> dict[str, Any]:
        """Seconds of every stage, and of the whole run the last time it did any work."""
        return read_checked(self.file("timing.json"), TIMING, "the times of a run")

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @cached_property
    def partition(self) -> Partition | None:
        """The pseudo-groups that the method found, if it looks for any."""
        return self._partition("partition.npz")

    @cached_property
    def val_partition(self) -> Partition | None:
        """The validation set's pseudo-groups, by the identifier's validation losses; with its labels."""
        return self._partition("val_partition.npz")

    def _partition(self, name: str) -> Partition | None:
        if not (path := self.file(name)).exists():
            return None
        from evenhand.core.partition import Partition  # loads torch, which scores and settings do not need

        return Partition.load(path)

    @cached_property
    def dynamics(self) -> dict[str, Any] | None:
        """Curves of aligned and conflicting samples; None where nothing is known to conflict."""
        path = self.file("dynamics.json")
        return read_checked(path, DYNAMICS, "the curves of a run") if path.exists() else None

    @cached_property
    def predictions(self) -> dict[str, np.ndarray]:
        """Return predicted classes of `val` and `test`, (samples,) int32.

        Also their `val_confidence` and `val_logits`, float16; older and packed records have fewer of them.
        """
        from evenhand.core.arrays import read_arrays

        try:
            return read_arrays(self.file("predictions.npz"), "predictions")
        except ValueError as error:
            raise Damaged(str(error)) from error

    def stage(self, name: str) -> Path:
        """Return the folder of one of the run's trainings."""
        folder = str(self.config["stages"][name]["folder"])
        if Path(folder).name != folder:  # the records may be anybody's
            raise ValueError(f"{self.path / 'config.json'} names an unsafe folder, {folder!r}: do not use it")
        return self.path.parent.parent / "stages" / folder

    def epochs(self, name: str) -> list[dict[str, Any]]:
        """Return the learning curve of one of the run's trainings, up to where this run stopped it."""
        path = self.stage(name) / "epochs.jsonl"
        rows = [parse_json(line, path) for line in path.read_bytes().split(b"\n") if line]
        if wrong := schema_error(rows, [EPOCH]):
            raise Damaged(f"{path} should hold the figures of every epoch, but {wrong}")
        self._verify_stage(name, path)
        return rows[: self.config["stages"][name]["epochs"]]

    def _verify_stage(self, name: str, path: Path) -> None:
        digests = self._manifest["stages"].get(name, {})
        store.verify(path, digests.get(path.name), self.config["stages"][name]["epochs"])

    def losses(self, name: str = "erm") -> np.ndarray | None:
        """Return the loss histories of a training, (samples, epochs) memory-mapped; None if not kept."""
        if name not in self.config["stages"] or not (path := self.stage(name) / "losses.npy").exists():
            return None
        from evenhand.core.arrays import read_array

        losses = read_array(path, "loss histories")
        if losses.ndim != 2 or losses.dtype.kind != "f":
            raise Damaged(f"{path} should hold loss histories, got {losses.dtype} of shape {losses.shape}")
        epochs = self.config["stages"][name]["epochs"]
        if losses.shape[1] < epochs:
            return None
        self._verify_stage(name, path)
        return losses[:, :epochs]


def is_finished(path: Path, *, everything: bool = False) -> bool:
    """Return whether metrics.json, which is written last, exists. A damaged file is set aside.

    A run is not finished either if another file that tables read is not as it was written; `execute` then
    sets that file aside and makes it again.
    """
    metrics = path / store.METRICS
    if not metrics.exists():
        return False
    try:
        read_metrics(metrics)
    except Damaged as error:
        set_aside(metrics, error)
        return False
    return not damaged(path, everything=everything)


def is_whole(path: Path) -> bool:
    """Return whether a run is finished, and its files and its trainings are unchanged."""
    return is_finished(path, everything=True)


def damaged(path: Path, *, everything: bool) -> list[tuple[Path, Damaged]]:
    """Return the damaged files of a finished run, and with `everything` also those of its trainings.

    Weights, which no table reads and which may be large, are looked at with `everything` only.
    """
    record = Record(path)
    try:
        files, stages = record._manifest["files"], record._manifest["stages"]
    except Damaged as error:
        return [(path / store.MANIFEST, error)]
    found = store.find_damaged(path, {n: files[n] for n in files if everything or n != store.WEIGHTS})
    if everything and stages and not found:
        for name, stage in record.config["stages"].items():
            found += store.find_damaged(record.stage(name), stages.get(name, {}), stage["epochs"])
        found = [(file, error) for file, error in found if file.exists()]  # a training's may be gone
    return found


def set_damage_aside(path: Path) -> None:
    """Make a run unfinished whose files are damaged; only who holds the claim of its folder may."""
    if not (path / store.METRICS).exists():
        return
    for file, error in damaged(path, everything=True):
        if file.parent == path and file.exists():
            set_aside(file, error)
        else:  # gone; or a training's own, which are set aside and made again by who goes on with it
            warnings.warn(f"{error}; the run is computed again", stacklevel=2)
    (path / store.METRICS).unlink(missing_ok=True)
    (path / store.MANIFEST).unlink(missing_ok=True)


def read_metrics(path: Path) -> dict[str, Any]:
    """Return the scores of a run, or Damaged where a file does not hold any."""
    content = read_checked(path, METRICS, "the scores of a run")
    for scores in (content["val"], content["test"]):
        parts = scores["groups"] or scores["classes"]
        if scores["worst_group"] not in {part["name"] for part in parts}:
            raise Damaged(
                f"{path} should hold the scores of a run, but its worst group is none of its groups"
            )
    return content


def find(runs: Path) -> Iterator[Record]:
    """Yield every finished run below a folder, in the order of their paths."""
    for metrics in sorted(runs.glob("*/*/*/metrics.json")):
        yield Record(metrics.parent)


def key_of(content: dict[str, Any]) -> str:
    """Return twelve hexadecimal digits that identify a configuration."""
    text = json.dumps(content, sort_keys=True, default=dataclasses.asdict)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
