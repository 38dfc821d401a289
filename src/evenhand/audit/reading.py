"""Read and check the data of an audit, with a sentence on everything that is omitted."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from evenhand import tasks
from evenhand.audit.evidence import PARTS
from evenhand.tasks import folder, table
from evenhand.tasks.samples import Samples, read_image
from evenhand.training.data import Task


def read(
    source: Any,
    *,
    label: str | None,
    text: str | None,
    image: str | None,
    group: str | None,
    header: bool = True,
    drop: tuple[str, ...] = (),
    hide_group: bool = False,
    skip_bad: bool = False,
    missing: bool = False,
) -> tuple[Samples, Task | None]:
    """Return checked samples of the user's data, of a Task, or of a task that evenhand knows by name."""
    if isinstance(source, Task):
        return _of_task(source), source
    named = any((label, text, image, group, drop))
    if isinstance(source, pandas.DataFrame):
        if label is None:
            raise ValueError("a DataFrame needs label, the name of the column of classes")
    else:
        path = Path(source)
        if not path.exists() and tasks.parse(source.partition(":")[0])[0] in tasks.names():
            if named:
                raise ValueError(
                    "--label, --text, --image, --group and --drop name columns of a table, "
                    f"but {source} is a task"
                )
            task = tasks.load(source)
            beside = tasks.listing(source) if tasks.parse(source)[0] == "embeddings" else None
            return beside or _of_task(task), task
        if path.is_dir():
            if named:
                raise ValueError(
                    "--label, --text, --image, --group and --drop name columns of a table, but DATA is a "
                    "folder, whose classes are its folders; to give groups, list the images in a table"
                )
            return without_bad(folder.read_folder(path), skip_bad), None
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
        source = path
    if label in (text, image):
        raise ValueError(f"--label and what the model sees must be different columns, got {label!r} for both")
    data = table.read_table(
        source, label=label, text=text, image=image, group=group, header=header, drop=drop,
        hide_group=hide_group, missing=missing,
    )  # fmt: skip
    if data.kind == "images":
        data = without_bad(data, skip_bad)
    if data.kind == "table" and not missing:
        _check_whole(data.frame)
    return data, None


def _of_task(task: Task) -> Samples:
    """Return the samples of a known task, whose ids consist of the split and a number."""
    splits = [getattr(task, part) for part in PARTS]
    return Samples(
        kind="images" if len(np.shape(splits[0].x[0])) == 3 else "table",
        ids=[f"{name}/{row}" for name, split in zip(PARTS, splits, strict=True) for row in range(len(split))],
        y=np.concatenate([split.y.numpy() for split in splits]),
        class_names=task.class_names,
        split=np.repeat(np.arange(3), [len(split) for split in splits]),
    )


def without_bad(data: Samples, skip: bool) -> Samples:
    """Return the images that can be read. Raise ValueError for others unless they may be skipped."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:
        reasons = list(pool.map(_reason, data.files))
    bad = [row for row, reason in enumerate(reasons) if reason]
    if not bad:
        return data
    shown = "; ".join(f"{data.ids[row]} ({reasons[row]})" for row in bad[: None if len(bad) <= 50 else 50])
    more = f"; and {len(bad) - 50:,} more" if len(bad) > 50 else ""
    listed = f"{len(bad):,} of {len(reasons):,} images cannot be read: {shown}{more}"
    if not skip:
        raise ValueError(f"{listed}; mend or remove them, or leave them out with --skip-bad")
    kept = np.setdiff1d(np.arange(len(reasons)), bad)
    lacking = [
        data.class_names[i]
        for i in range(len(data.class_names))
        if any(not ((data.y[kept] == i) & (data.split[kept] == part)).any() for part in (0, 1, 2))
    ]
    if lacking:
        raise ValueError(f"{listed}; too few images are left of {', '.join(lacking[:5])}")
    ids, note = [data.ids[row] for row in kept], f"{listed}; they were left out"
    return dataclasses.replace(data.take(kept), ids=ids, notes=(*data.notes, note))


def _reason(file: Path) -> str:
    """Return why an image cannot be read; empty if it can."""
    try:
        read_image(file, 8)
    except ValueError as error:
        return str(error).split("; ")[0]
    return ""


def _check_whole(frame: Any) -> None:
    """Raise an error for missing numbers, because a gap may be a mistake in the table."""
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
