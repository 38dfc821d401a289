"""Wrong labels: which samples look like ordinary ones of another class to a model that has not seen them.

A sample of B that is labelled A is a B like any other. So among all B's, ordered by how much like an A they
look, its place is as likely to be at the one end as at the other. A minority of A looks more like an A than
ordinary B's do, even where the model cannot learn it well enough to get it right, and so does a sample
from where A and B overlap. How many fall among the most ordinary B's says how many labels are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenhand.audit.evidence import Evidence

OFTEN = 3  # times forgotten
ORDINARY = 0.8  # beyond this place there are hardly any but wrong labels, and a fifth of these
MOST_ALIKE = 0.04  # of a label's samples may lie there; 20% of wrong labels put 4% of them there
FLOOR = 1e-7  # of a probability


@dataclass(frozen=True, eq=False)
class Course:
    """How each training sample was learned, and whether its label is doubtful."""

    learned: np.ndarray  # (samples,) int: first epoch from which on it stays right; -1 if it never does
    forgotten: np.ndarray  # (samples,) int: times that it turned from right to wrong
    mislabelled: np.ndarray  # (samples,) bool


def follow(found: Evidence) -> Course:
    """Every sample's course; of those learned late, never or again and again, which have a wrong label."""
    y = found.y["train"]
    learned, forgotten = course(found.hits)
    stubborn = ((learned < 0) | (forgotten >= OFTEN)) & (found.baseline["train"] != y)
    suspects = np.flatnonzero(found.late | stubborn)
    # What one of the models can tell from ordinary samples is no wrong label: a network that takes the
    # shortcut tells no minority, and one that was shown overlapping samples again and again tells little.
    places = [ordinary(unseen, y, suspects) for unseen in (found.unseen, found.unseen_balanced)]
    first, second = (np.nan_to_num(np.where(np.isnan(a), b, a)) for a, b in (places, places[::-1]))
    count, place = min(_wrong(first), _wrong(second)), np.minimum(first, second)
    mislabelled = np.zeros(len(y), dtype=bool)
    mislabelled[suspects[np.argsort(-place, kind="stable")[:count]]] = True
    return Course(learned, forgotten, mislabelled)


def _wrong(place: np.ndarray) -> int:
    """How many labels are wrong: of these, and of hardly any others, a fifth lies beyond ORDINARY."""
    return min(round(int((place > ORDINARY).sum()) / (1 - ORDINARY)), len(place))


def course(hits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First epoch (from 1) from which on a sample stays right, -1 for never; and how often it was forgotten.

    >>> learned, forgotten = course(np.array([[0, 1, 0, 1, 1], [1, 1, 1, 1, 0]], dtype=bool))
    >>> learned.tolist(), forgotten.tolist()
    ([4, -1], [1, 1])
    """
    right = np.asarray(hits, dtype=bool)
    forgotten = (right[:, :-1] & ~right[:, 1:]).sum(axis=1)
    wrong_last = np.where(right.all(axis=1), 0, right.shape[1] - np.argmin(right[:, ::-1], axis=1))
    learned = np.where(right[:, -1], wrong_last + 1, -1)
    return learned.astype(np.int64), forgotten.astype(np.int64)


def ordinary(unseen: np.ndarray, y: np.ndarray, suspects: np.ndarray) -> np.ndarray:
    """Each suspect's place among the other samples of the class that it is likeliest to be, (suspects,).

    0: more like its own label than all of them; 1: less than all. The samples are ordered by the odds of the
    suspect's label against that class; those that are suspects themselves do not count. Not a number: the
    model cannot tell the two classes apart, so it tells no wrong label.

    >>> unseen = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.1, 0.9], [0.15, 0.85]])
    >>> ordinary(unseen, np.array([0, 0, 1, 1, 0]), np.array([4]))
    array([0.5])
    """
    odds = np.log(np.clip(unseen, FLOOR, 1))
    others = odds[suspects]
    others[np.arange(len(suspects)), y[suspects]] = -np.inf
    likeliest = others.argmax(axis=1)
    trusted = np.ones(len(y), dtype=bool)
    trusted[suspects] = False
    place = np.full(len(suspects), np.nan)
    for label, other in np.unique(np.stack([y[suspects], likeliest], axis=1), axis=0).tolist():
        against = odds[:, label] - odds[:, other]
        ranked = np.sort(against[trusted & (y == other)])
        if len(ranked):
            sides = [np.searchsorted(ranked, against, side) for side in ("left", "right")]
            places = 1 - np.mean(sides, axis=0) / len(ranked)
            if (places[y == label] > ORDINARY).mean() <= MOST_ALIKE:
                chosen = (y[suspects] == label) & (likeliest == other)
                place[chosen] = places[suspects[chosen]]
    return place
