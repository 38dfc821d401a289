"""Whole benches written by hand, with known answers, so that nothing has to be trained."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.core.metrics import wilson_interval
from evenhand.core.partition import Partition
from evenhand.training.recipe import Recipe
from evenhand.training.record import Record, key_of

LABELS = np.array([0] * 6 + [1] * 6)  # of the validation set
GROUPS = ("odd, red", "odd, green", "even, red", "even, green")


def write_bytes(path: Path, content: bytes) -> None:
    """Without the waits that make a real run's files safe: benches here have hundreds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, json.dumps(content).encode())


def split_scores(
    wga: float, accuracy: float, groups: bool = True, size: int = 100, unweighted: float | None = None
) -> dict[str, Any]:
    """What metrics.json says of a split whose second group is the worst."""
    parts = [
        {
            "name": name,
            "count": size,
            "accuracy": wga if i == 1 else 1.0,
            "interval": list(wilson_interval(round(size * (wga if i == 1 else 1.0)), size)),
        }
        for i, name in enumerate(GROUPS)
    ]
    classes = [{**part, "name": name} for part, name in zip(parts[1:3], ("odd", "even"), strict=True)]
    return {
        "wga": wga,
        "wga_interval": parts[1]["interval"],
        "wga_over": "groups" if groups else "classes",
        "worst_group": GROUPS[1] if groups else "odd",
        "worst_class": (wga + accuracy) / 2,
        "accuracy": accuracy if unweighted is None else unweighted,
        "accuracy_weighted": accuracy,
        "accuracy_balanced": (accuracy + wga) / 2,
        "groups": parts if groups else None,
        "classes": classes,
    }


def arithmetic(recipe: Recipe, compute: str = "eager") -> dict[str, Any]:
    """What config.json says of a run on a CPU."""
    return {"device": "cpu", "precision": recipe.precision, "compute": compute, "slices": recipe.slices}


def write(
    runs: Path,
    method: str,
    settings: dict[str, Any] | None = None,
    *,
    seed: int = 0,
    wga: float = 0.5,
    val: float = 0.9,
    val_wga: float | None = None,
    task: str = "even_odd",
    spec: str | None = None,
    recipe: Recipe | None = None,
    seconds: float = 10.0,
    wrong: int = 0,
    dynamics: dict[str, Any] | None = None,
    pseudo: bool = False,
    groups: bool = True,
    data: str = "made",
    older: bool = False,
    version: int = 1,
    numerics: int = 1,
    compute: str = "eager",
    content: dict[str, Any] | None = None,
    size: int = 100,
    unweighted: float | None = None,
) -> Record:
    """A finished run; `lr` and `weight_decay` may stand among the settings, as in a grid.

    `wrong`: of the two validation samples that the pseudo-groups set apart in each class, how many are
    misclassified; `pseudo`: the run has pseudo-groups of the validation set and a partition; `older`: the
    record is of before it said how it was computed; `content`: what the key hashes, in place of all that;
    `size`: of every group; `unweighted`: validation accuracy without the weights, where it differs.
    """
    settings = dict(settings or {})
    own_recipe = recipe or Recipe(batch_size=2048, precision="fp32")
    own_recipe = own_recipe.replace(**{k: settings.pop(k) for k in ("lr", "weight_decay") if k in settings})
    config: dict[str, Any] = {
        "task": task,
        "data": data,
        "method": method,
        "hyperparameters": settings,
        "recipe": own_recipe.changed(),
    }
    if older:
        config["recipe"] |= {"precision": own_recipe.precision}
    else:
        config |= {"version": version, "numerics": numerics, "arithmetic": arithmetic(own_recipe, compute)}
    config = config if content is None else content
    path = runs / task / method / f"{key_of(config)}-s{seed}"
    stages = {"erm": {"folder": f"{key_of(config['recipe'])}-s{seed}", "epochs": 4}}
    if method not in ("erm", "gdro"):
        stages["model"] = {"folder": f"{key_of(config)}-s{seed}", "epochs": 3}
    rows = [
        {"epoch": e, "loss": 1 / e, "accuracy": 1 - 0.5 / e, "val_accuracy": 0.9, "lr": 1e-3}
        for e in range(1, 5)
    ]
    for stage in stages.values():
        folder = runs / task / "stages" / str(stage["folder"])
        write_bytes(folder / "epochs.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    everything = {
        **config,
        "seed": seed,
        "stages": stages,
        "spec": task if spec is None else spec,
        "full_recipe": dataclasses.asdict(own_recipe),
        "versions": {"evenhand": "0", "device": "cpu"},
    }
    write_json(path / "config.json", everything)
    _write_arrays(path, wrong, pseudo)
    if dynamics is not None:
        write_json(path / "dynamics.json", dynamics)
    times = {name: seconds if name == "erm" else seconds / 2 for name in stages}
    write_json(path / "timing.json", {"seconds": seconds, "stages": times, "unshared": sum(times.values())})
    found = {"identified": 0.8, "purity": 0.5, "share": 0.4} if pseudo else None
    metrics = {
        "task": task,
        "method": method,
        "seed": seed,
        "val": split_scores(wga if val_wga is None else val_wga, val, groups, size, unweighted),
        "test": split_scores(wga, val, groups, size),
        "identification": found,
        "epochs": {name: stage["epochs"] for name, stage in stages.items()},
    }
    write_json(path / "metrics.json", metrics)
    return Record(path)


