"""Models by name: the paper's six-layer CNN, torchvision's backbones, small ones for tables, or your own."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evenhand.core.compiler import has_triton
from evenhand.training import journal

OWN = ("cnn", "mlp", "linear")
AUXILIARY = ("googlenet", "inception_v3")  # give several outputs in training, which no objective here reads


def make_model(
    name: str, *, shape: tuple[int, ...], num_classes: int, weights: str | None = None, seed: int = 0
) -> nn.Module:
    """A model for inputs of one sample's `shape`, with one output per class.

    `name` is cnn, mlp, linear, a torchvision backbone such as resnet18, or "package.module:function" for a
    function of your own, which is given shape=… and num_classes=… as far as it takes them. `weights` is None
    (fresh), "pretrained" (ImageNet's, with a fresh last layer) or a .pth or .safetensors file. Fresh weights
    are a function of `seed` alone.

    >>> make_model("cnn", shape=(3, 8, 8), num_classes=2)(torch.zeros(5, 3, 8, 8)).shape
    torch.Size([5, 2])
    """
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}")
    build = _builder(name, shape)
    # The CPU generator is seeded by itself, because torch.manual_seed would reset the GPUs' generators too.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        model = build(num_classes)
    if weights is not None:
        file = find_weights(name, weights)
        journal.detail("reads the weights in %s", file)
        _load(model, _read(file), file, take_head=weights != "pretrained")
    return model


def cnn(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Six 3x3 convolutions with 16 16 32 32 64 64 channels, then one linear layer on the whole map."""
    channels, height, width = shape
    layers: list[nn.Module] = []
    for out in (16, 16, 32, 32, 64, 64):
        layers += [nn.Conv2d(channels, out, 3, padding="same"), nn.ReLU()]
        channels = out
    return CNN(*layers, nn.Flatten(), nn.Linear(channels * height * width, num_classes))


class CNN(nn.Sequential):
    """What `cnn` makes; on a GPU in bf16 it is computed by kernels of our own, which are faster."""

    kernels = True  # whether it may

    def forward(self, x: Tensor) -> Tensor:
        if self.kernels and x.is_cuda and self._suits(x) and (network := _network()) is not None:
            return network(self, x)  # type: ignore[no-any-return]
        outputs: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return outputs

    def _suits(self, x: Tensor) -> bool:
        """Whether the kernels give all that is asked for: neither gradients of the input nor hooks."""
        bf16 = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
        small = x.shape[1] <= 8 and x.shape[0] * x.shape[2] * x.shape[3] * 64 < 2**31
        whole = len(self) == 14  # and not some of its layers, as a slice of it has
        return (
            bf16
            and small
            and whole
            and not x.requires_grad
            and not any(layer._forward_hooks for layer in self)
        )


@functools.cache
def _network() -> Callable[..., Any] | None:
    """The kernels, where there is a compiler for them."""
    if not has_triton():
        return None
    from evenhand.training.cnn import network

    return network


def mlp(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """One hidden layer of 64 units, for tables."""
    num_features = int(torch.Size(shape).numel())
    return nn.Sequential(nn.Flatten(), nn.Linear(num_features, 64), nn.ReLU(), nn.Linear(64, num_classes))


def linear(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Logistic regression on the flattened input."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(torch.Size(shape).numel()), num_classes))


def _builder(name: str, shape: tuple[int, ...]) -> Callable[[int], nn.Module]:
    """What makes the model, given the number of classes; all that can be wrong with a name is said here."""
    check_name(name)
    if name in OWN:
        if name == "cnn" and len(shape) != 3:
            raise ValueError(
                f"cnn takes images (channels, height, width), got shape {shape}; use mlp or linear"
            )
        make = {"cnn": cnn, "mlp": mlp, "linear": linear}[name]
        return lambda num_classes: make(shape, num_classes)
    if ":" in name:
        function = own_function(name)
        return lambda num_classes: call_own(name, function, shape, num_classes)
    if len(shape) != 3 or shape[0] != 3:
        raise ValueError(f"{name} takes images with 3 channels, got shape {shape}; use cnn, mlp or linear")
    models = _torchvision_models()
    return lambda num_classes: models.get_model(name, weights=None, num_classes=num_classes)


def check_name(name: str) -> None:
    """Raise for a name that no model has."""
    if ":" in name:
        own_function(name)
    elif name not in OWN:
        models = _torchvision_models()
        known = [each for each in models.list_models(module=models) if each not in AUXILIARY]
        if name not in known:
            raise ValueError(
                f"unknown model {name!r}; known models are {', '.join([*OWN, *known])}, "
                "or package.module:function for your own"
            )


def own_function(name: str) -> Callable[..., Any]:
    """The function that "package.module:function" names."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, SyntaxError, AttributeError) as error:
        raise ValueError(
            f"cannot find the model {name!r}: {error}; expected package.module:function"
        ) from error
    if not callable(function):
        raise ValueError(
            f"{name!r} must be a function that makes a model, from shape=… and num_classes=… or from "
            f"nothing, got {type(function).__name__}"
        )
    return function  # type: ignore[no-any-return]


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has an argument of this name."""
    try:
        arguments = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C
        return False
    return name in arguments or any(each.kind is each.VAR_KEYWORD for each in arguments.values())


def call_own(name: str, function: Callable[..., Any], shape: tuple[int, ...], num_classes: int) -> Any:
    """What the user's function makes of `shape` and `num_classes`, those of the two that it takes."""
    given = {"shape": shape, "num_classes": num_classes}
    try:
        return function(**{key: value for key, value in given.items() if takes(function, key)})
    except Exception as error:  # anything can be wrong with it
        raise ValueError(
            f"the model {name!r} cannot be made: {type(error).__name__}: {error}; "
            "expected a function that takes shape and num_classes, or nothing, and gives a model"
        ) from error


def _torchvision_models() -> Any:
    try:
        return importlib.import_module("torchvision.models")
    except ImportError as error:
        raise ImportError("this model needs torchvision: pip install 'evenhand[vision]'") from error


def find_weights(name: str, weights: str) -> Path:
    """The file that holds a model's weights; "pretrained" is looked for in three places, then downloaded.

    The places: `$EVENHAND_WEIGHTS` (a file, or a folder with torchvision's file or `<name>*.safetensors`),
    then torchvision's own download folder.
    """
    if weights != "pretrained":
        if not Path(weights).is_file():
            raise ValueError(
                f"weights must be 'pretrained' or a .pth or .safetensors file; no file {weights!r}"
            )
        return Path(weights)
    if name in OWN or ":" in name:
        raise ValueError(f"there are no pretrained weights for {name!r}; give a weights file, or none")
    url: str = _torchvision_models().get_model_weights(name).DEFAULT.url
    file_name = url.rsplit("/", 1)[-1]
    given = os.environ.get("EVENHAND_WEIGHTS")
    if given:
        place = Path(given)
        if place.is_file():
            return place
        if not place.is_dir():
            raise ValueError(f"$EVENHAND_WEIGHTS must name a file or a folder that exists, got {given!r}")
        for found in (place / file_name, *sorted(place.glob(f"{name}[-_.]*.safetensors"))):
            if found.is_file():
                return found
    cached = Path(torch.hub.get_dir()) / "checkpoints" / file_name
    if not cached.is_file():
        _download(name, url, cached)
    return cached


def _download(name: str, url: str, target: Path) -> None:
    """Fetch torchvision's file; torch writes it aside and renames it once its checksum agrees."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = re.search(r"-([0-9a-f]{8,})\.", target.name)
    try:
        torch.hub.download_url_to_file(url, str(target), digest.group(1) if digest else None)
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"the pretrained weights of {name} are not here and cannot be downloaded ({error}); put {url} "
            f"at {target}, or into a folder that $EVENHAND_WEIGHTS names; or train with weights=None"
        ) from error


def _read(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and safetensors raise many kinds for a damaged or hostile file
        raise ValueError(
            f"{file} cannot be read as weights ({error}); it may be damaged: fetch it again"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{file} must hold a state_dict (name -> tensor); save it with model.state_dict()")
    return state


def _load(model: nn.Module, state: dict[str, Tensor], file: Path, *, take_head: bool) -> None:
    """Copy weights into the model; only the last layer may stay as it is, and nothing else."""
    own = model.state_dict()
    head = list(own)[-1].rpartition(".")[0] + "."  # every model here ends with its classifier

    def fits(key: str) -> bool:
        return take_head and key in state and state[key].shape == own[key].shape

    heads = [key for key in own if key.startswith(head)]
    if not all(fits(key) for key in heads):
        state = {key: value for key, value in state.items() if not key.startswith(head)}
    # Counters of batch norm, which files from before torch 0.4.1 lack, change no output.
    required = {key for key in own if not key.startswith(head) and not key.endswith("num_batches_tracked")}
    for problem, keys in (
        ("lacks", sorted(required - set(state))),
        ("has unknown", sorted(set(state) - set(own))),
        (
            "has wrong shapes for",
            sorted(key for key in required & set(state) if state[key].shape != own[key].shape),
        ),
    ):
        if keys:
            more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            raise ValueError(f"{file} does not fit the model: it {problem} {', '.join(keys[:3])}{more}")
    model.load_state_dict({**own, **state})
