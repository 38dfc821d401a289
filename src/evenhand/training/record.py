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
from typing import Any

import numpy as np

from evenhand.core.arrays import read_array, read_arrays
from evenhand.core.partition import Partition
from evenhand.training import seal
from evenhand.training.shape import COMPUTED, CONFIG, EPOCH, METRICS, TIMING, Shape, misshapen
from evenhand.training.store import Damaged, read_json, set_aside


@dataclass(frozen=True)
class Record:
    """A finished run's folder, read as needed."""

    path: Path

    @cached_property
    def _seal(self) -> dict[str, Any]:
        return seal.read(self.path)

    def file(self, name: str) -> Path:
        """The path of one of the run's files, or Damaged if it is not as it was written."""
        try:
            seal.check(self.path / name, self._seal)
        except Damaged as error:
            raise Damaged(f"{error}; run the same again to make it anew") from error
        return self.path / name

    @cached_property
    def config(self) -> dict[str, Any]:
        """Task, data checksum, method, hyperparameters, recipe, arithmetic, seed, stages; versions."""
        return read_shaped(self.file("config.json"), CONFIG, "the settings of a run")

    @cached_property
    def older(self) -> bool:
        """Whether the record does not say how it was computed, as those of earlier versions do not.

        Such records are read and shown, but never returned for a new run nor averaged with newer ones.
        """
        return bool(misshapen(self.config, COMPUTED))

    @property
    def made_with(self) -> dict[str, Any]:
        """How and by which version it was computed; records that differ in this are not averaged."""
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
        return read_shaped(self.file("timing.json"), TIMING, "the times of a run")

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @cached_property
    def partition(self) -> Partition | None:
        """The pseudo-groups that the method found, if it looks for any."""
        path = self.file("partition.npz")
        return Partition.load(path) if path.exists() else None

    @cached_property
    def val_partition(self) -> Partition | None:
        """The validation set's pseudo-groups, by the identifier's validation losses; with its labels."""
        path = self.file("val_partition.npz")
        return Partition.load(path) if path.exists() else None

    @cached_property
    def dynamics(self) -> dict[str, Any] | None:
        """Curves of aligned and conflicting samples; None where nothing is known to conflict."""
        path = self.file("dynamics.json")
        return read_json(path) if path.exists() else None

    @cached_property
    def predictions(self) -> dict[str, np.ndarray]:
        """Predicted classes of `val` and `test`, (samples,) int32.

        Also their `val_confidence` and `val_logits`, float16; older and packed records have fewer of them.
        """
        try:
            return read_arrays(self.file("predictions.npz"), "predictions")
        except ValueError as error:
            raise Damaged(str(error)) from error

    def stage(self, name: str) -> Path:
        """The folder of one of the run's trainings."""
        folder = str(self.config["stages"][name]["folder"])
        if Path(folder).name != folder:  # the records may be anybody's
            raise ValueError(f"{self.path / 'config.json'} names an unsafe folder, {folder!r}: do not use it")
        return self.path.parent.parent / "stages" / folder

    def epochs(self, name: str) -> list[dict[str, Any]]:
        """The learning curve of one of the run's trainings, up to where this run stopped it."""
        path = self.stage(name) / "epochs.jsonl"
        try:
            rows = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
        except (ValueError, RecursionError) as error:
            raise Damaged(f"{path} should hold a line of JSON for every epoch, but {error}") from error
        if wrong := misshapen(rows, [EPOCH]):
            raise Damaged(f"{path} should hold the figures of every epoch, but {wrong}")
        self._check_stage(name, path.name)
        return rows[: self.config["stages"][name]["epochs"]]

    def _check_stage(self, name: str, file: str) -> None:
        epochs, sealed = self.config["stages"][name]["epochs"], self._seal["stages"].get(name, {})
        seal.check_stage(self.stage(name), epochs, sealed, file)

    def losses(self, name: str = "erm") -> np.ndarray | None:
        """The loss histories of a recorded training, (samples, epochs) memory-mapped; None if not kept."""
        if name not in self.config["stages"] or not (path := self.stage(name) / "losses.npy").exists():
            return None
        losses = read_array(path, "loss histories")
        if losses.ndim != 2 or losses.dtype.kind != "f":
            raise Damaged(f"{path} should hold loss histories, got {losses.dtype} of shape {losses.shape}")
        epochs = self.config["stages"][name]["epochs"]
        if losses.shape[1] < epochs:
            return None
        self._check_stage(name, path.name)
        return losses[:, :epochs]


def is_finished(path: Path) -> bool:
    """metrics.json is written last: where it is, the run is complete. A damaged one is set aside.

    A run is not finished either if another file that tables read is not as it was written; `execute` then
    sets that file aside and makes it again.
    """
    metrics = path / "metrics.json"
    if not metrics.exists():
        return False
    try:
        read_metrics(metrics)
    except Damaged as error:
        set_aside(metrics, error)
        return False
    return not seal.damaged(path, everything=False)


def is_whole(path: Path) -> bool:
    """Whether a run is finished and everything that it has left, and saw of its trainings, is as it was."""
    return is_finished(path) and not seal.damaged(path, everything=True)


def set_damage_aside(path: Path) -> None:
    """Make a run unfinished whose files are damaged; only who holds the claim of its folder may."""
    if not (path / "metrics.json").exists():
        return
    for file, error in seal.damaged(path, everything=True):
        if file.parent == path and file.exists():
            set_aside(file, error)
        else:  # gone; or a training's own, which are set aside and made again by who goes on with it
            warnings.warn(f"{error}; the run is computed again", stacklevel=2)
    (path / "metrics.json").unlink(missing_ok=True)
    (path / seal.SEAL).unlink(missing_ok=True)


def read_metrics(path: Path) -> dict[str, Any]:
    """The scores of a run, or Damaged where a file does not hold any."""
    content = read_shaped(path, METRICS, "the scores of a run")
    for scores in (content["val"], content["test"]):
        parts = scores["groups"] or scores["classes"]
        if scores["worst_group"] not in {part["name"] for part in parts}:
            raise Damaged(
                f"{path} should hold the scores of a run, but its worst group is none of its groups"
            )
    return content


def read_shaped(path: Path, shape: Shape, what: str) -> dict[str, Any]:
    """JSON that has the shape that it should have, or Damaged."""
    content: dict[str, Any] = read_json(path)
    if wrong := misshapen(content, shape):
        raise Damaged(f"{path} should hold {what}, but it does not: {wrong}; delete it and run again")
    return content


def find(runs: Path) -> Iterator[Record]:
    """Every finished run below a folder, in the order of their paths."""
    for metrics in sorted(runs.glob("*/*/*/metrics.json")):
        yield Record(metrics.parent)


def key_of(content: dict[str, Any]) -> str:
    """Twelve hexadecimal digits that stand for a configuration."""
    text = json.dumps(content, sort_keys=True, default=dataclasses.asdict)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
