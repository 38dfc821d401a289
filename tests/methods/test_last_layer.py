"""CB-LLR, SELF and AFR: what they hold out, weigh and choose, against numbers worked out by hand."""

import math
from pathlib import Path

import pytest
import torch
from by_hand import FeatureRun, close, linear
from shortcut import shortcut_task
from torch import nn

from evenhand import Split
from evenhand.methods import afr, cb_llr, self_
from evenhand.methods._heads import Head, descend, even_weights, head_of
from evenhand.training.log import Silent
from evenhand.training.run import Run

X = torch.tensor([[0.0], [0.1], [-1.0], [2.0], [-3.0], [4.0], [1.5], [-2.0], [0.5], [-0.5]])
Y = [0, 0, 0, 0, 0, 1, 1, 0, 0, 0]
HEAD = ([[-1.0], [1.0]], [0.0, 0.0])  # the logits of class 1 less those of class 0 are 2 x


def run() -> FeatureRun:
    return FeatureRun(X, Y, linear(*HEAD))


def test_llr_1_and_2_the_last_layer_is_reset_and_trained_on_what_was_held_out(tmp_path: Path) -> None:
    task = shortcut_task(per_class=20, epochs=2)
    kept = {"seed": 3, "identity": {}, "device": torch.device("cpu"), "show": Silent()}
    made = Run(task, task.recipe.replace(precision="fp32"), path=tmp_path / "a" / "b" / "c", **kept)
    asked: list[tuple[str, Split, dict]] = []
    fit = made.fit

    def spy(stage: str, split: Split, **given: object) -> object:
        asked.append((stage, split, given))
        return fit(stage, split, **given)

    made.fit = spy  # type: ignore[method-assign]
    model = cb_llr.train(made, held_out=0.25, retrain_epochs=7)
    (_, rest, first), (_, held, second) = asked
    assert torch.bincount(rest.y).tolist() == [15, 15] and torch.bincount(held.y).tolist() == [5, 5]
    assert not set(rest.index.tolist()) & set(held.index.tolist())
    close(first["draw"], even_weights(rest.y))
    close(second["draw"], even_weights(held.y))
    assert second["stop"] == 7 and second["recipe"].plateau_epochs == 7
    base, head = made.stages["base"].model, made.stages["head"].model
    for (name, found), old in zip(model.state_dict().items(), base.state_dict().values(), strict=True):
        is_head = name.rpartition(".")[0] == list(model.state_dict())[-1].rpartition(".")[0]
        assert torch.equal(found, head.state_dict()[name.rpartition(".")[2]] if is_head else old)
        assert is_head != torch.equal(found, old)


def test_llr_1_classes_are_drawn_evenly() -> None:
    made = run()
    made.feature_split = lambda fit, split: split  # type: ignore[attr-defined]
    made.fit = lambda stage, split, **given: made.asked.append(given) or made_fit(made)  # type: ignore
    cb_llr.train(made)
    close(made.asked[0]["draw"].sum(), 1)
    close(made.asked[0]["draw"][5:7], [1 / 4, 1 / 4])  # two of eight have the label 1


def made_fit(made: FeatureRun) -> object:
    return type("Fit", (), {"model": made.network if len(made.asked) == 1 else linear(*HEAD)})


def test_self_1_disagreement_is_the_mean_over_classes() -> None:
    even, sure = torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(3), 0.0]])
    expected = (0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)) / 2
    close(self_.disagreement(even, sure), [expected])
    other = (0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)) / 2
    close(self_.disagreement(sure, even), [other])
    close(self_.disagreement(sure, sure), [0.0])


def test_self_2_the_loss_of_the_label() -> None:
    close(
        self_.losses(torch.tensor([[math.log(3), 0.0]] * 2), torch.tensor([0, 1])),
        [math.log(4 / 3), math.log(4)],
    )


