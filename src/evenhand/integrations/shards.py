"""Embeddings in many Parquet shards, in one process or over Ray Data: shards in, weights of samples out.

    balance_shards(["part-0.parquet", "part-1.parquet"], "balanced", ray=True)

A step of gradient descent adds up the gradients of all shards in their order. So the result does not depend
on who computed which shard, nor on whether a worker died and its shard was computed again.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.core.partition import Partition, partition
from evenhand.methods.evenhand import Q, as_far_as_clear
from evenhand.methods.tab import even_chances
from evenhand.training import store

Array = np.ndarray
Read = Callable[[Path], tuple[Array, Array]]  # a shard -> vectors (rows, dimensions), labels (rows,)
STEPS, RATE, MOMENTUM = 60, 0.01, 0.9  # as far as the recipe of the task `embeddings` goes in 20 epochs


@dataclass(frozen=True, eq=False)
class Balanced:
    """What `balance_shards` gives: a head, and the partition of all samples in the order of the shards."""

    weight: Array  # (classes, dimensions) float64, of the head on the vectors as they are
    bias: Array  # (classes,)
    class_names: tuple[str, ...]
    partition: Partition
    sample_weight: Array  # (samples,) float64 of mean 1: classes, and parts of a class, weigh the same


@dataclass(frozen=True)
class _Problem:
    """What every pass over a shard needs."""

    read: Read
    classes: Array
    mean: Array
    std: Array

    def inputs(self, path: Path) -> tuple[Array, Array]:
        """Standardized vectors with a one at their end, and labels as positions of classes."""
        vectors, labels = _labelled(self.read, path)
        x = (np.asarray(vectors, dtype=np.float64) - self.mean) / self.std
        return np.column_stack([x, np.ones(len(x))]), np.searchsorted(self.classes, labels)


def balance_shards(
    shards: Sequence[str | Path],
    out: str | Path,
    *,
    embedding: str = "embedding",
    label: str = "label",
    read: Read | None = None,
    steps: int = STEPS,
    ray: bool = False,
) -> Balanced:
    """Find the samples that break a shortcut, as `evenhand` does for a head, and weigh them.

    - `shards`: Parquet files with a column of vectors and one of labels. Each must fit into memory.
    - `out`: a folder. It gets one Parquet file for each shard, with the columns `minority` and
      `sample_weight` in the order of its rows, and `head.npz`: the head that was trained with these weights.
    - `read`: reads a shard of another format; it replaces `embedding` and `label`.
    - `steps`: passes over all shards in each of the two trainings.
    - `ray`: pass over the shards with Ray Data, on the cluster that Ray is connected to.
    """
    from pyarrow import Table, parquet

    paths = [Path(shard).absolute() for shard in shards]
    if not paths or steps < 1:
        raise ValueError(f"expected shards and at least one step, got {len(paths)} shards and {steps} steps")
    over = _over_ray(paths) if ray else partial(_here, paths)
    read = read or partial(read_parquet, embedding=embedding, label=label)
    counted = over(_count, [(read,)] * len(paths))
    classes = np.unique(np.concatenate([each["classes"] for each in counted]))
    if len(classes) < 2:
        raise ValueError(f"labels must be of two classes or more, got {len(classes)}")
    samples = sum(int(each["rows"]) for each in counted)
    mean = np.stack([each["total"] for each in counted]).sum(0) / samples
    squares = [each["squares"] for each in over(_spread, [(read, mean)] * len(paths))]
    deviation = np.sqrt(np.stack(squares).sum(0) / samples)
    problem = _Problem(read, classes, mean, np.where(deviation > 1e-12, deviation, 1.0))
    y = np.concatenate([np.searchsorted(classes, each["labels"]) for each in counted])
    sizes = [int(each["rows"]) for each in counted]
    even = (samples / (len(classes) * np.bincount(y)))[y]
    course = _descend(over, problem, _parts(even, sizes), steps, confident=True)
    errors = np.concatenate([e["errors"] for e in over(_errors, [(problem, np.stack(course))] * len(paths))])
    found = as_far_as_clear(partition(errors, y), errors)
    weights = even_chances(found, even_classes=True) * samples
    last = _descend(over, problem, _parts(weights, sizes), steps, confident=False)[-1]
    weight = last[:-1].T / problem.std
    made = Balanced(weight, last[-1] - weight @ mean, tuple(map(str, classes)), found, weights)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    parts = _parts(np.column_stack([found.minority, weights]), sizes)
    for number, (path, part) in enumerate(zip(paths, parts, strict=True)):
        columns = {"minority": part[:, 0].astype(bool), "sample_weight": part[:, 1]}
        buffer = io.BytesIO()
        parquet.write_table(Table.from_pydict(columns), buffer)
        store.write_bytes(folder / f"{number:05d}-{path.stem}.parquet", buffer.getvalue())
    buffer = io.BytesIO()
    np.savez(buffer, weight=made.weight, bias=made.bias, classes=np.array(made.class_names))
    store.write_bytes(folder / "head.npz", buffer.getvalue())  # last: its existence says that all is there
    return made


def read_parquet(path: Path, *, embedding: str, label: str) -> tuple[Array, Array]:
    """The vectors and labels of a Parquet file."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("reading Parquet needs pyarrow: pip install 'evenhand[table]'") from error
    table = parquet.read_table(path, columns=[embedding, label])
    vectors = table.column(embedding).combine_chunks()
    return np.asarray(vectors.flatten()).reshape(len(table), -1), table.column(label).to_numpy()


