"""A trained model on new data: arrays or images in, a class and a confidence for each out."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenhand.core.arrays import read_array, read_arrays
from evenhand.core.ranks import resolve_device
from evenhand.tasks.samples import IMAGE_SUFFIXES, find_images, left_out, read_image
from evenhand.training import hub, plugins
from evenhand.training.batches import Batches, Source
from evenhand.training.data import Split, Task
from evenhand.training.forward import logits
from evenhand.training.models import is_own, make_model, rebuilt
from evenhand.training.recipe import Recipe
from evenhand.training.record import INPUTS, Record
from evenhand.training.store import read_checked, read_json, read_manifest, schema_error, verified

_LARGEST = 1 << 28  # numbers of one sample
EXPORTED = "evenhand.json"  # in an exported folder: what the model takes, and how it is rebuilt

SEALED = ("config.json", EXPORTED, "model.safetensors", "preprocessor_config.json")  # by its checksums.json


@dataclass(frozen=True)
class Predictions:
    """What a model says of new samples."""

    ids: list[str]  # a row's number, or an image's path below the folder given
    classes: list[str]  # the name of the class that it finds likeliest
    confidence: np.ndarray  # (samples,) float32: the probability that it gives that class


@dataclass(frozen=True)
class _Images:
    """Image files as a storage of inputs, decoded when asked for."""

    files: Sequence[Path]
    size: int

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(read_image(self.files[row], self.size)))


def predict(run: Path, inputs: Path, *, device: str = "auto", trust: Collection[str] = ()) -> Predictions:
    """Classify new samples with the model of a finished run or of an exported folder.

    - `run`: the folder.
    - `inputs`: an .npy file, an .npz file with one array, an image, or a folder of images, which is searched
      recursively. Images are resized and normalized as in training.
    - `device`: "auto", "cpu", "cuda" or "cuda:N".
    - `trust`: modules of your own that the record names and that may be imported: the method's
      ("study.method") and the model's ("study.nets:make"). No other code runs because a record names it.

    Returns the samples' ids, the likeliest class of each and its probability. Raises ValueError for inputs of
    another shape than the model takes, and for a model that cannot be rebuilt from the folder.
    """
    network = network_of(run, trust)
    return network.predict(*network.read(inputs), device=device)


def network_of(run: str | Path, trust: Collection[str] = ()) -> Network:
    """The trained network of a finished run or of an exported folder; `trust` as for `predict`."""
    run = Path(run)
    if (run / EXPORTED).is_file():
        sealed = read_manifest(run, known=SEALED)["files"]
        for file in SEALED:
            verified(run, file, sealed)
        config = read_checked(run / EXPORTED, {"inputs": INPUTS, "full_recipe": {str: object}}, "an export")
        name = str(config["full_recipe"].get("model", ""))
        name = f"{hub.HUB}{run}" if name == "hub:." else name
        if name.startswith(hub.HUB) and name != f"{hub.HUB}{run}":
            raise ValueError(f"{run / EXPORTED} names another folder, {name!r}; only its own is read")
        method = str(config.get("method", "erm"))
        weights = run / "model.safetensors"
        return Network(run / EXPORTED, config["inputs"], Recipe(model=name), weights, method, tuple(trust))
    record = Record(run)
    config = read_json(record.file("config.json")) if (run / "config.json").is_file() else {}
    if isinstance(config, dict) and (unsaved := config.get("unsaved_model")):
        raise ValueError(
            f"the model of {run} is a {unsaved}, which cannot be saved without a pickle, so that its record "
            "only has its predictions; train it again in Python, or take a linear classifier or a "
            "HistGradientBoostingClassifier"
        )
    for name in ("config.json", "model.safetensors"):
        if not (run / name).is_file():
            raise ValueError(f"{run} should be the folder of a finished run, but it holds no {name}")
    if schema_error(config, {"inputs": object, "full_recipe": {str: object}}):
        config = {"inputs": {"own_model": True}}  # of an earlier version, which did not say more
    known = {field.name for field in fields(Recipe)}  # another version may have had more
    recipe = Recipe(**{name: value for name, value in config.get("full_recipe", {}).items() if name in known})
    weights = record.file("model.safetensors")
    method = str(config.get("method", "erm"))
    return Network(run / "config.json", config["inputs"], recipe, weights, method, tuple(trust))


@dataclass(frozen=True)
class Network:
    """A trained network on disk: what it takes, and where its weights are."""

    source: Path  # the file that says what it takes
    takes: dict[str, Any]  # as record.INPUTS
    recipe: Recipe
    weights: Path
    method: str = "erm"  # whose module may say how the model is rebuilt
    trust: tuple[str, ...] = ()  # modules that are not ours and may be imported

    def __post_init__(self) -> None:
        if isinstance(self.takes, dict) and self.takes.get("own_model") is True:
            raise ValueError(
                f"{self.weights.parent} was trained with a model of your own; load its {self.weights.name} "
                "into that model"
            )
        if wrong := schema_error(self.takes, INPUTS):
            raise ValueError(f"{self.source} should say what the model takes, but {wrong}")
        if is_own(self.recipe.model) and self.recipe.model not in self.trust:
            raise ValueError(
                f"{self.source} names the model {self.recipe.model}, whose code is not run just because a "
                f"record names it; if you trust that code, add --trust {self.recipe.model}"
            )

    def read(self, inputs: Path) -> tuple[list[str], Any]:
        """The samples' names and a storage of them, like the one that the network was trained on."""
        return _inputs(inputs, _example(self.takes, self.source))

    def images(self, ids: list[str], files: Sequence[Path]) -> tuple[list[str], Any]:
        """The same of images that a table lists."""
        return ids, _images(files, _example(self.takes, self.source))

    def predict(self, ids: list[str], x: Any, *, device: str) -> Predictions:
        """The likeliest class of every sample."""
        takes, where = self.takes, resolve_device(device)
        recipe = self.recipe if where.type != "cpu" else self.recipe.replace(precision="fp32")
        split = Split(x, torch.zeros(len(x), dtype=torch.int64))
        task = Task(
            name="new",
            train=split,
            val=split,
            test=split,
            class_names=tuple(takes["classes"]),
            mean=takes["mean"],
            std=takes["std"],
            recipe=recipe,
            checksum="new",
        )
        batches = Batches(split, task, Source(x, where), batch_size=max(recipe.batch_size, 256))
        try:
            outputs = logits(self.model().to(where), batches, recipe)
        except (IndexError, KeyError, ZeroDivisionError) as error:  # of trees whose parts do not fit
            raise ValueError(f"{self.weights} should hold a whole model, but {error}") from error
        return named(ids, takes["classes"], outputs.softmax(1).cpu().numpy())

    def model(self) -> nn.Module:
        """The model with its weights, on the CPU and in evaluation mode."""
        shape, num_classes = tuple(self.takes["shape"]), len(self.takes["classes"])
        network = functools.partial(make_model, self.recipe.model, shape=shape, num_classes=num_classes)
        method, missing = None, ""
        if "." in self.method and self.method not in self.trust:
            missing = f"; if you trust the code of the method {self.method}, add --trust {self.method}"
        else:
            try:
                method = plugins.load("evenhand.methods", self.method, "train")
            except (ValueError, ImportError) as error:  # only a method with a model of its own is needed
                missing = f"; {error}"
        network()  # says itself what is wrong with a name
        try:
            return rebuilt(method, network, self._tensors(), num_classes).eval()
        except Exception as error:  # safetensors raises a kind of its own for a damaged file
            wanted = (
                self.recipe.model if getattr(method, "rebuild", None) is None else f"a model of {self.method}"
            )
            raise ValueError(
                f"{self.weights} should hold the weights of {wanted}, but {error}{missing}"
            ) from error

    def _tensors(self) -> dict[str, Tensor]:
        from safetensors.torch import load_file

        tensors = load_file(self.weights)
        if self.recipe.model == f"{hub.HUB}{self.weights.parent}":  # which has the names of transformers
            return {f"model.{name}": tensor for name, tensor in tensors.items()}
        return tensors


