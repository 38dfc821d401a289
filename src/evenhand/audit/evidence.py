"""Evidence: the results of an audit's trainings, for any kind of model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.audit.shortcut import Shortcut
from evenhand.core.partition import Balanced, Partition, partition, rebalance, sample_weights
from evenhand.training import log
from evenhand.training.data import Task
from evenhand.training.execute import execute
from evenhand.training.recipe import Recipe
from evenhand.training.record import Record
from evenhand.training.store import verify_digested

PARTS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Evidence:
    """Loss histories, pseudo-groups, and the predictions of both models for every sample.

    `unseen` and `unseen_balanced` are out-of-fold predictions. The training set is divided into folds. Each
    fold is predicted by a model trained on the other folds, and by one trained on their balanced set.
    """

    class_names: tuple[str, ...]
    y: Mapping[str, np.ndarray]  # per part: (samples,) int64
    losses: np.ndarray  # (training samples, epochs) float32, of the identifier
    hits: np.ndarray  # (training samples, epochs) bool
    val_losses: np.ndarray  # (validation samples, epochs) float32
    parts: Partition  # of the training samples
    balanced_rows: Balanced
    baseline: Mapping[str, np.ndarray]  # per part: predicted classes, (samples,) int64
    balanced: Mapping[str, np.ndarray]
    unseen: np.ndarray  # (training samples, classes) float32 probabilities
    unseen_balanced: np.ndarray  # the same, by balanced models
    shortcut: Shortcut | None = None  # the property that alone predicts most labels
    unseen_without: np.ndarray | None = None  # like `unseen`, by models that do not see that property
    group: Mapping[str, np.ndarray] | None = None  # for scoring only
    group_names: tuple[str, ...] = ()
    records: Mapping[str, Record] = field(default_factory=dict)  # the runs of both models, by name
    files: Mapping[str, bytes] = field(default_factory=dict)  # the two models, by file name
    about: Mapping[str, Any] = field(default_factory=dict)  # what was trained, and how long
    direct: bool = False  # whether any property of the data can be a candidate for a shortcut

    @cached_property
    def late(self) -> np.ndarray:
        """(training samples,) bool: in its class's smaller cluster, which has the higher loss."""
        return late_samples(self.parts, self.losses)

    @cached_property
    def val_late(self) -> np.ndarray:
        """(validation samples,) bool: the late samples of the validation set."""
        return late_samples(self.val_parts, self.val_losses)

    @cached_property
    def val_parts(self) -> Partition:
        """The pseudo-groups of the validation set, from the identifier's losses on it."""
        return partition(self.val_losses, self.y["val"])


def late_samples(parts: Partition, losses: np.ndarray) -> np.ndarray:
    """Return the samples of smaller clusters that have the higher loss, (samples,) bool."""
    mean = np.asarray(losses, dtype=np.float64).mean(axis=1)
    late = parts.minority.copy()
    for label in parts.classes:
        own = parts.labels == label
        few, most = own & parts.minority, own & ~parts.minority
        if few.any() and most.any() and mean[few].mean() < mean[most].mean():
            late[few] = False
    return late


def folds(parts: Partition, count: int) -> np.ndarray:
    """Return the fold of each sample, (samples,) int64, with every cluster of every class spread evenly."""
    fold = np.zeros(len(parts.labels), dtype=np.int64)
    rng = np.random.default_rng([count, 31])
    start = 0
    for label in parts.classes:
        for minority in (False, True):
            rows = rng.permutation(np.flatnonzero((parts.labels == label) & (parts.minority == minority)))
            fold[rows] = (np.arange(len(rows)) + start) % count
            start += len(rows)
    return fold


def balanced_without(parts: Partition, kept: np.ndarray) -> np.ndarray:
    """Return the balanced multiset of some of the samples, in which rows are repeated by their weight."""
    times = np.rint(sample_weights(parts)).astype(np.int64)
    return np.repeat(kept, times[kept])


