"""uLA against numbers worked out by hand."""

import math
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.methods import ula
from evenhand.methods.ula import Adjusted, even_cells
from evenhand.training.data import Batch


class FirstTwo(nn.Module):
    """The probe of these tests: the first two inputs are its outputs; the model's are the rest."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2]


def last_two(x: Tensor) -> Tensor:
    return x[:, 2:]


def batch(x: list[list[float]], y: list[int]) -> Batch:
    rows = torch.arange(len(y))
    return Batch(x=torch.tensor(x), y=torch.tensor(y), index=rows, row=rows)


def close(actual: Tensor, expected: list | float) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=1e-5, atol=1e-7)


LN3 = math.log(3)
GIVEN = batch(
    [[LN3, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], [0, 1]
)  # the probe says 3/4 and 1/4, then 1/2 each


def test_ula_1_the_confusion_matrix_is_a_moving_average_of_soft_predictions() -> None:
    """[ULA-1] The batch has (3/4, 1/4) / 2 in the column of label 0 and (1/2, 1/2) / 2 in that of label 1."""
    objective = Adjusted(FirstTwo(), 2, strength=0.0, temperature=1.0, decay=0.75)
    close(objective.confusion, [[0.25, 0.25], [0.25, 0.25]])
    objective(last_two, GIVEN)
    first = [[0.75 * 0.25 + 0.25 * 3 / 8, 0.25], [0.75 * 0.25 + 0.25 / 8, 0.25]]
    close(objective.confusion, first)
    objective(last_two, GIVEN)
    close(objective.confusion[0, 0], 0.75 * first[0][0] + 0.25 * 3 / 8)


def test_ula_1_the_temperature_softens_the_probe() -> None:
    objective = Adjusted(FirstTwo(), 2, strength=0.0, temperature=2.0, decay=0.0)
    objective(last_two, GIVEN)
    close(objective.confusion[0, 0], math.sqrt(3) / (1 + math.sqrt(3)) / 2)


def test_ula_2_logits_are_shifted_by_the_log_of_the_label_given_the_prediction() -> None:
    """[ULA-2] P(y | probe says 0) = (3/8, 1/4) / (5/8) = (0.6, 0.4); both samples are predicted as class 0."""
    objective = Adjusted(FirstTwo(), 2, strength=2.0, temperature=1.0, decay=0.0)
    # Twice the log: odds of (0.6 / 0.4)^2 = 2.25 for label 0.
    close(objective(last_two, GIVEN), (math.log(1 + 1 / 2.25) + math.log(1 + 2.25)) / 2)
    # With two samples of label 0 as the first, P(y | probe says 0) = (1/2, 1/6) / (2/3) = (3/4, 1/4).
    objective = Adjusted(FirstTwo(), 2, strength=1.0, temperature=1.0, decay=0.0)
    given = batch([[LN3, 0.0, 0.0, 0.0]] * 2 + [[0.0] * 4], [0, 0, 1])
    close(objective(last_two, given), (2 * math.log(4 / 3) + math.log(4)) / 3)


def test_ula_2_the_model_gets_the_gradient_and_the_probe_none() -> None:
    probe = nn.Linear(4, 2)
    objective = Adjusted(probe, 2, strength=1.0, temperature=1.0, decay=0.9)
    model = nn.Linear(4, 2)
    objective(model, GIVEN).backward()
    assert model.weight.grad is not None
    assert not any(parameter.requires_grad for parameter in objective.parameters())


def test_ula_3_every_cell_counts_the_same() -> None:
    """[ULA-3] Cells (0, 0): 3 of 4 right; (1, 0): 0 of 1; (0, 1): 1 of 1; (1, 1) does not occur."""
    guesses, labels = torch.tensor([0, 0, 0, 0, 1, 0]), torch.tensor([0, 0, 0, 0, 0, 1])
    predicted = torch.tensor([0, 0, 0, 1, 1, 1])
    split = SimpleNamespace(y=labels)
    found = even_cells(F.one_hot(predicted, 2).float(), split, guesses=guesses)
    assert math.isclose(found, (0.75 + 0 + 1) / 3)


def test_the_confusion_matrix_is_kept_in_checkpoints() -> None:
    objective = Adjusted(FirstTwo(), 2, strength=1.0, temperature=1.0, decay=0.9)
    objective(last_two, GIVEN)
    again = Adjusted(FirstTwo(), 2, strength=1.0, temperature=1.0, decay=0.9)
    again.load_state_dict(objective.state_dict())
    assert torch.equal(again.confusion, objective.confusion) and again.confusion[0, 0] > 0.25


def test_ula_4_the_probe_is_a_head_on_features_that_are_not_trained_and_its_cells_select() -> None:
    asked, labels = {}, torch.tensor([0, 0, 1])
    outputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])  # of the probe, on validation

    def fit(stage: str, **given: object) -> SimpleNamespace:
        asked[stage] = given
        return SimpleNamespace(model=FirstTwo())

    recipe = SimpleNamespace(epochs=6, replace=lambda **changes: changes)
    run = SimpleNamespace(
        fit=fit, recipe=recipe, val=None, num_classes=2, predict=lambda model, split: outputs
    )
    ula.train(run)
    assert asked["probe"]["train_only"] == "head" and asked["probe"]["stop"] == 6
    assert asked["model"]["recipe"] == {"keep": "best", "patience": 6}
    split = SimpleNamespace(y=labels)
    logits = F.one_hot(torch.tensor([0, 0, 0]), 2).float()  # right for both samples of class 0
    assert math.isclose(asked["model"]["score"](logits, split), 2 / 3)
