"""Adversarial Debiasing against numbers worked out by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand import Split
from evenhand.methods import adversarial
from evenhand.methods.adversarial import Adversary, against
from evenhand.training.data import Batch


def close(actual: Tensor, expected: list) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=1e-5, atol=1e-7)


def adversary(constraint: str = "equalized_odds", alpha: float = 0.5) -> Adversary:
    return Adversary(2, 2, alpha=alpha, constraint=constraint)


def inputs_of(module: Adversary, logits: list, labels: list[int]) -> Tensor:
    """What the linear layer of the adversary reads: one output for each input, by unit weights."""
    width = module.weight.shape[1]
    module.weight.data, module.bias.data = torch.eye(width), torch.zeros(width)
    return module(torch.tensor(logits), torch.tensor(labels)).detach()


def test_adv_1_outputs_are_sharpened_by_a_learned_factor() -> None:
    """[ADV-1] s = softmax((1 + |c|) logits): with c = -1, odds of 3 become odds of 9."""
    module = adversary("demographic_parity")
    module.scale.data.fill_(-1.0)
    close(inputs_of(module, [[0.0, math.log(3)]], [0]), [[0.1, 0.9]])


def test_adv_2_the_label_chooses_where_the_outputs_stand() -> None:
    """[ADV-2] s, s x [y = 0] and s x [y = 1]."""
    module = adversary()
    module.scale.data.fill_(0.0)
    logits = [[0.0, math.log(3)], [0.0, 0.0]]
    expected = [[0.25, 0.75, 0, 0, 0.25, 0.75], [0.5, 0.5, 0.5, 0.5, 0, 0]]
    close(inputs_of(module, logits, [1, 0]), expected)


def test_adv_3_a_gradient_loses_its_part_along_the_adversarys() -> None:
    """[ADV-3] g = (3, 4), h = (0, 2): g - proj = (3, 0), and alpha h = (0, 1) is taken off."""
    close(against(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0]), 0.5), [3.0, -1.0])
    close(against(torch.tensor([3.0, 4.0]), torch.zeros(2), 0.5), [3.0, 4.0])
    # (g . h) / (h . h) = 6 / 4
    close(against(torch.tensor([1.0, 2.0, 1.0, 2.0]), torch.ones(4), 1.0), [-1.5, -0.5, -1.5, -0.5])


def steps(alpha: float) -> tuple[nn.Linear, Adversary, nn.Linear, Adversary]:
    """A model and an adversary before and after one step."""
    torch.manual_seed(0)
    model, module = nn.Linear(3, 2), adversary(alpha=alpha)
    module.weight.data.normal_()
    before = nn.Linear(3, 2), adversary(alpha=alpha)
    before[0].load_state_dict(model.state_dict())
    before[1].load_state_dict(module.state_dict())
    rows = torch.arange(4)
    group = torch.tensor([0, 1, 2, 3])  # y * 2 + attribute
    batch = Batch(x=torch.randn(4, 3), y=group // 2, index=rows, row=rows, group=group)
    groups = module.parameter_groups(model)
    optimizers = {name: torch.optim.SGD(group, lr=1.0) for name, group in groups.items()}
    loss = module.step(model, batch, optimizers)
    logits = before[0](batch.x)
    assert loss == F.cross_entropy(logits, batch.y) and not loss.requires_grad
    F.cross_entropy(before[1](logits, batch.y), torch.tensor([0, 1, 0, 1])).backward(retain_graph=True)
    hints = [parameter.grad for parameter in before[0].parameters()]
    before[0].zero_grad()
    for parameter, hint in zip(before[0].parameters(), hints, strict=True):
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits, batch.y), parameter, retain_graph=True)
        # Per tensor, not over all of them together.
        parameter.grad = gradient - (gradient * hint).sum() / (hint**2).sum() * hint - alpha * hint
    return model, module, *before


def test_adv_3_a_step_changes_every_tensor_by_its_own_projection() -> None:
    model, module, old_model, old_module = steps(alpha=0.7)
    for new, old in zip([*model.parameters(), *module.parameters()],
                        [*old_model.parameters(), *old_module.parameters()], strict=True):  # fmt: skip
        torch.testing.assert_close(new.data, old.data - old.grad)
    assert not torch.equal(module.weight, old_module.weight), "the adversary must learn"


def fitted(group: list[int] | None, names: int, **settings: object) -> dict:
    """What the method asks the engine for, on a task of two classes."""
    asked: dict = {}

    def fit(stage: str, **given: object) -> SimpleNamespace:
        asked.update(given)
        return SimpleNamespace(model=None)

    groups = None if group is None else torch.tensor(group)
    train = Split(torch.zeros(4, 1), torch.tensor([0, 0, 1, 1]), group=groups)
    task = SimpleNamespace(name="plain", group_names=tuple("abcdef"[:names]))
    adversarial.train(SimpleNamespace(train=train, task=task, fit=fit, num_classes=2), **settings)
    return asked


def test_groups_are_drawn_evenly() -> None:
    close(fitted([0, 0, 0, 2], 4)["draw"], [1 / 3, 1 / 3, 1 / 3, 1])
    assert fitted([0, 0, 0, 2], 4, balanced_sampling=False)["draw"] is None
    assert fitted([0, 0, 0, 2], 6)["objective"].num_attributes == 3


@pytest.mark.parametrize("group, names", [(None, 0), (None, 4), ([0, 0, 1, 1], 2), ([0, 1, 2, 2], 3)])
def test_a_task_without_attributes_is_refused(group: list[int] | None, names: int) -> None:
    with pytest.raises(ValueError, match="adversarial needs the group y \\* attributes \\+ attribute"):
        fitted(group, names)
