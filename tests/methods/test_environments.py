"""What is trained on inferred environments, against numbers worked out by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import LN2, batch, close, identity, logits

from evenhand import Recipe, Split
from evenhand.methods._environments import robust, worst_and_mean

LABELS = [0, 0, 0, 0, 1, 1, 1, 1]
ENVIRONMENTS = np.array([0, 0, 0, 1, 1, 1, 1, 0])


def arguments(then: Any, val_environments: np.ndarray | None = None) -> tuple[dict, list]:
    """What `robust` asks of the engine, and what it says that it has found."""
    found: list = []
    splits = [Split(torch.zeros(len(y), 1), torch.tensor(y)) for y in (LABELS, [0, 0, 1])]
    run = SimpleNamespace(train=splits[0], val=splits[1], found=found.append, recipe=Recipe())
    return robust(run, ENVIRONMENTS, then, val_environments), found


@pytest.mark.parametrize("then", ["gdro", "even"])
def test_env_1_groups_of_class_and_environment_are_drawn_evenly(then: str) -> None:
    given, found = arguments(then)
    close(given["draw"], [1 / 3, 1 / 3, 1 / 3, 1, 1 / 3, 1 / 3, 1 / 3, 1])
    assert found[0].tolist() == [False, False, False, True, False, False, False, True]
    assert "score" not in given and "recipe" not in given


def test_env_2_group_dro_sees_the_inferred_groups() -> None:
    given, _ = arguments("gdro")
    assert given["environments"].tolist() == [0, 0, 0, 1, 3, 3, 3, 2]
    given["objective"].step_size = 1.0
    loss = given["objective"](identity, batch(logits(1, 3), environment=torch.tensor([0, 1])))
    # q is proportional to exp(loss): 2, 8, 1 and 1, of which the last two groups are absent.
    close(loss, (2 * 1 + 8 * 3) / 12 * LN2)


def test_env_2_even_draws_keep_cross_entropy() -> None:
    given, _ = arguments("even")
    assert set(given) == {"draw"}


def test_env_3_the_check_is_kept_that_serves_the_worst_inferred_group() -> None:
    given, _ = arguments("even", np.array([0, 1, 1]))
    assert given["recipe"].keep == "best"
    outputs = torch.tensor(
        [[1.0, 0], [1, 0], [1, 0]]
    )  # three groups of one sample, the last of which is wrong
    assert given["score"](outputs, Split(torch.zeros(3, 1), torch.tensor([0, 0, 1]))) == 0 + 2 / 3


def test_env_3_a_group_without_samples_does_not_count() -> None:
    split = Split(torch.zeros(4, 1), torch.tensor([0, 0, 1, 1]))
    outputs = torch.tensor([[1.0, 0], [0, 1], [0, 1], [0, 1]])
    assert worst_and_mean(outputs, split, group=torch.tensor([0, 0, 3, 3])) == 0.5 + 0.75
    assert worst_and_mean(outputs, split, group=torch.tensor([1, 3, 1, 1])) == 0 + 0.5
