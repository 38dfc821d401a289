"""Record: what a finished run has left on disk; every table, figure and page is derived from records."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from evenhand.core.partition import Partition
from evenhand.training.store import Damaged, read_json, set_aside


@dataclass(frozen=True)
class Record:
    """A finished run's folder, read as needed."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """Task, data checksum, method, hyperparameters, recipe, seed, stages; versions."""
        content: dict[str, Any] = read_json(self.path / "config.json")
        return content

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The scores, reproducible to the byte."""
        return read_metrics(self.path / "metrics.json")

    @cached_property
    def timing(self) -> dict[str, Any]:
        """Seconds of every stage, and of the whole run the last time it did any work."""
        content: dict[str, Any] = read_json(self.path / "timing.json")
        return content

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @cached_property
    def partition(self) -> Partition | None:
        """The pseudo-groups that the method found, if it looks for any."""
        path = self.path / "partition.npz"
        return Partition.load(path) if path.exists() else None

    @cached_property
    def val_partition(self) -> Partition | None:
        """The validation set's pseudo-groups, by the identifier's validation losses; with its labels."""
        path = self.path / "val_partition.npz"
        return Partition.load(path) if path.exists() else None

    @cached_property
    def dynamics(self) -> dict[str, Any] | None:
        """Curves of aligned and conflicting samples; None where nothing is known to conflict."""
        path = self.path / "dynamics.json"
        return read_json(path) if path.exists() else None

    @cached_property
    def predictions(self) -> dict[str, np.ndarray]:
        """Predicted classes of `val` and `test`, (samples,) int32."""
        try:
            with np.load(self.path / "predictions.npz", allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (ValueError, EOFError, BadZipFile) as error:
            raise Damaged(f"{self.path / 'predictions.npz'} cannot be read: {error}") from error

    def stage(self, name: str) -> Path:
        """The folder of one of the run's trainings."""
        return self.path.parent.parent / "stages" / str(self.config["stages"][name]["folder"])

    def epochs(self, name: str) -> list[dict[str, Any]]:
        """The learning curve of one of the run's trainings, up to where this run stopped it."""
        rows = [json.loads(line) for line in (self.stage(name) / "epochs.jsonl").read_text().splitlines()]
        return rows[: self.config["stages"][name]["epochs"]]

    def losses(self, name: str = "erm") -> np.ndarray | None:
        """The loss histories of a recorded training, (samples, epochs) memory-mapped; None if not kept."""
        if name not in self.config["stages"] or not (path := self.stage(name) / "losses.npy").exists():
            return None
        losses: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
        epochs = self.config["stages"][name]["epochs"]
        return losses[:, :epochs] if losses.shape[1] >= epochs else None


def is_finished(path: Path) -> bool:
    """metrics.json is written last: where it is, the run is complete. A damaged one is set aside."""
    metrics = path / "metrics.json"
    if not metrics.exists():
        return False
    try:
        read_metrics(metrics)
    except Damaged as error:
        set_aside(metrics, error)
        return False
    return True


def read_metrics(path: Path) -> dict[str, Any]:
    """The scores of a run, or Damaged where a file does not hold any."""
    content = read_json(path)
    if not isinstance(content, dict) or not {"task", "method", "seed", "val", "test"} <= content.keys():
        raise Damaged(f"{path} should hold the scores of a run, but it does not; delete it and run again")
    return content


def find(runs: Path) -> Iterator[Record]:
    """Every finished run below a folder, in the order of their paths."""
    for metrics in sorted(runs.glob("*/*/*/metrics.json")):
        yield Record(metrics.parent)


def key_of(content: dict[str, Any]) -> str:
    """Twelve hexadecimal digits that stand for a configuration."""
    text = json.dumps(content, sort_keys=True, default=dataclasses.asdict)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
