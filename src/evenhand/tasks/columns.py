"""Columns of a datasets.Dataset as samples, and a partition as columns of a Dataset or a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.core.partition import Partition, rebalance, sample_weights
from evenhand.training.data import Split

LABELS = ("label", "labels", "y", "target")  # what a column of labels may be called


def is_dataset(value: object) -> bool:
    """Return whether a value is a `datasets.Dataset` or `DatasetDict`, without importing datasets."""
    return type(value).__module__.partition(".")[0] == "datasets"


def parts_of(value: Any) -> tuple[Any, Any]:
    """Return the training and validation Datasets of a DatasetDict; the latter is None if absent.

    Raises ValueError where the DatasetDict has no part called train.
    """
    if not hasattr(value, "keys"):
        return value, None
    if "train" not in value:
        raise ValueError(f"a DatasetDict must have a part 'train', got {', '.join(value)}")
    return value["train"], next(
        (value[name] for name in ("validation", "val", "valid") if name in value), None
    )


def split_of(dataset: Any, inputs: str | Sequence[str] | None = None, label: str | None = None) -> Split:
    """Return the samples of a `datasets.Dataset`.

    - `inputs`: the column of images or of vectors, or several columns of numbers. By default the only column
      of images, else the only column of vectors, else all columns of numbers.
    - `label`: the column of integer labels. By default the only column of classes, else the one called label,
      labels, y or target.

    Images are decoded when they are read. Raises ValueError for columns that are missing, that hold text, or
    whose samples have different shapes.
    """
    label = label or _label_column(dataset)
    chosen = (
        _input_columns(dataset, label)
        if inputs is None
        else [inputs]
        if isinstance(inputs, str)
        else [*inputs]
    )
    for name in (label, *chosen):
        if name not in dataset.column_names:
            raise ValueError(
                f"expected a column {name!r}, but the columns are {', '.join(dataset.column_names)}"
            )
    y = np.asarray(dataset.with_format("numpy")[label][:])
    if y.dtype.kind not in "iub":
        raise ValueError(
            f"the column {label!r} must hold integers, got {y.dtype}; number them with "
            f"dataset.class_encode_column({label!r})"
        )
    if len(chosen) == 1 and _is_image(dataset.features[chosen[0]]):
        return Split(Images(dataset, chosen[0]), torch.from_numpy(y.astype(np.int64)))
    columns = [_numbers(dataset, name) for name in chosen]
    return Split(
        columns[0] if len(columns) == 1 and columns[0].ndim > 1 else np.stack(columns, axis=1),
        torch.from_numpy(y.astype(np.int64)),
    )


def class_names(dataset: Any, label: str | None = None) -> tuple[str, ...] | None:
    """Return the names of the classes, if the column of labels has them."""
    feature = dataset.features[label or _label_column(dataset)]
    return tuple(feature.names) if hasattr(feature, "names") else None


class Images:
    """A column of images as tensors (3, height, width) uint8, decoded when they are asked for."""

    def __init__(self, dataset: Any, column: str) -> None:
        self.dataset, self.column = dataset.select_columns([column]).with_format(None), column
        self.shape = self._read(0).shape if len(dataset) else torch.Size()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Tensor:
        image = self._read(row)
        if image.shape != self.shape:
            raise ValueError(
                f"all images must have one size, but row 0 has {tuple(self.shape[1:])} and row {row} has "
                f"{tuple(image.shape[1:])} pixels; resize them first with dataset.map"
            )
        return image

    def _read(self, row: int) -> Tensor:
        image = self.dataset[int(row)][self.column].convert("RGB")
        return torch.from_numpy(np.array(image).transpose(2, 0, 1).copy())


def add_columns(data: Any, parts: Partition | str | Path) -> Any:
    """Return a copy of a `datasets.Dataset` or a DataFrame with the answer in new columns.

    - `data`: the samples, in the order in which they were partitioned or audited.
    - `parts`: a partition, or the folder of an audit.

    A partition adds `pseudo_group` ("majority", "minority", "whole" for a class that was not split, or
    "held out"), `margin` and `sample_weight`. An audit adds these, where they are known, and `triage`
    ("minority", "mislabelled" or empty). Write the result with `to_csv` or `to_parquet`, and give
    `sample_weight` to any training. Raises ValueError where the numbers of rows differ.

    >>> import pandas
    >>> from evenhand import partition
    >>> frame = pandas.DataFrame({"text": ["a", "b", "c"]})
    >>> add_columns(frame, partition([[0.1], [0.2], [0.9]], [0, 0, 0])).sample_weight.tolist()
    [1.0, 1.0, 2.0]
    """
    added = columns_of(parts) if isinstance(parts, Partition) else _of_audit(Path(parts))
    num_rows = len(next(iter(added.values())))
    if len(data) != num_rows:
        raise ValueError(f"data and parts must have as many rows, got {len(data)} and {num_rows}")
    taken = [name for name in added if name in (data.column_names if is_dataset(data) else data.columns)]
    if taken:
        raise ValueError(f"data have a column {taken[0]!r} already; rename or remove it first")
    if not is_dataset(data):
        return data.assign(**added)
    for name, column in added.items():
        data = data.add_column(name, column.tolist())
    return data


def balanced(data: Any, parts: Partition, *, seed: int = 0) -> Any:
    """Return the balanced set: the rows of `rebalance(parts, seed)` of a Dataset or a DataFrame.

    Raises ValueError where the numbers of rows differ.

    >>> import pandas
    >>> from evenhand import partition
    >>> parts = partition([[0.1], [0.2], [0.9]], [0, 0, 0])
    >>> balanced(pandas.DataFrame({"text": ["a", "b", "c"]}), parts).text.tolist()
    ['a', 'b', 'c', 'c']
    """
    if len(data) != len(parts.labels):
        raise ValueError(f"data and parts must have as many rows, got {len(data)} and {len(parts.labels)}")
    rows = rebalance(parts, seed=seed).indices
    return data.select(rows) if is_dataset(data) else data.iloc[rows]


def columns_of(parts: Partition) -> dict[str, npt.NDArray[Any]]:
    """Return what a partition says about every sample, as (samples,) arrays by name."""
    position = np.searchsorted(parts.classes, parts.labels)
    group = np.where(parts.minority, "minority", "majority")
    group = np.where(parts.sizes[position, 1] > 0, group, "whole")
    group = np.where(parts.clustered, group, "held out")
    return {"pseudo_group": group, "margin": parts.margin, "sample_weight": sample_weights(parts)}


# -- inside ----------------------------------------------------------------------------------------------


def _of_audit(folder: Path) -> dict[str, npt.NDArray[Any]]:
    import pandas

    file = folder / "samples.csv"
    if not file.is_file():
        raise ValueError(f"parts must be a partition or the folder of an audit, but there is no {file}")
    frame = pandas.read_csv(file, dtype={"id": str}, keep_default_na=False)
    weights = pandas.read_csv(folder / "weights.csv", dtype={"id": str}).set_index("id")["weight"]
    if "triage" not in frame.columns or "pseudo_group" not in frame.columns:
        raise ValueError(f"{file} should be an audit's, but its columns are {', '.join(frame.columns)}")
    margin = pandas.to_numeric(frame["margin"], errors="coerce").fillna(0.0)
    return {
        "pseudo_group": frame["pseudo_group"].to_numpy(),
        "margin": margin.to_numpy(),
        "sample_weight": frame["id"].map(weights).fillna(0.0).to_numpy(),
        "triage": frame["triage"].to_numpy(),
    }


def _label_column(dataset: Any) -> str:
    classes = [name for name, feature in dataset.features.items() if hasattr(feature, "names")]
    found = classes if len(classes) == 1 else [name for name in LABELS if name in dataset.column_names]
    if not found:
        raise ValueError(
            f"which column holds the labels? Name it with label=…; got {', '.join(dataset.column_names)}"
        )
    return str(found[0])


def _input_columns(dataset: Any, label: str) -> list[str]:
    others = {name: feature for name, feature in dataset.features.items() if name != label}
    images = [name for name, feature in others.items() if _is_image(feature)]
    vectors = [
        name for name, feature in others.items() if hasattr(feature, "feature") or hasattr(feature, "shape")
    ]
    numbers = [name for name, feature in others.items() if _is_number(feature)]
    for found in (images, vectors):
        if len(found) == 1:
            return found
        if found:
            raise ValueError(f"which column holds the inputs? Name it with inputs=…; got {', '.join(found)}")
    if not numbers:
        raise ValueError(
            f"expected a column of images, vectors or numbers, got {', '.join(others) or 'none'}; turn "
            "texts into token ids or embeddings first, with dataset.map"
        )
    return numbers


def _is_image(feature: Any) -> bool:
    return type(feature).__name__ == "Image"


def _is_number(feature: Any) -> bool:
    return str(getattr(feature, "dtype", "")).startswith(("int", "uint", "float", "bool"))


def _numbers(dataset: Any, name: str) -> npt.NDArray[Any]:
    try:
        values = np.asarray(dataset.with_format("numpy")[name][:])
    except ValueError as error:
        raise ValueError(f"the column {name!r} must hold vectors of one length: {error}") from error
    if values.dtype.kind not in "fiub":
        raise ValueError(
            f"the column {name!r} must hold numbers of one shape for every sample, got {values.dtype}"
        )
    return values.astype(np.float32) if values.dtype.kind == "f" else values