# -- passes over the shards ------------------------------------------------------------------------------

Arrays = dict[str, Array]
Over = Callable[[Callable[..., Arrays], Sequence[tuple[Any, ...]]], list[Arrays]]


def _here(paths: list[Path], work: Callable[..., Arrays], given: Sequence[tuple[Any, ...]]) -> list[Arrays]:
    return [work(path, *each) for path, each in zip(paths, given, strict=True)]


def _over_ray(paths: list[Path]) -> Over:
    """The same as tasks of Ray Data, which computes a shard again if its worker dies."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError("ray=True needs Ray Data: pip install 'evenhand[ray,table]'") from error

    def over(work: Callable[..., Arrays], given: Sequence[tuple[Any, ...]]) -> list[Arrays]:
        handed = [ray.put(each) for each in given]

        def one(row: dict[str, Any]) -> dict[str, Any]:
            number, buffer = int(row["shard"]), io.BytesIO()
            arrays: Any = work(paths[number], *ray.get(handed[number]))
            np.savez(buffer, **arrays)
            return {"shard": number, "arrays": buffer.getvalue()}

        rows = ray.data.from_items(
            [{"shard": number} for number in range(len(paths))], override_num_blocks=len(paths)
        )
        found = sorted(rows.map(one).take_all(), key=lambda row: int(row["shard"]))
        return [dict(np.load(io.BytesIO(row["arrays"]), allow_pickle=False)) for row in found]

    return over


def _labelled(read: Read, path: Path) -> tuple[Array, Array]:
    """A shard's vectors and labels; labels of Python objects become text."""
    vectors, labels = read(path)
    labels = np.asarray(labels)
    return vectors, labels.astype(str) if labels.dtype.kind == "O" else labels


def _count(path: Path, read: Read) -> Arrays:
    vectors, labels = _labelled(read, path)
    if vectors.ndim != 2 or len(vectors) != len(labels) or not np.isfinite(vectors).all():
        raise ValueError(f"{path} must hold vectors of finite numbers with one label each")
    total = vectors.astype(np.float64).sum(0)
    rows = np.array(len(labels))
    return {"rows": rows, "total": total, "classes": np.unique(labels), "labels": labels}


def _spread(path: Path, read: Read, mean: Array) -> Arrays:
    return {"squares": np.square(read(path)[0].astype(np.float64) - mean).sum(0)}


def _slope(path: Path, problem: _Problem, head: Array, weights: Array, confident: bool) -> Arrays:
    """The gradient of a shard's weighted loss: cross-entropy, or the generalized one of the identifier."""
    x, y = problem.inputs(path)
    p = _probabilities(x @ head)
    true = p[np.arange(len(y)), y]
    p[np.arange(len(y)), y] -= 1
    return {"slope": x.T @ (p * (weights * (true**Q if confident else 1.0))[:, None])}


def _errors(path: Path, problem: _Problem, course: Array) -> Arrays:
    """Every sample's probability of error, on average over all steps."""
    x, y = problem.inputs(path)
    total = np.zeros(len(y))
    for head in course:
        total += 1 - _probabilities(x @ head)[np.arange(len(y)), y]
    return {"errors": (total / len(course)).astype(np.float32)}


def _probabilities(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(shifted / shifted.sum(1, keepdims=True))


def _descend(
    over: Over, problem: _Problem, weights: list[Array], steps: int, *, confident: bool
) -> list[Array]:
    """The head, (dimensions + 1, classes), after every step of gradient descent with momentum."""
    head = np.zeros((len(problem.mean) + 1, len(problem.classes)))
    samples, speed, course = sum(map(len, weights)), np.zeros_like(head), []
    for _ in range(steps):
        slopes = over(_slope, [(problem, head, part, confident) for part in weights])
        speed = MOMENTUM * speed + sum(each["slope"] for each in slopes) / samples
        head = head - RATE * speed
        course.append(head)
    return course


def _parts(values: Array, sizes: list[int]) -> list[Array]:
    return np.split(values, np.cumsum(sizes)[:-1])
