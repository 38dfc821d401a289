"""Evidence made by hand: loss histories of samples that differ in difficulty, stand apart, or are mislabelled."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenhand.audit.evidence import Evidence
from evenhand.core.partition import partition, rebalance


def made(
    num: int = 400,
    *,
    apart: float = 0.0,
    confirmed: float = 1.0,
    harm: float = 0.0,
    seed: int = 0,
    **changes: Any,
) -> Evidence:
    """Two classes of `num` samples; a share `apart` is learned late. To unseen models a share `confirmed` of these look
    like their label, the others like any sample of the other class."""
    rng = np.random.default_rng(seed)
    y = np.repeat([0, 1], num)
    late = np.zeros(2 * num, dtype=bool)
    for label in (0, 1):
        late[label * num : label * num + round(apart * num)] = True
    pace = np.exp(rng.normal(0, 0.25, 2 * num)) * np.where(late, 8.0, 1.0)  # how slowly each is learned
    losses = np.log(2) * np.exp(-np.arange(12) / (3 * pace[:, None])) * np.where(late, 2.5, 1.0)[:, None]
    right = np.ones(2 * num, dtype=bool)
    right[rng.permutation(np.flatnonzero(late))[round(confirmed * late.sum()) :]] = False
    sure = rng.uniform(0.9, 1, 2 * num)  # how sure they are
    unseen = np.where((np.where(right, y, 1 - y) == 1)[:, None], np.c_[1 - sure, sure], np.c_[sure, 1 - sure])
    parts = partition(losses.astype(np.float32), y)
    held = np.tile([0, 1], 100)
    hidden = np.arange(200) < 20  # validation samples that are learned late
    lost = np.arange(200) >= 200 - round(harm * 200)
    fields: dict[str, Any] = {
        "class_names": ("cat", "dog"),
        "y": {"train": y, "val": held, "test": held},
        "losses": losses.astype(np.float32),
        "hits": losses < np.log(2),
        "val_losses": np.where(hidden[:, None], 3.0, 0.1) * np.ones((200, 12), dtype=np.float32),
        "parts": parts,
        "balanced_rows": rebalance(parts),
        "baseline": {
            "train": np.where(late, 1 - y, y),
            "val": np.where(hidden, 1 - held, held),
            "test": held,
        },
        "balanced": {"train": y, "val": np.where(lost, 1 - held, held), "test": held},
        "unseen": unseen.astype(np.float32),
        "unseen_balanced": unseen.astype(np.float32),
    }
    return Evidence(**{**fields, **changes})
