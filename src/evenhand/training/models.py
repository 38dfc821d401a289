"""Models by name: the paper's CNN, small ones for tables, those of torchvision, timm and the Hub."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from evenhand.core.kernels import has_triton
from evenhand.training import hub, log, plugins

OWN = ("cnn", "mlp", "linear")
AUXILIARY = ("googlenet", "inception_v3")  # give several outputs in training, which no objective here reads
HEADS = ("fc", "classifier", "head", "heads")  # what models call their last layers


def make_model(
    name: str, *, shape: tuple[int, ...], num_classes: int, weights: str | None = None, seed: int = 0
) -> nn.Module:
    """Make a model for inputs of one sample's `shape`, with one output per class.

    - `name`: cnn, mlp, linear, a torchvision model such as resnet18, a timm model such as timm:resnet18, or
      hub:FOLDER for a folder that timm or transformers has written. "package.module:function" names your
      own function, which gets those of shape=… and num_classes=… that it takes.
    - `weights`: None or "random" for fresh weights, "pretrained" for pretrained ones with a fresh last layer,
      or a .pth or .safetensors file.
    - `seed`: determines fresh weights.

    Raises ValueError for an unknown name or for weights that are missing or do not fit, and ImportError where
    a library is missing.

    >>> make_model("cnn", shape=(3, 8, 8), num_classes=2)(torch.zeros(5, 3, 8, 8)).shape
    torch.Size([5, 2])
    """
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}")
    weights = None if weights == hub.FRESH else weights
    build = _builder(name, shape, pretrained=weights == "pretrained")
    # The CPU generator is seeded by itself, because torch.manual_seed would reset the GPUs' generators too.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        model = build(num_classes)
    if weights is not None and not hub.loads_itself(name, weights):
        file = find_weights(name, weights)
        log.detail("reads the weights in %s", file)
        _load(model, _read(file), file, take_head=weights != "pretrained")
    return model


def cnn(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Make six 3x3 convolutions with 16 16 32 32 64 64 channels, then a linear layer on the whole map."""
    channels, height, width = shape
    layers: list[nn.Module] = []
    for out in (16, 16, 32, 32, 64, 64):
        layers += [nn.Conv2d(channels, out, 3, padding="same"), nn.ReLU()]
        channels = out
    return CNN(*layers, nn.Flatten(), nn.Linear(channels * height * width, num_classes))


class CNN(nn.Sequential):
    """The model that `cnn` makes; on a GPU in bf16 it is computed by our own kernels, which are faster."""

    kernels = True  # whether it may

    def forward(self, x: Tensor) -> Tensor:
        if self.kernels and x.is_cuda and self._suits(x) and (network := _network()) is not None:
            return network(self, x)  # type: ignore[no-any-return]
        outputs: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return outputs

    def _suits(self, x: Tensor) -> bool:
        """Return whether the kernels give all that is asked for: neither gradients of the input nor hooks."""
        bf16 = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
        small = x.shape[1] <= 8 and x.shape[0] * x.shape[2] * x.shape[3] * 64 < 2**31
        last = self[-1]  # a head that a method has put there is asked itself
        whole = len(self) == 14 and type(last) is nn.Linear and last.bias is not None  # as it was made
        return (
            bf16
            and small
            and whole
            and not x.requires_grad
            and not any(layer._forward_hooks for layer in self)
        )


@functools.cache
def _network() -> Callable[..., Any] | None:
    """Return the kernels, if there is a compiler for them."""
    if not has_triton():
        return None
    from evenhand.training.cnn import network

    return network


