"""fit: both trainings in one call, for any model and any dataset."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from evenhand.core import ranks
from evenhand.core.partition import Balanced, Partition, rebalance
from evenhand.core.ranks import join_ranks
from evenhand.tasks import columns
from evenhand.tasks.samples import MEAN, STD
from evenhand.training import models, plugins
from evenhand.training.data import Split, Task, as_input, check_numbered, checksum, fixed_randomness
from evenhand.training.execute import execute
from evenhand.training.models import rebuilt
from evenhand.training.recipe import Recipe
from evenhand.training.record import Record


@dataclass(frozen=True)
class Result:
    """The result of `fit`: both models, the partition, the balanced rows and the records of both runs.

    A notebook shows it as a table. `plot` draws the accuracies, and `report` writes an HTML page.

    `partition` and `indices` refer to the rows of the `train_set` that you passed, even if some rows were
    held out for validation. `Subset(train_set, result.indices)` is the balanced set, and
    `partition.clustered`, (samples,) bool, is False for held-out rows. `record.partition` refers only to the
    rows that were trained on.

    >>> data = torch.utils.data.TensorDataset(torch.eye(4).repeat(6, 1), torch.arange(24) % 2)
    >>> result = fit(lambda: nn.Linear(4, 2), data, recipe=Recipe(epochs=2, batch_size=8))
    >>> len(result.partition.minority), result.record.method, result.baseline_record.method
    (24, 'evenhand', 'erm')
    """

    model: nn.Module  # trained on the balanced set
    baseline: nn.Module  # plain ERM, for comparison
    partition: Partition  # of train_set: which samples of each class were set apart
    indices: Balanced  # the balanced set: the rows of train_set that were trained on, then the drawn copies
    record: Record  # the run on disk, with its metrics
    baseline_record: Record
    task: Task = field(repr=False)
    _folder: tempfile.TemporaryDirectory[str] | None = field(repr=False, default=None)

    def _repr_html_(self) -> str:
        from evenhand.report.notebook import runs_html

        return runs_html([self.baseline_record, self.record], self.partition)

    def plot(self) -> Any:
        """Draw the accuracy of every class, pseudo-group or group under both models; returns the Figure."""
        from evenhand.report.notebook import plot_runs

        return plot_runs([self.baseline_record, self.record])

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the page of both models, and return its path."""
        from evenhand.report.page import build

        return build([self.baseline_record, self.record], Path(path), load_task=lambda _: self.task)


