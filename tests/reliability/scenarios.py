"""What is broken on purpose: runs of every kind of method, and all that a bench writes besides."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load as load_safetensors
from shortcut import shortcut_task
from torch import nn

from evenhand import Recipe, Task, execute
from evenhand.bench import pack as records
from evenhand.bench.grid import Planned
from evenhand.bench.sweep import Agenda, Entry, Sweep
from evenhand.core.partition import Partition
from evenhand.integrations import files
from evenhand.tasks import embeddings
from evenhand.training.checkpoint import load_checkpoint
from evenhand.training.log import Silent
from evenhand.training.loop import Training
from evenhand.training.record import Record, read_metrics
from evenhand.training.store import read_json

SETTINGS: dict[str, dict[str, Any]] = {
    "erm": {},
    "tab": {},
    "jtt": {"identifier_epochs": 1, "upweight": 2},
    "masktune": {"threshold": 1.0},
    "lff": {"q": 0.5},
}
UNEQUAL = ("timing.json", "claim", "claim.owner")  # hold times


@dataclass(frozen=True)
class Scenario:
    """Something that writes below a folder; `prepare` makes once what it needs."""

    act: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda root: None


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))


def tiny() -> Task:
    """As little as possible: what is tested are the files, and there are thousands of trials."""
    recipe = Recipe(epochs=2, batch_size=16, check_every=1, patience=1)
    return dataclasses.replace(shortcut_task(per_class=8), recipe=recipe, make_model=small)


def save_always() -> None:
    """Every epoch leaves a checkpoint, so that two runs touch the disk at the same places."""
    real = Training._save
    if real.__name__ == "_save":

        def saving(self: Training, *, force: bool) -> None:
            real(self, force=True)

        Training._save = saving  # type: ignore[method-assign]


def run(method: str) -> Callable[[Path], Record]:
    return lambda root: execute(
        tiny(), method, SETTINGS[method], runs=root / "runs", device="cpu", show=Silent()
    )


def _two_runs(root: Path) -> None:
    for method in ("erm", "tab"):
        run(method)(root)


def fail_and_succeed(root: Path) -> None:
    """A bench that notes a failure of a run, and then finds the run done."""
    agenda = Agenda(Sweep(root / "runs", device="cpu", key="made up"))
    done = next((root / "runs").glob("tiny/erm/*-s0/config.json")).parent
    failed = done.with_name("0123456789ab-s0")
    for path in (done, failed):
        agenda.fail(Entry(Planned("tiny", "erm"), path), "ValueError: made up", "a traceback")
    agenda.finish(Entry(Planned("tiny", "erm"), done))


def pack(root: Path) -> None:
    records.pack(records.load(root / "runs"), root / "runs.zip")


def unpack(root: Path) -> None:
    records.unpack(root / "runs.zip", root / "elsewhere")


def page(root: Path) -> None:
    from evenhand.report.page import build

    build(records.load(root / "runs"), root / "report.html", load_task=lambda record: tiny())


def losses_and_labels(root: Path) -> None:
    random = np.random.default_rng(0)
    np.save(root / "losses.npy", random.random((40, 3)))
    np.save(root / "labels.npy", np.arange(40) % 2)


def partition_files(root: Path) -> None:
    files.partition_files(root / "losses.npy", root / "labels.npy", root / "parts")


def table_files(root: Path) -> None:
    """What `table --out` writes."""
    from evenhand.cli import results as commands

    with contextlib.redirect_stdout(io.StringIO()):
        for name in ("table.md", "table.csv", "table.json"):
            commands.table("1", runs=[root / "runs"], out=root / name)


_audited: list[Any] = []  # made once; every trial is a fork that has it


def audit_data(root: Path) -> None:
    from evenhand.audit.audit import run as audited

    random = np.random.default_rng(0)
    rows = [f"{random.random():.4f},{random.random():.4f},{'ab'[i % 2]}" for i in range(120)]
    (root / "data.csv").write_text("\n".join(["x,z,label", *rows]) + "\n")
    if not _audited:
        _audited.append(audited(str(root / "data.csv"), label="label", out=root / "made", epochs=2))
        shutil.rmtree(root / "made", ignore_errors=True)


def audit(root: Path) -> None:
    """All files of an audit, in place of an earlier one's."""
    from evenhand.audit.audit import write

    write(_audited[0], root / "audit")


