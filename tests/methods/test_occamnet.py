"""OccamNet against numbers worked out by hand, and on several networks."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.methods.occamnet import Exits, OccamNet, layers_of, rebuild, suppress, with_exits
from evenhand.training.data import Batch
from evenhand.training.models import make_model

LN3 = math.log(3)


def close(actual: Tensor, expected: list | float) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=1e-4, atol=1e-6)


def batch(y: list[int], index: list[int] | None = None, epoch: int = 0) -> Batch:
    rows = torch.arange(len(y))
    return Batch(
        x=rows, y=torch.tensor(y), index=rows if index is None else torch.tensor(index), row=rows, epoch=epoch
    )


def exits(threshold: float = 0.5, suppression: float = 0.0, samples: int = 4) -> Exits:
    return Exits(samples, 2, (threshold, 0.6, 0.7, 0.8), suppression=suppression)


def test_occam_1_maps_say_nothing_where_the_labels_map_is_small() -> None:
    """[OCCAM-1] The label's map is 0 and ln 3, so only the first cell counts, half of all; there (1/4, 3/4)."""
    maps = torch.tensor([[[[0.0, LN3]], [[LN3, 0.0]]]])
    kl = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    close(suppress(maps, torch.tensor([0])), kl / 2)
    # A map that is the same everywhere is nowhere above its mean.
    close(suppress(torch.tensor([[[[0.0, 0.0]], [[LN3, LN3]]]]), torch.tensor([0])), kl)


def test_occam_2_gates_learn_who_was_right_balanced_by_the_root_of_their_numbers() -> None:
    """[OCCAM-2] Three of four are right; the wrong one weighs (1/3)^-0.5. All gates are at 1/4."""
    logits = torch.tensor([[1.0, 0.0]] * 4)
    loss = exits()._gate_loss(0, torch.full((4,), -LN3), logits, batch([0, 0, 0, 1]))
    close(loss, (3 * math.log(4) + math.sqrt(3) * math.log(4 / 3)) / 4)


def outcomes(objective: Exits, correct: list[bool], y: list[int], epoch: int, number: int = 0) -> list[float]:
    """What the gate learns of samples that were, or were not, classified correctly."""
    given = batch(y, epoch=epoch)
    chosen = torch.where(torch.tensor(correct), given.y, 1 - given.y)
    objective._count(given)
    objective._gate_loss(number, torch.zeros(len(y)), F.one_hot(chosen, 2).float(), given)
    return objective.leaves[number, given.index].tolist()


def test_occam_2_outcomes_are_remembered_once_the_exit_is_accurate() -> None:
    objective, y = exits(threshold=0.5), [0, 0, 1, 1]
    right, none = [True] * 4, [False] * 4
    assert outcomes(objective, right, y, epoch=0) == [1, 1, 1, 1], "the first epoch renews all"
    # Class means of (1 + 0) / 2 are at the threshold; (1 + 1/2) / 2 is above it.
    assert outcomes(objective, [True, True, False, False], y, epoch=1) == [1, 1, 0, 0]
    assert outcomes(objective, [True, True, True, False], y, epoch=2) == [1, 1, 0, 0]
    assert outcomes(objective, none, y, epoch=3) == [0, 0, 0, 0]
    # Exit 1 has its own memory and a threshold of 0.6.
    assert objective.leaves[1].tolist() == [0, 0, 0, 0]


def test_occam_2_accuracy_is_that_of_the_epoch_and_a_mean_over_its_classes() -> None:
    objective = exits(threshold=0.5)
    outcomes(objective, [True] * 4, [0, 0, 0, 1], epoch=0)
    # Three of four right, but the classes' mean is (1 + 0) / 2, which is not above 0.5.
    assert outcomes(objective, [True, True, True, False], [0, 0, 0, 1], epoch=1) == [1, 1, 1, 0]
    # Together with the batch before, class 0 has 4 of 6 and class 1 has 1 of 2: 0.58, so nothing is renewed.
    assert outcomes(objective, [True, False, False, True], [0, 0, 0, 1], epoch=1) == [1, 1, 1, 0]


def test_occam_3_exit_0_amplifies_and_later_exits_take_what_the_gate_before_passes_on() -> None:
    """[OCCAM-3] p of 1/2 and 3/4: w = 1/8 and 27/64. Gates of 1/4 and 1/2: w = 3/4 and 1/2."""
    logits, labels = torch.tensor([[0.0, 0.0], [LN3, 0.0]]), torch.tensor([0, 0])
    losses = math.log(2), math.log(4 / 3)
    objective = exits()
    amplified = ((1 / 8) / (27 / 64) + 0.1) * losses[0] + 1.1 * losses[1]
    close(objective._weighted_loss(0, None, logits, labels), amplified / 2)
    gates = torch.tensor([-LN3, 0.0])
    close(
        objective._weighted_loss(1, gates, logits, labels), (1.1 * losses[0] + (2 / 3 + 0.1) * losses[1]) / 2
    )
    # The largest weight of the epoch is remembered: 27/64, though this batch has only 1/8.
    close(objective._weighted_loss(0, None, logits[:1], labels[:1]), ((1 / 8) / (27 / 64) + 0.1) * losses[0])


