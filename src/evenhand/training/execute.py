"""execute: one task, one method, one seed; the finished run as a record."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import platform
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes

import evenhand
from evenhand.core import ranks
from evenhand.core.metrics import identification
from evenhand.core.partition import partition
from evenhand.training import plugins, progress
from evenhand.training.data import Task, as_input, checksum
from evenhand.training.dynamics import dynamics
from evenhand.training.recipe import Recipe
from evenhand.training.record import Record, is_finished, key_of
from evenhand.training.run import Run
from evenhand.training.scoring import score
from evenhand.training.store import claim_together, write_bytes, write_json

log = logging.getLogger("evenhand")


def execute(
    task: Task,
    method: str = "tab",
    hyperparameters: dict[str, Any] | None = None,
    *,
    recipe: Recipe | None = None,
    seed: int = 0,
    runs: str | Path = "runs",
    device: str = "auto",
    show: progress.Silent | None = None,
) -> Record:
    """Train with a method and score the model; a run that is already finished is returned at once.

    `hyperparameters` are the method's own; `lr` and other fields of the recipe may stand among them.
    Started by torchrun, all ranks train together; every one of them must make the same call.
    """
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    module = plugins.load("evenhand.methods", method, "train")
    where = join_ranks(device)
    settings, changes = sort_settings(method, module, hyperparameters or {})
    recipe = resolve_precision((recipe or task.recipe).replace(**changes), where)
    identity = {
        "task": task.name,
        "data": task.checksum,
        "method": method,
        "hyperparameters": settings,
        "recipe": recipe.changed(),
    }
    sources = plugins.source(method) + plugins.source(recipe.model)
    if sources:  # results of a user's own module are not returned after it has been edited
        identity["source"] = checksum(sources)
    if Path(runs).exists() and not Path(runs).is_dir():
        raise ValueError(f"runs must be a folder, got the file {str(runs)!r}; name another place")
    path = Path(runs) / task.name / method / f"{key_of(identity)}-s{seed}"
    if ranks.from_first(lambda: is_finished(path)):
        return Record(path)
    with claim_together(path):
        # Another process may have finished it while we waited.
        if not ranks.from_first(lambda: is_finished(path)):
            hidden = task if getattr(module, "NEEDS_GROUPS", False) else task.without_groups()
            run = Run(hidden, recipe, seed=seed, path=path, identity=identity, device=where, show=show)
            with _threads(task, recipe, where):
                _carry_out(run, task, module, settings, identity)
    return Record(path)


@contextlib.contextmanager
def _threads(task: Task, recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Small steps on one thread: a second gains a third when its core is idle, and costs minutes when not."""
    before = torch.get_num_threads()
    step = recipe.batch_size * as_input(task.train.x[int(task.train.rows[0])]).numel()
    if device.type == "cpu" and step < 2**16:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _carry_out(
    run: Run, task: Task, module: ModuleType, settings: dict[str, Any], identity: dict[str, Any]
) -> None:
    begun = time.monotonic()
    model = module.train(run, **settings)
    seconds = time.monotonic() - begun
    predictions = {name: run.predict(model, getattr(task, name)) for name in ("val", "test")}
    if not ranks.first():
        return
    chosen = {name: outputs.argmax(1).numpy() for name, outputs in predictions.items()}

    stages = {
        name: {"folder": fit.folder.name, "epochs": fit.epochs} for name, fit in sorted(run.stages.items())
    }
    everything = {**identity, "seed": run.seed, "stages": stages, "spec": task.spec}
    everything["full_recipe"] = dataclasses.asdict(run.recipe)
    write_json(run.path / "config.json", {**everything, "versions": _versions(run.device)})
    weights = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()
    }
    write_bytes(run.path / "model.safetensors", safetensors_bytes(weights))
    write_bytes(run.path / "predictions.npz", _npz(predictions))
    if run.partition is not None:
        run.partition.save(run.path / "partition.npz")
        if (
            "erm" in run.stages
        ):  # validation pseudo-groups, by which any candidate can be selected without groups
            partition(run.stages["erm"].val_losses, task.val.y).save(run.path / "val_partition.npz")
    curves = dynamics(run.stages, run.partition, task)
    if curves is not None:
        write_json(run.path / "dynamics.json", curves)
    times = {name: fit.seconds for name, fit in sorted(run.stages.items())}
    write_json(
        run.path / "timing.json", {"seconds": seconds, "stages": times, "unshared": sum(times.values())}
    )
    metrics = {
        "task": task.name,
        "method": identity["method"],
        "seed": run.seed,
        "val": score(task.val, chosen["val"], task),
        "test": score(task.test, chosen["test"], task),
        "identification": _identification(run, task),
        "epochs": {name: fit.epochs for name, fit in sorted(run.stages.items())},
    }
    write_json(run.path / "metrics.json", metrics)  # last: its existence means that the run is complete


