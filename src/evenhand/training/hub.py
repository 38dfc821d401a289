"""Models of other libraries by name: timm's, and folders in the layout of the Hugging Face Hub.

A folder is data: weights are read from safetensors only, and nothing that it names is imported or downloaded.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from evenhand.training import log
from evenhand.training.store import read_checked

TIMM, HUB = "timm:", "hub:"  # how such names begin
FRESH = "random"  # the weights that ask for random initialization
TRANSFORMERS_NEEDED = "a Hugging Face model needs transformers: pip install 'evenhand[transformers]'"
LOCAL = {"local_files_only": True, "trust_remote_code": False}
UNFIT = {
    "auto_map": "brings code of its own, which evenhand does not run",
    "quantization_config": "is quantized, and such weights cannot be trained",
}
Build = Callable[[int], nn.Module]


def is_ours(name: str) -> bool:
    """Return whether this file makes the model of this name."""
    return name.startswith((TIMM, HUB))


def builder(name: str, shape: tuple[int, ...], *, pretrained: bool) -> Build:
    """Return a function that makes the model for a number of classes.

    With `pretrained`, a folder in the layout of transformers gets its weights here. Weights of other models
    are in the file that `find_weights` names. Raises ValueError for an unknown model or an unfit folder.
    """
    check_name(name)
    if name.startswith(TIMM):
        return _timm_builder(name.removeprefix(TIMM), shape)
    folder = Path(name.removeprefix(HUB))
    if architecture := _architecture(folder):
        return _timm_builder(architecture, shape)
    return lambda num_classes: _transformers_model(folder, shape, num_classes, pretrained)


def check_name(name: str) -> None:
    """Raise ValueError for a model that timm does not have, or a folder that holds no usable model."""
    if name.startswith(HUB):
        folder = Path(name.removeprefix(HUB))
        if not folder.is_dir():
            raise ValueError(f"{name!r} must name a folder with a model, but there is no folder {folder}")
        check(folder)
        if architecture := _architecture(folder):
            _check_timm(architecture, str(folder / "config.json"))
    else:
        _check_timm(name.removeprefix(TIMM), name)


def check_weights(name: str, weights: str | None) -> None:
    """Raise ValueError for a name that stands for pretrained weights without saying whether to use them.

    >>> check_weights("timm:resnet18", None)
    >>> check_weights("timm:resnet18.a1_in1k", None)
    Traceback (most recent call last):
    ValueError: timm:resnet18.a1_in1k stands for pretrained weights; add weights=pretrained or weights=random
    """
    if weights is None and (name.startswith(HUB) or (name.startswith(TIMM) and "." in name)):
        raise ValueError(f"{name} stands for pretrained weights; add weights=pretrained or weights=random")


def loads_itself(name: str, weights: str) -> bool:
    """Return whether `builder` loads these weights."""
    folder = Path(name.removeprefix(HUB))
    return name.startswith(HUB) and weights == "pretrained" and not _architecture(folder)


def find_weights(name: str) -> Path:
    """Return the local file of pretrained weights.

    A timm model's file is looked for in `$EVENHAND_WEIGHTS` (a file, or a folder with
    `<name>*.safetensors`), then in the cache of the Hugging Face Hub, and is downloaded otherwise.
    Raises ValueError where it is in none of them and the Hub cannot be reached.
    """
    if name.startswith(HUB):
        return Path(name.removeprefix(HUB)) / "model.safetensors"
    short = name.removeprefix(TIMM)
    if given := os.environ.get("EVENHAND_WEIGHTS"):
        path = Path(given)
        if path.is_file():
            return path
        if not path.is_dir():
            raise ValueError(f"$EVENHAND_WEIGHTS must name a file or a folder that exists, got {given!r}")
        for found in sorted(path.glob(f"{short}[-_.]*.safetensors")) + sorted(
            path.glob(f"{short}.safetensors")
        ):
            return found
    repository = (_timm().get_pretrained_cfg(short) or _NoConfig).hf_hub_id
    if not repository:
        raise ValueError(
            f"timm has no pretrained weights for {short!r}; give a weights file, or weights=random"
        )
    return _from_hub(name, repository)


class _NoConfig:
    hf_hub_id = None


def _from_hub(name: str, repository: str) -> Path:
    hub = importlib.import_module("huggingface_hub")
    try:
        return Path(hub.hf_hub_download(repository, "model.safetensors"))  # from its cache where it is there
    except Exception as error:  # of the network or of the Hub; the library raises many kinds
        first = str(error).strip().split("\n")[0]
        raise ValueError(
            f"the pretrained weights of {name} are not here and cannot be downloaded ({first}); put "
            f"model.safetensors of {repository} as {name.removeprefix(TIMM)}.safetensors into a folder that "
            "$EVENHAND_WEIGHTS names, or train with weights=random"
        ) from error


def head_prefixes(model: nn.Module) -> tuple[str, ...]:
    """Return how the names of the parameters of a timm model's last layers begin."""
    names = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ()
    return tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))


