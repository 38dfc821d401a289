"""execute: one task, one method, one seed; the finished run as a record, with its scores and curves."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save as safetensors_bytes
from torch import nn

import evenhand
from evenhand.core import ranks
from evenhand.core.metrics import identification, wilson_interval
from evenhand.core.partition import Partition, partition
from evenhand.core.ranks import join_ranks
from evenhand.training import log, store
from evenhand.training.checkpoint import claim_together
from evenhand.training.data import Split, Task, as_input, image_decoder
from evenhand.training.forward import allow_kernels, autocast
from evenhand.training.keys import Identity, identify
from evenhand.training.models import rebuilt
from evenhand.training.plugins import groups_needed
from evenhand.training.recipe import Recipe
from evenhand.training.record import Record, is_whole, set_damage_aside
from evenhand.training.run import Run
from evenhand.training.stage import Fit
from evenhand.training.store import check_folder, json_bytes, write_bytes, write_json

HALF = 65504.0  # the largest float16


def execute(
    task: Task,
    method: str = "tab",
    hyperparameters: dict[str, Any] | None = None,
    *,
    recipe: Recipe | None = None,
    seed: int = 0,
    runs: str | Path = "runs",
    device: str = "auto",
    show: log.Silent | None = None,
) -> Record:
    """Train a model with a method, score it, and return the record of the run.

    - `task`: what to train on; `evenhand.tasks.load(name)` loads one by name.
    - `method`: the name of a method, such as "erm" or "tab", or a module of your own.
    - `hyperparameters`: those of the method, and fields of the recipe, by name.
    - `recipe`: how to train. By default the recipe of the task.
    - `seed`: determines the initial weights and the batch order.
    - `runs`: the folder of runs. The call resumes an interrupted run, and returns a finished run at once.
    - `device`: "auto", "cpu", "cuda" or "cuda:N".
    - `show`: the progress display. By default it suits the terminal, notebook or log.

    Returns the `Record` of the run, with its metrics, histories and weights. Under torchrun all ranks train
    together, and each must make the same call. Raises ValueError for a negative seed and for an unknown
    method or hyperparameter, before training starts.

    >>> import tempfile
    >>> split = Split(torch.eye(4), torch.tensor([0, 1, 0, 1]))
    >>> task = Task("mine", train=split, val=split, test=split, class_names=("cat", "dog"))
    >>> recipe = Recipe(model="linear", epochs=1, batch_size=4)
    >>> execute(task, "erm", recipe=recipe, runs=tempfile.mkdtemp(), device="cpu").metrics["method"]
    'erm'
    """
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    where = join_ranks(device)
    identity = identify(task, method, hyperparameters or {}, recipe, where)
    check_folder(runs, "runs")
    path = identity.folder(runs, seed)
    if ranks.from_first(lambda: is_whole(path)):
        log.detail("reused the finished run %s", path)
        return Record(path)
    with claim_together(path):
        # Another process may have finished it while we waited.
        if not ranks.from_first(lambda: is_whole(path)):
            ranks.from_first(lambda: set_damage_aside(path))
            run = Run(
                task.without_groups(but=groups_needed(identity.module)),
                identity.recipe,
                seed=seed,
                path=path,
                identity=identity.content,
                device=where,
                show=show,
            )
            with _threads(task, identity.recipe, where), _logged(path):
                versions = f"evenhand {evenhand.__version__}, torch {torch.__version__}, pid {os.getpid()}"
                log.note("begin: %s %s seed %d on %s; %s", task.name, method, seed, where, versions)
                settings = {
                    **identity.settings,
                    **identity.recipe.changed(),
                    **identity.content["arithmetic"],
                }
                log.note("settings: %s", settings)
                _carry_out(run, task, identity)
    return Record(path)


def _logged(path: Path) -> contextlib.AbstractContextManager[None]:
    return log.kept(path) if ranks.first() else contextlib.nullcontext()


@contextlib.contextmanager
def _threads(task: Task, recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Run small steps on one thread, since a second one gains little and can cost minutes."""
    before = torch.get_num_threads()
    example = as_input(task.train.x[int(task.train.rows[0])])
    is_tokens = not example.is_floating_point() and example.dtype != torch.uint8  # each becomes a vector
    if device.type == "cpu" and not is_tokens and recipe.batch_size * example.numel() < 2**16:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _carry_out(run: Run, task: Task, identity: Identity) -> None:
    begun = time.monotonic()
    model = identity.module.train(run, **identity.settings)
    seconds = time.monotonic() - begun
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"train(run, …) of the method {identity.content['method']!r} must return a torch.nn.Module, "
            f"such as run.fit(…).model, got {type(model).__name__}"
        )
    weights = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()
    }
    unsaved = getattr(model, "unsaved", "")  # an estimator that only a pickle can hold
    if not unsaved:
        _check_rebuilt(run, identity, model, weights)
    predictions = {name: run.predict(model, getattr(task, name)) for name in ("val", "test")}
    if not ranks.first():
        return
    chosen = {name: outputs.argmax(1).numpy() for name, outputs in predictions.items()}

    stages = {
        name: {"folder": fit.folder.name, "epochs": fit.epochs} for name, fit in sorted(run.stages.items())
    }
    config = {**identity.content, "seed": run.seed, "stages": stages, "spec": task.spec}
    config.update(full_recipe=dataclasses.asdict(run.recipe), inputs=_inputs(task))
    if unsaved:
        config["unsaved_model"] = unsaved
    if task.test is task.val:
        config["scored_on"] = "validation"  # there is no test set
    write_json(run.path / "config.json", {**config, "versions": _versions(run.device)})
    if not unsaved:
        write_bytes(run.path / "model.safetensors", safetensors_bytes(weights))
    write_bytes(run.path / "predictions.npz", _npz(predictions))
    if run.partition is not None:
        run.partition.save(run.path / "partition.npz")
        erm, val_parts = run.stages.get("erm"), run.val_partition
        if erm is not None and erm.recorded:  # pseudo-groups by which any candidate can be selected
            val_parts = partition(erm.val_losses, task.val.y)
        if val_parts is not None:
            val_parts.save(run.path / "val_partition.npz")
    curves = dynamics(run.stages, run.partition, task)
    if curves is not None:
        write_json(run.path / "dynamics.json", curves)
    times = {name: fit.seconds for name, fit in sorted(run.stages.items())}
    write_json(
        run.path / "timing.json", {"seconds": seconds, "stages": times, "unshared": sum(times.values())}
    )
    metrics = {
        "task": task.name,
        "method": identity.content["method"],
        "seed": run.seed,
        "val": score(task.val, chosen["val"], task),
        "test": score(task.test, chosen["test"], task),
        "identification": _identification(run, task),
        "epochs": {name: fit.epochs for name, fit in sorted(run.stages.items())},
    }
    content = json_bytes(metrics)
    folders = {name: (fit.folder, fit.epochs) for name, fit in run.stages.items()}
    store.write_run_manifest(run.path, content, folders)
    write_bytes(run.path / "metrics.json", content)  # last: its existence means that the run is complete


