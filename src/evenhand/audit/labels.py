"""Wrong labels: confident learning (Northcutt et al., JAIR 2021) on out-of-fold probabilities.

Confident learning also counts a minority that the model gets wrong. A wrong label tells itself apart from a
minority by its place. A sample of B that is labelled A is a B like any other: among all B's, ordered by how
much they look like an A, its place is anywhere. A minority of A looks more like an A than ordinary B's do. So
a fifth of the wrong labels, and hardly any minority, is beyond the place 0.8.
"""

from __future__ import annotations

import numpy as np

from evenhand.audit.evidence import Evidence

ORDINARY = 0.8  # beyond this place there are hardly any but wrong labels, and a fifth of these
MOST_ALIKE = 0.05  # of a label's samples may lie there; 25% of wrong labels put 5% of them there
CONFIRMED = 1 / 3  # of the candidates that must be estimated to be wrong, for all of them to be listed
FLOOR = 1e-7  # of a probability


def wrong_labels(found: Evidence, *, minority: bool) -> np.ndarray:
    """Which training samples are likely mislabelled, (samples,) bool.

    minority: Whether the audit has found a minority. Then only as many candidates are listed as are estimated
        to be wrong, and none whose label the balanced model confirms.
    """
    y = found.y["train"]
    listed = np.zeros(len(y), dtype=bool)
    if not learned(found.unseen, y):
        return listed
    candidates = np.flatnonzero(confident_learning(found.unseen, y))
    place = ordinary(found.unseen, y, candidates, MOST_ALIKE)
    balanced = np.where(place > 0, ordinary(found.unseen_balanced, y, candidates), 0)
    estimated, place = wrong_count(balanced), np.minimum(place, balanced)
    if minority:
        kept = found.unseen_balanced[candidates].argmax(1) != y[candidates]
        candidates, place = candidates[kept], place[kept]
    elif estimated >= CONFIRMED * len(candidates):
        estimated = len(candidates)
    listed[candidates[np.argsort(-place, kind="stable")[:estimated]]] = True
    return listed


def learned(probabilities: np.ndarray, y: np.ndarray) -> bool:
    """Whether the answers are right more often than the largest class is, beyond two standard errors."""
    right, largest = float((probabilities.argmax(1) == y).mean()), float(np.bincount(y).max() / len(y))
    return bool(right > largest + 2 * (largest * (1 - largest) / len(y)) ** 0.5)


def confident_learning(probabilities: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Candidates for wrong labels by the calibrated joint of given and confident labels, (samples,) bool.

    A sample counts as class j where the probability of j is at least the mean over the samples labelled j.
    Of label i, as many samples are taken as the joint says belong to j, those with the largest difference of
    the probabilities of j and i first. Samples whose label the model finds likeliest are left out.
    """
    count = probabilities.shape[1]
    sizes = np.bincount(y, minlength=count)
    own = np.bincount(y, probabilities[np.arange(len(y)), y], minlength=count)
    needed = np.where(sizes > 0, own / np.maximum(sizes, 1), np.inf)
    confident = probabilities >= needed - 1e-6
    some = confident.any(axis=1)
    joint = np.zeros((count, count))
    np.add.at(joint, (y[some], np.where(confident, probabilities, -1)[some].argmax(1)), 1)
    joint[np.diag_indices(count)] = np.maximum(joint.diagonal(), 1)
    joint *= (sizes / joint.sum(axis=1))[:, None]
    taken = np.zeros(len(y), dtype=bool)
    for label, other in np.argwhere(np.rint(joint) > 0).tolist():
        if label != other:
            rows = np.flatnonzero(y == label)
            margin = probabilities[rows, other] - probabilities[rows, label]
            taken[rows[np.argsort(-margin, kind="stable")[: int(np.rint(joint[label, other]))]]] = True
    return np.asarray(taken & (probabilities.argmax(1) != y))


def wrong_count(place: np.ndarray) -> int:
    """The estimated number of wrong labels among samples at these places."""
    return min(round(int((place > ORDINARY).sum()) / (1 - ORDINARY)), len(place))


def ordinary(unseen: np.ndarray, y: np.ndarray, suspects: np.ndarray, most_alike: float = 1.0) -> np.ndarray:
    """Each suspect's place among the other samples of the class that it is likeliest to be, (suspects,).

    0: more like its own label than all of them; 1: less than all. The samples are ordered by the odds of the
    suspect's label against that class; those that are suspects themselves do not count. The place is 0 where
    more than `most_alike` of the label's samples are beyond ORDINARY: a model that cannot tell two classes
    apart can tell no wrong label.

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
    place = np.zeros(len(suspects))
    for label, other in np.unique(np.stack([y[suspects], likeliest], axis=1), axis=0).tolist():
        against = odds[:, label] - odds[:, other]
        ranked = np.sort(against[trusted & (y == other)])
        if len(ranked):
            sides = [np.searchsorted(ranked, against, side) for side in ("left", "right")]
            places = 1 - np.mean(sides, axis=0) / len(ranked)
            if (places[y == label] > ORDINARY).mean() <= most_alike:
                chosen = (y[suspects] == label) & (likeliest == other)
                place[chosen] = places[suspects[chosen]]
    return place