def fit(
    make_model: Callable[[], nn.Module] | str,
    train_set: Any,
    val_set: Any = None,
    *,
    inputs: str | Sequence[str] | None = None,
    label: str | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
    runs: str | Path | None = None,
    device: str = "auto",
    class_names: tuple[str, ...] | None = None,
    method: Literal["evenhand", "tab"] = "evenhand",
) -> Result:
    """Train, find the samples of each class that are learned late, balance them, and train from scratch.

    - `make_model`: a function that returns a fresh model with one output per class, or the name of a model:
      cnn, mlp, linear, resnet18 (torchvision), timm:resnet18, hub:FOLDER.
    - `train_set`: a `torch.utils.data.Dataset` of (input, label), a `datasets.Dataset` or `DatasetDict`, or a
      `Split`. Labels are integers from 0.
    - `val_set`: the same, for early stopping. By default the validation part of a DatasetDict, else a fifth
      of every class of the training set, which is held out.
    - `inputs`, `label`: the columns of a `datasets.Dataset`, where they are not obvious.
    - `recipe`: how both models are trained. By default 30 epochs with Adam in batches of 64.
    - `seed`: determines the initial weights, the batch order and the drawn copies.
    - `runs`: a folder to keep the work in. The same call then resumes or returns what is there.
    - `device`: "auto", "cpu", "cuda" or "cuda:N".
    - `class_names`: one name per class.
    - `method`: "evenhand", or "tab" for the paper's method.

    Returns a `Result` with both models, the partition and the balanced rows. The scores in its records are of
    the validation set, by which the weights were chosen. Raises ValueError for data or a model that do not
    fit together, before anything is trained.

    >>> data = torch.utils.data.TensorDataset(torch.eye(4).repeat(6, 1), torch.arange(24) % 2)
    >>> result = fit("linear", data, recipe=Recipe(epochs=2, batch_size=8))
    >>> result.model(torch.eye(4)).shape
    torch.Size([4, 2])
    """
    if method not in ("evenhand", "tab"):
        raise ValueError(
            f"method must be 'evenhand' or 'tab', got {method!r}; others run with evenhand.execute"
        )
    if columns.is_dataset(train_set):
        train_set, own_val = columns.parts_of(train_set)
        class_names = class_names or columns.class_names(train_set, label)
        train_set = columns.split_of(train_set, inputs, label)
        val_set = own_val if val_set is None else val_set
    if columns.is_dataset(val_set):
        val_set = columns.split_of(val_set, inputs, label)
    whole = train = as_split(train_set, "train_set")
    rows = None
    if val_set is None:
        train, val, rows = hold_out(whole)
        if len(val) == 0:
            raise ValueError("train_set must have two samples of some class to hold one out; give a val_set")
    else:
        val = as_split(val_set, "val_set")
    if bool((train.y == train.y[0]).all()):
        raise ValueError(
            f"train_set must have samples of two classes or more, got only label {int(train.y[0])}"
        )
    num_classes = int(train.y.max()) + 1
    check_numbered(num_classes, "labels")
    if class_names is None:
        class_names = tuple(f"class {label}" for label in range(num_classes))
    if len(class_names) < num_classes or int(val.y.max()) >= len(class_names):
        raise ValueError(
            f"labels must be 0 to {len(class_names) - 1} for {len(class_names)} classes, "
            f"got up to {max(num_classes - 1, int(val.y.max()))}"
        )
    recipe = recipe or Recipe(epochs=30, batch_size=64)
    named = isinstance(make_model, str)
    if isinstance(make_model, str):
        recipe = recipe.replace(model=make_model)
        shape = tuple(as_input(train.x[int(train.rows[0])]).shape)
        make_model = partial(models.make_model, make_model, shape=shape, num_classes=len(class_names))
    identity = _model_identity(make_model, train, len(class_names))
    of_imagenet = named and recipe.weights == "pretrained" and as_input(train.x[0]).dtype == torch.uint8
    task = Task(
        name="own",
        train=train,
        val=val,
        test=val,
        class_names=class_names,
        make_model=None if named else make_model,
        recipe=recipe,
        mean=MEAN if of_imagenet else None,
        std=STD if of_imagenet else None,
        train_rows=rows,
    )
    task = dataclasses.replace(task, checksum=checksum(task.checksum, *identity))
    join_ranks(device)
    folder = tempfile.TemporaryDirectory(prefix="evenhand-") if runs is None and ranks.first() else None
    where = Path(ranks.from_first(lambda: folder.name if folder else str(runs)))
    settings: dict[str, Any] = {"seed": seed, "runs": where, "device": device}
    baseline, record = execute(task, "erm", **settings), execute(task, method, **settings)
    assert record.partition is not None
    parts = record.partition if rows is None else _placed(record.partition, rows, whole.y.numpy())
    return Result(
        model=_load(record, method, make_model, len(class_names)),
        baseline=_load(baseline, "erm", make_model, len(class_names)),
        partition=parts,
        indices=rebalance(parts, seed=seed),
        record=record,
        baseline_record=baseline,
        task=task,
        _folder=folder,
    )


