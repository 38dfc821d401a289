"""Spectral decoupling's three penalties against numbers worked out by hand."""

import math

import pytest
import torch
from by_hand import asked, batch, close, identity
from torch.nn import functional as F

from evenhand.methods import spectral_decoupling
from evenhand.training.objective import is_separable

X = torch.tensor([[1.0, -2.0], [3.0, 0.5]])
Y = [0, 1]
PLAIN = (math.log(1 + math.exp(-3)) + math.log(1 + math.exp(2.5))) / 2


def loss(**settings: object) -> torch.Tensor:
    found = asked(spectral_decoupling, Y, **settings)
    assert found["recipe"].weight_decay == 0, "it replaces weight decay"
    assert is_separable(found["objective"])
    return found["objective"](identity, batch(X, Y))


def test_sd_1_all_logits_are_penalised() -> None:
    close(loss(strength=0.2), PLAIN + 0.1 * ((1 + 4) + (9 + 0.25)) / 2)
    close(loss(strength=0.0), PLAIN)
    close(F.cross_entropy(X, torch.tensor(Y)), PLAIN)


def test_sd_2_logits_are_drawn_to_the_goal_of_the_class_of_their_sample() -> None:
    expected = PLAIN + 0.1 * ((0.5**2 + 2.5**2) + (1.0**2 + 1.5**2)) / 2
    close(loss(strength=0.2, penalty="targets", targets="0.5,2"), expected)


def test_sd_3_only_the_logit_of_the_label_is_penalised() -> None:
    close(loss(strength=0.2, penalty="true_logit"), PLAIN + 0.1 * (1 + 0.25) / 2)


def test_sd_4_the_penalty_begins_after_some_steps_and_shrinks_the_whole_loss() -> None:
    objective = asked(spectral_decoupling, Y, strength=0.2, after=3)["objective"]
    close(objective(identity, batch(X, Y, step=2)), PLAIN)
    close(objective(identity, batch(X, Y, step=3)), 0.2 * (PLAIN + ((1 + 4) + (9 + 0.25)) / 2))


def test_the_authors_goals_are_those_of_two_classes() -> None:
    expected = PLAIN + 0.05 * ((0.56**2 + 2.44**2) + (0.5**2 + 2.0**2)) / 2
    close(loss(penalty="targets"), expected)
    with pytest.raises(ValueError, match=r"targets must list 3 numbers, one a class, got '0.44,2.5'"):
        asked(spectral_decoupling, [0, 1, 2], penalty="targets")


def test_a_negative_strength_is_refused() -> None:
    with pytest.raises(ValueError, match="strength must not be negative, got -1"):
        loss(strength=-1.0)
