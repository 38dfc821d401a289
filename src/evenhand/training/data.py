"""Split, Task and Batch: the arrays that a training sees, and the ones that only the scorer sees."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from evenhand.core.arrays import as_numpy, as_real, as_whole
from evenhand.core.partition import Balanced
from evenhand.training.recipe import Recipe

MOST_NAMES = 100_000  # of classes, and of groups


class Items(Protocol):
    """The inputs of a `torch.utils.data.Dataset`, one sample at a time."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> Any: ...


@dataclass(frozen=True)
class Batch:
    """The inputs of an objective in one step, on the training device."""

    x: Tensor  # (batch, …) as the model takes it: augmented and normalized
    y: Tensor  # (batch,) int64
    index: Tensor  # (batch,) which sample of the task's training split
    row: Tensor  # (batch,) which row of the split being trained on; copies of one sample differ here
    group: Tensor | None = None  # (batch,) int64, only for methods that say NEEDS_GROUPS
    environment: Tensor | None = None  # (batch,) int64, what `Run.fit` was given as environments
    epoch: int = 0  # of this training, the first is 0
    step: int = 0  # how many updates this training has made before this one


@dataclass(frozen=True)
class Split:
    """One split of a task: its samples and their labels. `group` and `weight` are for scoring only.

    - `x`: (rows, …) inputs, float or uint8: a tensor, an array that may be memory-mapped, or a Dataset.
    - `y`: (samples,) int64 labels from 0.
    - `group`: (samples,) int64 groups, if they are known.
    - `weight`: (samples,) float32. With it, the groups have the proportions of the training split.
    - `rows`: (samples,) the position of each sample in `x`. By default 0, 1, 2, …
    - `index`: (samples,) the position of each sample in the task's split. By default 0, 1, 2, …
    - `copies`: (samples,) bool: which samples are repeated ones of a balanced set. By default none.
    - `ready`: whether the model takes `x` as it is, such as features: no augmentation or normalization.

    Raises ValueError for arrays that differ in length or do not hold numbers, and for negative labels.

    >>> split = Split(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    >>> len(split), split.take([2, 2]).index.tolist()
    (3, [2, 2])
    """

    x: Tensor | np.ndarray | Items
    y: Tensor
    group: Tensor | None = None
    weight: Tensor | None = None
    rows: Tensor = field(default=None)  # type: ignore[assignment]
    index: Tensor = field(default=None)  # type: ignore[assignment]
    copies: Tensor = field(default=None)  # type: ignore[assignment]
    ready: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", _storage(self.x))
        y = torch.from_numpy(np.array(_whole(self.y, "y")))
        object.__setattr__(self, "y", y)
        if y.ndim != 1:
            raise ValueError(f"y must hold one label per sample, got shape {tuple(y.shape)}")
        if len(y) and int(y.min()) < 0:
            raise ValueError(f"y must hold labels from 0 upwards, got {int(y.min())}")
        for name in ("group", "weight", "rows", "index", "copies"):
            value = getattr(self, name)
            if value is None:
                continue
            value = torch.from_numpy(np.array(as_real(value, name)))
            if value.shape != y.shape:
                raise ValueError(
                    f"{name} must hold one value per sample, got {tuple(value.shape)} for {len(y)}"
                )
            object.__setattr__(self, name, value)
        if self.rows is None:
            if len(self.x) != len(y):
                raise ValueError(f"x and y must be equally long, got {len(self.x)} and {len(y)}")
            object.__setattr__(self, "rows", torch.arange(len(y)))
        if self.index is None:
            object.__setattr__(self, "index", torch.arange(len(y)))
        if self.copies is None:
            object.__setattr__(self, "copies", torch.zeros(len(y), dtype=torch.bool))

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Balanced | Tensor | np.ndarray | Iterable[int]) -> Split:
        """Return the samples at these positions without copying data, and mark the rows that are copies."""
        chosen = torch.from_numpy(np.array(as_whole(_listed(indices), "indices")))
        if chosen.ndim != 1 or (len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(self)):
            raise ValueError(
                f"indices must be a list of numbers between 0 and {len(self) - 1}, got {indices!r}"
            )
        copies = self.copies[chosen]
        if isinstance(indices, Balanced):
            copies = copies.clone()
            copies[indices.num_original :] = True
        return dataclasses.replace(
            self,
            y=self.y[chosen],
            group=None if self.group is None else self.group[chosen],
            weight=None if self.weight is None else self.weight[chosen],
            rows=self.rows[chosen],
            index=self.index[chosen],
            copies=copies,
        )

    def without_groups(self) -> Split:
        """Return the same samples with the group annotations hidden."""
        return dataclasses.replace(self, group=None)


