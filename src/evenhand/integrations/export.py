"""export: a finished run as a folder for the Hugging Face Hub: weights, preprocessing and a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save
from torch import nn

from evenhand.integrations.prediction import EXPORTED, SEALED, network_of
from evenhand.report.render import markdown
from evenhand.report.worst import worst_parts, worst_table
from evenhand.training import hub
from evenhand.training.record import Record
from evenhand.training.store import check_folder, json_bytes, write_bytes, write_manifest

FILES = ("model.safetensors", "config.json", "preprocessor_config.json", EXPORTED, "README.md")
LOADING = {
    "timm": 'import timm\n\nmodel = timm.create_model("local-dir:FOLDER", pretrained=True).eval()',
    "transformers": (
        "from transformers import AutoModelForImageClassification\n\n"
        'model = AutoModelForImageClassification.from_pretrained("FOLDER").eval()'
    ),
    "evenhand": (
        'from evenhand.integrations.prediction import network_of\n\nmodel = network_of("FOLDER").model()'
    ),
    "": (
        "from safetensors.torch import load_file\n\n"
        'model.load_state_dict(load_file("FOLDER/model.safetensors"))'
    ),
}


def export(run: str | Path | Record, out: str | Path, *, name: str = "") -> Path:
    """Write the model of a finished run as a folder that can be uploaded to the Hugging Face Hub.

    - `run`: the folder of a finished run, or its record.
    - `out`: the folder to write. It gets the weights (`model.safetensors`), the settings of the model
      (`config.json`), the preprocessing (`preprocessor_config.json`) and a model card (`README.md`). The card
      states the worst class, pseudo-group and known group with sizes and intervals.
    - `name`: the title of the card. By default the task and the method.

    The folder has checksums, by which `evenhand predict` notices damage; only the card may be edited.
    timm loads the folder of a timm model, transformers that of a transformers model, and
    `evenhand predict FOLDER INPUT` every folder but that of a model of your own.

    Returns the folder. Raises ValueError where the run is not finished or its model was not saved.

    >>> import evenhand, tempfile, torch
    >>> task = evenhand.Task("t", *[evenhand.Split(torch.eye(4), [0, 1, 0, 1])] * 3, ("a", "b"))
    >>> place = tempfile.mkdtemp()
    >>> recipe = evenhand.Recipe(model="linear", epochs=1, batch_size=4)
    >>> record = evenhand.execute(task, "erm", recipe=recipe, runs=place, device="cpu")
    >>> sorted(file.name for file in export(record, f"{place}/out").glob("*.json"))
    ['checksums.json', 'config.json', 'evenhand.json', 'preprocessor_config.json']
    """
    record, out = run if isinstance(run, Record) else Record(Path(run)), Path(out)
    check_folder(out, "out")
    weights = record.file("model.safetensors")
    if not weights.is_file() or "inputs" not in record.config:
        raise ValueError(f"{record.path} should be a finished run whose model was saved; train it again")
    inputs = record.config["inputs"]
    if inputs["own_model"]:
        library, config, tensors = "", {"architecture": "your own"}, load_file(weights)
    else:
        library, config, tensors = _converted(record)
    settings = {
        "inputs": inputs,
        "full_recipe": {"model": "hub:." if library == "transformers" else config.get("model", "")},
        "method": record.method,
    }
    if library == "timm":
        settings["full_recipe"]["model"] = f"{hub.TIMM}{config['architecture']}"
    contents = {
        "model.safetensors": save(tensors, {"format": "pt"}),
        "config.json": json_bytes(config),
        "preprocessor_config.json": json_bytes(_preprocessing(inputs)),
        EXPORTED: json_bytes(settings),
        "README.md": _card(record, name or f"{record.metrics['task']}, {record.method}", library).encode(),
    }
    for file, content in contents.items():
        write_bytes(out / file, content)
    write_manifest(out, {file: contents[file] for file in SEALED})  # not the card, which may be edited
    return out


def _converted(record: Record) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The library that can load the model, its settings for that library, and its weights by its names."""
    network = network_of(record.path)
    model, name = network.model(), str(record.config["full_recipe"]["model"])
    classes, shape = network.takes["classes"], network.takes["shape"]
    state = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
    if isinstance(model, hub.Images | hub.Texts):
        inner: Any = model.model
        inner.config.id2label = dict(enumerate(classes))
        inner.config.label2id = {each: label for label, each in enumerate(classes)}
        config = {**inner.config.to_dict(), "architectures": [type(inner).__name__]}
        config.pop("_name_or_path", None)
        return "transformers", config, {key.removeprefix("model."): each for key, each in state.items()}
    if hasattr(model, "pretrained_cfg") and hub.is_ours(name):
        return "timm", _timm_config(model, classes, shape, network.takes), state
    return "evenhand", {"library_name": "evenhand", "model": name, "num_classes": len(classes)}, state