def chosen(monkeypatch: pytest.MonkeyPatch, early_head: nn.Linear | None = None, **settings: object) -> dict:
    """What SELF fine-tunes on; samples 4 to 9 are held out."""
    made, found = run(), {}

    def fit(stage: str, split: Split, **given: object) -> object:
        made.asked.append({"stage": stage, **given})
        network = made.network if stage == "base" else nn.Sequential(nn.Identity(), early_head)
        return type("Fit", (), {"model": network, "epochs": 20})

    def spy(
        start: Head, features: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, **given
    ) -> Head:
        found.update(given, start=start, features=features, labels=labels, weights=weights)
        return start

    made.fit = fit  # type: ignore[method-assign]
    monkeypatch.setattr(self_, "descend", spy)
    self_.train(made, held_out=0.6, **settings)
    found["asked"] = made.asked
    return found


def test_self_1_the_points_with_the_highest_disagreement_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, linear([[0.0], [0.0]], [0.0, 0.0]), num_points=3, early=0.25)
    # The early net knows nothing, so that it disagrees most with what the final net is surest of.
    assert found["features"].flatten().tolist() == [4.0, -3.0, -2.0] and found["labels"].tolist() == [1, 0, 0]
    assert [each["stage"] for each in found["asked"]] == ["base", "early"]
    assert found["asked"][1]["stop"] == 5, "a quarter of twenty epochs"


def test_self_2_or_those_with_the_highest_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, num_points=2, score="loss")
    assert found["features"].flatten().tolist() == [0.5, -0.5] and len(found["asked"]) == 1
    other_way = linear([[1.0], [-1.0]], [0.0, 0.0])
    found = chosen(monkeypatch, other_way, num_points=2, score="early_loss")
    assert found["features"].flatten().tolist() == [4.0, -3.0]


def test_self_3_dropout_switches_features_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch, "rand", lambda shape, generator: torch.tensor([[0.1], [0.9], [0.9], [0.1], [0.9], [0.9]])
    )
    found = chosen(monkeypatch, num_points=2, score="dropout", dropout=0.2)
    # Samples 4 and 7 lose their only feature. The others have 1.25 times as much of it.
    assert found["features"].flatten().tolist() == [-3.0, -2.0] and len(found["asked"]) == 1


def test_self_4_classes_count_the_same_in_fine_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, num_points=99, score="loss", steps=7, head_lr=0.3)
    assert len(found["labels"]) == 6, "no more than there are"
    close(found["weights"][found["labels"] == 1], [1 / 4] * 2)
    close(found["weights"][found["labels"] == 0], [1 / 8] * 4)
    assert found["start"].weight.tolist() == HEAD[0], "it goes on from the last layer's weights"
    assert (found["steps"], found["lr"], found["momentum"]) == (7, 0.3, 0.9)


def test_afr_1_unlikely_samples_weigh_more() -> None:
    logits, labels = torch.tensor([[math.log(3), 0.0]] * 4), torch.tensor([0, 0, 0, 1])  # p is 3/4 and 1/4
    likely, unlikely = math.exp(-2 * 0.75), math.exp(-2 * 0.25)
    total = 3 * likely + unlikely
    found = afr.unlikely(logits, labels, gamma=2.0, even_classes=False)
    close(found, [likely / total] * 3 + [unlikely / total])
    found = afr.unlikely(logits, labels, gamma=2.0, even_classes=True)
    close(found, [likely / 3 / (likely + unlikely)] * 3 + [unlikely / (likely + unlikely)])


def test_afr_2_the_last_layer_goes_on_with_a_pull_and_short_gradients() -> None:
    made = FeatureRun(10 * X, Y, linear(*HEAD))
    model = afr.train(made, gamma=3.0, pull=0.7, head_lr=0.5, steps=4, held_out=0.6)
    x, labels = 10 * X[4:], torch.tensor(Y[4:])
    start = Head(torch.tensor(HEAD[0]), torch.tensor(HEAD[1]))
    weights = afr.unlikely(start(x), labels, gamma=3.0, even_classes=True)
    expected, uncut = (
        descend(start, x, labels, weights, steps=4, lr=0.5, pull=0.7, most=most) for most in (1.0, 99.0)
    )
    assert not torch.allclose(expected.weight, uncut.weight), "the test could not fail"
    close(head_of(model).weight, expected.weight)
    close(head_of(model).bias, expected.bias)
    assert made.asked[0]["split"].index.tolist() == [0, 1, 2, 3] and "draw" not in made.asked[0]
