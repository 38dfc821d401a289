"""Embeddings of your own: one vector per sample in an .npy, .npz or Parquet file, with labels beside it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas
import torch
from pandas.api.types import infer_dtype

from evenhand.core.arrays import as_labels, read_array, read_arrays
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
from evenhand.training.run import npy_parts

# SGD with small steps learns the direction of the largest variance first. Adam learns all of them at once, so
# that the samples that break a shortcut stand out in no history (docs/lab/log.md).
RECIPE = Recipe(model="linear", epochs=20, optimizer="sgd", lr=3e-4, check_every=1, keep="best")
BLOCK = 1 << 16  # rows that are read at a time
SCANNED = 1 << 11  # rows that are added up at a time: few enough to stay in the processor's cache
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
    ids: str = "",
    images: str = "",
    texts: str = "",
    column: str = "embedding",
    model: Literal["linear", "mlp"] = "linear",
) -> Task:
    """Return the task of training a classification head on standardized embeddings.

    path: An .npy, .npz or Parquet file, or the folder of a saved `datasets.Dataset`.
    labels: The classes: beside an .npy file another one or a .txt file with a class per line, else an array
        or column of the file (`label`).
    groups: Known groups, for scoring only, named like the labels.
    splits: train, val or test of every sample, named like the labels. Default: 70, 15 and 15% of each class.
    ids: What an audit calls the samples, named like the labels.
    images: Paths of images for an audit's page, relative to the file's folder, named like the labels.
    texts: Texts for an audit's page, named like the labels.
    column: The array or column of vectors, where the file has several.
    model: A linear head, or one with a hidden layer.
    """
    file, vectors, digest, columns = _read(root, path, column, labels=labels, groups=groups, splits=splits)
    try:
        return task(vectors, columns.pop("labels"), digest=digest, model=model, **columns)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def listing(
    root: Path | None = None,
    *,
    path: str = "",
    labels: str = "",
    groups: str = "",
    splits: str = "",
    ids: str = "",
    images: str = "",
    texts: str = "",
    column: str = "embedding",
    model: str = "linear",
) -> Samples:
    """List what an audit shows of the samples, in the order of the file: ids, and images or texts.

    The arguments are those of `load`; `model` has no effect here.
    """
    beside = {"ids": ids, "images": images, "texts": texts}
    file, vectors, _, columns = _read(
        root, path, column, labels=labels, groups=groups, splits=splits, **beside
    )
    shown = {
        key: _names(columns.pop(key), key, len(vectors)) for key in ("ids", "images", "texts") if beside[key]
    }
    data = _samples(len(vectors), columns.pop("labels"), **columns)
    data = replace(data, ids=shown.get("ids") or [str(row) for row in range(len(vectors))])
    if images:
        return replace(data, kind="images", files=[file.parent / name for name in shown["images"]])
    return replace(data, kind="text", texts=shown["texts"]) if texts else data


def task(
    vectors: np.ndarray,
    labels: Column,
    *,
    groups: Column | None = None,
    splits: Column | None = None,
    digest: str | None = None,
    model: str = "linear",
) -> Task:
    """Return a Task on embeddings (samples, dimensions), which may be memory-mapped and of half precision.

    digest: Of the embeddings; by default it is computed.
    """
    _check(vectors)
    return of_samples(_samples(len(vectors), labels, groups, splits), vectors, digest=digest, model=model)


def of_samples(
    data: Samples, vectors: np.ndarray, *, digest: str | None = None, model: str = "linear"
) -> Task:
    """Return a Task on the embeddings of these samples, in their order."""
    _check(vectors)
    mean, std = _statistics(vectors, data.split == TRAIN)
    digest = digest or hashlib.sha256(np.ascontiguousarray(vectors).data).hexdigest()
    x: Any = vectors
    if 4 * vectors.size <= IN_MEMORY:
        x = torch.from_numpy(np.array(vectors, dtype=np.float32))
    # About a hundred steps an epoch, in batches of 8 to 8,192 rows.
    batch_size = 2 ** int(np.clip(np.log2(max(len(data.rows(TRAIN)), 1) / 100), 3, 13))
    recipe = RECIPE.replace(model=model, batch_size=batch_size)
    scale = {"mean": tuple(mean.tolist()), "std": tuple(std.tolist())}
    identity = (digest, str(vectors.shape), *data.class_names)
    return data.task("embeddings", x, *identity, recipe=recipe, **scale)  # type: ignore[arg-type]


def _check(vectors: np.ndarray) -> None:
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or vectors.size == 0:
        raise ValueError(
            "expected embeddings (samples, dimensions) of floats, got "
            f"{vectors.dtype} of shape {vectors.shape}"
        )


def _samples(
    count: int, labels: Column, groups: Column | None = None, splits: Column | None = None
) -> Samples:
    y, class_names = encode_classes(_names(labels, "labels", count), "the labels")
    attribute, attribute_names = None, ()
    if groups is not None:
        names, attribute = encode(_names(groups, "groups", len(y)))
        attribute_names = tuple(names.tolist())
    split = stratified_split(y) if splits is None else _parts(_names(splits, "splits", len(y)))
    data = Samples(
        kind="embeddings",
        y=y,
        class_names=class_names,
        split=split,
        attribute=attribute,
        attribute_names=attribute_names,
    )
    return data if attribute is None else replace(data, conflicting=rare_cells(data))


def _names(values: Column, name: str, count: int) -> list[str]:
    """Return the labels, groups or splits of all samples as text; only a group may be missing."""
    column = np.asarray(values)
    if column.dtype.kind == "U":
        as_labels(column)  # refuses letters that only a damaged file holds
    series = pandas.Series(column) if column.ndim == 1 and column.dtype.kind in "iubfUO" else None
    if series is None or len(series) != count or infer_dtype(series, skipna=True) in ("bytes", "mixed"):
        found = f"{column.dtype} of shape {column.shape}"
        raise ValueError(f"{name} must hold a number or text for each of {count:,} samples, got {found}")
    if name == "groups":
        return table.as_text(series, "missing")
    if missing := int(series.isna().sum()):
        raise ValueError(f"{name} must be known for every sample, but {missing:,} are missing")
    return table.as_names(series)


def _parts(names: list[str]) -> np.ndarray:
    if unknown := set(names) - set(PARTS):
        raise ValueError(f"splits must be train, val or test, or 0, 1 or 2; got {min(unknown)!r}")
    parts = np.array([PARTS[name] for name in names], dtype=np.int64)
    if len(found := np.unique(parts)) < 3:
        raise ValueError(f"splits must hold samples of all of train, val and test, got {len(found)} of them")
    return parts


def _statistics(vectors: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and deviation of every dimension over the chosen rows, (dimensions,) float64 each.

    Reads all rows in order, block by block; raises ValueError where one is not finite.
    """
    total, squares, everything = np.zeros((3, vectors.shape[1]))
    # Differences from one row, so that squares lose no digits far from zero.
    first = np.array(vectors[chosen.argmax()], dtype=np.float64)
    for start in range(0, len(vectors), SCANNED):
        block = (
            torch.from_numpy(np.array(vectors[start : start + SCANNED])).double().numpy()
        )  # fast for halves
        block -= first
        everything += block.sum(0)
        block = block[chosen[start : start + SCANNED]]
        total += block.sum(0)
        squares += np.einsum("ij,ij->j", block, block)
    if not np.isfinite(everything + squares).all():
        raise ValueError("embeddings must be finite numbers, but some are NaN or infinite")
    mean = total / chosen.sum()
    deviation = np.sqrt(np.maximum(squares / chosen.sum() - mean * mean, 0))
    return mean + first, np.where(deviation > 1e-12, deviation, 1.0)


