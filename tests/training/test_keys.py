"""Keys: two trainings that differ in anything that changes their numbers never share a folder."""

from __future__ import annotations

import csv
import dataclasses
import functools
import importlib
import inspect
import json
import re
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pytest
import torch
from shortcut import shortcut_task
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand import Recipe, Task, execute
from evenhand.bench import pack as records
from evenhand.training import keys, plugins
from evenhand.training import stage as stage_module
from evenhand.training.keys import Arithmetic, identify, resolve
from evenhand.training.log import Silent
from evenhand.training.objective import cross_entropy
from evenhand.training.recipe import check_types
from evenhand.training.record import Record, find
from evenhand.training.run import Run
from evenhand.training.stage import Request, Stage

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
STUDIES = Path(__file__).parents[2] / "results" / "studies"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU with bf16 and Triton; nothing is computed on it."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(keys, "has_triton", lambda: True)


def make_run(
    task: Task, runs: Path, recipe: Recipe | None = None, device: torch.device = CPU, **own: Any
) -> Run:
    where = runs / task.name / "any" / "key-s0"
    recipe = recipe or task.recipe
    return Run(task, recipe, seed=0, path=where, identity={"own": own}, device=device, show=Silent())


def key(task: Task, method: str = "erm", device: torch.device = CPU, **settings: Any) -> str:
    return identify(task, method, settings, None, device).folder("runs", 0).name


def asked(run: Run, *given: Any, **options: Any) -> Stage:
    """What `Run.fit` would train."""
    return Stage(run, Request(*given, **options))


# -- the arithmetic --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "given", "found"),
    [
        (CPU, {}, ("fp32", "eager", 2)),
        (CPU, {"compile": "off"}, ("fp32", "eager", 2)),
        (CPU, {"compile": "on"}, ("fp32", "compiled", 1)),
        (CPU, {"slices": 4}, ("fp32", "eager", 4)),
        (CPU, {"precision": "bf16"}, ("bf16", "eager", 2)),
        (CPU, {"model": "mlp"}, ("fp32", "eager", 1)),
        (CPU, {"model": "mlp", "epochs": 10_000}, ("fp32", "eager", 1)),
        (CUDA, {}, ("bf16", "kernels", 1)),
        (CUDA, {"compile": "on"}, ("bf16", "kernels", 1)),
        (CUDA, {"compile": "off"}, ("bf16", "eager", 1)),
        (CUDA, {"precision": "fp32", "epochs": 10_000}, ("fp32", "eager", 1)),
        (CUDA, {"model": "mlp", "epochs": 1000}, ("bf16", "eager", 1)),  # 3,000 steps of 16 of 60 samples
        (CUDA, {"model": "mlp", "epochs": 1001}, ("bf16", "compiled", 1)),
        (CUDA, {"model": "mlp", "epochs": 1001, "compile": "off"}, ("bf16", "eager", 1)),
        (CUDA, {"model": "mlp", "compile": "on"}, ("bf16", "compiled", 1)),
    ],
)
@pytest.mark.usefixtures("gpu")
def test_all_that_is_left_to_choose_is_resolved(
    tiny: Task, device: torch.device, given: dict[str, Any], found: tuple[Any, ...]
) -> None:
    assert resolve(tiny, tiny.recipe.replace(**given), device) == Arithmetic(device.type, *found)
    assert identify(tiny, "tab", given, None, device).content["arithmetic"] == {
        "device": device.type,
        **dict(zip(("precision", "compute", "slices"), found, strict=True)),
    }


@pytest.mark.usefixtures("gpu")
def test_without_triton_there_are_no_kernels(tiny: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "has_triton", lambda: False)
    assert resolve(tiny, tiny.recipe, CUDA).compute == "eager"


@pytest.mark.usefixtures("gpu")
def test_a_model_of_ones_own_has_neither_slices_nor_kernels_unasked(tiny: Task) -> None:
    own = dataclasses.replace(tiny, make_model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 2)))
    assert resolve(own, own.recipe, CPU).slices == 1
    assert resolve(own, own.recipe, CUDA).compute == "eager"
    assert resolve(own, own.recipe.replace(epochs=1001), CUDA).compute == "compiled"