def as_split(dataset: Any, name: str) -> Split:
    """A Dataset of (input, label) as a Split; inputs stay where they are and are read batch by batch."""
    if isinstance(dataset, Split):
        if len(dataset) == 0:
            raise ValueError(f"{name} must hold samples, got an empty one")
        return dataset
    if isinstance(dataset, tuple):
        raise ValueError(f"{name} must be a Dataset, got a tuple; use TensorDataset(inputs, labels)")
    try:
        size = len(dataset)
    except TypeError:
        raise ValueError(f"{name} must be a Dataset with a length, got {type(dataset).__name__}") from None
    if size == 0:
        raise ValueError(f"{name} must hold samples, got an empty one")
    if isinstance(dataset, torch.utils.data.TensorDataset) and len(dataset.tensors) >= 2:
        return Split(dataset.tensors[0], _labels(dataset.tensors[1], name))
    item = dataset[0]
    if not isinstance(item, (tuple, list)) or len(item) < 2:
        raise ValueError(f"{name} must give (input, label) pairs, got {type(item).__name__}")
    some = np.unique(np.linspace(0, size - 1, 16).astype(int)).tolist()
    targets = getattr(dataset, "targets", None)  # as torchvision's datasets have, sparing us every image
    if targets is None or len(targets) != size or any(dataset[i][1] != targets[i] for i in some):
        targets = [dataset[i][1] for i in range(size)]
    return Split(dataset, _labels(targets, name))


def hold_out(split: Split, share: float = 0.2) -> tuple[Split, Split, npt.NDArray[np.int64]]:
    """The kept samples, the held-out ones, and the positions of the kept ones; the same on every call.

    A share of every class is held out, at least one sample where a class has two.
    """
    random = np.random.default_rng(0)
    chosen = np.zeros(len(split), dtype=bool)
    labels = split.y.numpy()
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        chosen[members[: max(round(share * len(members)), int(len(members) > 1))]] = True
    kept = np.flatnonzero(~chosen)
    # The histories are indexed by position in the training set, which is now the kept part.
    return _renumbered(split.take(kept)), _renumbered(split.take(np.flatnonzero(chosen))), kept


def _renumbered(split: Split) -> Split:
    return Split(split.x, split.y, group=split.group, weight=split.weight, rows=split.rows)


def _placed(parts: Partition, rows: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> Partition:
    """The partition of a dataset with these labels, of which only the samples at `rows` were clustered."""

    def scattered(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        whole = np.zeros(len(labels), values.dtype)
        whole[rows] = values
        return whole

    return dataclasses.replace(
        parts,
        labels=labels,
        minority=scattered(parts.minority),
        margin=scattered(parts.margin),
        clustered=scattered(parts.clustered),
    )


def _labels(labels: Any, name: str) -> Tensor:
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise ValueError(
            f"{name} must have one integer label per sample, got {array.dtype} of shape {array.shape}"
        )
    values = torch.as_tensor(array.astype(np.int64))
    if values.numel() and int(values.min()) < 0:
        raise ValueError(f"{name} must have labels from 0 upwards, got {int(values.min())}")
    return values


def _model_identity(make_model: Callable[[], nn.Module], train: Split, num_classes: int) -> list[Any]:
    """What tells two models apart: layers, the weights for one seed, what they make of two samples."""
    if isinstance(make_model, nn.Module) or not callable(make_model):
        raise ValueError(
            "make_model must be a function that makes a fresh model each time, "
            f"got a {type(make_model).__name__}; give the function that made it"
        )
    with fixed_randomness(), torch.no_grad():
        model = make_model()
        try:
            x = torch.stack([as_input(train.x[int(row)]) for row in train.rows[:2]])
            x = x.float() / 255 if x.dtype == torch.uint8 else x.float() if x.is_floating_point() else x
            outputs = model.eval()(x)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"the model cannot take the first two inputs of train_set: {error}") from error
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or outputs.shape[1] < num_classes:
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            f"the model must give one value per class, {num_classes} for labels 0 to {num_classes - 1}, "
            f"got {got} for {len(x)} samples"
        )
    return [repr(model), outputs, *(value.detach().cpu().float() for value in model.state_dict().values())]


def _load(record: Record, method: str, make_model: Callable[[], nn.Module], num_classes: int) -> nn.Module:
    from safetensors.torch import load_file

    module = plugins.load("evenhand.methods", method, "train")
    tensors = load_file(record.path / "model.safetensors")
    return rebuilt(module, make_model, tensors, num_classes).eval()
