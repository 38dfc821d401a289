"""Embeddings of your own: one vector per sample in an .npy, .npz or Parquet file, with labels beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas
import torch

from evenhand.tasks import cache_root, table
from evenhand.tasks.folder import located
from evenhand.tasks.samples import (
    TEST,
    TRAIN,
    VAL,
    Samples,
    encode,
    encode_classes,
    rare_cells,
    stratified_split,
)
from evenhand.training import store
from evenhand.training.data import Task
from evenhand.training.recipe import Recipe

RECIPE = Recipe(model="linear", epochs=20, lr=1e-2, check_every=1, keep="best")
BLOCK = 1 << 16  # rows that are read at a time
IN_MEMORY = 1 << 30  # bytes of float32; a larger array is read batch by batch from its file
PARTS = {"train": TRAIN, "val": VAL, "test": TEST, "0": TRAIN, "1": VAL, "2": TEST}
Column = np.ndarray | list[Any]


def load(
    root: Path | None = None,
    *,
    path: str = "",
    labels: str = "",
    groups: str = "",
    splits: str = "",
    column: str = "embedding",
    model: Literal["linear", "mlp"] = "linear",
) -> Task:
    """A classification head on embeddings, which are standardized by their training rows.

    path: An .npy, .npz or Parquet file, or the folder of a saved `datasets.Dataset`.
    labels: The classes: beside an .npy file another one, else an array or column of the file (`label`).
    groups: Known groups, for scoring only, named like the labels.
    splits: train, val or test of every sample, named like the labels. Default: 70, 15 and 15% of each class.
    column: The array or column of vectors, where the file has several.
    model: A linear head, or one with a hidden layer.
    """
    file = located("embeddings", root, path)
    if not file.exists():
        raise ValueError(f"expected embeddings in an .npy, .npz or Parquet file, but there is no {file}")
    read = _beside if file.suffix == ".npy" else _arrays if file.suffix == ".npz" else _columns
    vectors, digest, columns = read(file, column, {"labels": labels, "groups": groups, "splits": splits})
    return task(vectors, columns.pop("labels"), digest=digest, model=model, **columns)


def task(
    vectors: np.ndarray,
    labels: Column,
    *,
    groups: Column | None = None,
    splits: Column | None = None,
    digest: str | None = None,
    model: str = "linear",
) -> Task:
    """A Task on embeddings (samples, dimensions), which may be memory-mapped and of half precision.

    digest: Of the embeddings; by default it is computed.
    """
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or len(vectors) != len(labels):
        raise ValueError(
            "expected embeddings (samples, dimensions) of floats with one label each, got "
            f"{vectors.dtype} of shape {vectors.shape} and {len(labels)} labels"
        )
    y, class_names = encode_classes(_names(labels), "the labels")
    attribute, attribute_names = None, ()
    if groups is not None:
        names, attribute = encode(_names(groups))
        attribute_names = tuple(names.tolist())
    split = stratified_split(y) if splits is None else _parts(splits)
    for name, values in (("groups", attribute), ("splits", split)):
        if values is not None and len(values) != len(y):
            raise ValueError(f"{name} must hold one value per sample, got {len(values)} for {len(y)}")
    data = Samples(
        kind="embeddings",
        y=y,
        class_names=class_names,
        split=split,
        attribute=attribute,
        attribute_names=attribute_names,
    )
    if attribute is not None:
        data = replace(data, conflicting=rare_cells(data))
    mean, std = _statistics(vectors, split == TRAIN)
    digest = digest or hashlib.sha256(np.ascontiguousarray(vectors).data).hexdigest()
    x: Any = vectors
    if 4 * vectors.size <= IN_MEMORY:
        x = torch.from_numpy(np.array(vectors, dtype=np.float32))
    # About a hundred steps an epoch, in batches of 32 to 8,192 rows.
    batch_size = 2 ** int(np.clip(np.log2(max(len(data.rows(TRAIN)), 1) / 100), 5, 13))
    recipe = RECIPE.replace(model=model, batch_size=batch_size)
    scale = {"mean": tuple(mean.tolist()), "std": tuple(std.tolist())}
    return data.task("embeddings", x, digest, str(vectors.shape), *class_names, recipe=recipe, **scale)  # type: ignore[arg-type]


def _names(values: Column) -> list[str]:
    return table.as_names(pandas.Series(np.asarray(values).reshape(-1)))


def _parts(splits: Column) -> np.ndarray:
    names = _names(splits)
    if unknown := set(names) - set(PARTS):
        raise ValueError(f"splits must be train, val or test, or 0, 1 or 2; got {min(unknown)!r}")
    return np.array([PARTS[name] for name in names], dtype=np.int64)


def _statistics(vectors: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of every dimension over the chosen rows, (dimensions,) float64 each.

    Reads all rows in order, block by block; raises ValueError where one is not finite.
    """
    total, squares = np.zeros(vectors.shape[1]), np.zeros(vectors.shape[1])
    # Differences from one row, so that squares lose no digits far from zero.
    first = np.array(vectors[chosen.argmax()], dtype=np.float64)
    for start in range(0, len(vectors), BLOCK):
        block = vectors[start : start + BLOCK].astype(np.float64)
        if not np.isfinite(block).all():
            raise ValueError("embeddings must be finite numbers, but some are NaN or infinite")
        block = block[chosen[start : start + BLOCK]] - first
        total += block.sum(0)
        squares += np.einsum("ij,ij->j", block, block)
    mean = total / chosen.sum()
    deviation = np.sqrt(np.maximum(squares / chosen.sum() - mean * mean, 0))
    return mean + first, np.where(deviation > 1e-12, deviation, 1.0)