Read = tuple[np.ndarray, str, dict[str, Any]]  # vectors, their digest, the columns beside them


def _read(
    root: Path | None, path: str, column: str, **names: str
) -> tuple[Path, np.ndarray, str, dict[str, Any]]:
    """Return the file, its vectors, their digest, and its named columns."""
    file = located("embeddings", root, path)
    if not file.exists():
        raise ValueError(f"expected embeddings in an .npy, .npz or Parquet file, but there is no {file}")
    read = _beside if file.suffix == ".npy" else _arrays if file.suffix == ".npz" else _columns
    return file, *read(file, column, names)


def _beside(file: Path, column: str, names: dict[str, str]) -> Read:
    """Read a memory-mapped .npy, and the files of labels, groups and splits relative to its folder."""
    if not names["labels"]:
        raise ValueError(f"{file} needs labels in a file of their own: labels=labels.npy")
    columns = {key: _column_beside(file.parent / name, key) for key, name in names.items() if name}
    return read_array(file, "embeddings", mode="r"), store.digest(file), columns


def _column_beside(file: Path, name: str) -> Column:
    """Read an .npy array, or the lines of a text file."""
    if file.suffix != ".txt":
        return read_array(file, name, mode="r")
    try:
        return np.array(file.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file} should hold {name}, one per line, but it cannot be read: {error}"
        ) from error


def _arrays(file: Path, column: str, names: dict[str, str]) -> Read:
    """Return the arrays of an .npz, which is read into memory."""
    arrays = read_arrays(file, "embeddings and labels")
    wanted = _wanted(file, list(arrays), column, names)
    vectors = arrays[wanted.pop("vectors")]
    return vectors, _digest([vectors]), {key: arrays[name] for key, name in wanted.items()}