def _write_arrays(path: Path, wrong: int, pseudo: bool) -> None:
    minority = np.array([True, True] + [False] * 4 + [True, True] + [False] * 4)
    predictions = LABELS.copy()
    for start in (0, 6):
        predictions[start : start + wrong] = 1 - predictions[start : start + wrong]
    buffer = io.BytesIO()
    np.savez_compressed(buffer, val=predictions.astype(np.int32), test=predictions.astype(np.int32))
    write_bytes(path / "predictions.npz", buffer.getvalue())
    if pseudo:
        sizes = np.array([[4, 2], [4, 2]])
        parts = Partition(
            minority=minority, labels=LABELS, classes=np.array([0, 1]), sizes=sizes,
            separation=np.array([0.9, 0.8]), margin=np.where(minority, 0.5, -0.5).astype(np.float32), unsplit={},
        )  # fmt: skip
        parts.save(path / "val_partition.npz")
        parts.save(path / "partition.npz")


def curves(epochs: int, seed: int = 0, clusters: bool = True) -> dict[str, Any]:
    """dynamics.json: conflicting samples are learned late, and aligned ones dip meanwhile."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 1, epochs)
    noise = 0.005 * rng.random(epochs)
    conflicting = 0.05 + 0.85 / (1 + np.exp(-12 * (t - 0.45)))
    aligned = 0.99 - 0.06 * np.exp(-(((t - 0.5) / 0.12) ** 2)) - noise
    aligned[0] = 0.9

    def kind(count: int, accuracy: np.ndarray, loss: np.ndarray) -> dict[str, Any]:
        return {"count": count, "accuracy": accuracy.tolist(), "loss": loss.tolist()}

    def split(count: int) -> dict[str, Any]:
        return {
            "aligned": kind(99 * count, aligned, 0.5 * np.exp(-4 * t)),
            "conflicting": kind(count, conflicting, 3 * (1 - conflicting)),
        }

    rows = [
        {"class": name, "cluster": cluster, "size": size, "conflicting": part}
        for name in ("odd", "even")
        for cluster, size, part in (("majority", 4900, 5), ("minority", 100, 45))
    ]
    return {"stages": {"erm": {"train": split(100), "val": split(25)}}, "clusters": rows if clusters else []}


def whole(runs: Path, task: str = "even_odd", seeds: tuple[int, ...] = (0, 1, 2)) -> list[Record]:
    """The full grids of the paper's six methods on an MNIST task, with numbers that vary smoothly."""
    records = []
    pair = {"lr": 1e-3, "weight_decay": 0.0}
    for seed in seeds:
        shift = 0.01 * seed
        for i, decay in enumerate((0.0, 1e-5, 1e-4, 1e-2, 1.0)):
            options = {"lr": 1e-3, "weight_decay": decay}
            values = {"wga": max(0.0, 0.5 + 0.05 * i - 0.3 * (i == 4) * 2 + shift), "val": 0.95 - 0.01 * i}
            records.append(write(runs, "erm", options, seed=seed, task=task, **values, seconds=10 + i))
            if decay != 1e-5:
                records.append(write(runs, "gdro", options, seed=seed, task=task, wga=0.8 - 0.02 * i + shift))
        for i, q in enumerate((0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)):
            values = {"wga": 0.1 * i + shift, "val": 0.93 - 0.01 * i}
            records.append(write(runs, "lff", {"q": q, **pair}, seed=seed, task=task, **values))
            values = {"wga": 0.6 - 0.05 * i + shift, "val": 0.92 + 0.005 * i}
            threshold = {"threshold": 0.5 * i, **pair}
            records.append(write(runs, "masktune", threshold, seed=seed, task=task, **values, seconds=9))
        for i, epochs in enumerate((1, 5, 10, 25, 50)):
            for j, upweight in enumerate((10, 25, 50, 100, "ratio")):
                values = {"wga": 0.8 - 0.1 * i + 0.02 * j + shift, "val": 0.85 + 0.02 * i - 0.002 * j}
                options = {"identifier_epochs": epochs, "upweight": upweight, **pair}
                records.append(write(runs, "jtt", options, seed=seed, task=task, **values, seconds=20 + j))
        records.append(write(runs, "tab", pair, seed=seed, task=task, wga=0.82 + shift, val=0.94, pseudo=True,
                             dynamics=curves(20, seed)))  # fmt: skip
    return records
