"""audit: one's own data in, a folder with the answer out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from evenhand import tasks
from evenhand.audit import estimators, networks
from evenhand.audit.choice import recommend, side_by_side
from evenhand.audit.evidence import PARTS, Evidence
from evenhand.audit.place import check_place
from evenhand.audit.text_model import TextModel
from evenhand.audit.triage import Triage, sort_out
from evenhand.audit.verdict import Verdict, judge
from evenhand.tasks import folder, table
from evenhand.tasks.samples import Samples
from evenhand.training import progress
from evenhand.training.data import Task
from evenhand.training.models import OWN, call_own, make_model, own_function, takes
from evenhand.training.sync import resolve_device

CHEAP_FOLDS, FOLDS = 4, 2  # of trainings that take seconds, and of others
KINDS = {"table": "a table of features", "text": "a table of texts", "images": "images"}


@dataclass(frozen=True, eq=False)
class Audited:
    """Everything an audit has found, before it is written."""

    title: str
    data: Samples
    evidence: Evidence
    verdict: Verdict
    triage: Triage
    models: dict[str, Any]  # both side by side
    ship: dict[str, Any]  # the recommendation
    task: Task | None  # what a network was trained on
    seed: int


def audit(
    source: str,
    *,
    label: str | None = None,
    text: str | None = None,
    image: str | None = None,
    group: str | None = None,
    header: bool = True,
    missing: bool = False,
    model: str | None = None,
    size: int | None = None,
    frozen: bool | None = None,
    out: Path,
    seed: int = 0,
    epochs: int | None = None,
    device: str = "auto",
    show: progress.Silent | None = None,
) -> Audited:
    """Audit a folder of images, a table, or a task by name; the work is kept under `out`/runs.

    Nothing is written before the data have been read and found sound.
    """
    if epochs is not None and epochs < 2:
        raise ValueError(f"--epochs must be at least 2, got {epochs}; a history needs a course")
    check_place(out)
    resolve_device(device)  # says what is wrong with it, also where it is not needed
    data, task = read(source, label=label, text=text, image=image, group=group, header=header)
    if data.kind == "table" and task is None and not missing:
        _check_whole(data.frame)
    if (size is not None or frozen is not None) and (task is not None or data.kind != "images"):
        raise ValueError(
            "--size, --frozen and --fine-tune are about your own images, but "
            f"{source} is {'a task by name' if task else KINDS[data.kind]}; leave them out"
        )
    if task is None and data.kind != "images" and not _is_folder(model, data):
        make = None if model is None else own_model(model, data)
        if make is None or not isinstance(make(), nn.Module):
            found = estimators.evidence(data, own=make, seed=seed, epochs=epochs)
            return _judged(source, data, found, None, seed)
    images = {"size": size, "device": device, "frozen": frozen}
    data, task, finish = _task(data, task, model, images)
    cheap = isinstance(finish, networks.Backbone) or (finish is None and data.kind != "images")
    found = networks.evidence(
        task,
        seed=seed,
        epochs=epochs,
        runs=out / "runs",
        device=device,
        num_folds=CHEAP_FOLDS if cheap else FOLDS,
        show=show or progress.choose(),
    )
    return _judged(source, data, found if finish is None else finish.finished(found), task, seed)


def _check_whole(frame: Any) -> None:
    """Refuse numbers that are not there: a gap may be an error of whoever made the table."""
    words = table.word_columns(frame)
    gaps = {name: int(frame[name].isna().sum()) for name in frame.columns if name not in words}
    broken = {name: count for name, count in gaps.items() if count}
    if broken:
        first = next(iter(broken))
        row = frame.index[frame[first].isna()][0]
        more = f" and {len(broken) - 1} other columns" if len(broken) > 1 else ""
        raise ValueError(
            f"expected a number in every row, but the column {first!r}{more} has gaps, NaN or infinite "
            f"values ({broken[first]:,} of {len(frame):,}, the first in row {row}); fill them or leave these "
            "rows out, or add --missing, and a gap is a value of its own"
        )


def _is_folder(model: str | None, data: Samples) -> bool:
    """Whether --model is a folder of a Hugging Face model, or can only be meant as one."""
    if model is None or model in OWN or (":" in model and not Path(model).is_dir()):
        return False
    if Path(model).is_dir() and data.kind != "text":
        raise ValueError(f"--model {model} is a folder: such a model classifies texts; add --text COLUMN")
    return data.kind == "text"


def _task(
    data: Samples, task: Task | None, model: str | None, images: dict[str, Any]
) -> tuple[Samples, Task, networks.Backbone | TextModel | None]:
    """What a network is trained on, with notes on it; and who makes whole models of what it leaves."""
    if _is_folder(model, data):
        texts = TextModel(Path(str(model)), data.class_names)
        return *texts.task(data), texts
    if task is None and data.kind == "images":
        task, backbone = networks.image_task(data, model=model, **images)
        if backbone is None:  # else the task is of what its last layer sees
            networks.check_model(task, model)
        return data, task, backbone
    task = task or table.task(data)
    if model is None:
        return data, task, None
    networks.check_model(task, model)
    return data, dataclasses.replace(task, recipe=task.recipe.replace(model=model)), None


def _judged(source: str, data: Samples, found: Evidence, task: Task | None, seed: int) -> Audited:
    verdict = judge(found)
    triage = sort_out(found, verdict)
    return Audited(
        title=source,
        data=data,
        evidence=found,
        verdict=verdict,
        triage=triage,
        models=side_by_side(found),
        ship=recommend(found, verdict),
        task=task,
        seed=seed,
    )


def read(
    source: str,
    *,
    label: str | None,
    text: str | None,
    image: str | None,
    group: str | None,
    header: bool = True,
) -> tuple[Samples, Task | None]:
    """One's own samples, checked; or the samples of a task that evenhand knows by name, with that task."""
    path = Path(source)
    if not path.exists() and tasks.parse(source.partition(":")[0])[0] in tasks.names():
        if any((label, text, image, group)):
            raise ValueError(
                f"--label, --text, --image and --group name columns of a table, but {source} is a task"
            )
        task = tasks.load(source)
        return _of_task(task), task
    if path.is_dir():
        if any((label, text, image, group)):
            raise ValueError(
                "--label, --text, --image and --group name columns of a table, but DATA is a folder, "
                "whose classes are its folders; to give groups, list the images in a table"
            )
        return folder.read_folder(path), None
    if not path.exists():
        raise ValueError(
            f"expected a folder of class folders, a table or a task, but there is no {source}; "
            f"tasks are {', '.join(tasks.names())}"
        )
    if label is None:
        columns = ", ".join(map(str, table.read(path, header=header).columns[:40]))
        raise ValueError(
            f"a table needs --label, the column of classes; the columns of {source} are {columns}"
        )
    if label in (text, image):
        raise ValueError(f"--label and what the model sees must be different columns, got {label!r} for both")
    return table.read_table(path, label=label, text=text, image=image, group=group, header=header), None


def _of_task(task: Task) -> Samples:
    """A known task as one's own data: its samples are called by their part and number."""
    splits = [getattr(task, part) for part in PARTS]
    return Samples(
        kind="images" if len(np.shape(splits[0].x[0])) == 3 else "table",
        ids=[f"{name}/{row}" for name, split in zip(PARTS, splits, strict=True) for row in range(len(split))],
        y=np.concatenate([split.y.numpy() for split in splits]),
        class_names=task.class_names,
        split=np.repeat(np.arange(3), [len(split) for split in splits]),
    )


def own_model(name: str, data: Samples) -> Callable[[], Any]:
    """A function that makes a fresh model: a network by name or `module:function`, or an estimator."""
    if ":" not in name:
        shape, classes = (1,), len(data.class_names)
        make_model(name, shape=shape, num_classes=classes)  # says what is wrong with the name
        return lambda: make_model(name, shape=shape, num_classes=classes)
    function = own_function(name)
    known = table.task(data) if takes(function, "shape") else None  # else it need not be computed
    size = (1,) if known is None else networks.shape_of(known)
    return lambda: call_own(name, function, size, len(data.class_names))
