"""Train networks for an audit: a pretrained backbone, fine-tuned or frozen, a small CNN, or your own."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load as read_safetensors
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

from evenhand.audit import portable
from evenhand.audit.evidence import Evidence
from evenhand.core.ranks import resolve_device
from evenhand.tasks import cache_root, folder, table
from evenhand.tasks.samples import MEAN, STD, TRAIN, Samples, decode_images
from evenhand.training.batches import batch_sizes
from evenhand.training.data import Task, as_input, checksum
from evenhand.training.models import make_model
from evenhand.training.recipe import Recipe
from evenhand.training.store import write_bytes

BACKBONES = ("resnet18", "mobilenet_v2", "resnet50", "mobilenet_v3_small", "efficientnet_b0")
FROZEN_SIZE, OWN_SIZE = 128, 32  # pixels
TUNED_SIZE = {"cpu": 48, "cuda": 128}  # pixels; on a CPU 2,000 photos then take half an hour
MOST_TUNED = 4000  # images up to which a CPU fine-tunes; beyond this, the backbone is frozen
TUNED = Recipe(optimizer="sgd", lr=1e-2, epochs=15, batch_size=64, check_every=1, average=True)
WAIT = 100  # minimum number of steps without a gain before fine-tuning stops
HEAD = Recipe(model="linear", epochs=60, batch_size=64, check_every=1)
CHUNK = 64  # images in one pass through a backbone


def finished(found: Evidence) -> Evidence:
    """Return the evidence with both networks as files that describe their inputs."""
    files = {
        f"{name}.safetensors": portable.network_bytes(
            (record.path / "model.safetensors").read_bytes(),
            {"model": record.config["full_recipe"]["model"], **record.config["inputs"]},
        )
        for name, record in found.records.items()
    }
    return dataclasses.replace(found, files=files)


def image_task(
    data: Samples, *, model: str | None, size: int | None, device: str, frozen: bool | None = None
) -> tuple[Task, Backbone | None]:
    """Return the Task of images, and the backbone if it is frozen, so that the inputs are its features.

    A network that is trained as a whole learns shortcuts that frozen features hide, such as a color. So it is
    fine-tuned if that takes less than about an hour.
    """
    place = resolve_device(device).type
    found = None if model is not None and (":" in model or model == "cnn") else local_weights(model)
    if found is None:
        if model is not None and ":" not in model and model != "cnn":
            raise ValueError(
                f"the pretrained weights of {model} are not here; set $EVENHAND_WEIGHTS to the folder "
                "that holds them, or use --model cnn, which needs none"
            )
        if frozen is not None:
            raise ValueError(
                "--frozen and --fine-tune are about a pretrained backbone, but the model is "
                f"{model or 'a small CNN, since no pretrained weights are here'}; leave them out"
            )
        task = folder.task(data, size=size or _own_size(data.files[0]), name="images")
        return dataclasses.replace(task, recipe=task.recipe.replace(model=model or "cnn")), None
    name, weights = found
    if not (place == "cpu" and len(data.ids) > MOST_TUNED if frozen is None else frozen):
        task = folder.task(data, size=size or TUNED_SIZE[place], name="images")
        recipe = TUNED.replace(model=name, weights=str(weights), patience=_patience(len(task.train)))
        return dataclasses.replace(task, recipe=recipe, augment=folder.FLIP), None
    backbone = Backbone(name, weights, size or FROZEN_SIZE, data.class_names)
    features, digest = backbone.features(data, device)
    train = features[torch.from_numpy(data.rows(TRAIN))]
    backbone.mean, backbone.std = train.mean(0), train.std(0).clamp(min=1e-3)
    task = table.tensor_task(data, (features - backbone.mean) / backbone.std)
    mixed = checksum(task.checksum, digest)
    return dataclasses.replace(task, name="features", recipe=HEAD, checksum=mixed), backbone


def _patience(num_samples: int) -> int:
    """Return the number of epochs that fine-tuning waits for a gain; it is larger for few images.

    Batch statistics follow the weights slowly. So for some dozens of steps, a network that has learned is
    validated as if it had not.

    >>> _patience(1400), _patience(280)
    (5, 20)
    """
    return max(TUNED.patience, math.ceil(WAIT / len(batch_sizes(num_samples, TUNED.batch_size))))


def shape_of(task: Task) -> tuple[int, ...]:
    """Return the shape of one sample as a model sees it."""
    return tuple(as_input(task.train.x[int(task.train.rows[0])]).shape)


def check_model(task: Task, name: str | None) -> None:
    """Raise an error before any training unless the model returns one output per class."""
    if name is None:
        return
    model = make_model(name, shape=shape_of(task), num_classes=task.num_classes)
    if ":" not in name:
        return
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model {name!r} must be a torch.nn.Module, got {type(model).__name__}")
    first = as_input(task.train.x[int(task.train.rows[0])])
    two = torch.stack([first, first])
    if two.dtype == torch.uint8:  # pixels, which training scales
        two = two.float() / 255
    expected = (2, task.num_classes)
    try:
        with torch.no_grad():
            came = model.eval()(two)
    except Exception as error:  # anything can be wrong with it
        raise ValueError(
            f"the model {name!r} cannot take two samples of shape {tuple(first.shape)}: "
            f"{type(error).__name__}: {error}; make it fit, or let its function take shape and num_classes"
        ) from error
    if not isinstance(came, Tensor) or tuple(came.shape) != expected:
        got = f"shape {tuple(came.shape)}" if isinstance(came, Tensor) else type(came).__name__
        raise ValueError(
            f"the model {name!r} must give one output per class, {expected} for two samples, got {got}; "
            "let its function take num_classes"
        )


def _own_size(file: Path) -> int:
    """Return the training size. Small images keep theirs, and large ones are reduced for a small CNN."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            return min(OWN_SIZE, max(image.size))
    except OSError:
        return OWN_SIZE  # the decoding will say what is wrong with it