def named(ids: list[str], classes: Sequence[str], probabilities: np.ndarray) -> Predictions:
    """The likeliest class of every sample, from (samples, classes) probabilities.

    Raises ValueError for numbers that are no probabilities, such as those of damaged weights.
    """
    if probabilities.shape != (len(ids), len(classes)) or not np.isfinite(probabilities).all():
        raise ValueError(
            f"the model should give {len(classes)} probabilities per sample, but it gives "
            f"{probabilities.shape[-1]} numbers, not all finite; its weights are damaged: train it again"
        )
    likeliest = [classes[label] for label in probabilities.argmax(axis=1).tolist()]
    return Predictions(ids, likeliest, probabilities.max(axis=1))


def _example(known: dict[str, Any], source: Path) -> Tensor:
    """A sample such as the model was trained on."""
    dtype, shape = getattr(torch, known["dtype"], None), known["shape"]
    numbers = [number for number in (known["mean"], known["std"]) if number is not None]
    channels = shape[0] if len(shape) in (1, 3) else -1
    if (
        not isinstance(dtype, torch.dtype)
        or not shape
        or not all(0 < size < 2**31 for size in shape)
        or math.prod(shape) > _LARGEST
        or any(len(each) not in (1, channels) for each in numbers)
        or len(known["classes"]) < 2
    ):
        raise ValueError(f"{source} should say what the model takes, but no model takes {known}")
    return torch.zeros(shape, dtype=dtype)


