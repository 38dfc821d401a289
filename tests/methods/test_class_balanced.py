"""Class balancing against chances, weights and subsets worked out by hand."""

import numpy as np
import pytest
import torch
from by_hand import LN2, asked, batch, close, identity, logits

from evenhand.methods import class_balanced
from evenhand.methods.class_balanced import subset
from evenhand.training.objective import is_separable

LABELS = [0] * 12 + [1] * 3 + [2] * 5


def test_cb_1_classes_are_equally_likely_to_be_drawn() -> None:
    found = asked(class_balanced, LABELS, balance="drawn")
    assert len(found["split"]) == 20 and "objective" not in found
    chance = found["draw"] / found["draw"].sum()
    close(chance, [1 / 36] * 12 + [1 / 9] * 3 + [1 / 15] * 5)


def test_cb_2_a_loss_counts_as_often_as_its_class_is_rare() -> None:
    found = asked(class_balanced, [0, 0, 0, 1], balance="weighted")
    assert "draw" not in found and found["split"] is None
    # Weights 4 / (2 x 3) and 4 / (2 x 1); the last sample's loss is ln 2, as its label is the other one.
    loss = found["objective"](identity, batch(logits(1, 2, 3, 1), [0, 0, 0, 1]))
    close(loss, (2 / 3 * (1 + 2 + 3) + 2 * 1) / 4 * LN2)
    assert is_separable(found["objective"])


def test_cb_3_large_classes_are_cut_to_the_ratio_and_then_classes_are_drawn_evenly() -> None:
    found = asked(class_balanced, LABELS, balance="mixture", ratio=2.0)
    assert torch.bincount(found["split"].y).tolist() == [6, 3, 5]
    chance = found["draw"] / found["draw"].sum()
    close(chance, [1 / 18] * 6 + [1 / 9] * 3 + [1 / 15] * 5)
    assert torch.bincount(asked(class_balanced, LABELS, ratio=1.0)["split"].y).tolist() == [3, 3, 3]
    assert torch.bincount(asked(class_balanced, LABELS, ratio=9.0)["split"].y).tolist() == [12, 3, 5]


def test_cb_3_the_subset_is_drawn_by_the_seed_and_has_no_sample_twice() -> None:
    labels = np.array(LABELS)
    first, same, other = (subset(labels, 2.0, seed) for seed in (0, 0, 1))
    assert first.tolist() == same.tolist() != other.tolist()
    assert len(set(first.tolist())) == len(first) == 14
    seeded = asked(class_balanced, LABELS, ratio=2.0, seed=1)["split"].index
    assert seeded.tolist() == other.tolist()


def test_a_class_without_samples_changes_nothing() -> None:
    found = asked(class_balanced, [0, 0, 2], ratio=1.0)
    assert found["split"].y.tolist() == [0, 2] and torch.isfinite(found["draw"]).all()


def test_a_ratio_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ratio must be at least 1, got 0\.5"):
        asked(class_balanced, LABELS, ratio=0.5)