def mlp(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Make a network with one hidden layer of 64 units, for tables."""
    num_features = int(torch.Size(shape).numel())
    return nn.Sequential(nn.Flatten(), nn.Linear(num_features, 64), nn.ReLU(), nn.Linear(64, num_classes))


def linear(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Make a logistic regression on the flattened input."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(torch.Size(shape).numel()), num_classes))


def _builder(name: str, shape: tuple[int, ...], *, pretrained: bool = False) -> Callable[[int], nn.Module]:
    """Return the function that makes the model from the number of classes; raises for unknown names."""
    if hub.is_ours(name):
        return hub.builder(name, shape, pretrained=pretrained)
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
    if hub.is_ours(name):
        hub.check_name(name)
    elif ":" in name:
        own_function(name)
    elif name not in OWN:
        models = _torchvision_models()
        known = [each for each in models.list_models(module=models) if each not in AUXILIARY]
        if name not in known:
            raise ValueError(
                f"unknown model {name!r}; known models are {', '.join([*OWN, *known])}, "
                "timm:NAME, hub:FOLDER, or package.module:function for your own"
            )


def is_own(name: str) -> bool:
    """Return whether a name stands for a function of the user's, whose code runs when the model is made."""
    return ":" in name and not hub.is_ours(name)


def own_function(name: str) -> Callable[..., Any]:
    """Return the function that "package.module:function" names."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(plugins.import_own(module), attribute)
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
    """Return whether a function has an argument of this name."""
    try:
        arguments = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C
        return False
    return name in arguments or any(each.kind is each.VAR_KEYWORD for each in arguments.values())


def call_own(name: str, function: Callable[..., Any], shape: tuple[int, ...], num_classes: int) -> Any:
    """Call the user's function with `shape` and `num_classes`, or the one of them that it takes."""
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
    """Return the file of a model's weights; looks for "pretrained" in three places, then downloads.

    The places: `$EVENHAND_WEIGHTS` (a file, or a folder with torchvision's file or `<name>*.safetensors`),
    then torchvision's own download folder.
    """
    if weights != "pretrained":
        if not Path(weights).is_file():
            raise ValueError(
                f"weights must be 'pretrained' or a .pth or .safetensors file; no file {weights!r}"
            )
        return Path(weights)
    if hub.is_ours(name):
        return hub.find_weights(name)
    if name in OWN or ":" in name:
        raise ValueError(f"there are no pretrained weights for {name!r}; give a weights file, or none")
    url: str = _torchvision_models().get_model_weights(name).DEFAULT.url
    file_name = url.rsplit("/", 1)[-1]
    given = os.environ.get("EVENHAND_WEIGHTS")
    if given:
        path = Path(given)
        if path.is_file():
            return path
        if not path.is_dir():
            raise ValueError(f"$EVENHAND_WEIGHTS must name a file or a folder that exists, got {given!r}")
        for found in (path / file_name, *sorted(path.glob(f"{name}[-_.]*.safetensors"))):
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
    fresh = model.state_dict()
    head = hub.head_prefixes(model) or list(fresh)[-1].rpartition(".")[0] + "."  # most end with it

    def fits(key: str) -> bool:
        return take_head and key in state and state[key].shape == fresh[key].shape

    if not all(fits(key) for key in fresh if key.startswith(head)):
        state = {key: value for key, value in state.items() if not key.startswith(head)}
    try:
        found = model.load_state_dict(state, strict=False)
    except RuntimeError as error:  # of shapes
        raise ValueError(f"{file} does not fit the model: {error}") from error
    # Counters of batch norm, which files from before torch 0.4.1 lack, change no output.
    missing = [key for key in found.missing_keys if not key.endswith("num_batches_tracked")]
    missing = [key for key in missing if not key.startswith(head)]
    for problem, keys in (("lacks", missing), ("has unknown", found.unexpected_keys)):
        if keys:
            more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            raise ValueError(f"{file} does not fit the model: it {problem} {', '.join(keys[:3])}{more}")


# -- the head, and what is put on top of a network -------------------------------------------------------


def find_head(model: nn.Module, x: Tensor | None = None) -> tuple[str, nn.Module]:
    """Return the name and the module of a model's last layer, whose output is the model's output.

    It is what `model.get_classifier()` gives (timm), or the last layer of `fc`, `classifier`, `head` or
    `heads` (torchvision), or else the last `nn.Linear`. With a batch of inputs `x` on the model's device, its
    output is compared with the model's, and a layer for which they agree is looked for.

    >>> find_head(mlp((4,), 3))
    ('3', Linear(in_features=64, out_features=3, bias=True))
    """
    if isinstance(model, PostHoc):
        name, head = find_head(model.network, x)
        return f"network.{name}".rstrip("."), head
    name = _head_name(model)
    head = model.get_submodule(name)
    if isinstance(head, nn.modules.conv._ConvNd):
        raise ValueError(
            f"the head of {type(model).__name__} is a convolution ({name}), whose outputs are pooled; "
            "expected a linear head: take another model, such as resnet18"
        )
    if x is None or _gives_the_outputs(model, head, x):
        return name, head
    above = [name.rsplit(".", number)[0] for number in range(1, name.count(".") + 1)]
    linear = [each for each, module in model.named_modules() if isinstance(module, nn.Linear)]
    for other in [*above, *reversed(linear)]:
        if _gives_the_outputs(model, model.get_submodule(other), x):
            return other, model.get_submodule(other)
    raise ValueError(
        f"the head of {type(model).__name__} is not known: no linear layer gives the model's output; end the "
        "model with one, and call it head"
    )


def replace_head(model: nn.Module, head: nn.Module, x: Tensor | None = None) -> nn.Module:
    """Return a copy of the model with a copy of another last layer; the model itself is unchanged.

    `x`: inputs by which the last layer is found, as for `find_head`.

    >>> replace_head(mlp((4,), 3), nn.Linear(64, 7))(torch.zeros(2, 4)).shape
    torch.Size([2, 7])
    """
    name, _ = find_head(model, x)
    changed, head = copy.deepcopy(model), copy.deepcopy(head)
    if not name:
        return head
    above, _, last = name.rpartition(".")
    setattr(changed.get_submodule(above), last, head)
    return changed


@contextlib.contextmanager
def head_inputs(head: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what every forward pass gives to the head, (batch, dimensions) each."""
    kept: list[Tensor] = []
    # A hook after the pass, because these make our kernels give way to layers; see CNN._suits.
    hook = head.register_forward_hook(lambda _module, given, _outputs: kept.append(given[0].flatten(1)))
    try:
        yield kept
    finally:
        hook.remove()


class PostHoc(nn.Module):
    """A network and a function of its outputs: `function(logits, features) -> logits`, an nn.Module.

    `logits`, (batch, classes), and `features`, (batch, dimensions), the input of the network's head, are
    float32 and come from one forward pass.
    """

    def __init__(self, network: nn.Module, function: nn.Module) -> None:
        super().__init__()
        self.network, self.function = network, function
        self._head: str | None = None  # its name, once inputs have shown it

    def forward(self, x: Tensor) -> Tensor:
        if self._head is None:
            self._head = find_head(self.network, x)[0]
        with head_inputs(self.network.get_submodule(self._head)) as features:
            logits: Tensor = self.network(x)
        outputs: Tensor = self.function(logits.float(), features[-1].float())
        return outputs


def rebuilt(
    method: ModuleType | None,
    network: Callable[[], nn.Module],
    tensors: Mapping[str, Tensor],
    num_classes: int,
) -> nn.Module:
    """Return the model of a record, with its weights.

    The method's `rebuild(network, tensors, num_classes)` makes it, where its module has such a function, and
    else it is the recipe's network, which `network()` makes.
    """
    make = getattr(method, "rebuild", None)
    if make is None and "estimator_classes" in tensors:
        from evenhand.training.estimator import empty

        model: nn.Module = empty(tensors, num_classes)
    else:
        model = network() if make is None else make(network, tensors, num_classes)
    shapes = [{name: tensor.shape for name, tensor in each.items()} for each in (model.state_dict(), tensors)]
    odd = [name for name in {**shapes[1], **shapes[0]} if shapes[0].get(name) != shapes[1].get(name)]
    if odd:
        raise ValueError(
            f"{len(odd)} of its tensors, such as {odd[0]!r}, do not fit into {type(model).__name__}"
        )
    model.load_state_dict(dict(tensors))
    return model


def _head_name(model: nn.Module) -> str:
    if callable(classifier := getattr(model, "get_classifier", None)):
        wanted = classifier()
        for name, module in model.named_modules():
            if module is wanted:
                return _last_layer(module, name)
    for name in HEADS:
        part = getattr(model, name, None)
        if isinstance(part, nn.Module) and any(True for _ in part.parameters()):
            return _last_layer(part, name)
    if isinstance(model, nn.Sequential):
        return _last_layer(model, "")
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(
            f"{type(model).__name__} has no linear layer, so its head is not known; end it with an "
            "nn.Linear, and call it head"
        )
    return str(linear[-1])


def _last_layer(module: nn.Module, name: str) -> str:
    """Return the name of the last linear layer of a head, or of the head itself where it has none."""
    if isinstance(module, nn.Sequential):
        for inner, child in reversed(list(module.named_children())):
            if any(True for _ in child.parameters()):
                return _last_layer(child, f"{name}.{inner}".lstrip("."))
    linear = [each for each, part in module.named_modules(prefix=name) if isinstance(part, nn.Linear)]
    return linear[-1] if linear else name


@torch.no_grad()
def _gives_the_outputs(model: nn.Module, head: nn.Module, x: Tensor) -> bool:
    """Return whether the model's output for these inputs is what the head has given."""
    given: list[Any] = []
    before = {module: module.training for module in model.modules()}
    hook = head.register_forward_hook(lambda _module, _inputs, outputs: given.append(outputs))
    try:
        outputs = model.eval()(x)
    finally:
        hook.remove()
        for module, training in before.items():
            module.training = training
    return bool(given) and isinstance(given[-1], Tensor) and torch.equal(given[-1], outputs)