def _inputs(source: Path, example: Tensor) -> tuple[list[str], Any]:
    """The samples' names and a storage of them, like the one that the model was trained on."""
    if source.is_dir():
        files, others = find_images(source)
        note = left_out(others)
        if not files:
            none, kinds = f"none ({note})" if note else "none", ", ".join(IMAGE_SUFFIXES)
            raise ValueError(f"{source} should hold images ({kinds}), but it holds {none}")
        if note:
            warnings.warn(f"{source}: {note}", stacklevel=2)
        return [str(file.relative_to(source)) for file in files], _images(files, example)
    if not source.is_file():
        raise ValueError(
            f"INPUT must be an .npy or .npz file, an image or a folder of images; no file {source}"
        )
    if source.suffix.lower() in IMAGE_SUFFIXES:
        return [source.name], _images([source], example)
    array = _checked(source, _array(source), example)
    return [str(row) for row in range(len(array))], array


def _images(files: Sequence[Path], example: Tensor) -> _Images:
    shape = tuple(example.shape)
    if len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2]:
        raise ValueError(f"the model takes inputs of shape {shape}, not images; give them as an .npy file")
    return _Images(files, shape[1])


def _array(source: Path) -> np.ndarray:
    what = "one array of numbers"
    if source.suffix.lower() == ".npy":
        return read_array(source, what)
    if source.suffix.lower() != ".npz":
        raise ValueError(f"INPUT must be an .npy or .npz file, an image or a folder of images, got {source}")
    arrays = read_arrays(source, what)
    if len(arrays) != 1:
        raise ValueError(f"{source} should hold {what}, but there are {len(arrays)}")
    return next(iter(arrays.values()))


def _checked(source: Path, array: np.ndarray, example: Tensor) -> np.ndarray:
    """The array in the storage's own units: whole numbers are pixels only where the model learned pixels."""
    shape = tuple(example.shape)
    if array.shape[1:] != shape or array.ndim == 0 or len(array) == 0:
        expected = ", ".join(["samples", *map(str, shape)])
        raise ValueError(f"{source} must be shaped ({expected}) as in training, got {array.shape}")
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{source} must hold real numbers, got {array.dtype}")
    if example.dtype == torch.uint8 and array.dtype == np.uint8:
        return array
    pixels = example.dtype == torch.uint8
    for start in range(0, len(array), 4096):
        part = array[start : start + 4096]
        if not np.isfinite(part).all():
            row = start + int(np.argwhere(~np.isfinite(part))[0][0])
            raise ValueError(f"{source} must hold finite numbers, but row {row} does not")
        if pixels and (array.dtype.kind != "f" or part.min() < 0 or part.max() > 1):
            raise ValueError(
                f"{source} must hold pixels as uint8 from 0 to 255 or as fractions from 0 to 1, "
                f"got {array.dtype} from {part.min():g} to {part.max():g}"
            )
    return array if array.dtype == np.float32 else array.astype(np.float32)
