"""Triage: of the samples that are learned late, which are likely a minority and which are likely mislabelled.

Both have high losses for long, and a network that memorises ends with neither. What tells them apart is a
balanced model that has not seen the sample: others of its kind teach it a minority, nothing teaches it a
wrong label.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenhand.audit.evidence import Evidence

OFTEN = 3  # times forgotten


@dataclass(frozen=True, eq=False)
class Triage:
    """Every training sample's course: when it was learned, how often forgotten, and what that suggests."""

    verdict: np.ndarray  # (samples,) "", "minority" or "mislabelled"
    learned: np.ndarray  # (samples,) int: first epoch from which on it stays right; -1 if it never does
    forgotten: np.ndarray  # (samples,) int: times that it turned from right to wrong

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


def sort_out(found: Evidence) -> Triage:
    """Two lists: learned late, and confirmed or not by a balanced model that has not seen the sample."""
    learned, forgotten = course(found.hits)
    agrees = found.unseen.argmax(1) == found.y["train"]
    late = found.late
    stubborn = ((learned < 0) | (forgotten >= OFTEN)) & (found.baseline["train"] != found.y["train"])
    verdict = np.full(len(late), "", dtype="<U12")
    verdict[late & agrees] = "minority"
    verdict[(late | stubborn) & ~agrees] = "mislabelled"
    return Triage(verdict, learned, forgotten)
