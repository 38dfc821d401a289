"""Many workers on one folder, and configurations that must never meet in one."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import tiny
from test_faults import needs_linux, script

from evenhand import Recipe
from evenhand.training.keys import identify
from evenhand.training.plugins import keywords


@needs_linux
def test_killed_workers_leave_every_run_done_once_and_right() -> None:
    done = script("workers.py", "--workers", "10", "--runs", "8", "--kills", "4")
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert "'runs': 8, 'killed': 4" in done.stdout


FIELDS: dict[str, list[Any]] = {
    "model": ["cnn", "mlp", "resnet18"],
    "weights": [None, "pretrained", "a.safetensors"],
    "epochs": [1, 2, 100],
    "batch_size": [1, 16, 128],
    "optimizer": ["adam", "sgd"],
    "lr": [1e-3, 1e-4, 1, 1.0],
    "weight_decay": [0, 0.0, 1e-5, 1.0],
    "momentum": [0.9, 0.0],
    "check_every": [1, 5],
    "patience": [1, 5],
    "delta": [0.001, 0.0],
    "keep": ["last", "best"],
    "average": [False, True],
    "plateau_epochs": [1, 10],
    "plateau_factor": [0.1, 0.5],
    "slices": [1, 2],
    "augment": [True, False],
    "clean_losses": [True, False],
    "precision": ["auto", "fp32", "bf16"],
    "compile": ["auto", "on", "off"],
}
SETTINGS: dict[str, dict[str, list[Any]]] = {
    "erm": {},
    "tab": {},
    "jtt": {"identifier_epochs": [1, 5, 50], "upweight": [1, 10, "ratio"]},
    "lff": {"q": [0.1, 0.5, 0.7]},
    "masktune": {"threshold": [1.0, 2.0, 2.5]},
}


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    def some(options: dict[str, list[Any]]) -> dict[str, Any]:
        names = draw(st.lists(st.sampled_from(sorted(options)), unique=True, max_size=3)) if options else []
        return {name: draw(st.sampled_from(options[name])) for name in names}

    method = draw(st.sampled_from(sorted(SETTINGS)))
    return {
        "name": draw(st.sampled_from(["tiny", "tiny:p=0.95", "tiny:p=0.9", "other"])),
        "checksum": draw(st.sampled_from(["a", "b"])),
        "method": method,
        "given": {**some(FIELDS), **some(SETTINGS[method])},
        "seed": draw(st.integers(0, 12)),
    }


def folder_and_meaning(configuration: dict[str, Any]) -> tuple[Path, tuple[Any, ...]]:
    """Where a run is kept, and all that it depends on, with what was left to choose chosen."""
    task = dataclasses.replace(tiny(), name=configuration["name"], checksum=configuration["checksum"])
    method, given_ = configuration["method"], configuration["given"]
    identity = identify(task, method, given_, None, torch.device("cpu"))
    own = keywords(identity.module.train)
    recipe = dataclasses.asdict(task.recipe.replace(**{k: v for k, v in given_.items() if k not in own}))
    recipe["precision"] = "fp32" if recipe["precision"] == "auto" else recipe["precision"]
    recipe["compile"] = recipe["compile"] == "on"  # on a CPU, where nothing else compiles
    if (
        recipe["model"] == "cnn"
        and task.make_model is None
        and recipe["slices"] == 1
        and not recipe["compile"]
    ):
        recipe["slices"] = 2
    chosen = {**own, **{k: v for k, v in given_.items() if k in own}}
    meaning = (task.name, task.checksum, method, repr(sorted(recipe.items())), repr(sorted(chosen.items())))
    return identity.folder("runs", configuration["seed"]), (*meaning, configuration["seed"])


def test_all_fields_of_a_recipe_are_varied_here() -> None:
    assert FIELDS.keys() == {field.name for field in dataclasses.fields(Recipe)}


@settings(max_examples=300)
@given(configurations(), configurations(), st.data())
def test_one_folder_means_one_configuration(
    one: dict[str, Any], other: dict[str, Any], data: st.DataObject
) -> None:
    key = data.draw(st.sampled_from([None, *one]))  # also two that differ in one thing only
    if key is not None and (key != "method" or one["given"].keys() <= FIELDS.keys()):
        value = other[key]
        if key == "given" and not value.keys() <= FIELDS.keys() | SETTINGS[one["method"]].keys():
            value = {name: value[name] for name in value if name in FIELDS}
        other = {**one, key: value}
    first, second = folder_and_meaning(one), folder_and_meaning(other)
    assert (first[0] == second[0]) == (first[1] == second[1])