def _storage(x: Any) -> Any:
    """Return inputs in a form that torch can take, or raise; a dataset is left as it is."""
    if isinstance(x, (list, np.ndarray)) and not (isinstance(x, np.ndarray) and x.dtype.isnative and x.ndim):
        x = as_numpy(x, "x")
    if isinstance(x, (Tensor, np.ndarray)):
        if x.ndim == 0 or (isinstance(x, np.ndarray) and x.dtype.kind not in "fiub"):
            raise ValueError(f"x must hold numbers of every sample, got {x.dtype} of shape {tuple(x.shape)}")
        # torch takes neither a reversed array nor numbers longer than eight bytes.
        odd = isinstance(x, np.ndarray) and (any(step < 0 for step in x.strides) or x.dtype.itemsize > 8)
        return np.ascontiguousarray(as_numpy(x, "x")) if odd else x
    if not hasattr(x, "__len__") or not hasattr(x, "__getitem__") or isinstance(x, (str, bytes, dict)):
        raise ValueError(f"x must be an array or a Dataset with a length, got {type(x).__name__}")
    return x


def _whole(values: Any, name: str) -> np.ndarray:
    """Convert labels to whole numbers; truth values become 0 and 1."""
    array = as_numpy(values, name)
    return array.astype(np.int64) if array.dtype.kind == "b" else as_whole(array, name)


def _listed(indices: Any) -> Any:
    known = isinstance(indices, (Tensor, np.ndarray, str, bytes)) or hasattr(indices, "__array__")
    return indices if known or not isinstance(indices, Iterable) else list(indices)


def image_decoder() -> str:
    """Return the library that decodes JPEG files, and its version; the pixels depend on it."""
    from PIL import features  # only where images or records are made

    name = "libjpeg_turbo" if features.check_feature("libjpeg_turbo") else "jpg"
    return f"{name} {features.version(name)}"


def as_input(item: Any) -> Tensor:
    """Return the input of a dataset's item, which may be (input, label, …) or the input alone."""
    value = item[0] if isinstance(item, (tuple, list)) else item
    return value if isinstance(value, Tensor) else torch.tensor(value)  # a copy: mapped arrays are read-only


Augment = Callable[[Tensor, torch.Generator], Tensor]  # (batch, channels, height, width) in [0, 1] -> same


@dataclass(frozen=True)
class Task:
    """A classification task: three splits, the names of classes and groups, and the default recipe.

    - `name`: the name of its folder of runs.
    - `train`, `val`, `test`: the splits.
    - `class_names`: one name per class.
    - `recipe`: how models are trained by default.
    - `group_names`: one name per group. In a task with attributes, group = y * attributes + attribute.
    - `conflicting`: the groups that break the shortcut.
    - `mean`, `std`: the mean and standard deviation of each channel, of inputs in [0, 1].
    - `augment`: a function(images, generator) that returns augmented images of the same shape.
    - `make_model`: a function that returns a fresh model. It replaces `recipe.model`.
    - `checksum`: a digest of the data, so that results of other data are not reused.
    - `spec`: the argument of `tasks.load`, with which a report loads the samples again.
    - `train_rows`: (samples,) the numbers of the training samples, if they are not 0, 1, 2, …

    Raises ValueError for labels or groups without a name.

    >>> split = Split(torch.zeros(2, 4), torch.tensor([0, 1]))
    >>> Task("mine", train=split, val=split, test=split, class_names=("cat", "dog")).num_classes
    2
    """

    name: str
    train: Split
    val: Split
    test: Split
    class_names: tuple[str, ...]
    recipe: Recipe = field(default_factory=Recipe)
    group_names: tuple[str, ...] = ()
    conflicting: frozenset[int] = frozenset()
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: Augment | None = None
    make_model: Callable[[], nn.Module] | None = None
    checksum: str = ""
    spec: str = ""
    train_rows: np.ndarray | None = None

    def __post_init__(self) -> None:
        groups = [split.group for split in (self.train, self.val, self.test) if split.group is not None]
        needed = max((int(group.max()) + 1 for group in groups if len(group)), default=0)
        check_numbered(needed, "groups")
        if not self.group_names and needed:
            object.__setattr__(self, "group_names", tuple(f"group {group}" for group in range(needed)))
        if len(self.group_names) < needed:
            raise ValueError(f"group_names must name all {needed} groups, got {len(self.group_names)}")
        labels = [split.y for split in (self.train, self.val, self.test) if len(split)]
        highest = max((int(y.max()) for y in labels), default=-1)
        if highest >= self.num_classes:
            raise ValueError(f"class_names must name all {highest + 1} classes, got {self.num_classes}")
        if not self.checksum:
            object.__setattr__(self, "checksum", self._checksum())

    def _checksum(self) -> str:
        parts: list[Tensor | np.ndarray | str] = [*self.class_names]
        for split in (self.train, self.val, self.test):
            parts += [split.y, split.rows, *content_of(split)]
            parts += [part for part in (split.group, split.weight) if part is not None]
        return checksum(*parts)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def without_groups(self, but: tuple[str, ...] = ()) -> Task:
        """Return the task that a method sees: only groups of splits in `but`; the scoring weights stay."""
        hidden = [name for name in ("train", "val", "test") if name not in but]
        return dataclasses.replace(self, **{name: getattr(self, name).without_groups() for name in hidden})