def head(root: Path) -> Record:
    """Embeddings are copied into the cache, and a last layer is trained on them.

    The copy is made of arrays, because the threads of pyarrow do not survive a fork.
    """
    x = np.random.default_rng(0).random((40, 3), np.float32)
    vectors, digest = embeddings._mapped(root / "cache", iter(np.split(x, 4)), len(x))
    task = embeddings.task(vectors, np.arange(40) % 2, digest=digest)
    recipe = task.recipe.replace(epochs=1)
    return execute(task, "erm", recipe=recipe, runs=root / "runs", device="cpu", show=Silent())


SCENARIOS = {
    **{method: Scenario(run(method)) for method in SETTINGS},
    "bench": Scenario(fail_and_succeed, _two_runs),
    "pack": Scenario(pack, _two_runs),
    "unpack": Scenario(unpack, lambda root: (_two_runs(root), pack(root), shutil.rmtree(root / "runs"))),
    "page": Scenario(page, _two_runs),
    "partition": Scenario(partition_files, losses_and_labels),
    "exports": Scenario(table_files, _two_runs),
    "audit": Scenario(audit, audit_data),
    "embeddings": Scenario(head),
}


# -- what is looked at afterwards ---------------------------------------------------------------------------


def whole(root: Path) -> list[str]:
    """Every file under its final name that does not hold what such a file must hold."""
    wrong = []
    for path in sorted(root.rglob("*")):
        if path.is_dir() or path.name.startswith(".") or path.suffix in (".new", ".part"):
            continue
        try:
            _read(path)
        except Exception as error:
            wrong.append(f"{path.relative_to(root)}: {type(error).__name__}: {error}")
    return wrong


def _read(path: Path) -> None:
    """Read a file as strictly as its kind allows."""
    if path.name in ("claim", "claim.owner", "log.txt"):
        return
    if path.name == "metrics.json":
        read_metrics(path)
    elif path.suffix == ".json":
        read_json(path)
    elif path.suffix == ".jsonl":
        [json.loads(line) for line in path.read_text().splitlines()]
    elif path.suffix == ".ckpt":
        load_checkpoint(path)
    elif path.name.endswith("partition.npz"):
        Partition.load(path)
    elif path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            [file[name] for name in file.files]
    elif path.suffix == ".npy":
        np.load(path, allow_pickle=False)
    elif path.suffix == ".safetensors":
        load_safetensors(path.read_bytes())
    elif path.suffix == ".zip":
        assert zipfile.ZipFile(io.BytesIO(path.read_bytes())).testzip() is None
    elif path.suffix == ".joblib":  # a pickle, for the user's own programs
        assert path.stat().st_size > 0
    elif path.suffix in (".csv", ".md"):
        assert path.read_text().endswith("\n")
    elif path.suffix == ".html":
        assert path.read_text().rstrip().endswith("</html>")
    else:
        raise ValueError("a kind of file that nobody knows")


def results(root: Path) -> dict[str, bytes]:
    """All that must be equal to the byte; of files that hold times, only that they are there.

    Checkpoints are no results. Where two rules fire in one epoch and the process dies between their snapshots,
    the second is made by whoever needs it.
    """
    found = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = str(path.relative_to(root))
        if path.name.endswith(".tmp") and not path.is_relative_to(root / "runs"):
            continue  # of an export that a kill kept from being finished: only a run's folder is swept
        if path.suffix == ".ckpt" or path.name == "log.txt":  # which says what has happened
            continue
        if path.name in UNEQUAL:
            found[name] = b""
        elif path.name in ("failure.json", "checksums.json"):
            content = json.loads(path.read_bytes())
            content.pop("time", None), content.get("files", {}).pop("timing.json", None)
            found[name] = json.dumps(content).encode()
        else:
            found[name] = path.read_bytes()
    return found