# -- timm ------------------------------------------------------------------------------------------------


def _timm() -> Any:
    try:
        return importlib.import_module("timm.models")
    except ImportError as error:
        raise ImportError("this model needs timm: pip install 'evenhand[timm]'") from error


def _check_timm(architecture: str, source: str) -> None:
    models = _timm()
    base, _, tag = architecture.partition(".")
    if not models.is_model(base):
        close = difflib.get_close_matches(base, models.list_models(), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "timm.list_models() gives all of them"
        raise ValueError(f"{source} names a model that timm does not have, {base!r}; {hint}")
    if tag and not models.is_model_pretrained(architecture):
        known = [each.partition(".")[2] for each in models.list_pretrained(f"{base}.*")]
        raise ValueError(f"timm's {base} has no weights {tag!r}; it has {', '.join(known) or 'none'}")


def _timm_builder(architecture: str, shape: tuple[int, ...]) -> Build:
    if len(shape) != 3:
        raise ValueError(f"{architecture} takes images (channels, height, width), got shape {shape}")
    models = _timm()
    settings: dict[str, Any] = {"in_chans": shape[0]}
    config = models.get_pretrained_cfg(architecture, allow_unregistered=True)
    if config is not None and config.fixed_input_size:
        settings["img_size"] = tuple(shape[1:])
    return lambda num_classes: models._factory.create_model(
        architecture, pretrained=False, num_classes=num_classes, **settings
    )


def _architecture(folder: Path) -> str:
    """Return the model name of a folder in timm's layout; empty in the layout of transformers."""
    content = read_checked(folder / "config.json", {}, "the settings of a model")
    name = content.get("architecture")
    arguments = content.get("model_args") or {}
    if isinstance(name, str) and not set(arguments) <= {"in_chans", "img_size"}:  # which the inputs decide
        raise ValueError(f"{folder / 'config.json'} has model_args, which evenhand does not pass on")
    return name if isinstance(name, str) and "model_type" not in content else ""


# -- transformers ----------------------------------------------------------------------------------------


class Texts(nn.Module):
    """A text model as the engine calls it: padded token ids (batch, length) to logits (batch, classes)."""

    def __init__(self, model: nn.Module, padding: int) -> None:
        super().__init__()
        self.model, self.padding = model, padding

    def forward(self, x: Tensor) -> Tensor:
        mask = x != self.padding
        mask[:, 0] = True  # attention to nothing is not a number, and a text may be empty
        length = int(mask.any(0).nonzero().max()) + 1  # a batch of short texts costs little
        outputs: Tensor = self.model(
            input_ids=x[:, :length].long(), attention_mask=mask[:, :length].long()
        ).logits
        return outputs


class Images(nn.Module):
    """An image model as the engine calls it: (batch, channels, height, width) to (batch, classes)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.model(pixel_values=x).logits
        return outputs


def _transformers_model(
    folder: Path, shape: tuple[int, ...], num_classes: int, pretrained: bool
) -> nn.Module:
    library = transformers()
    with reading(library, folder, "model"):
        config = library.AutoConfig.from_pretrained(folder, num_labels=num_classes, **LOCAL)
    of_images = len(shape) == 3
    if not of_images and len(shape) != 1:
        raise ValueError(f"{folder} takes images or token ids (length,), got inputs of shape {shape}")
    for name, number in (("num_channels", shape[0]), ("image_size", shape[-1])) if of_images else ():
        expected = getattr(config, name, number)
        if expected not in (number, [number, number]):
            raise ValueError(f"the model in {folder} takes {name}={expected}, got inputs of shape {shape}")
    auto = (
        library.AutoModelForImageClassification if of_images else library.AutoModelForSequenceClassification
    )
    with reading(library, folder, "model"):
        model = auto.from_config(config, trust_remote_code=False)
        if pretrained:
            loaded, fresh = load_pretrained(auto, folder, config)
            check_body(loaded, fresh, folder)
            _keep_head(model, loaded)
            log.note("fresh weights, not from %s: %s", folder.name, ", ".join(fresh) or "the last layer")
            model = loaded
    model = model.float()
    return Images(model) if of_images else Texts(model, config.pad_token_id or 0)


def load_pretrained(auto: Any, folder: Path, config: Any) -> tuple[Any, list[str]]:
    """Return a model with the weights of a folder, and the names of the parameters that it lacks."""
    model, found = auto.from_pretrained(
        folder,
        config=config,
        use_safetensors=True,
        ignore_mismatched_sizes=True,  # of the last layer, when there are other classes
        output_loading_info=True,
        **LOCAL,
    )
    # Some versions give the shapes with a weight that does not fit.
    unfit = (key if isinstance(key, str) else key[0] for key in found["mismatched_keys"])
    return model, sorted({*found["missing_keys"], *unfit})


def check_body(model: Any, fresh: list[str], folder: Path) -> None:
    """Raise ValueError if most of a model's weights are not in its folder."""
    body = [name for name in fresh if name.startswith(f"{model.base_model_prefix}.")]
    if len(body) > len(list(model.base_model.parameters())) / 2:
        raise ValueError(
            f"the weights in {folder} are not of this model: {len(body)} of its parameters are not "
            f"among them, such as {body[0]}"
        )


def _keep_head(fresh_model: nn.Module, loaded: nn.Module) -> None:
    """Give a loaded model the last layer of a fresh one, as for all pretrained weights."""
    from evenhand.training.models import find_head

    name, head = find_head(loaded)
    head.load_state_dict(fresh_model.get_submodule(name).state_dict())


def transformers() -> Any:
    """Import the library, or raise ImportError with the command that installs it."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(TRANSFORMERS_NEEDED) from error


@contextlib.contextmanager
def reading(library: Any, folder: Path, what: str) -> Iterator[None]:
    """Silence the library, and turn whatever goes wrong into one ValueError."""
    logging = library.logging
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except Exception as error:  # the library raises many kinds
        first = str(error).strip().split("\n")[0]
        raise ValueError(
            f"the {what} in {folder} cannot be used: {first}; expected a folder that "
            "save_pretrained has written, of a model that transformers knows"
        ) from error
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


# -- any folder ------------------------------------------------------------------------------------------


def check(folder: Path) -> bool:
    """Return whether a folder holds weights.

    Raises ValueError for a folder that holds no model, weights in another format than safetensors, or a
    model that would need code of others to run.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(f"expected a Hugging Face model, but {folder} holds no config.json")
    if (folder / "adapter_config.json").exists():
        raise ValueError(f"{folder} holds an adapter; merge it into its model and save that one")
    _check_config(read_checked(folder / "config.json", {}, "the settings of a model"), folder)
    if (folder / "model.safetensors").is_file():
        return True
    index = folder / "model.safetensors.index.json"  # of weights in several files
    others = {
        file.name for end in ("bin", "h5", "msgpack", "safetensors") for file in folder.glob(f"*.{end}")
    }
    if index.is_file():
        content = read_checked(index, {"weight_map": {str: str}}, "the index of a model's weights")
        names = set(content["weight_map"].values()) or {"none"}
        others = {name for name in names if Path(name).suffix != ".safetensors" or Path(name).name != name}
    if others:
        raise ValueError(
            f"expected weights in {folder / 'model.safetensors'}, got {', '.join(sorted(others)[:3])}; no "
            "pickle is read: save the model once more with save_pretrained(safe_serialization=True)"
        )
    return index.is_file()


def _check_config(config: Any, folder: Path) -> None:
    """Refuse a config that names, however deep inside, code to run or a model to download."""
    parts = [config]
    while parts:
        part = parts.pop()
        items = part.items() if isinstance(part, dict) else [("", each) for each in part]
        for key, value in items:
            if key in UNFIT and value:
                raise ValueError(f"the model in {folder} {UNFIT[key]} ({key} in its config.json)")
            if key.endswith("_implementation") and "/" in str(value):  # a name of the hub
                where = f"{key} in its config.json: {value}"
                raise ValueError(f"the model in {folder} {UNFIT['auto_map']} ({where})")
            if isinstance(value, dict | list):
                parts.append(value)


def digest(folder: Path) -> str:
    """Return a digest of a folder's model: its settings and its weights."""
    whole = hashlib.sha256()
    for file in (folder / "config.json", *sorted(folder.glob("*.safetensors"))):
        with file.open("rb") as content:
            whole.update(hashlib.file_digest(content, "sha256").digest())
    return whole.hexdigest()[:16]
