"""Wrong labels: confident learning (Northcutt et al., JAIR 2021) on out-of-fold probabilities.

Confident learning also counts a minority that the model gets wrong. A wrong label differs from a minority by
its place. A sample of B that is labeled A is an ordinary B. Among all samples of B, ordered by how much they
look like A, it may have any place. A minority of A looks more like A than ordinary samples of B do. So a
fifth of the wrong labels, and hardly any minority sample, is beyond the place 0.8.
"""

from __future__ import annotations

import numpy as np

from evenhand.audit.evidence import Evidence

ORDINARY = 0.8  # beyond this place there are hardly any but wrong labels, and a fifth of these
MOST_ALIKE = 0.05  # of a label's samples may lie there; 25% of wrong labels put 5% of them there
CONFIRMED = 1 / 3  # of the candidates that must be estimated to be wrong, for all of them to be listed
FLOOR = 1e-7  # of a probability


def wrong_labels(found: Evidence, *, minority: bool) -> np.ndarray:
    """Return which training samples are likely mislabeled, (samples,) bool.

    minority: Whether the audit has found a minority. Then the list is limited to the estimated number of
        wrong labels, and omits labels that the balanced model confirms.
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
    """Return whether accuracy exceeds the share of the largest class by more than two standard errors."""
    right, largest = float((probabilities.argmax(1) == y).mean()), float(np.bincount(y).max() / len(y))
    return bool(right > largest + 2 * (largest * (1 - largest) / len(y)) ** 0.5)


def confident_learning(probabilities: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return candidates for wrong labels, (samples,) bool.

    They follow from the calibrated joint distribution of given and confident labels. A sample counts as class
    j if its probability of j is at least the mean over the samples labeled j. For label i, the joint
    distribution gives the number of samples that belong to j. Those with the largest difference of the
    probabilities of j and i are taken. Samples whose label is the model's prediction are omitted.
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
    """Return the estimated number of wrong labels among samples at these places."""
    return min(round(int((place > ORDINARY).sum()) / (1 - ORDINARY)), len(place))


def ordinary(unseen: np.ndarray, y: np.ndarray, suspects: np.ndarray, most_alike: float = 1.0) -> np.ndarray:
    """Return each suspect's place among the other samples of its most likely class, (suspects,).

    At place 0, a suspect looks more like its own label than all of them; at place 1, less than all. The
    samples are ordered by the odds of the suspect's label against that class, without other suspects. The
    place is 0 if more than `most_alike` of the label's samples are beyond ORDINARY. A model that cannot
    distinguish two classes cannot detect wrong labels between them.

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
