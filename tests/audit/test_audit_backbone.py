"""An audit of photos with a pretrained backbone: fine-tuned, which is the default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from planted import photos
from safetensors.torch import save_file
from test_audit_predict import agree

from evenhand.audit import networks
from evenhand.tasks import folder

torchvision = pytest.importorskip("torchvision", reason="backbones are torchvision's")


@pytest.fixture
def weights(evenhand: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the weights of a small backbone, which nobody has trained."""
    torch.manual_seed(0)
    place = tmp_path / "weights"
    place.mkdir()
    model = torchvision.models.mobilenet_v3_small(weights=None)
    save_file(model.state_dict(), place / "mobilenet_v3_small-made.safetensors")
    monkeypatch.setenv("EVENHAND_WEIGHTS", str(place))


def test_a_backbone_is_fine_tuned_where_its_weights_are(evenhand: Any, weights: None, tmp_path: Path) -> None:
    data, out = photos(tmp_path / "photos"), tmp_path / "audit"
    code, _, err = evenhand("audit", data, "--size", 32, "--epochs", 2, "--device", "cpu", "-o", out)
    assert code == 0, err
    summary = json.loads((out / "summary.json").read_text())
    assert summary["training"]["model"] == "mobilenet_v3_small" and summary["data"]["kind"] == "images"
    agree(evenhand, out, data)


def test_few_images_are_fine_tuned_with_more_patience(weights: None, tmp_path: Path) -> None:
    """An epoch of few images is one step, after which a network is validated as if it had not learned."""
    data = folder.read_folder(photos(tmp_path / "photos"))
    task, backbone = networks.image_task(data, model=None, size=32, device="cpu")
    assert backbone is None and task.recipe.average
    assert task.recipe.patience == 100  # 28 images are one batch
