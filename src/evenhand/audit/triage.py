"""Triage: of the samples that are learned late, which are likely a minority and which are likely mislabelled.

Both have high losses for long, and a network that memorises ends with neither. What tells them apart is a
balanced model that has not seen the sample: others of its kind teach it a minority, nothing teaches it a
wrong label. Nor does anything teach it a kind that is too rare or too hard to be learned yet, so the second
list is one of samples to look at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evenhand.audit.evidence import Evidence, late_samples
from evenhand.audit.verdict import FLOOR, Verdict, humps

OFTEN = 3  # times forgotten
CONTRADICTED = 0.1  # at most this probability for the given label, by a model that has not seen the sample
MOST = 0.75  # of a class: a sample that a second split finds must be learned later than so many


@dataclass(frozen=True, eq=False)
class Triage:
    """Every training sample's course: when it was learned, how often forgotten, and what that suggests."""

    verdict: np.ndarray  # (samples,) "", "minority" or "mislabelled"
    learned: np.ndarray  # (samples,) int: first epoch from which on it stays right; -1 if it never does
    forgotten: np.ndarray  # (samples,) int: times that it turned from right to wrong
    hidden: np.ndarray  # (samples,) bool: of a minority that only the second split shows

    def rows(self, kind: str) -> np.ndarray:
        """The samples of one list."""
        return np.flatnonzero(self.verdict == kind)


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


def sort_out(found: Evidence, verdict: Verdict) -> Triage:
    """Two lists: late samples that are a minority, and late or never learned ones whose label is doubtful.

    Where wrong labels explain most late samples, those that no unseen model gets right are taken for
    mislabelled, and the rest is split once more, since wrong labels may have hidden a minority. Elsewhere a
    sample must be contradicted with confidence, and be wrong even for the model that was shown it again and
    again. Where nothing stands apart there is no minority to list.
    """
    y = found.y["train"]
    learned, forgotten = course(found.hits)
    confidence = found.unseen[np.arange(len(y)), y]
    contradicted = found.unseen.argmax(1) != y
    if not verdict.doubts:
        contradicted &= (confidence < CONTRADICTED) & (found.balanced["train"] != y)
    late = found.late
    stubborn = ((learned < 0) | (forgotten >= OFTEN)) & (found.baseline["train"] != y)
    mislabelled = (late | stubborn) & contradicted
    hidden = np.zeros(len(y), dtype=bool)
    if verdict.doubts and verdict.advice != "leave it":
        hidden = _hidden(found, ~mislabelled) & later_than_most(learned, y) & ~late
    late = late | hidden
    lists = np.full(len(y), "", dtype="<U12")
    if verdict.advice != "leave it":
        lists[late] = "minority"
    lists[mislabelled] = "mislabelled"
    return Triage(lists, learned, forgotten, hidden & ~mislabelled)


def _hidden(found: Evidence, kept: np.ndarray) -> np.ndarray:
    """Late samples of a second split, without those set aside; only in classes where they stand apart."""
    rows = np.flatnonzero(kept)
    parts, gaps = humps(found.losses[rows], found.y["train"][rows])
    again = late_samples(parts, found.losses[rows])
    apart = gaps[np.searchsorted(parts.classes, parts.labels)] >= FLOOR
    late = np.zeros(len(kept), dtype=bool)
    late[rows[again & apart]] = True
    return late


def later_than_most(learned: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The samples that stay right only after most of their class do, or never, (samples,) bool.

    >>> later_than_most(np.array([1, 1, 1, 1, 2, -1, 3, 3]), np.array([0, 0, 0, 0, 0, 0, 1, 1])).nonzero()[0]
    array([5])
    """
    when = np.where(learned < 0, np.iinfo(np.int64).max, learned)
    later = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        own = y == label
        ordered = np.sort(when[own])
        later[own] = np.searchsorted(ordered, when[own]) >= MOST * len(ordered)
    return later


def counted(verdict: Verdict, found: Evidence, triage: Triage) -> Verdict:
    """The verdict whose classes count every sample of the first list among their late ones."""
    late = late_samples(humps(found.losses, found.y["train"])[0], found.losses)
    late |= triage.verdict == "minority"
    counts = {
        name: int((late & (found.y["train"] == label)).sum()) for label, name in enumerate(found.class_names)
    }
    return replace(verdict, classes=tuple(replace(each, late=counts[each.name]) for each in verdict.classes))
