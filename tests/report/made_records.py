"""Records written by hand, so that a page can be built of any result without training anything."""

from __future__ import annotations

import dataclasses
import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from made_bench import arithmetic

from evenhand.core.metrics import wilson_interval
from evenhand.core.partition import Partition
from evenhand.training.data import Task
from evenhand.training.recipe import Recipe
from evenhand.training.record import Record
from evenhand.training.store import write_bytes, write_json

EPOCHS = 8


def parts_of(names: list[str], accuracies: list[float], size: int = 200) -> list[dict[str, Any]]:
    """Scores of groups or classes, as the scorer writes them."""
    return [
        {
            "name": name,
            "count": size,
            "accuracy": accuracy,
            "interval": list(wilson_interval(round(accuracy * size), size)),
        }
        for name, accuracy in zip(names, accuracies, strict=True)
    ]


def scores(groups: dict[str, float] | None, classes: dict[str, float], size: int = 200) -> dict[str, Any]:
    """What `metrics.json` says of one split."""
    class_parts = parts_of(list(classes), list(classes.values()), size)
    group_parts = None if groups is None else parts_of(list(groups), list(groups.values()), size)
    worst = min(group_parts or class_parts, key=lambda part: part["accuracy"])
    mean = float(np.mean(list(classes.values())))
    return {
        "wga": worst["accuracy"],
        "wga_interval": worst["interval"],
        "wga_over": "classes" if groups is None else "groups",
        "worst_group": worst["name"],
        "worst_class": min(classes.values()),
        "accuracy": mean,
        "accuracy_weighted": mean,
        "accuracy_balanced": mean,
        "groups": group_parts,
        "classes": class_parts,
    }


def plant(labels: np.ndarray, share: float = 0.1, epochs: int = EPOCHS) -> tuple[Partition, np.ndarray]:
    """Loss histories of which a share of every class falls late, and the partition that says so."""
    rng = np.random.default_rng(0)
    minority = np.zeros(len(labels), dtype=bool)
    classes = np.unique(labels)
    for label in classes:
        own = np.flatnonzero(labels == label)
        minority[own[: max(1, int(share * len(own)))]] = True
    rate = np.where(minority, 0.1, 0.8)[:, None]
    losses = 2 * np.exp(-rate * np.arange(epochs)) + 0.1 * rng.random((len(labels), epochs))
    sizes = np.array([[(~minority & (labels == c)).sum(), (minority & (labels == c)).sum()] for c in classes])
    margin = np.where(minority, 0.5, -0.5) + 0.1 * rng.random(len(labels))
    parts = Partition(
        minority=minority,
        labels=labels,
        classes=classes,
        sizes=sizes,
        separation=np.linspace(0.9, 0.2, len(classes)),
        margin=margin.astype(np.float32),
        unsplit={},
    )
    return parts, losses.astype(np.float32)


def write_run(
    runs: Path,
    method: str,
    test: dict[str, Any],
    *,
    task: Task | None = None,
    name: str = "planted",
    spec: str = "planted",
    seed: int = 0,
    found: tuple[Partition, np.ndarray] | None = None,
    identification: dict[str, float] | None = None,
    hyperparameters: dict[str, Any] | None = None,
    recipe: Recipe | None = None,
) -> Record:
    """A finished run with these scores; TAB-like where `found` gives a partition and loss histories."""
    recipe = recipe or Recipe(epochs=EPOCHS, precision="fp32")
    settings = hyperparameters or {}
    path = runs / name / method / f"{zlib.crc32(json.dumps(settings).encode()):08x}-s{seed}"
    stages = {"erm": {"folder": f"shared-s{seed}", "epochs": EPOCHS}}
    if found is not None:
        stages["model"] = {"folder": f"{method}-s{seed}", "epochs": EPOCHS - 2}
    for stage in stages.values():
        folder = runs / name / "stages" / str(stage["folder"])
        rows = [
            {
                "epoch": e,
                "loss": 1 / e,
                "accuracy": 1 - 0.5 / e,
                "val_accuracy": None if e % 2 else 0.9,
                "lr": 1e-3,
            }
            for e in range(1, EPOCHS + 1)
        ]
        write_bytes(folder / "epochs.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    if found is not None:
        parts, losses = found
        buffer = io.BytesIO()
        np.save(buffer, losses)
        write_bytes(runs / name / "stages" / f"shared-s{seed}" / "losses.npy", buffer.getvalue())
        path.mkdir(parents=True, exist_ok=True)
        parts.save(path / "partition.npz")
    config = {
        "task": name,
        "data": task.checksum if task else "",
        "method": method,
        "hyperparameters": settings,
        "recipe": recipe.changed(),
        "version": 1,
        "numerics": 1,
        "arithmetic": arithmetic(recipe),
        "full_recipe": dataclasses.asdict(recipe),
        "seed": seed,
        "stages": stages,
        "spec": spec,
        "versions": {"evenhand": "0", "device": "cpu"},
    }
    write_json(path / "config.json", config)
    times = dict.fromkeys(stages, 1.5)
    write_json(path / "timing.json", {"seconds": 1.0, "stages": times, "unshared": sum(times.values())})
    epochs = {stage: content["epochs"] for stage, content in stages.items()}
    metrics = {"task": name, "method": method, "seed": seed, "val": test, "test": test, "epochs": epochs}
    write_json(path / "metrics.json", {**metrics, "identification": identification})
    return Record(path)
