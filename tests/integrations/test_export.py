"""Exported folders: what the libraries that they are for make of them, and the card."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import evenhand
from evenhand.core.metrics import wilson_interval
from evenhand.integrations.export import export
from evenhand.integrations.prediction import network_of, predict
from evenhand.report.worst import worst_parts
from evenhand.training.record import Record

RECIPE = evenhand.Recipe(epochs=2, batch_size=16)


def image_task(channels: int = 3, size: int = 16, grouped: bool = True) -> evenhand.Task:
    random = torch.Generator().manual_seed(0)
    y = torch.arange(64) % 2
    x = (
        torch.rand(64, channels, size, size, generator=random) * 200 * (0.5 + y.view(-1, 1, 1, 1) / 2)
    ).byte()
    split = evenhand.Split(x, y, group=2 * y + (torch.arange(64) % 4 > 1) if grouped else None)
    return evenhand.Task(
        "tiny", split, split, split, ("cat", "dog"), mean=(0.4,) * channels, std=(0.3,) * channels
    )


def trained(tmp_path: Path, task: evenhand.Task, model: str, method: str = "tab") -> Record:
    settings = {"model": model, "weights": "random"}
    return evenhand.execute(task, method, settings, recipe=RECIPE, runs=tmp_path / "runs", device="cpu")


def outputs(model: nn.Module, task: evenhand.Task) -> torch.Tensor:
    x = torch.as_tensor(task.test.x).float() / 255
    with torch.no_grad():
        return model((x - task.mean[0]) / task.std[0])


@pytest.mark.parametrize(("name", "channels"), [("test_resnet", 3), ("test_resnet", 1), ("test_vit", 3)])
def test_timm_loads_the_folder_of_a_timm_model(name: str, channels: int, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", reason="needs evenhand[timm]")
    task = image_task(channels, 32)
    record = trained(tmp_path, task, f"timm:{name}")
    out = export(record.path, tmp_path / "out")
    loaded = timm.create_model(f"local-dir:{out}", pretrained=True).eval()
    expected = torch.from_numpy(record.predictions["test_logits"].astype(np.float32))
    torch.testing.assert_close(outputs(loaded, task), expected, atol=0.01, rtol=0.01)
    config = timm.data.resolve_model_data_config(loaded)
    assert tuple(config["mean"]) == task.mean and tuple(config["input_size"]) == (channels, 32, 32)


def test_transformers_loads_the_folder_of_its_models(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs evenhand[transformers]")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1])
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path / "model")
    task = image_task()
    record = trained(tmp_path, task, f"hub:{tmp_path / 'model'}")
    out = export(record, tmp_path / "out")
    loaded = transformers.AutoModelForImageClassification.from_pretrained(out).eval()
    assert loaded.config.id2label == {0: "cat", 1: "dog"}
    processor = transformers.AutoImageProcessor.from_pretrained(out, use_fast=False)
    images = [each.transpose(1, 2, 0) for each in np.asarray(task.test.x)]
    with torch.no_grad():
        found = loaded(**processor(images, return_tensors="pt")).logits
    expected = torch.from_numpy(record.predictions["test_logits"].astype(np.float32))
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0.01)
    np.save(tmp_path / "x.npy", np.asarray(task.test.x))
    assert predict(out, tmp_path / "x.npy").classes == [("cat", "dog")[y] for y in record.predictions["test"]]


def test_evenhand_predicts_with_any_other_folder(tmp_path: Path) -> None:
    task = image_task(grouped=False)
    record = trained(tmp_path, task, "cnn", "erm")
    out = export(record, tmp_path / "out")
    np.save(tmp_path / "x.npy", np.asarray(task.test.x))
    assert predict(out, tmp_path / "x.npy").classes == [("cat", "dog")[y] for y in record.predictions["test"]]
    card = (out / "README.md").read_text()
    assert "the worst of them is not known" in card and "accuracy by true group is not known" in card


def test_the_card_states_the_worst_of_everything_with_sizes_and_intervals(tmp_path: Path) -> None:
    task = image_task()
    for method in ("tab", "evenhand"):
        record = trained(tmp_path, task, "cnn", method)
        card = (export(record, tmp_path / method) / "README.md").read_text()
        found = {part["what"]: part for part in worst_parts(record)}
        assert list(found) == ["worst class", "worst pseudo-group", "worst known group"]
        predicted, y = record.predictions["test"], task.test.y.numpy()
        for what, cells in (("worst class", y), ("worst known group", task.test.group.numpy())):
            accuracies = {cell: (predicted == y)[cells == cell].mean() for cell in np.unique(cells)}
            assert found[what]["accuracy"] == min(accuracies.values())
        parts, guesses = record.val_partition, record.predictions["val"]
        cells = 2 * parts.labels + parts.minority
        by_hand = {c: (guesses == parts.labels)[cells == c] for c in np.unique(cells)}
        worst = min(by_hand.values(), key=lambda hits: hits.mean())
        part = found["worst pseudo-group"]
        assert part["accuracy"] == worst.mean() and part["count"] == len(worst)
        assert part["interval"] == list(wilson_interval(int(worst.sum()), len(worst)))
        for part in found.values():
            line = next(line for line in card.splitlines() if line.startswith(f"| {part['what']} "))
            assert f"| {part['count']} |" in line and f"{100 * part['accuracy']:.1f}" in line


def test_names_from_data_are_text_in_the_card(tmp_path: Path) -> None:
    task = dataclasses.replace(image_task(grouped=False), class_names=("[a](http://x)\n# b", "<b>"))
    card = (export(trained(tmp_path, task, "cnn", "erm"), tmp_path / "out") / "README.md").read_text()
    assert "\n# b" not in card and "\\[a\\](http://x) \\# b" in card and "\\<b\\>" in card


def test_a_model_of_your_own_is_exported_with_its_weights_alone(tmp_path: Path) -> None:
    split = evenhand.Split(torch.rand(40, 4), torch.arange(40) % 2)
    result = evenhand.fit(lambda: nn.Linear(4, 2), split, recipe=RECIPE)
    out = export(result.record, tmp_path / "out")
    assert "There was no test set" in (out / "README.md").read_text()
    with pytest.raises(ValueError, match="trained with a model of your own"):
        network_of(out)


def test_a_flipped_bit_in_an_export_is_noticed(tmp_path: Path) -> None:
    out = export(trained(tmp_path, image_task(), "cnn", "erm"), tmp_path / "out")
    assert network_of(out).model()
    for name in ("config.json", "evenhand.json", "model.safetensors", "preprocessor_config.json"):
        whole = (out / name).read_bytes()
        (out / name).write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
        with pytest.raises(ValueError, match=rf"{name} is not as it was written"):
            network_of(out)
        (out / name).write_bytes(whole)
    (out / "README.md").write_text("another card")
    assert network_of(out)
    (out / "checksums.json").write_text(json.dumps({"files": {"/dev/zero": "0"}, "stages": {}}))
    with pytest.raises(ValueError, match="it names '/dev/zero'"):
        network_of(out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"full_recipe": {"model": "os:system"}}, "whose code is not run just because a record names it"),
        ({"full_recipe": {"model": "hub:/etc"}}, "names another folder, 'hub:/etc'; only its own is read"),
        ({"method": "evil.method"}, "if you trust the code of the method evil.method"),
    ],
)
def test_a_strangers_export_is_data(change: dict, message: str, tmp_path: Path) -> None:
    out = export(trained(tmp_path, image_task(), "cnn", "erm"), tmp_path / "out")
    content = json.loads((out / "evenhand.json").read_text())
    (out / "evenhand.json").write_text(json.dumps({**content, **change}))
    (out / "checksums.json").unlink()  # a stranger can leave them out, or make them fit
    if "method" in change:
        (out / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=message):
        network_of(out).model()


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises((ValueError, OSError), match=str(tmp_path)):
        export(tmp_path / "nothing", tmp_path / "out")