Read = tuple[np.ndarray, str, dict[str, Any]]  # vectors, their digest, the columns beside them


def _beside(file: Path, column: str, names: dict[str, str]) -> Read:
    """A memory-mapped .npy, and others for labels, groups and splits, relative to its folder."""
    if not names["labels"]:
        raise ValueError(f"{file} needs labels in a file of their own: labels=labels.npy")
    columns = {key: _npy(file.parent / name) for key, name in names.items() if name}
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return _npy(file), digest, columns


def _npy(file: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{file} cannot be read as an .npy array: {error}") from error
    return array


def _arrays(file: Path, column: str, names: dict[str, str]) -> Read:
    """The arrays of an .npz, which is read into memory."""
    with np.load(file, allow_pickle=False) as arrays:
        wanted = _wanted(file, list(arrays), column, names)
        vectors = arrays[wanted.pop("vectors")]
        return vectors, _digest([vectors]), {key: arrays[name] for key, name in wanted.items()}


def _columns(file: Path, column: str, names: dict[str, str]) -> Read:
    """The columns of a Parquet file or a saved Dataset; its vectors are copied once into a mapped array."""
    if file.is_dir():
        try:
            from datasets import load_from_disk
        except ImportError as error:
            raise ImportError("reading a saved Dataset needs datasets: pip install datasets") from error
        dataset = load_from_disk(str(file)).with_format("numpy")
        wanted, count = _wanted(file, dataset.column_names, column, names), len(dataset)
        name = wanted.pop("vectors")
        blocks = (dataset[start : start + BLOCK][name] for start in range(0, count, BLOCK))
        columns = {
            key: dataset[:][each] if count < BLOCK else np.asarray(dataset[each])
            for key, each in wanted.items()
        }
        changed = max(each.stat().st_mtime_ns for each in file.iterdir())
    else:
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise ImportError("reading Parquet needs pyarrow: pip install 'evenhand[table]'") from error
        opened = parquet.ParquetFile(file)
        wanted, count = _wanted(file, opened.schema_arrow.names, column, names), opened.metadata.num_rows
        name = wanted.pop("vectors")
        parts = opened.iter_batches(BLOCK, columns=[name])
        blocks = (np.asarray(part.column(0).flatten()).reshape(len(part), -1) for part in parts)
        columns = {key: opened.read([each]).column(0).to_numpy() for key, each in wanted.items()}
        changed = file.stat().st_mtime_ns
    stamp = hashlib.sha256(f"{file.absolute()} {changed} {name}".encode()).hexdigest()[:16]
    return *_mapped(cache_root() / "embeddings" / stamp, blocks, count), columns


def _wanted(file: Path, known: list[str], column: str, names: dict[str, str]) -> dict[str, str]:
    """Which column holds what; by default `label` and, where they exist, `group` and `split`."""
    wanted = {"vectors": column, "labels": names["labels"] or "label"}
    for key, default in (("groups", "group"), ("splits", "split")):
        if names[key] or default in known:
            wanted[key] = names[key] or default
    if lacking := [name for name in wanted.values() if name not in known]:
        raise ValueError(f"{file} has no {', '.join(lacking)}; it has {', '.join(known)}")
    return wanted


def _mapped(folder: Path, blocks: Iterator[np.ndarray], count: int) -> tuple[np.ndarray, str]:
    """The blocks in one memory-mapped array, written once, and its digest."""
    complete = folder / "complete.json"
    with store.claim(folder):
        if not complete.is_file():
            target, start = None, 0
            for block in blocks:
                if target is None:
                    shape = (count, block.shape[1])
                    target = np.lib.format.open_memmap(folder / "vectors.npy", "w+", block.dtype, shape)
                target[start : start + len(block)] = block
                start += len(block)
            if target is None:
                raise ValueError("expected embeddings, but there are no rows")
            target.flush()
            digest = _digest(target[start : start + BLOCK] for start in range(0, count, BLOCK))
            store.write_json(complete, {"digest": digest})  # last: its existence says that all is there
        return _npy(folder / "vectors.npy"), store.read_checked(complete, {"digest": str}, "a digest")[
            "digest"
        ]


def _digest(blocks: Any) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()