def _check_rebuilt(run: Run, identity: Identity, model: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Refuse a model that its record could not give back, because its weights alone do not make it."""
    batch = next(run.batches(run.val.take(range(min(len(run.val), 64)))))
    wrong = "the weights in it predict otherwise"
    try:
        again = rebuilt(identity.module, run.make_network, weights, run.num_classes)
        allow_kernels(again, run.arithmetic.compute == "kernels")
        with torch.no_grad(), autocast(run.recipe, run.device):
            found, expected = (each.to(run.device).eval()(batch.x).float() for each in (again, model))
        same = torch.allclose(found, expected, rtol=0.01, atol=0.01, equal_nan=True)
    except Exception as error:  # a method's own function may raise anything
        wrong, same = f"{type(error).__name__}: {error}", False
    if not same:
        raise ValueError(
            f"the model of the method {identity.content['method']!r} cannot be rebuilt from its record: "
            f"{wrong}. If it is not the recipe's network, define rebuild(network, tensors, num_classes) in "
            "the method's module, which makes an empty model for these tensors; see docs/extending.md"
        )


def _identification(run: Run, task: Task) -> dict[str, float | None] | None:
    """Return how well the method's pseudo-groups match the true ones, if both exist."""
    if run.partition is None or task.train.group is None or not task.conflicting:
        return None
    conflicting = np.isin(task.train.group.numpy(), sorted(task.conflicting))
    return dataclasses.asdict(identification(run.partition.minority, conflicting, run.balanced))


def _npz(predictions: dict[str, torch.Tensor]) -> bytes:
    """Return predicted classes, their probabilities, and the logits, for val and test."""
    arrays: dict[str, Any] = {}
    for name, outputs in predictions.items():
        confidence, label = outputs.softmax(1).max(1)
        arrays[name] = label.numpy().astype(np.int32)
        arrays[f"{name}_confidence"] = confidence.numpy().astype(np.float16)
        arrays[f"{name}_logits"] = outputs.clamp(-HALF, HALF).numpy().astype(np.float16)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _inputs(task: Task) -> dict[str, Any]:
    """Return the model's input and output formats, so that it can be used without its training data."""
    example = as_input(task.train.x[int(task.train.rows[0])])
    return {
        "shape": list(example.shape),
        "dtype": str(example.dtype).removeprefix("torch."),
        "mean": None if task.mean is None else list(task.mean),
        "std": None if task.std is None else list(task.std),
        "classes": list(task.class_names),
        "own_model": task.make_model is not None,
    }


def _versions(device: torch.device) -> dict[str, str]:
    """Return the versions behind the numbers, which are never part of a key."""
    versions = {
        "evenhand": evenhand.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "images": image_decoder(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
    if ranks.count() > 1:
        versions["ranks"] = str(ranks.count())
    commit = _commit(Path(__file__).resolve().parents[3])
    return {**versions, "commit": commit} if commit else versions


def _commit(folder: Path) -> str:
    """Return the commit of evenhand's checkout, with "+" if the source has changed; empty without git."""
    if not (folder / ".git").exists():
        return ""
    git = ["git", "-C", str(folder), "--no-optional-locks"]
    try:
        commit, changes = (
            subprocess.run([*git, *command], capture_output=True, text=True, check=True).stdout.strip()
            for command in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "src"])
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{commit}+" if changes else commit


# -- scores and curves; only these read the true groups, those of the test set among them ----------------


def score(split: Split, predictions: npt.NDArray[np.int64], task: Task) -> dict[str, Any]:
    """Return the accuracies of one split; without groups, the worst class replaces the worst group."""
    correct = predictions == split.y.numpy()
    classes = _parts(correct, split.y.numpy(), task.class_names)
    groups = None if split.group is None else _parts(correct, split.group.numpy(), task.group_names)
    worst = min(groups or classes, key=lambda part: part["accuracy"])
    weight = None if split.weight is None else split.weight.double().numpy()
    return {
        "wga": worst["accuracy"],
        "wga_interval": worst["interval"],
        "wga_over": "classes" if groups is None else "groups",
        "worst_group": worst["name"],
        "worst_class": min(part["accuracy"] for part in classes),
        "accuracy": float(correct.mean()),
        "accuracy_weighted": float(np.average(correct, weights=weight)),
        "accuracy_balanced": float(np.mean([part["accuracy"] for part in groups or classes])),
        "groups": groups,
        "classes": classes,
    }


def _parts(
    correct: npt.NDArray[np.bool_], part: npt.NDArray[np.int64], names: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return accuracy, size and 95% interval of every group (or class) that has samples."""
    counts = np.bincount(part, minlength=len(names))
    hits = np.bincount(part, weights=correct, minlength=len(names)).astype(int)
    return [
        {
            "name": names[i],
            "count": int(counts[i]),
            "accuracy": hits[i] / counts[i],
            "interval": list(wilson_interval(int(hits[i]), int(counts[i]))),
        }
        for i in np.flatnonzero(counts)
    ]


def dynamics(fits: Mapping[str, Fit], partition: Partition | None, task: Task) -> dict[str, Any] | None:
    """Return curves of every recorded training and the cluster make-up; None if nothing conflicts.

    For tables and figures only.
    """
    if not has_conflicts(task):
        return None
    stages = {
        name: {
            "train": _curves(fit.hits, fit.losses, task.train, task),
            "val": _curves(fit.val_hits, fit.val_losses, task.val, task),
        }
        for name, fit in sorted(fits.items())
        if fit.recorded
    }
    return {"stages": stages, "clusters": [] if partition is None else _clusters(partition, task)}


def has_conflicts(task: Task) -> bool:
    """Return whether it is known which training and validation samples break the shortcut."""
    return task.train.group is not None and task.val.group is not None and bool(task.conflicting)


def _curves(hits: np.ndarray, losses: np.ndarray, split: Split, task: Task) -> dict[str, Any]:
    """Return accuracy and mean loss of aligned and of conflicting samples after every epoch."""
    conflicting = _conflicting(split, task)
    return {
        name: {
            "count": int(rows.sum()),
            "accuracy": hits[rows].mean(axis=0, dtype=np.float64).tolist() if rows.any() else [],
            "loss": losses[rows].mean(axis=0, dtype=np.float64).tolist() if rows.any() else [],
        }
        for name, rows in (("aligned", ~conflicting), ("conflicting", conflicting))
    }


def _clusters(partition: Partition, task: Task) -> list[dict[str, Any]]:
    """Return the size of each class's clusters, and how many of their samples conflict."""
    conflicting = _conflicting(task.train, task)
    cells = []
    for label in partition.classes.tolist():
        for cluster in ("majority", "minority"):
            rows = (partition.labels == label) & (partition.minority == (cluster == "minority"))
            cells.append(
                {
                    "class": task.class_names[int(label)],
                    "cluster": cluster,
                    "size": int(rows.sum()),
                    "conflicting": int((rows & conflicting).sum()),
                }
            )
    return cells


def _conflicting(split: Split, task: Task) -> np.ndarray:
    assert split.group is not None
    conflicting: np.ndarray = np.isin(split.group.numpy(), sorted(task.conflicting))
    return conflicting