def _timm_config(
    model: nn.Module, classes: list[str], shape: list[int], takes: dict[str, Any]
) -> dict[str, Any]:
    known: Any = model.pretrained_cfg
    kept = {
        key: known[key]
        for key in ("first_conv", "classifier", "pool_size", "fixed_input_size")
        if key in known
    }
    channels = shape[0]
    changed: dict[str, Any] = {"in_chans": channels} if channels != 3 else {}
    if known.get("fixed_input_size"):
        changed["img_size"] = shape[1:]
    return {
        "architecture": known["architecture"],
        "num_classes": len(classes),
        "num_features": int(getattr(model, "num_features", 0)),
        "label_names": classes,
        "model_args": changed,
        "pretrained_cfg": {
            **kept,
            "custom_load": False,
            "input_size": shape,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "squash",
            "mean": takes["mean"] or [0.0] * channels,
            "std": takes["std"] or [1.0] * channels,
            "num_classes": len(classes),
        },
    }


def _preprocessing(inputs: dict[str, Any]) -> dict[str, Any]:
    """The preprocessing in the terms of transformers' image processors; of other inputs, their shape."""
    if len(inputs["shape"]) != 3:
        return {"shape": inputs["shape"], "dtype": inputs["dtype"]}
    return {
        "image_processor_type": "ViTImageProcessor",  # which resizes, rescales and normalizes, and no more
        "do_resize": True,
        "size": {"height": inputs["shape"][1], "width": inputs["shape"][2]},
        "resample": 2,  # bilinear
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": inputs["mean"] is not None,
        "image_mean": inputs["mean"],
        "image_std": inputs["std"],
    }


# -- the card --------------------------------------------------------------------------------------------


def _card(record: Record, title: str, library: str) -> str:
    config, inputs = record.config, record.config["inputs"]
    images = len(inputs["shape"]) == 3
    head = ["---", *([f"library_name: {library}"] if library else []), "tags:", "- evenhand"]
    head += ["pipeline_tag: image-classification"] if images else []
    lines = [*head, "---", "", f"# {_plain(title)}", ""]
    about = (
        f"A classifier of {len(inputs['classes'])} classes: {', '.join(map(_plain, inputs['classes'][:50]))}."
    )
    lines += [about, "", "## How well it works", "", markdown(worst_table(record)).strip(), ""]
    kinds = {each["what"] for each in worst_parts(record)}
    if "worst pseudo-group" in kinds:
        lines.append(
            "A pseudo-group is the part of a class that the first training learned early (majority) or late "
            "(minority). Its samples are validation samples."
        )
    else:
        lines.append(
            "The run left no pseudo-groups of validation samples, so the worst of them is not known."
        )
    if "worst known group" not in kinds:
        lines.append("The data have no group labels, so accuracy by true group is not known.")
    if config.get("scored_on") == "validation":
        lines.append(
            "There was no test set: these are scores of the validation samples that chose the weights."
        )
    values = {**config["recipe"], **config["hyperparameters"]}
    chosen = ", ".join(f"{key}={value}" for key, value in values.items()) or "defaults"
    lines += ["", "## How it was trained", ""]
    lines.append(
        f"evenhand {config['versions']['evenhand']}, method `{record.method}`, "
        f"task `{record.metrics['task']}`, seed {record.seed}; settings: `{_plain(chosen)}`."
    )
    lines += ["", "## Preprocessing", ""]
    size = " × ".join(map(str, inputs["shape"]))
    if images:
        lines.append(f"Resize the whole picture to {size}, bilinear, and scale values to 0 to 1.")
        if inputs["mean"]:
            lines.append(f"Subtract the mean {inputs['mean']} and divide by {inputs['std']}, per channel.")
    else:
        lines.append(f"Inputs have shape {size} and type {inputs['dtype']}.")
    lines += ["", "## How to load it", "", "```python", _loading(library, images), "```", ""]
    return "\n".join(lines)


def _loading(library: str, images: bool) -> str:
    code = LOADING[library]
    return code if images else code.replace("ForImageClassification", "ForSequenceClassification")


def _plain(text: object) -> str:
    """Text of others on one line and without Markdown of its own."""
    return "".join(f"\\{each}" if each in "\\`*_[]<>#|" else each for each in " ".join(str(text).split()))
