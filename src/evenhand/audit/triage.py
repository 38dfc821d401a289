"""Triage: of the samples that are learned late, which are likely a minority and which are likely mislabelled.

Both have high losses for long, and a network that memorises ends with neither; labels.py tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenhand.audit.evidence import Evidence, late_samples
from evenhand.audit.labels import Course, follow
from evenhand.audit.verdict import Verdict, doubtful, humps, overall, threshold


@dataclass(frozen=True, eq=False)
class Triage:
    """What every training sample's course suggests."""

    verdict: np.ndarray  # (samples,) "", "minority" or "mislabelled"
    course: Course
    hidden: np.ndarray  # (samples,) bool: of a minority that only the second split shows

    def rows(self, kind: str) -> np.ndarray:
        """The samples of one list."""
        return np.flatnonzero(self.verdict == kind)


def sort_out(found: Evidence, verdict: Verdict) -> Triage:
    """Two lists: late samples that are a minority, and late or never learned ones whose label is doubtful.

    Where wrong labels explain the late samples, the rest is split once more, since they may have hidden a
    minority. Where nothing stands apart there is no minority to list.
    """
    course = follow(found)
    hidden = np.zeros(len(found.late), dtype=bool)
    lists = np.full(len(found.late), "", dtype="<U12")
    if verdict.advice != "leave it":
        if doubtful(verdict.doubted, verdict.late):
            hidden = _hidden(found, ~course.mislabelled) & ~found.late
        lists[found.late | hidden] = "minority"
    lists[course.mislabelled] = "mislabelled"
    return Triage(lists, course, hidden)


def _hidden(found: Evidence, kept: np.ndarray) -> np.ndarray:
    """Late samples of a second split, without those set aside, if they stand apart as a verdict asks."""
    rows = np.flatnonzero(kept)
    parts, gaps = humps(found.losses[rows], found.y["train"][rows])
    again = late_samples(parts, found.losses[rows])
    counts = np.array([int((again & (parts.labels == label)).sum()) for label in parts.classes])
    late = np.zeros(len(kept), dtype=bool)
    late[rows[again]] = overall(gaps, counts) >= threshold(len(rows))
    return late