def local_weights(model: str | None) -> tuple[str, Path] | None:
    """Return a backbone and its weights file on this machine; an audit never downloads anything."""
    given = os.environ.get("EVENHAND_WEIGHTS")
    places = [Path(given)] if given else []
    places.append(Path(torch.hub.get_dir()) / "checkpoints")
    for name in BACKBONES if model is None else (model,):
        for place in places:
            if place.is_file() and place.name.startswith(name):
                return name, place
            for pattern in (f"{name}[-_.]*.safetensors", f"{name}-*.pth"):
                for file in sorted(place.glob(pattern)) if place.is_dir() else ():
                    return name, file
    return None


class Backbone:
    """A pretrained network of which only a new last layer is trained."""

    def __init__(self, name: str, weights: Path, size: int, class_names: tuple[str, ...]) -> None:
        self.name, self.size, self.class_names = name, size, class_names
        self.model = make_model(
            name, shape=(3, size, size), num_classes=len(class_names), weights=str(weights)
        ).eval()
        linear = [key for key, module in self.model.named_modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise ValueError(
                f"{name} does not end in a linear layer; use --model cnn or a function of your own"
            )
        self.head = linear[-1]
        self.digest = hashlib.sha256(weights.read_bytes()).hexdigest()[:16]
        self.mean, self.std = torch.zeros(1), torch.ones(1)

    def features(self, data: Samples, device: str) -> tuple[Tensor, str]:
        """Return the last layer's inputs, (images, features) float32, computed once and cached."""
        images = decode_images("audit", data.files, self.size)
        digest = checksum(self.name, self.digest, images.digest)
        file = cache_root() / "features" / f"{digest}.npy"
        if not file.is_file():
            self._compute(images.pixels, file, resolve_device(device))
        return torch.from_numpy(np.load(file, allow_pickle=False)), digest

    @torch.no_grad()
    def _compute(self, pixels: np.ndarray, file: Path, device: torch.device) -> None:
        import io

        parent = self.model.get_submodule(self.head.rpartition(".")[0])
        last = self.head.rpartition(".")[2]
        head = getattr(parent, last)
        setattr(parent, last, nn.Identity())
        mean, std = (torch.tensor(value, device=device).view(3, 1, 1) for value in (MEAN, STD))
        model, rows = self.model.to(device), []
        for start in range(0, len(pixels), CHUNK):
            x = torch.from_numpy(np.array(pixels[start : start + CHUNK])).to(device).float() / 255
            rows.append(model((x - mean) / std).flatten(1).cpu().numpy())
        setattr(parent, last, head)
        self.model.cpu()
        buffer = io.BytesIO()
        np.save(buffer, np.concatenate(rows), allow_pickle=False)
        write_bytes(file, buffer.getvalue())

    def finished(self, found: Evidence) -> Evidence:
        """Return the evidence with whole networks as its two models, instead of last layers."""
        takes = {
            "model": self.name,
            "shape": [3, self.size, self.size],
            "dtype": "uint8",
            "mean": MEAN,
            "std": STD,
            "classes": self.class_names,
            "own_model": False,
        }
        files = {
            name: portable.network_bytes(self.whole(read_safetensors(content)), takes)
            for name, content in finished(found).files.items()
        }
        about = {**found.about, "model": f"linear on features of {self.name}", "size": self.size}
        return dataclasses.replace(found, files=files, about=about)

    def whole(self, head: Mapping[str, Tensor]) -> bytes:
        """Return the whole network with a trained last layer and the scaling, in torchvision's names."""
        weight = head["1.weight"] / self.std
        state = {name: value.detach().clone().contiguous() for name, value in self.model.state_dict().items()}
        state[f"{self.head}.weight"] = weight.contiguous()
        state[f"{self.head}.bias"] = (head["1.bias"] - weight @ self.mean).contiguous()
        return bytes(safetensors_bytes(state))
