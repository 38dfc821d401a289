"""track: a finished run in TensorBoard, Weights & Biases or MLflow.

A tracker is a small class with five methods; `TRACKERS` lists those that exist. What it gets comes from the
record of the run, so a run can be sent at any time, and to several trackers.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import pandas

from evenhand.report.page import build
from evenhand.report.render import Table, markdown
from evenhand.report.worst import summary, worst_table
from evenhand.training.record import Record

Kind = Literal["tensorboard", "wandb", "mlflow"]
CURVES = ("loss", "accuracy", "val_accuracy")


def track(
    run: str | Path | Record,
    to: Kind,
    *,
    place: str | Path = "tracked",
    project: str = "evenhand",
    online: bool = False,
) -> Path:
    """Send a finished run to a tracker: learning curves, scores, tables and the page.

    - `run`: the folder of a finished run, or its record.
    - `to`: "tensorboard", "wandb" or "mlflow".
    - `place`: the folder for the tracker's files. Show them with `tensorboard --logdir PLACE`,
      `wandb sync PLACE/wandb/offline-run-*` or `mlflow ui --backend-store-uri PLACE`.
    - `project`: the project of W&B, the experiment of MLflow.
    - `online`: send the run to the server of W&B, for which you must be logged in.

    Returns the place. Raises ImportError where the tracker is not installed.

    >>> track("runs/digits/tab/0123456789ab-s0", "tensorboard")  # doctest: +SKIP
    PosixPath('tracked')
    """
    if to not in TRACKERS:
        raise ValueError(f"to must be one of {', '.join(TRACKERS)}, got {to!r}")
    record, place = run if isinstance(run, Record) else Record(Path(run)), Path(place)
    name = "-".join([str(record.metrics["task"]), record.method, record.path.name])
    settings = {**record.config["full_recipe"], **record.config["hyperparameters"]}
    settings |= {"task": record.metrics["task"], "method": record.method, "seed": record.seed}
    tracker = TRACKERS[to](place, project, name, settings, online)
    try:
        for stage in sorted(record.config["stages"]):
            for row in _epochs(record, stage):
                values = {f"{stage}/{key}": row[key] for key in CURVES if row.get(key) is not None}
                tracker.curves(stage, int(row["epoch"]), values)
        tracker.scores(summary(record))
        tracker.table("worst", worst_table(record))
        with tempfile.TemporaryDirectory() as folder:
            tracker.artifact(build([record], Path(folder) / "report.html"))
    finally:
        tracker.close()
    return place


def _epochs(record: Record, stage: str) -> list[dict[str, Any]]:
    try:
        return record.epochs(stage)
    except FileNotFoundError:  # the folder of a training may have been deleted
        return []


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"this tracker needs {name}: pip install 'evenhand[trackers]'") from error


def frame(table: Table) -> pandas.DataFrame:
    """A table as texts in a DataFrame."""
    rows = [[cell.text for cell in row] for section in table.sections for row in table.cells(section)]
    return pandas.DataFrame(rows, columns=[column.name for column in table.columns])


class TensorBoard:
    """Event files in a folder of the run's name."""

    def __init__(self, place: Path, project: str, name: str, settings: dict[str, Any], online: bool) -> None:
        _library("tensorboard")
        self.folder = place / name
        self.writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(self.folder))
        self.writer.add_text("settings", "\n".join(f"- {key}: {value}" for key, value in settings.items()))

    def curves(self, stage: str, epoch: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, epoch)

    def scores(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(f"scores/{name}", value, 0)

    def table(self, name: str, table: Table) -> None:
        self.writer.add_text(name, markdown(table))

    def artifact(self, path: Path) -> None:
        shutil.copy(path, self.folder / path.name)

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """A run of Weights & Biases, offline unless asked for."""

    def __init__(self, place: Path, project: str, name: str, settings: dict[str, Any], online: bool) -> None:
        self.library = _library("wandb")
        place.mkdir(parents=True, exist_ok=True)
        self.run = self.library.init(
            project=project,
            name=name,
            config=settings,
            dir=str(place),
            mode="online" if online else "offline",
            settings=self.library.Settings(silent=True, console="off"),
        )

    def curves(self, stage: str, epoch: int, values: dict[str, float]) -> None:
        if epoch == 1:
            self.run.define_metric(f"{stage}/*", step_metric=f"{stage}/epoch")
        self.run.log({f"{stage}/epoch": epoch, **values})

    def scores(self, values: dict[str, float]) -> None:
        self.run.summary.update(values)

    def table(self, name: str, table: Table) -> None:
        self.run.log({name: self.library.Table(dataframe=frame(table))})

    def artifact(self, path: Path) -> None:
        artifact = self.library.Artifact("report", "report")
        artifact.add_file(str(path))
        self.run.log_artifact(artifact)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run in MLflow's store of files."""

    def __init__(self, place: Path, project: str, name: str, settings: dict[str, Any], online: bool) -> None:
        library = _library("mlflow")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else MLflow asks for a database
        self.client = library.MlflowClient(place.absolute().as_uri())
        found = self.client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else self.client.create_experiment(project)
        self.run = self.client.create_run(experiment, run_name=name).info.run_id
        for key, value in settings.items():
            self.client.log_param(self.run, key, value)

    def curves(self, stage: str, epoch: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.client.log_metric(self.run, name, value, step=epoch)

    def scores(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.client.log_metric(self.run, name, value)

    def table(self, name: str, table: Table) -> None:
        self.client.log_table(self.run, frame(table), f"{name}.json")

    def artifact(self, path: Path) -> None:
        self.client.log_artifact(self.run, str(path))

    def close(self) -> None:
        self.client.set_terminated(self.run)


TRACKERS: dict[str, Any] = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow}
