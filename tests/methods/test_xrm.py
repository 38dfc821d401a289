"""XRM's twins against numbers worked out by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import LN2, FeatureRun, close, linear
from shortcut import shortcut_task
from torch import Tensor, nn

from evenhand import Split
from evenhand.methods import xrm
from evenhand.methods.xrm import Twins, is_split, mistakes
from evenhand.training.data import Batch
from evenhand.training.log import Silent
from evenhand.training.run import Run


class Second(nn.Module):
    """The twin of these tests: its outputs are the last two inputs; the model's are the first two."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 2:]


def model(x: Tensor) -> Tensor:
    return x[:, :2]


def outputs(*losses: tuple[float, float]) -> Tensor:
    """Inputs for which the losses of class 0 under the model and its twin are these multiples of ln 2."""
    rows = [[0.0, math.log(2**first - 1), 0.0, math.log(2**second - 1)] for first, second in losses]
    return torch.tensor(rows, requires_grad=True)


def step(twins: Twins, x: Tensor) -> Tensor:
    index = torch.arange(len(x))
    return twins(model, Batch(x=x, y=torch.zeros(len(x), dtype=torch.int64), index=index, row=index))


def make(labels: list[int], half: list[int]) -> Twins:
    return Twins(Second(), torch.tensor(labels), torch.tensor(half, dtype=torch.int64), 2)


def test_xrm_1_each_twin_has_the_sum_over_classes_of_the_mean_loss_in_its_half(monkeypatch) -> None:
    monkeypatch.setattr(torch, "rand_like", torch.ones_like)  # no label flips
    twins = make([0, 0, 1, 0], half=[3])
    x = outputs((1, 5), (3, 5), (1, 5), (5, 2))
    loss = step(twins, x)
    # The model: class 0 has (1 + 3) / 2, and class 1, at even odds, 1. The twin: 2.
    close(loss, (2 + 1 + 2) * LN2)
    loss.backward()
    # Each sample moves its own twin alone; 1/2, as two samples of class 0 are in the model's half.
    wrong = 1 - 2.0 ** -torch.tensor([1.0, 3.0])
    close(x.grad[:2, 1], wrong / 2)
    assert not x.grad[:3, 2:].any() and not x.grad[3, :2].any() and x.grad[3, 2:].any()


def test_xrm_2_labels_flip_to_the_held_out_twins_prediction_for_good(monkeypatch) -> None:
    drawn = torch.tensor([0.49, 0.51, 0.0, 0.49])
    monkeypatch.setattr(torch, "rand_like", lambda chance: drawn)
    twins = make([0, 0, 0, 0], half=[3])
    # The held-out twin gives class 1 a probability of 3/4, so that the chance is (3/4 - 1/2) 2 = 1/2. Of the
    # third sample it knows nothing: the chance is 0. The last one's held-out twin is the model.
    x = outputs((9, 2), (9, 2), (9, 1), (2, 9))
    step(twins, x)
    assert twins.labels.tolist() == [1, 0, 0, 1]
    drawn = torch.ones(4)
    step(twins, x)
    assert twins.labels.tolist() == [1, 0, 0, 1], "they stay as they are"


def test_xrm_2_a_flipped_label_is_trained_on(monkeypatch) -> None:
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    twins = make([0], half=[])
    x = outputs((2, 3))
    close(step(twins, x), 2 * LN2)
    close(step(twins, x), math.log(4 / 3))  # now the label is 1, which the model gives 3/4


def test_xrm_2_the_labels_and_the_twin_are_kept_in_checkpoints() -> None:
    twins = Twins(nn.Linear(4, 2), torch.tensor([0, 1]), torch.tensor([1]), 2)
    assert set(twins.state_dict()) == {"twin.weight", "twin.bias", "labels"}


def test_xrm_3_a_sample_that_either_twin_gets_wrong_is_in_the_other_environment() -> None:
    made = FeatureRun(torch.tensor([[1.0], [-1.0], [1.0]]), [1, 1, 0], linear([[0.0], [0.0]], [0.0, 0.0]))
    up, one = linear([[-1.0], [1.0]], [0.0, 0.0]), linear([[0.0], [0.0]], [0.0, 1.0])
    assert mistakes(made, (up, up), made.train).tolist() == [0, 1, 1]
    assert mistakes(made, (one, one), made.train).tolist() == [0, 0, 1]
    assert mistakes(made, (one, up), made.train).tolist() == [0, 1, 1]


def test_xrm_4_every_class_must_have_both_environments() -> None:
    assert is_split(np.array([0, 1, 1, 0]), torch.tensor([0, 0, 2, 2]))
    assert not is_split(np.array([0, 1, 1, 1]), torch.tensor([0, 0, 2, 2]))


def test_xrm_3_and_4_linear_twins_with_the_rate_that_flips_most_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = shortcut_task(epochs=2)
    settings = {"seed": 1, "identity": {}, "device": torch.device("cpu"), "show": Silent()}
    run = Run(task, task.recipe.replace(precision="fp32"), path=tmp_path / "a" / "b" / "c", **settings)
    fits, asked, fit, found = [], {}, run.fit, {}

    def spy(stage: str, split: Split | None = None, **given: object) -> object:
        result = fit(stage, split, **given)
        if stage == "twins":
            fits.append(result)
            found[given["recipe"].lr] = (split, given["val"], given["stop"])  # type: ignore[attr-defined]
        return result

    def robust(run: Run, train: np.ndarray, then: str, val: np.ndarray) -> dict:
        asked.update(train=train, val=val)
        return {}

    monkeypatch.setattr(run, "fit", spy)
    monkeypatch.setattr(xrm, "robust", robust)
    xrm.train(run, twins="linear", steps=40)
    assert sorted(found) == [1e-4, 1e-3, 1e-2], "the recipe's rate, ten times it, and a tenth"
    assert all(stop == 10 for _, _, stop in found.values()), "40 steps of four an epoch"
    results = []
    for each in fits:
        state = each.objective_state
        other = linear(state["twin.weight"].tolist(), state["twin.bias"].tolist())
        split, val, _ = found[1e-3]
        wrong = [mistakes(run, (each.model, other), part) for part in (split, val)]
        both = is_split(wrong[0], split.y) and is_split(wrong[1], val.y)
        results.append((both, float((state["labels"] != task.train.y).float().mean()), wrong, each))
    best = max(results, key=lambda each: each[:2])
    assert len({each[:2] for each in results}) > 1, "the test could not fail"
    assert asked["train"].tolist() == best[2][0].tolist() and asked["val"].tolist() == best[2][1].tolist()
    assert run.stages["twins"].folder == best[3].folder
    assert run.stages["twins"].seconds == pytest.approx(sum(each.seconds for each in fits))


def test_networks_are_twins_where_there_are_no_weights_to_start_from(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked(Exception):
        pass

    def fit(stage: str, split: Split, **given: object) -> object:
        raise Asked(given["model"])

    made = FeatureRun(torch.zeros(4, 3), [0, 1, 0, 1], linear([[0.0] * 3] * 2, [0.0, 0.0]))
    made.fit, made.make_model = fit, lambda salt=0: made.network  # type: ignore
    made.feature_split = lambda network, split: split  # type: ignore[attr-defined]
    with pytest.raises(Asked, match="None"):
        xrm.train(made)
    made.recipe = made.recipe.replace(weights="pretrained")
    with pytest.raises(Asked, match="zeros"):
        xrm.train(made)