class Given(nn.Module):
    """A model whose exits give the same maps of one cell and the same gates."""

    def __init__(self, maps: Tensor, gate: Tensor) -> None:
        super().__init__()
        self.maps, self.gate = maps, gate

    def forward(self, x: Tensor) -> Tensor:
        self.last = [(self.maps, self.gate)] * 4
        return x


def test_the_loss_is_the_sum_over_exits_of_three_losses() -> None:
    objective, reference = exits(suppression=0.1), exits(suppression=0.1)
    maps = torch.tensor([[0.0, 0.0], [LN3, 0.0], [0.0, LN3], [0.5, 0.1]])
    gate, given = torch.tensor([0.1, -0.3, 0.2, 2.0]), batch([0, 1, 1, 0])
    reference._count(given)
    total = 0.0
    for number in range(4):
        total += 0.1 * suppress(maps[:, :, None, None], given.y) + reference._gate_loss(
            number, gate, maps, given
        )
        total += reference._weighted_loss(number, None if number == 0 else gate, maps, given.y)
    close(objective(Given(maps[:, :, None, None], gate), given), total.item())


class Leaving(nn.Module):
    """An exit that gives these maps of one cell and these gates."""

    def __init__(self, output: float, gates: list[float]) -> None:
        super().__init__()
        self.output, self.gates = output, torch.tensor(gates)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full((len(x), 2, 1, 1), self.output), self.gates


def test_occam_4_a_sample_leaves_at_the_first_open_gate_after_exit_0() -> None:
    """[OCCAM-4] Exit 0 never predicts; the last exit takes what is left."""
    model = OccamNet([nn.Identity()] * 4, [0, 1, 2, 3], [1] * 4, 2).eval()
    gates = [[9.0, 9.0, 9.0], [0.0, -1.0, -1.0], [9.0, 1.0, -1.0], [-1.0, -1.0, -1.0]]
    model.exits = nn.ModuleList(Leaving(float(number), gate) for number, gate in enumerate(gates))
    assert model(torch.zeros(3, 1, 1, 1))[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert not model.last, "only a training reads the exits"


def test_occam_4_exit_0_and_the_gates_leave_the_network_alone() -> None:
    torch.manual_seed(0)
    model = with_exits(make_model("cnn", shape=(3, 8, 8), num_classes=2), (3, 8, 8), 2)
    model(torch.rand(4, 3, 8, 8))
    (maps, gate), *later = model.last
    maps.sum().backward(retain_graph=True)
    gate.sum().backward()
    for _, each in later:
        each.sum().backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in model.stages.parameters())
    later[-1][0].sum().backward()
    assert all(parameter.grad is not None for parameter in model.stages.parameters())


PLACES = {
    "cnn": [[3, 5, 9, 11], [16, 32, 64, 64]],  # after the second, third, fifth and last convolution
    "resnet18": [[5, 7, 9, 11], [64, 128, 256, 512]],  # the four stages
    "mobilenet_v2": [[5, 8, 15, 22], [24, 32, 96, 1280]],
    "efficientnet_b0": [[5, 7, 13, 21], [24, 40, 112, 1280]],
}


@pytest.mark.parametrize("name", PLACES)
def test_exits_stand_where_the_resolution_changes(name: str) -> None:
    torch.manual_seed(0)
    network, shape = make_model(name, shape=(3, 64, 64), num_classes=3), (3, 64, 64)
    layers = len(layers_of(network))
    model = with_exits(network, shape, 3).train()
    assert model.places.tolist() == PLACES[name] and layers == PLACES[name][0][-1] + 1
    x = torch.rand(2, 3, 64, 64)
    model(x)
    again = rebuild(lambda: make_model(name, shape=shape, num_classes=3, seed=1), model.state_dict(), 3)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.eval()(x), model.eval()(x))


def test_a_network_with_one_convolution_has_all_exits_there() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    assert with_exits(network, (1, 6, 6), 3).places.tolist() == [[1, 1, 1, 1], [4, 4, 4, 4]]


class Parallel(nn.Module):
    """Two convolutions beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.first(x) + self.second(x)).mean((2, 3)))


@pytest.mark.parametrize(
    "network, shape",
    [
        (Parallel(), (3, 8, 8)),
        (nn.Sequential(nn.Linear(5, 2)), (5,)),
        (SimpleNamespace(), (3, 32, 32)),
    ],
    ids=["parallel", "table", "swin"],
)
def test_other_networks_are_refused(network: nn.Module, shape: tuple[int, ...]) -> None:
    if isinstance(network, SimpleNamespace):
        network = make_model("swin_t", shape=shape, num_classes=2)
    with pytest.raises(ValueError, match="occamnet needs convolutions that follow each other"):
        with_exits(network, shape, 2)


def test_the_gates_memory_is_kept_in_checkpoints() -> None:
    assert set(exits().state_dict()) == {"leaves"}