def course(hits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first epoch from which each sample stays right, and how often it was forgotten.

    Epochs count from 1. The epoch is -1 for samples that are wrong in the last epoch.

    >>> learned, forgotten = course(np.array([[0, 1, 0, 1, 1], [1, 1, 1, 1, 0]], dtype=bool))
    >>> learned.tolist(), forgotten.tolist()
    ([4, -1], [1, 1])
    """
    right = np.asarray(hits, dtype=bool)
    forgotten = (right[:, :-1] & ~right[:, 1:]).sum(axis=1)
    wrong_last = np.where(right.all(axis=1), 0, right.shape[1] - np.argmin(right[:, ::-1], axis=1))
    learned = np.where(right[:, -1], wrong_last + 1, -1)
    return learned.astype(np.int64), forgotten.astype(np.int64)


def collect(
    task: Task,
    *,
    seed: int,
    runs: Path,
    device: str,
    num_folds: int,
    show: log.Silent,
    recipe: Recipe | None = None,
    estimator: dict[str, Any] | None = None,
    shortcut: Shortcut | None = None,
    without: str = "",
) -> Evidence:
    """Train the models of an audit, or read the runs that an earlier call has left under `runs`.

    estimator: The method's settings that name an estimator. Without them, networks are trained.
    without: The features that show the shortcut, which the method needs.
    """
    settings: dict[str, Any] = {"recipe": recipe, "seed": seed, "runs": runs, "device": device, "show": show}
    method = "evenhand.audit.method"
    if estimator:
        baseline = execute(task, method, {**estimator, "num_folds": 0}, **settings)
    else:
        baseline = execute(task, "erm", **settings)
    record = execute(
        task, method, {**(estimator or {}), "num_folds": num_folds, "without": without}, **settings
    )
    assert record.partition is not None
    parts, length = record.partition, record.config["stages"]["erm"]["epochs"]
    splits = {part: getattr(task, part) for part in PARTS}
    fold = folds(parts, num_folds)
    unseen = np.zeros((2, len(fold), task.num_classes), dtype=np.float32)
    for number in range(num_folds):
        for each, name in zip(unseen, ("fold", "balanced"), strict=True):
            each[fold == number] = _outputs(record, f"{name}{number}")
    blind = np.zeros_like(unseen[0])
    for half in (0, 1) if without else ():
        blind[fold % 2 == half] = _outputs(record, f"without{half}")
    last = {"baseline": (baseline, _outputs(record, "erm")), "balanced": (record, _outputs(record, "model"))}
    guesses = {
        key: {"train": train.argmax(1), **{p: each.predictions[p].astype(np.int64) for p in PARTS[1:]}}
        for key, (each, train) in last.items()
    }
    grouped = all(split.group is not None for split in splits.values())
    return Evidence(
        class_names=task.class_names,
        y={part: split.y.numpy() for part, split in splits.items()},
        losses=_history(record, "losses", length),
        hits=_history(record, "hits", length),
        val_losses=_history(record, "val_losses", length),
        parts=parts,
        balanced_rows=rebalance(parts, seed=seed),
        baseline=guesses["baseline"],
        balanced=guesses["balanced"],
        unseen=unseen[0],
        unseen_balanced=unseen[1],
        shortcut=shortcut,
        direct=bool(estimator),
        unseen_without=blind if without else None,
        group={part: split.group.numpy() for part, split in splits.items()} if grouped else None,
        group_names=task.group_names,
        records={"baseline": baseline, "balanced": record},
        about={
            "model": (estimator or {}).get("estimator", record.config["full_recipe"]["model"]),
            "epochs": length,
            "trainings": 2 + 2 * num_folds,
        },
    )


def _history(record: Record, name: str, epochs: int) -> np.ndarray:
    history: np.ndarray = np.load(record.stage("erm") / f"{name}.npy", allow_pickle=False)
    return np.ascontiguousarray(history[:, :epochs])


def _outputs(record: Record, stage: str) -> np.ndarray:
    """Return a training's outputs for the samples for which they were kept."""
    folder = record.stage(stage)
    path = folder / "outputs-estimator.npy"
    path = path if path.exists() else folder / "outputs-val.npy"
    verify_digested(path)
    outputs: np.ndarray = np.load(path, allow_pickle=False)
    return outputs