def _columns(file: Path, column: str, names: dict[str, str]) -> Read:
    """Read the columns of a Parquet file or a saved Dataset, with its vectors copied into a mapped array."""
    try:
        known, count, read = (_dataset if file.is_dir() else _parquet)(file)
        wanted = _wanted(file, known, column, names)
        name = wanted.pop("vectors")
        columns = {key: _values(read(each)) for key, each in wanted.items()}
        # The cache is keyed by content: another file of the same name, size and time has other vectors.
        files = sorted(each for each in file.rglob("*") if each.is_file()) if file.is_dir() else [file]
        key = store.joined_digest([name, *map(store.digest, files)])[:16]
        blocks = (_block(part, name) for part in read(name))
        return *_mapped(cache_root() / "embeddings" / key, blocks, count), columns
    except (ImportError, store.Damaged):
        raise
    except Exception as error:  # pyarrow and datasets raise many kinds
        raise ValueError(f"{file} should hold embeddings, but it cannot be read: {error}") from error


Parts = Callable[[str], Iterator[Any]]  # name of a column -> its arrays of pyarrow, BLOCK rows at a time


def _parquet(file: Path) -> tuple[list[str], int, Parts]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("reading Parquet needs pyarrow: pip install 'evenhand[table]'") from error
    opened = parquet.ParquetFile(file)

    def read(name: str) -> Iterator[Any]:
        return (part.column(0) for part in opened.iter_batches(BLOCK, columns=[name]))

    return opened.schema_arrow.names, opened.metadata.num_rows, read


def _dataset(folder: Path) -> tuple[list[str], int, Parts]:
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise ImportError("reading a saved Dataset needs datasets: pip install datasets") from error
    dataset = load_from_disk(str(folder))

    def read(name: str) -> Iterator[Any]:
        one = dataset.select_columns([name]).with_format("arrow")
        return (one[start : start + BLOCK][name].combine_chunks() for start in range(0, len(one), BLOCK))

    return dataset.column_names, len(dataset), read


def _values(parts: Iterator[Any]) -> np.ndarray:
    """Return the values of a column of labels, groups or splits."""
    values = [np.empty(0)]
    for part in parts:
        part.validate(full=True)  # else damaged text shows only when it is used
        values.append(part.to_numpy(zero_copy_only=False))
    return np.concatenate(values[1:] or values)


def _block(part: Any, name: str) -> np.ndarray:
    """Return the vectors of some rows, (rows, dimensions); raises ValueError if their lengths differ."""
    from pyarrow import compute, types

    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if not any(is_list(part.type) for is_list in lists) or not types.is_floating(part.type.value_type):
        raise ValueError(f"the column {name!r} must hold vectors of floats, got {part.type}")
    part.validate(full=True)
    lengths = compute.list_value_length(part).unique().to_pylist()
    if len(lengths) != 1 or not lengths[0]:
        raise ValueError(f"the vectors in {name!r} must be equally long, got lengths {lengths[:5]}")
    return np.asarray(part.flatten()).reshape(len(part), -1)


def _wanted(file: Path, known: list[str], column: str, names: dict[str, str]) -> dict[str, str]:
    """Return which column holds what: by default `label` and, if they exist, `group` and `split`."""
    wanted = {"vectors": column, "labels": "label", **{key: name for key, name in names.items() if name}}
    for key, default in (("groups", "group"), ("splits", "split")):
        if default in known:
            wanted.setdefault(key, default)
    if lacking := [name for name in wanted.values() if name not in known]:
        raise ValueError(f"{file} has no {', '.join(lacking)}; it has {', '.join(known)}")
    return wanted


def _mapped(folder: Path, blocks: Iterator[np.ndarray], count: int) -> tuple[np.ndarray, str]:
    """Write the blocks to one memory-mapped array, verified at every use; return it with its digest."""
    file = folder / "vectors.npy"
    with store.claim(folder):
        if not store.is_intact(file):
            store.write_digested(file, npy_parts(_alike(blocks, count), count))
        with file.open("rb") as content:
            content.seek(-store.DIGEST_SIZE, os.SEEK_END)
            return read_array(file, "embeddings", mode="r"), content.read().hex()


def _alike(blocks: Iterator[np.ndarray], count: int) -> Iterator[np.ndarray]:
    """Yield the blocks; raises ValueError unless they hold `count` vectors of one length and type."""
    start = 0
    kinds: set[tuple[np.dtype[Any], int]] = set()
    for block in blocks:
        start, kinds = start + len(block), kinds | {(block.dtype, block.shape[1])}
        if len(kinds) > 1:
            raise ValueError("all vectors must be equally long and of one type")
        yield block
    if start != count or not count:
        raise ValueError(f"expected {count:,} embeddings, got {start:,}")


def _digest(blocks: Iterable[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()
