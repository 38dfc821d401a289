"""The head of a model: found, replaced, and asked for what it is given, whatever the model is."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from evenhand.training.models import CNN, PostHoc, cnn, find_head, head_inputs, linear, mlp, replace_head

TORCHVISION = {
    "resnet18": "fc",
    "mobilenet_v2": "classifier.1",
    "mobilenet_v3_small": "classifier.3",
    "efficientnet_b0": "classifier.1",
    "vgg11_bn": "classifier.6",
    "alexnet": "classifier.6",
    "convnext_tiny": "classifier.2",
    "densenet121": "classifier",
    "vit_b_32": "heads.head",
    "swin_t": "head",
    "shufflenet_v2_x0_5": "fc",
    "mnasnet0_5": "classifier.1",
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_the_head_of_a_torchvision_model(name: str) -> None:
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):  # neither memory nor time is needed to look for it
        model = models.get_model(name, weights=None, num_classes=3)
    found, head = find_head(model)
    assert found == TORCHVISION[name] and isinstance(head, nn.Linear) and head.out_features == 3


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "shufflenet_v2_x0_5"])
def test_the_head_gives_the_outputs_and_can_be_replaced(name: str) -> None:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    model, x = models.get_model(name, weights=None, num_classes=3).eval(), torch.randn(2, 3, 64, 64)
    found, head = find_head(model, x)
    assert found == TORCHVISION[name]
    new = nn.Linear(head.in_features, 5)
    with torch.no_grad(), head_inputs(head) as features:
        before = model(x)
    changed = replace_head(model, new)
    with torch.no_grad():
        torch.testing.assert_close(changed(x), new(features[-1]))
        assert torch.equal(model(x), before), "the model itself must stay as it is"
        new.weight.zero_()
        assert changed(x).abs().sum() > 0, "a copy of the head, so that the new one may be trained on"
    assert find_head(changed)[0] == found


@pytest.mark.parametrize("name", ["squeezenet1_0", "squeezenet1_1"])
def test_a_head_that_is_a_convolution_is_refused(name: str) -> None:
    models = pytest.importorskip("torchvision.models")
    with pytest.raises(ValueError, match=r"the head of SqueezeNet is a convolution \(classifier.1\)"):
        find_head(models.get_model(name, weights=None, num_classes=3))


@pytest.mark.parametrize("make, name", [(cnn, "13"), (mlp, "3"), (linear, "1")])
def test_the_heads_of_our_models(make, name: str) -> None:
    model = make((3, 4, 4), 2)
    found, head = find_head(model, torch.randn(5, 3, 4, 4))
    assert found == name and head is model[int(name)]
    assert isinstance(replace_head(model, nn.Linear(head.in_features, 7)), type(model))


class Timm(nn.Module):
    """As timm's models are: the head has a name of its own, and `get_classifier` gives its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.top = nn.ModuleDict({"norm": nn.LayerNorm(6), "fc": nn.Linear(6, 3)})
        self.last_in_order = nn.Linear(4, 6)

    def get_classifier(self) -> nn.Module:
        return self.top["fc"]

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x) + self.last_in_order(x)
        return self.top["fc"](self.top["norm"](hidden))


class Own(nn.Module):
    """A user's model, whose last layer in the order of names is not the one that answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = nn.Linear(6, 3)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(self.body(x))


class Scaled(nn.Module):
    """A head that is more than its linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return 30 * self.weights(x)


def with_head(head: nn.Module, name: str = "head") -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 6)
            setattr(self, name, head)

        def forward(self, x: Tensor) -> Tensor:
            return getattr(self, name)(self.body(x).relu())

    return Model()


def test_a_timm_style_model_says_itself() -> None:
    model = Timm()
    assert find_head(model)[0] == find_head(model, torch.randn(2, 4))[0] == "top.fc"
    assert replace_head(model, nn.Linear(6, 9))(torch.randn(2, 4)).shape == (2, 9)


def test_a_users_model_is_asked_which_layer_gives_its_output() -> None:
    model = Own()
    assert find_head(model)[0] == "body.0"  # the last one, if nobody looks
    found, head = find_head(model, torch.randn(2, 4))
    assert found == "answer" and head is model.answer
    assert model.training, "looking must not change the mode"
    assert replace_head(model, nn.Linear(6, 9), torch.randn(2, 4))(torch.randn(2, 4)).shape == (2, 9)

    class Features(nn.Module):
        def forward(self, logits: Tensor, features: Tensor) -> Tensor:
            return features

    x = torch.randn(2, 4)
    torch.testing.assert_close(PostHoc(model, Features())(x), model.body(x))


@pytest.mark.parametrize("name", ["head", "fc", "classifier"])
def test_the_usual_names_are_taken_first(name: str) -> None:
    model = with_head(nn.Linear(6, 3), name)
    model.after = nn.Linear(1, 1)
    assert find_head(model)[0] == find_head(model, torch.randn(2, 4))[0] == name


def test_a_head_of_another_kind_is_the_whole_of_it() -> None:
    model = with_head(Scaled())
    assert find_head(model, torch.randn(2, 4))[0] == "head"
    assert find_head(with_head(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))))[0] == "head.2"
    bilinear = with_head(nn.LayerNorm(6))
    assert find_head(bilinear)[0] == "head"


def test_a_model_whose_head_is_not_known_is_refused() -> None:
    class Doubled(Own):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    with pytest.raises(ValueError, match="no linear layer gives the model's output"):
        find_head(Doubled(), torch.randn(2, 4))

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    with pytest.raises(ValueError, match="Bare has no linear layer, so its head is not known"):
        find_head(Bare())


def test_a_model_that_is_its_head() -> None:
    head = nn.Linear(4, 3)
    assert find_head(head) == ("", head)
    assert torch.equal(replace_head(head, other := nn.Linear(4, 2)).weight, other.weight)


def test_a_function_on_top_gets_logits_and_features_of_one_pass() -> None:
    class Keep(nn.Module):
        def forward(self, logits: Tensor, features: Tensor) -> Tensor:
            self.given = logits, features
            return logits - 1

    network, x = cnn((1, 4, 4), 2), torch.randn(3, 1, 4, 4)
    model = PostHoc(network, Keep())
    outputs = copy.deepcopy(model)(x)
    torch.testing.assert_close(outputs, network(x) - 1)
    model.to(torch.bfloat16)(x.bfloat16())
    logits, features = model.function.given
    assert logits.dtype == features.dtype == torch.float32 and features.shape == (3, 64 * 16)
    found, head = find_head(model)
    assert found == "network.13" and head is network[13] and not head._forward_hooks
    assert find_head(model.float(), x)[0] == "network.13"


def test_kernels_give_way_to_another_head_and_to_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
    model, x = cnn((3, 4, 4), 2), torch.randn(2, 3, 4, 4)
    assert isinstance(model, CNN) and model._suits(x)
    with head_inputs(find_head(model)[1]):
        assert not model._suits(x)
    assert model._suits(x)
    assert replace_head(model, nn.Linear(64 * 16, 5))._suits(x)
    assert not replace_head(model, nn.Sequential(nn.Linear(64 * 16, 5)))._suits(x)
    assert not replace_head(model, nn.Linear(64 * 16, 5, bias=False))._suits(x)
