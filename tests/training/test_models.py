"""Models by name: the CNN against a reference, weights from files, seeds that decide everything."""

from __future__ import annotations

import os
import pickle
import urllib.error
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from evenhand.training.models import find_weights, make_model

SHARED_WEIGHTS = (
    Path(__file__).parents[3] / "shared" / "weights" / "mobilenet_v2-imagenet-features.safetensors"
)


def own_model(*, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(torch.Size(shape).numel()), num_classes))


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """Neither cached weights nor a way to fetch them."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("EVENHAND_WEIGHTS", raising=False)
    return tmp_path


@pytest.mark.parametrize("shape", [(3, 28, 28), (1, 8, 8), (2, 9, 13)])
def test_cnn_is_six_convolutions_and_one_linear_layer(shape):
    model = make_model("cnn", shape=shape, num_classes=5)
    x = torch.rand(4, *shape)
    weights = list(model.parameters())
    expected = x
    for weight, bias in zip(weights[:12:2], weights[1:12:2], strict=True):
        assert weight.shape[2:] == (3, 3)
        expected = F.relu(F.conv2d(expected, weight, bias, padding=1))
    expected = F.linear(expected.flatten(1), *weights[12:])
    torch.testing.assert_close(model(x), expected)
    assert [len(weight) for weight in weights[::2]] == [16, 16, 32, 32, 64, 64, 5]


@pytest.mark.parametrize("name", ["mlp", "linear"])
def test_table_models_take_features(name):
    model = make_model(name, shape=(7,), num_classes=3)
    assert model(torch.zeros(2, 7)).shape == (2, 3)


@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenet_v2", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5"]
)
def test_torchvision_backbones_have_one_output_per_class(name):
    model = make_model(name, shape=(3, 64, 64), num_classes=7).eval()
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 7)


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_weights_are_a_function_of_the_seed_only(name):
    def state(seed: int) -> list[torch.Tensor]:
        model = make_model(name, shape=(3, 32, 32), num_classes=2, seed=seed)
        return list(model.state_dict().values())

    torch.manual_seed(1)
    first, after = state(3), torch.rand(4)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(4)), "making a model must leave the global generator alone"
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(first, state(3), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, state(4), strict=True))


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_weights_file_is_loaded_and_only_the_last_layer_stays_fresh(tmp_path, suffix):
    source = make_model("resnet18", shape=(3, 32, 32), num_classes=1000, seed=9)
    file = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(source.state_dict(), file)
    else:
        save_file(source.state_dict(), file)
    fresh = make_model("resnet18", shape=(3, 32, 32), num_classes=2).state_dict()
    loaded = make_model("resnet18", shape=(3, 32, 32), num_classes=2, weights=str(file)).state_dict()
    for key, value in loaded.items():
        assert torch.equal(value, fresh[key] if key.startswith("fc.") else source.state_dict()[key]), key


def test_a_file_with_a_fitting_last_layer_is_loaded_whole_but_pretrained_never_is(tmp_path, monkeypatch):
    source = make_model("resnet18", shape=(3, 32, 32), num_classes=2, seed=9)
    file = tmp_path / "resnet18-mine.safetensors"
    save_file(source.state_dict(), file)
    whole = make_model("resnet18", shape=(3, 32, 32), num_classes=2, weights=str(file))
    assert torch.equal(whole.fc.weight, source.fc.weight)
    monkeypatch.setenv("EVENHAND_WEIGHTS", str(tmp_path))
    features = make_model("resnet18", shape=(3, 32, 32), num_classes=2, weights="pretrained")
    assert torch.equal(features.conv1.weight, source.conv1.weight)
    assert not torch.equal(features.fc.weight, source.fc.weight)


def test_pretrained_is_looked_for_in_the_named_places(no_network, monkeypatch):
    folder = no_network / "weights"
    folder.mkdir()
    file = folder / "resnet18-f37072fd.pth"
    file.touch()
    monkeypatch.setenv("EVENHAND_WEIGHTS", str(folder))
    assert find_weights("resnet18", "pretrained") == file
    (folder / "resnet34-small.safetensors").touch()
    assert find_weights("resnet34", "pretrained").name == "resnet34-small.safetensors"
    monkeypatch.setenv("EVENHAND_WEIGHTS", str(file))
    assert find_weights("resnet18", "pretrained") == file
    monkeypatch.delenv("EVENHAND_WEIGHTS")
    cached = no_network / "hub" / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert find_weights("resnet18", "pretrained") == cached


def test_offline_the_error_names_the_file_and_the_place(no_network):
    with pytest.raises(ValueError, match=r"resnet18-f37072fd\.pth at .*checkpoints.*\$EVENHAND_WEIGHTS"):
        make_model("resnet18", shape=(3, 32, 32), num_classes=2, weights="pretrained")


@pytest.mark.skipif(not SHARED_WEIGHTS.is_file(), reason="the shared MobileNetV2 features are not here")
def test_shared_mobilenet_features_load(monkeypatch):
    monkeypatch.setenv("EVENHAND_WEIGHTS", str(SHARED_WEIGHTS.parent))
    model = make_model("mobilenet_v2", shape=(3, 64, 64), num_classes=6, weights="pretrained")
    fresh = make_model("mobilenet_v2", shape=(3, 64, 64), num_classes=6)
    assert torch.equal(model.classifier[1].weight, fresh.classifier[1].weight)
    assert not torch.equal(model.features[0][0].weight, fresh.features[0][0].weight)


def test_weights_that_do_not_fit_say_why(tmp_path):
    state = make_model("resnet18", shape=(3, 32, 32), num_classes=2).state_dict()

    def error(changed: dict[str, torch.Tensor]) -> str:
        torch.save(changed, tmp_path / "w.pth")
        with pytest.raises(ValueError) as caught:
            make_model("resnet18", shape=(3, 32, 32), num_classes=2, weights=str(tmp_path / "w.pth"))
        return str(caught.value)

    assert "lacks conv1.weight" in error({k: v for k, v in state.items() if k != "conv1.weight"})
    assert "has unknown extra" in error({**state, "extra": torch.zeros(1)})
    assert "size mismatch for conv1.weight" in error({**state, "conv1.weight": torch.zeros(2)})
    resnet34 = make_model("resnet34", shape=(3, 32, 32), num_classes=2).state_dict()
    assert "more" in error(resnet34)


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_a_hostile_weights_file_is_refused_and_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"conv1.weight": Hostile()}, "hostile.pth")
    Path("raw.pth").write_bytes(pickle.dumps(Hostile(), protocol=2))
    for file in ("hostile.pth", "raw.pth"):
        with pytest.raises(ValueError, match="cannot be read as weights"):
            make_model("resnet18", shape=(3, 32, 32), num_classes=2, weights=file)
    assert not Path("executed").exists()


def test_own_models_are_named_by_module_and_function():
    model = make_model(f"{__name__}:own_model", shape=(1, 2, 2), num_classes=3)
    assert model(torch.zeros(1, 1, 2, 2)).shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "shape", "weights", "message"),
    [
        (
            "resnet19",
            (3, 8, 8),
            None,
            "unknown model 'resnet19'; known models are cnn, mlp, linear, .*resnet18",
        ),
        ("inception_v3", (3, 8, 8), None, "unknown model 'inception_v3'"),
        ("resnet18", (1, 8, 8), None, "resnet18 takes images with 3 channels, got shape"),
        ("cnn", (7,), None, "cnn takes images"),
        ("no.such:model", (7,), None, "cannot find the model 'no.such:model'"),
        ("os:sep", (7,), None, "'os:sep' must be a function"),
        ("cnn", (3, 8, 8), "pretrained", "no pretrained weights for 'cnn'"),
        ("resnet18", (3, 8, 8), "gone.pth", "no file 'gone.pth'"),
    ],
)
def test_mistakes_are_explained(name, shape, weights, message):
    with pytest.raises(ValueError, match=message):
        make_model(name, shape=shape, num_classes=2, weights=weights)


def test_a_missing_weights_folder_is_an_error_and_not_ignored(no_network, monkeypatch):
    monkeypatch.setenv("EVENHAND_WEIGHTS", str(no_network / "nowhere"))
    with pytest.raises(ValueError, match=r"\$EVENHAND_WEIGHTS must name a file or a folder that exists"):
        find_weights("resnet18", "pretrained")
