"""XGradCAM against a map worked out by hand, against autograd, and on models that are not ours."""

import pytest
import torch
from torch import Tensor, nn

from evenhand.training.data import Batch
from evenhand.training.forward import find_layer, saliency, xgradcam
from evenhand.training.models import make_model


def batch(x: Tensor) -> Batch:
    rows = torch.arange(len(x))
    return Batch(x=x, y=torch.zeros_like(rows), index=rows, row=rows)


def reference(activation: Tensor, gradient: Tensor) -> Tensor:
    """XGradCAM of one image by loops, (channels, height, width) each -> (height, width)."""
    total = torch.zeros(activation.shape[1:])
    for channel, slope in zip(activation, gradient, strict=True):
        total += (slope * channel).sum() / channel.sum().clamp(min=1e-12) * channel
    return total.clamp(min=0)


class Pair(nn.Module):
    """Two channels: the image and its mirror; class 0 likes the first pixel, class 1 hates the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 1, bias=False)
        self.head = nn.Linear(4, 2, bias=False)
        with torch.no_grad():
            self.conv.weight.copy_(torch.tensor([1.0, 3.0]).view(2, 1, 1, 1))
            self.head.weight.copy_(torch.tensor([[2.0, -1.0, 1.0, 0.0], [-1.0, 0.0, 0.0, -1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).flatten(1))


def test_a_map_worked_out_by_hand() -> None:
    """Activations (1, 3) and (3, 9). Class 0 scores 2 - 3 + 3 = 2, class 1 scores -1 - 9 = -10.

    Channel 0 weighs (2 x 1 - 1 x 3) / (1 + 3) = -1/4, channel 1 (1 x 3 + 0 x 9) / (3 + 9) = 1/4, so the map
    is (-1/4 + 3/4, -3/4 + 9/4).
    """
    model = Pair().eval()
    x = torch.tensor([1.0, 3.0]).view(1, 1, 1, 2)
    torch.testing.assert_close(xgradcam(model, model.conv, x), torch.tensor([[[0.5, 1.5]]]))
    assert saliency(model, [batch(x)])[0].tolist() == [[0.0, 1.0]]  # scaled to 0..1


def test_negative_sums_are_cut_off() -> None:
    model = Pair().eval()
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[1.0, 0.0, -1.0, 0.0], [-9.0, -9.0, -9.0, -9.0]]))
    x = torch.tensor([1.0, 3.0]).view(1, 1, 1, 2)
    # Channel 0 weighs 1/4, channel 1 weighs -3/12: (1/4 - 3/4, 3/4 - 9/4), all below zero.
    assert xgradcam(model, model.conv, x).tolist() == [[[0.0, 0.0]]]
    assert saliency(model, [batch(x)]).tolist() == [[[0.0, 0.0]]]


def test_the_cnn_against_autograd_image_by_image() -> None:
    """The activation is the one after the last convolution's ReLU, the class is the predicted one."""
    model = make_model("cnn", shape=(3, 8, 8), num_classes=4).eval()
    random = torch.Generator().manual_seed(1)
    x = torch.rand(5, 3, 8, 8, generator=random) * 3
    with torch.no_grad():
        model[13].weight.uniform_(generator=random)  # positive, so that no map is cut off
        model[13].bias -= model(x).mean(0)
    assert len(model(x).argmax(1).unique()) > 1, "the test needs different predictions"
    expected = []
    for image in x:
        activation = model[:12](image[None]).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model[12:](activation).max(), activation)
        expected.append(reference(activation[0].detach(), gradient[0]))
    layer = find_layer(model, x)
    assert layer is model[11] and isinstance(layer, nn.ReLU)
    ours = xgradcam(model, layer, x)
    torch.testing.assert_close(ours, torch.stack(expected), rtol=1e-4, atol=1e-7)

    maps = torch.from_numpy(saliency(model, [batch(x[:2]), batch(x[2:])]))
    assert maps.shape == (5, 8, 8) and maps.dtype == torch.float32
    assert (maps.amin((1, 2)) == 0).all() and torch.allclose(maps.amax((1, 2)), torch.ones(5))
    low, high = ours.amin((1, 2), keepdim=True), ours.amax((1, 2), keepdim=True)
    torch.testing.assert_close(maps, (ours - low) / (high - low))


def test_resnet_uses_the_last_block_of_layer4() -> None:
    pytest.importorskip("torchvision")
    model = make_model("resnet18", shape=(3, 64, 64), num_classes=3).eval()
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    found = xgradcam(model, find_layer(model, x), x)
    assert found.shape == (2, 2, 2)
    torch.testing.assert_close(found, xgradcam(model, find_layer(model, x, "layer4.1"), x))
    assert not torch.allclose(found, xgradcam(model, find_layer(model, x, "layer4.1.conv2"), x))


@pytest.mark.parametrize("name", ["mobilenet_v2", "densenet121", "squeezenet1_1", "vgg11"])
def test_other_backbones_have_maps_too(name: str) -> None:
    pytest.importorskip("torchvision")
    model = make_model(name, shape=(3, 64, 64), num_classes=3).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x = torch.rand(2, 3, 64, 64)
    maps = saliency(model, [batch(x)])
    assert maps.shape[0] == 2 and maps.shape[1] * maps.shape[2] > 1
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(layer._forward_hooks for layer in model.modules())


def test_a_relu_that_is_used_again_and_again_is_taken_at_its_last_map() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 3, 3, padding=1)
            self.relu, self.hidden, self.head = nn.ReLU(inplace=True), nn.Linear(48, 5), nn.Linear(5, 2)

        def features(self, x: Tensor) -> Tensor:
            return self.relu(self.second(self.relu(self.first(x))))

        def classify(self, maps: Tensor) -> Tensor:
            return self.head(self.relu(self.hidden(maps.flatten(1))))

        def forward(self, x: Tensor) -> Tensor:
            return self.classify(self.features(x))

    torch.manual_seed(0)
    model = Shared().eval()
    x = torch.rand(3, 1, 4, 4)
    activation = model.features(x).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.classify(activation).max(1).values.sum(), activation)
    expected = [reference(a, g) for a, g in zip(activation.detach(), gradient, strict=True)]
    torch.testing.assert_close(xgradcam(model, find_layer(model, x), x), torch.stack(expected))


def test_a_layer_can_be_named() -> None:
    model = make_model("cnn", shape=(1, 6, 6), num_classes=2).eval()
    x = torch.rand(1, 1, 6, 6)
    assert find_layer(model, x, "3") is model[3]
    with pytest.raises(ValueError, match="has no layer 'top'; it has 0, 1, 2"):
        find_layer(model, x, "top")
    with pytest.raises(ValueError, match=r"must give \(batch, channels, height, width\) maps"):
        saliency(model, [batch(x)], "13")


def test_a_model_without_convolutions_is_refused() -> None:
    model = make_model("mlp", shape=(1, 6, 6), num_classes=2)
    with pytest.raises(ValueError, match=r"need a model with convolutions, but Sequential has no nn\.Conv2d"):
        saliency(model, [batch(torch.rand(2, 1, 6, 6))])
