"""Models of timm and of local Hub folders: by name, offline, as data."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from shortcut import shortcut_task
from torch import nn

import evenhand
from evenhand.training import hub
from evenhand.training.models import find_head, find_weights, make_model, replace_head

timm = pytest.importorskip("timm", reason="needs evenhand[timm]")
transformers = pytest.importorskip("transformers", reason="needs evenhand[transformers]")
TINY = "timm:test_resnet"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("huggingface_hub.hf_hub_download", _refuse)
    monkeypatch.delenv("EVENHAND_WEIGHTS", raising=False)
    return tmp_path


def _refuse(*_: object, **__: object) -> None:
    raise OSError("no route to host")


def vision_folder(folder: Path, num_labels: int = 3) -> nn.Module:
    """A tiny ResNet as transformers saves it."""
    torch.manual_seed(5)
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=num_labels
    )
    model = transformers.ResNetForImageClassification(config)
    model.save_pretrained(folder)
    return model


def timm_folder(folder: Path) -> nn.Module:
    """A tiny ResNet as timm saves it."""
    torch.manual_seed(5)
    model = timm.create_model("test_resnet", num_classes=4)
    folder.mkdir(parents=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architecture": "test_resnet", "num_classes": 4}))
    return model


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (TINY, (3, 32, 32)),
        (TINY, (1, 16, 16)),
        ("timm:test_vit", (3, 32, 32)),
        ("timm:test_vit", (3, 64, 64)),
    ],
)
def test_timm_models_fit_the_inputs_and_their_heads_are_found(name: str, shape: tuple[int, ...]) -> None:
    model, x = make_model(name, shape=shape, num_classes=5, seed=3).eval(), torch.rand(2, *shape)
    assert model(x).shape == (2, 5)
    again = make_model(name, shape=shape, num_classes=5, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    _, head = find_head(model, x)
    assert head is model.get_classifier()
    assert replace_head(model, nn.Linear(head.in_features, 9), x)(x).shape == (2, 9)


def test_timm_weights_are_found_in_the_named_folder_and_only_the_head_stays_fresh(
    no_network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = timm.create_model("test_resnet", num_classes=1000)
    save_file(source.state_dict(), no_network / "test_resnet.r160_in1k.safetensors")
    monkeypatch.setenv("EVENHAND_WEIGHTS", str(no_network))
    settings = {"shape": (3, 32, 32), "num_classes": 2}
    model = make_model(f"{TINY}.r160_in1k", weights="pretrained", **settings).state_dict()
    fresh = make_model(TINY, **settings).state_dict()
    for name, value in model.items():
        expected = fresh if name.startswith("fc.") else source.state_dict()
        assert torch.equal(value, expected[name]), name


def test_timm_weights_are_taken_from_the_cache_of_the_hub(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("EVENHAND_WEIGHTS", raising=False)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repository, file: f"{repository}/{file}")
    assert find_weights(f"{TINY}.r160_in1k", "pretrained") == Path(
        "timm/test_resnet.r160_in1k/model.safetensors"
    )


def test_without_weights_there_is_a_clear_error_and_never_silently_random_ones(no_network: Path) -> None:
    task = shortcut_task()
    with pytest.raises(ValueError, match="stands for pretrained weights; add weights=pretrained or"):
        evenhand.execute(task, "erm", {"model": f"{TINY}.r160_in1k"}, runs=no_network)
    with pytest.raises(ValueError, match=r"cannot be downloaded \(no route to host\).*EVENHAND_WEIGHTS"):
        make_model(f"{TINY}.r160_in1k", shape=(3, 8, 8), num_classes=2, weights="pretrained")
    named = make_model(f"{TINY}.r160_in1k", shape=(3, 8, 8), num_classes=2, weights="random").state_dict()
    assert torch.equal(named["fc.weight"], make_model(TINY, shape=(3, 8, 8), num_classes=2).fc.weight)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:resnet19", "does not have, 'resnet19'; did you mean resnet"),
        ("timm:test_resnet.none", "has no weights 'none'; it has r160_in1k"),
        ("hub:nowhere", "must name a folder with a model, but there is no folder nowhere"),
    ],
)
def test_unknown_names_are_explained(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_model(name, shape=(3, 8, 8), num_classes=2)


def test_a_folder_of_transformers_gives_its_weights_and_a_fresh_head(tmp_path: Path) -> None:
    source = vision_folder(tmp_path / "model")
    name, settings = f"hub:{tmp_path / 'model'}", {"shape": (3, 32, 32), "num_classes": 3}
    fresh, loaded = (make_model(name, **settings, weights=weights).eval() for weights in (None, "pretrained"))
    assert loaded(torch.rand(2, 3, 32, 32)).shape == (2, 3)
    for key, value in source.state_dict().items():
        expected = fresh.model.state_dict()[key] if key.startswith("classifier.") else value
        assert torch.equal(loaded.model.state_dict()[key], expected), key
    head_name, head = find_head(loaded, torch.rand(2, 3, 32, 32))
    assert head_name == "model.classifier.1" and head.out_features == 3
    with pytest.raises(ValueError, match="takes num_channels=3, got inputs of shape"):
        make_model(name, shape=(1, 32, 32), num_classes=3)


def test_a_folder_of_timm_gives_its_weights_and_a_fresh_head(tmp_path: Path) -> None:
    source = timm_folder(tmp_path / "model").state_dict()
    model = make_model(f"hub:{tmp_path / 'model'}", shape=(3, 32, 32), num_classes=4, weights="pretrained")
    assert all(torch.equal(v, source[k]) != k.startswith("fc.") for k, v in model.state_dict().items())


def test_a_folder_of_a_text_model_takes_token_ids(tmp_path: Path) -> None:
    sizes = {"vocab_size": 11, "dim": 8, "hidden_dim": 8, "n_layers": 1, "n_heads": 2}
    transformers.DistilBertModel(transformers.DistilBertConfig(**sizes)).save_pretrained(tmp_path)
    model = make_model(f"hub:{tmp_path}", shape=(6,), num_classes=2, weights="pretrained").eval()
    x = torch.tensor([[1, 2, 3, 0, 0, 0], [4, 5, 6, 7, 8, 9]])
    assert model(x).shape == (2, 2) and find_head(model, x)[0] == "model.classifier"


def test_a_run_trains_such_a_model_and_its_record_gives_it_back(tmp_path: Path) -> None:
    from evenhand.integrations.prediction import predict

    vision_folder(tmp_path / "model")
    random = torch.Generator().manual_seed(0)
    y = torch.arange(48) % 2
    split = evenhand.Split(torch.rand(48, 3, 8, 8, generator=random) * (1 + y.view(-1, 1, 1, 1)), y)
    task = evenhand.Task("tiny", split, split, split, ("a", "b"))
    recipe = evenhand.Recipe(epochs=1, batch_size=16)
    for model in (TINY, f"hub:{tmp_path / 'model'}"):
        settings = {"model": model, "weights": "random"}
        record = evenhand.execute(task, "tab", settings, recipe=recipe, runs=tmp_path / "runs", device="cpu")
        inputs = tmp_path / "x.npy"
        import numpy as np

        np.save(inputs, split.x.numpy())
        found = predict(record.path, inputs, device="cpu")
        assert [("a", "b")[label] for label in record.predictions["test"]] == found.classes
    before = record.path
    vision_folder(tmp_path / "model", num_labels=7)  # another content under the same name
    again = evenhand.execute(task, "tab", settings, recipe=recipe, runs=tmp_path / "runs", device="cpu")
    assert again.path != before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"auto_map": {"AutoModel": "evil.Model"}}, "brings code of its own"),
        ({"architecture": "os.system"}, "a model that timm does not have, 'os'"),
        ({"architecture": "hf-hub:evil/model"}, "a model that timm does not have, 'hf-hub:evil/model'"),
        ({"architecture": "test_resnet", "model_args": {"checkpoint_path": "evil.pth"}}, "has model_args"),
    ],
)
def test_a_strangers_folder_is_data(change: dict, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(change))
    with pytest.raises(ValueError, match=message):
        make_model(f"hub:{tmp_path}", shape=(3, 8, 8), num_classes=2)


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "test_resnet"}))
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="no pickle is read"):
        make_model(f"hub:{tmp_path}", shape=(3, 8, 8), num_classes=2)


def test_a_missing_library_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "timm.models", None)
    with pytest.raises(ImportError, match=r"needs timm: pip install 'evenhand\[timm\]'"):
        hub.check_name(TINY)