@pytest.mark.usefixtures("gpu")
def test_every_stage_is_computed_as_the_task_s_own_training_set_says(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a long stage would be compiled, and the methods that it is compared with would not."""
    run = make_run(tiny, tmp_path, tiny.recipe.replace(model="mlp", epochs=1000), CUDA)
    longer = run.train.take(list(range(60)) * 2)
    for options in ({}, {"split": longer}, {"recipe": run.recipe.replace(epochs=2000)}):
        assert asked(run, "model", **options).arithmetic == run.arithmetic
    assert run.arithmetic.compute == "eager"
    slower = asked(run, "model", recipe=run.recipe.replace(compile="on", precision="fp32"))
    assert (slower.arithmetic.compute, slower.arithmetic.precision) == ("compiled", "fp32")


def test_a_stage_that_needs_whole_batches_has_one_slice_in_its_key(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tiny, tmp_path)
    contents: list[dict[str, Any]] = []
    monkeypatch.setattr(stage_module, "key_of", lambda content: contents.append(content) or "key")
    for objective in (None, lambda model, batch: F.cross_entropy(model(batch.x), batch.y)):
        asked(run, "model", objective=objective)
    assert [content["arithmetic"]["slices"] for content in contents] == [2, 1]
    assert run.arithmetic.slices == 2


# -- runs ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gpu")
def test_a_run_s_key_changes_with_how_it_is_computed(tiny: Task) -> None:
    ways = [
        (CPU, {}),
        (CPU, {"compile": "on"}),
        (CPU, {"slices": 4}),
        (CPU, {"precision": "bf16"}),
        (CUDA, {}),
        (CUDA, {"compile": "off"}),
        (CUDA, {"precision": "fp32"}),
    ]
    assert len({key(tiny, device=device, **given) for device, given in ways}) == len(ways)
    for device, same in [
        (CPU, {"compile": "off"}),
        (CPU, {"slices": 2}),
        (CPU, {"precision": "fp32"}),
        (CUDA, {"compile": "on"}),
        (torch.device("cuda", 1), {"precision": "bf16"}),
    ]:
        assert key(tiny, device=device, **same) == key(tiny, device=torch.device(device.type))


def test_a_run_s_key_knows_versions_groups_and_weights(tiny: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    erm, gdro = key(tiny), key(tiny, "gdro")
    others = {name: dataclasses.replace(getattr(tiny, name), group=getattr(tiny, name).group.roll(1))
              for name in ("train", "val")}  # fmt: skip
    assert key(dataclasses.replace(tiny, **others)) == erm, "it does not read groups"
    assert key(dataclasses.replace(tiny, val=others["val"]), "gdro") == gdro, "nor those of validation"
    assert key(dataclasses.replace(tiny, train=others["train"]), "gdro") != gdro
    weighted = dataclasses.replace(tiny.val, weight=torch.linspace(1, 2, len(tiny.val)))
    assert key(dataclasses.replace(tiny, val=weighted)) != erm
    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("evenhand.methods.erm"), "VERSION", 2)
        assert key(tiny) != erm and key(tiny, "gdro") == gdro
    with monkeypatch.context() as patch:
        patch.setattr(keys, "NUMERICS", 2)
        assert key(tiny) != erm and key(tiny, "gdro") != gdro
    assert (key(tiny), key(tiny, "gdro")) == (erm, gdro)


def test_no_text_of_ours_is_in_a_key(tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither prose nor renames may change one."""
    read: list[str] = []
    monkeypatch.setattr(inspect, "getsource", lambda module: read.append(module.__name__) or "")
    for method in plugins.describe("evenhand.methods", "train"):
        key(tiny, method)
    key(tiny, "evenhand.audit.method")
    run = make_run(tiny, tmp_path)
    for objective in (None, importlib.import_module("evenhand.methods.evenhand").generalised_cross_entropy):
        asked(run, "model", objective=objective)
    assert not read


def test_every_method_has_a_version() -> None:
    names = plugins.describe("evenhand.methods", "train")
    versions = {name: importlib.import_module(f"evenhand.methods.{name}").VERSION for name in names}
    assert all(type(version) is int and version >= 1 for version in versions.values())
    assert versions["evenhand"] == 4


def test_a_new_field_with_its_default_changes_no_key(tiny: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    later = dataclasses.make_dataclass(
        "Later", [("new", int, 1)], bases=(Recipe,), frozen=True, kw_only=True
    )  # what Recipe may be one day
    recipe = later(**{field.name: getattr(tiny.recipe, field.name) for field in dataclasses.fields(Recipe)})
    assert key(dataclasses.replace(tiny, recipe=recipe)) == key(tiny)
    assert key(dataclasses.replace(tiny, recipe=dataclasses.replace(recipe, new=2))) != key(tiny)


def test_types_of_settings_are_checked_where_they_are_declared() -> None:
    hints: dict[str, Any] = {"rate": float, "steps": int, "kind": Literal["a"] | None, "other": Any}
    given = {"rate": 1, "steps": 2, "kind": None, "other": "x", "undeclared": [3]}
    found = check_types(given, hints)
    assert found == given and isinstance(found["rate"], float)
    # Settings may come from a table of results; a checkpoint refuses numpy's scalars.
    assert type(check_types({"rate": np.float64(0.1)}, hints)["rate"]) is float
    for wrong, expected in [
        ({"rate": "x"}, "rate of it must be a number, got 'x'"),
        ({"steps": 2.5}, "steps of it must be a whole number, got 2.5"),
        ({"steps": True}, "steps of it must be a whole number, got True"),
        ({"kind": "b"}, "kind of it must be 'a' or none, got 'b'"),
    ]:
        with pytest.raises(ValueError, match=expected):
            check_types(wrong, hints, " of it")


def test_a_finished_run_says_how_it_was_computed(tmp_path: Path) -> None:
    task = shortcut_task(epochs=1)
    record = execute(task, "gdro", runs=tmp_path, device="cpu", show=Silent())
    assert not record.older
    assert record.config["version"] == record.config["numerics"] == 1
    assert record.config["arithmetic"] == {
        "device": "cpu",
        "precision": "fp32",
        "compute": "eager",
        "slices": 2,
    }
    assert set(record.config["groups"]) == {"train"}
    assert "groups" not in execute(task, "erm", runs=tmp_path, device="cpu", show=Silent()).config


# -- stages ----------------------------------------------------------------------------------------------


def test_an_objective_that_reads_groups_is_trained_for_each(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gdro = importlib.import_module("evenhand.methods.gdro")

    def made(model: Any, batch: Any) -> Tensor:
        losses = F.cross_entropy(model(batch.x), batch.y, reduction="none")
        return (losses * (1 + batch.group % 2)).mean()

    made.__module__, made.__qualname__ = gdro.__name__, "made"  # as if a method of ours had it
    monkeypatch.setattr(gdro, "made", made, raising=False)
    monkeypatch.setattr(gdro, "train", lambda run: run.fit("model", objective=made, stop=1).model)
    other = dataclasses.replace(tiny, train=dataclasses.replace(tiny.train, group=3 - tiny.train.group))
    assert other.checksum == tiny.checksum, "or the data would tell them apart"
    first, second = (
        execute(task, "gdro", runs=tmp_path, device="cpu", show=Silent()) for task in (tiny, other)
    )
    assert first.path != second.path and first.stage("model") != second.stage("model")
    models = [(record.path / "model.safetensors").read_bytes() for record in (first, second)]
    assert models[0] != models[1]


def test_a_plain_training_sees_no_groups_and_is_shared_by_who_needs_them(tiny: Task, tmp_path: Path) -> None:
    seen: list[object] = []
    run = make_run(tiny, tmp_path)

    def objective(model: Any, batch: Any) -> Tensor:
        seen.append(batch.group)
        return cross_entropy(model, batch)

    assert run.train.group is not None
    run.fit("own", objective=objective, stop=1)
    assert all(isinstance(group, Tensor) for group in seen)
    told = run.fit("erm", stop=1).folder
    assert told == make_run(tiny.without_groups(), tmp_path, other=1).fit("erm", stop=1).folder


def test_a_plain_training_with_other_samples_of_validation_is_not_shared(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    first = run.fit("erm", stop=1).folder
    run.val = tiny.val.take(range(10))
    assert run.fit("erm", stop=1).folder != first


@pytest.mark.parametrize("changed", ["VERSION", "NUMERICS", "weight"])
def test_a_stage_s_key_knows_versions_and_weights(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    successor = importlib.import_module("evenhand.methods.evenhand")
    folders = []
    for change in (False, True):
        if change and changed == "VERSION":
            monkeypatch.setattr(successor, "VERSION", 99)
        if change and changed == "NUMERICS":
            monkeypatch.setattr(keys, "NUMERICS", 99)
        weight = torch.linspace(1, 2, len(tiny.val)) if change and changed == "weight" else None
        task = dataclasses.replace(tiny, val=dataclasses.replace(tiny.val, weight=weight))
        run = make_run(task, tmp_path)
        stages = [
            asked(run, "erm"),
            asked(run, "model", objective=successor.generalised_cross_entropy),
        ]
        folders.append([stage.folder.name for stage in stages])
    same = [first == second for first, second in zip(*folders, strict=True)]
    assert same == [changed == "VERSION", False]


def test_the_text_of_a_user_s_objective_is_in_its_stage_s_key(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method may take its objective from another module of the user's, which the run's key does not know."""
    folders = []
    for text in ("one", "another", "one"):
        run = make_run(tiny, tmp_path)
        module = ModuleType("my_losses")
        exec(f"def loss(model, batch):\n    return {text!r}\n", module.__dict__)
        monkeypatch.setitem(sys.modules, "my_losses", module)
        monkeypatch.setattr(inspect, "getsource", lambda _module, text=text: text)
        folders.append(asked(run, "model", objective=module.loss).folder)
    assert folders[0] == folders[2] != folders[1]


def test_what_has_no_text_has_a_key_all_the_same() -> None:
    def make() -> Any:
        scope: dict[str, Any] = {"__name__": "__nowhere__"}
        exec("def loss(model, batch): ...", scope)
        return scope["loss"]

    class Objective(nn.Module):
        pass

    named = [
        plugins.definition(each)["name"] for each in (make(), Objective(), functools.partial(cross_entropy))
    ]
    assert named[0] == "__nowhere__.loss" and named[1].endswith("Objective")
    assert named[2] == "evenhand.training.objective.cross_entropy"


# -- older records ---------------------------------------------------------------------------------------


def test_no_older_record_is_returned_for_a_new_run_and_it_stays_readable(tmp_path: Path) -> None:
    from evenhand import tasks

    archive = STUDIES / "even_bar.zip"
    assert records.unpack(archive, tmp_path)[0] == 6
    unpacked = {record.path.name: record for record in find(tmp_path)}
    assert all(record.older for record in unpacked.values())
    assert {record.method for record in unpacked.values()} == {"evenhand", "tab"}
    assert {record.path.parent.name for record in unpacked.values()} == {"even", "tab"}
    digits = tasks.load("digits_even_odd")
    for record in unpacked.values():
        recipe = Recipe(**record.config["full_recipe"])
        # BAR's photographs are not here; its name and checksum are all that keys take of a task.
        task = dataclasses.replace(digits, name="bar", checksum=record.config["data"])
        again = identify(task, record.method, record.config["hyperparameters"], recipe, CPU)
        assert not again.folder(tmp_path, record.seed).exists()


def test_a_method_that_was_renamed_says_its_new_name(tiny: Task) -> None:
    with pytest.raises(ValueError, match="the method 'even' is now called 'evenhand'; use that name"):
        key(tiny, "even")


def test_every_committed_record_is_in_the_table_of_keys() -> None:
    results = STUDIES.parent
    with (results / "keys.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    told = {(row["file"], row["task"], row["method"], f"{row['old_key']}-s{row['seed']}") for row in rows}
    kept = set()
    for archive in (*results.glob("*.zip"), *STUDIES.glob("*.zip")):
        with zipfile.ZipFile(archive) as opened:
            names = [name for name in opened.namelist() if name.endswith("/metrics.json")]
            configs = {name: json.loads(opened.read(name.replace("metrics", "config"))) for name in names}
        names = [name for name in names if "numerics" not in configs[name]]  # older records
        kept |= {(str(archive.relative_to(results)), *name.split("/")[:3]) for name in names}
    assert told == kept and len(rows) == len(kept)
    assert all((row["version"] in ("1", "2", "3", "4")) == (row["method"] == "even") for row in rows)
    assert not {row["old_key"] for row in rows} & {row["new_key"] for row in rows}


def test_a_record_that_says_rubbish_of_how_it_was_computed_is_an_older_one(
    tiny: Task, tmp_path: Path
) -> None:
    record = execute(tiny, "erm", {"epochs": 1}, runs=tmp_path, device="cpu", show=Silent())
    assert re.fullmatch(r"(libjpeg_turbo|jpg) [\d.]+", record.config["versions"]["images"])
    for rubbish in ("fast", {"device": "cpu"}, {**record.config["arithmetic"], "slices": "two"}):
        other = Record(record.path)
        other.__dict__["config"] = {**record.config, "arithmetic": rubbish}
        assert other.older and other.made_with == {}