def content_of(split: Split) -> list[Tensor | np.ndarray | str]:
    """Return the inputs that a checksum covers: all of an array, 64 items of a dataset."""
    if isinstance(split.x, (Tensor, np.ndarray)):
        return [split.x]
    if hasattr(split.x, "content"):  # a dataset that gives all of it
        return [*split.x.content()]
    if len(split.x) == 0:
        return []
    with fixed_randomness():  # so that a dataset that augments at random is recognized
        rows = np.unique(np.linspace(0, len(split.x) - 1, 64).astype(int))
        return [as_input(split.x[int(row)]).clone() for row in rows]


def check_numbered(needed: int, name: str) -> None:
    """Refuse identifiers in place of numbers: every class and group gets a name and a score."""
    if needed > MOST_NAMES:
        raise ValueError(
            f"{name} must be numbered from 0 to {MOST_NAMES - 1:,} at most, got {needed - 1:,}; "
            f"number those of all splits together, with np.unique({name}, return_inverse=True)[1]"
        )


@contextlib.contextmanager
def fixed_randomness(seed: int = 0) -> Iterator[None]:
    """Seed all global generators inside the block and restore their states afterwards."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


def checksum(*parts: np.ndarray | Tensor | str) -> str:
    """Return a short digest of arrays and strings: dtype, shape and every value count."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(f"{len(part)}:{part}".encode())
            continue
        array = np.ascontiguousarray(part.numpy() if isinstance(part, Tensor) else part)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()[:16]


def training_weights(train: Tensor, other: Tensor, num_groups: int) -> Tensor:
    """Return per-sample weights that restate a split's groups in the training split's proportions.

    >>> training_weights(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1]), 2).tolist()
    [1.5, 0.5]
    """
    wanted = torch.bincount(train, minlength=num_groups).double() / len(train)
    present = torch.bincount(other, minlength=num_groups).double() / len(other)
    ratio = torch.where(present > 0, wanted / present.clamp(min=1e-300), 0.0)
    weight = ratio[other]
    return (weight * len(other) / weight.sum().clamp(min=1e-300)).float()


def reweighted(split: Split, train: Split) -> Split:
    """Return the split with weights that restate it in the training groups' proportions, if any."""
    if split.group is None or train.group is None:
        return split
    num_groups = int(torch.cat([train.group, split.group]).max()) + 1
    return dataclasses.replace(split, weight=training_weights(train.group, split.group, num_groups))


def limited(task: Task, limit: int) -> Task:
    """Return at most `limit` samples of each split; shares of classes and groups are kept if possible.

    Every class keeps at least one sample where the limit allows it. Weights are made again, from the
    training samples that are left.
    """
    if limit < task.num_classes:
        raise ValueError(f"limit must allow one sample of each of {task.num_classes} classes, got {limit}")
    train, *others = (_smaller(split, limit) for split in (task.train, task.val, task.test))
    val, test = (split if split.weight is None else reweighted(split, train) for split in others)
    digest = checksum(task.checksum, f"limit={limit}")
    return dataclasses.replace(task, train=train, val=val, test=test, checksum=digest)


def _smaller(split: Split, limit: int) -> Split:
    if len(split) <= limit:
        return split
    y = split.y.numpy()
    group = y if split.group is None else split.group.numpy()
    rng, chosen = np.random.default_rng(0), []
    labels, counts = np.unique(y, return_counts=True)
    for label, wanted in zip(labels, shares(counts, limit), strict=True):
        present, sizes = np.unique(group[y == label], return_counts=True)
        for number, keep in zip(present, shares(sizes, int(wanted)), strict=True):
            members = np.flatnonzero((y == label) & (group == number))
            chosen.append(rng.permutation(members)[:keep])
    smaller = split.take(np.sort(np.concatenate(chosen)))
    return dataclasses.replace(smaller, index=torch.arange(len(smaller)))


def shares(counts: np.ndarray, total: int) -> np.ndarray:
    """Return whole numbers in proportion to `counts` that sum to `total`, each at least 1 if possible.

    >>> shares(np.array([970, 30]), 10).tolist()
    [9, 1]
    """
    total = min(total, int(counts.sum()))
    exact = counts * (total / counts.sum())
    whole: np.ndarray = np.floor(exact).astype(np.int64)
    if total >= len(counts):
        whole = np.maximum(whole, 1)
    while (rest := total - whole.sum()) != 0:  # ends: each step moves one sample towards the total
        if rest > 0:
            whole[np.argmax(np.where(whole < counts, exact - whole, -np.inf))] += 1
        else:
            whole[np.argmax(np.where(whole > 1, whole - exact, -np.inf))] -= 1
    return whole