def _identification(run: Run, task: Task) -> dict[str, float] | None:
    """How well the method's pseudo-groups match the true ones, where both exist."""
    if run.partition is None or run.balanced is None or task.train.group is None or not task.conflicting:
        return None
    conflicting = np.isin(task.train.group.numpy(), sorted(task.conflicting))
    return dataclasses.asdict(identification(run.partition.minority, conflicting, run.balanced))


def _npz(predictions: dict[str, torch.Tensor]) -> bytes:
    """Predicted classes and the probability of each, for val and test."""
    arrays: dict[str, Any] = {}
    for name, outputs in predictions.items():
        confidence, label = outputs.softmax(1).max(1)
        arrays[name] = label.numpy().astype(np.int32)
        arrays[f"{name}_confidence"] = confidence.numpy().astype(np.float16)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def sort_settings(
    method: str, module: ModuleType, given: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide settings into the method's own that differ from its defaults, and changes of the recipe."""
    own = plugins.keywords(module.train)
    fields = {field.name for field in dataclasses.fields(Recipe)}
    for name in given:
        if name not in own and name not in fields:
            raise ValueError(
                f"method {method!r} has no setting {name!r}; it has {', '.join(own) or 'none of its own'}, "
                f"and the recipe has {', '.join(sorted(fields))}"
            )
    values = {name: value for name, value in given.items() if name in own}
    values = plugins.check_values(module.train, values, f"method {method!r}")
    settings = {name: value for name, value in values.items() if value != own[name]}
    return settings, {name: value for name, value in given.items() if name not in own}


def resolve_device(device: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}")
    where = torch.device(device)
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {device} was asked for, but torch sees {torch.cuda.device_count() or 'no'} GPU here; "
            "use --device cpu or auto"
        )
    return where


def join_ranks(device: str) -> torch.device:
    """The device of this process; of several that torchrun has started, each takes a GPU of its own."""
    where = resolve_device(device)
    if ranks.launched() and where.type == "cuda":
        if where.index is not None:
            raise ValueError(f"ranks take a GPU each, but --device {device} is one GPU; use --device cuda")
        if ranks.local_number() >= torch.cuda.device_count():
            raise ValueError(
                f"ranks take a GPU each, but there are more of them than GPUs ({torch.cuda.device_count()}); "
                "lower torchrun's --nproc-per-node, or use --device cpu"
            )
        where = torch.device("cuda", ranks.local_number())
        torch.cuda.set_device(where)
    ranks.join(gpu=where.type == "cuda")
    return where


def resolve_precision(recipe: Recipe, device: torch.device) -> Recipe:
    """`auto` is bf16 on a GPU that has it, fp32 elsewhere."""
    if recipe.precision != "auto":
        return recipe
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return recipe.replace(precision="bf16" if fast else "fp32")


def _versions(device: torch.device) -> dict[str, str]:
    """What the numbers were made with; never part of a key."""
    versions = {
        "evenhand": evenhand.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }
    if ranks.count() > 1:
        versions["ranks"] = str(ranks.count())
    commit = _commit(Path(__file__).resolve().parents[3])
    return {**versions, "commit": commit} if commit else versions


def _commit(folder: Path) -> str:
    """The commit of evenhand's own checkout; empty for an installed package, or without git."""
    if not (folder / ".git").exists():
        return ""
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return answer.stdout.strip()
