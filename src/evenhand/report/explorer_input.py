"""What the explorer page is made from: plain arrays and sentences, so that it depends on no audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

TRIAGE = ("", "minority", "mislabelled")  # nothing to say, learned late, never learned or forgotten again

Interval = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Pictures:
    """Thumbnails: `get` gives a sample's PNG, JPEG or WebP file, (channels, height, width) array, or None.

    It is called only for the samples whose pictures the page keeps.
    """

    get: Callable[[int], bytes | npt.NDArray[Any] | None]


@dataclass(frozen=True, eq=False)
class Rows:
    """A table: one array of numbers or texts per column, the most telling columns first."""

    columns: Sequence[str]
    values: Sequence[Sequence[Any] | npt.NDArray[Any]]  # per column, one value per sample


@dataclass(frozen=True, eq=False)
class Texts:
    """`get` gives the text of a sample; the page keeps its beginning."""

    get: Callable[[int], str]


@dataclass(frozen=True, eq=False, kw_only=True)
class Samples:
    """Everything the page knows of n audited samples; a class is its position in `class_names`."""

    ids: Sequence[str]  # n
    labels: npt.NDArray[Any]  # (n,) classes
    minority: npt.NDArray[Any]  # (n,) bool: in the smaller pseudo-group of its class
    margin: npt.NDArray[
        Any
    ]  # (n,) as Partition.margin: 0.5 at the minority's centroid, -0.5 at the majority's
    curves: npt.NDArray[Any]  # (n, epochs) losses; not-a-number where none was recorded
    triage: Sequence[str]  # n of TRIAGE
    predicted_baseline: npt.NDArray[Any] | None = None  # (n,) classes
    predicted_balanced: npt.NDArray[Any] | None = None  # (n,) classes


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How strong the evidence is that one class hides a minority, and what to do about it."""

    strength: float  # 0 to 1
    words: str  # such as "strong"
    advice: str  # such as "Retrain on the balanced set."
    threshold: float | None = None  # the strength that a class without a minority hardly ever reaches
    nothing: float = 0.0  # the strength that a class without a minority has anyhow; the meter begins there


@dataclass(frozen=True, kw_only=True)
class Score:
    """One accuracy of both models, such as that of the worst class; None where it could not be measured."""

    name: str
    baseline: float | None
    balanced: float | None
    baseline_interval: Interval | None = None
    balanced_interval: Interval | None = None
    num_samples: int | None = None
    note: str = ""  # such as the name of the worst class


@dataclass(frozen=True, kw_only=True)
class Audit:
    """One audit as the page presents it, the answer first."""

    title: str  # what was audited
    headline: str  # the answer in one sentence
    samples: Samples
    class_names: Sequence[str]
    verdicts: Sequence[Verdict]  # one per class
    lede: Sequence[str] = ()  # further sentences below the headline
    scores: Sequence[Score] = ()  # the most important first; up to three stand beside the headline
    recommendation: str = ""  # which model to ship, and why
    ship: str = ""  # "baseline", "balanced", or empty where the page cannot tell
    groups: Sequence[Score] = ()  # true groups, for scoring only
    facts: Sequence[tuple[str, str]] = ()  # name and value: data, model, epochs, versions
    baseline_name: str = "as collected"
    balanced_name: str = "balanced"
    media: Pictures | Rows | Texts | None = field(default=None)


def check(audit: Audit) -> None:
    """Raise ValueError when the parts of an audit do not fit each other."""
    samples, num_classes = audit.samples, len(audit.class_names)
    n = len(samples.ids)
    if n == 0:
        raise ValueError("an audit must hold at least one sample, got none; there is nothing to explore")
    if np.ndim(samples.curves) != 2 or len(samples.curves) != n or np.shape(samples.curves)[1] == 0:
        shape = np.shape(samples.curves)
        raise ValueError(f"curves must have the shape ({n}, epochs) for {n} ids, got {shape}")
    for name in ("labels", "minority", "margin", "triage", "predicted_baseline", "predicted_balanced"):
        values = getattr(samples, name)
        if values is not None and len(values) != n:
            raise ValueError(f"{name} must hold one value for each of {n} ids, got {len(values)}")
    for name in ("labels", "predicted_baseline", "predicted_balanced"):
        values = getattr(samples, name)
        if values is not None and not (np.min(values) >= 0 and np.max(values) < num_classes):
            raise ValueError(
                f"{name} must lie between 0 and {num_classes - 1}, the positions in class_names, "
                f"got {np.min(values)} to {np.max(values)}"
            )
    unknown = sorted(set(samples.triage) - set(TRIAGE))
    if unknown:
        raise ValueError(f"triage must be one of {', '.join(map(repr, TRIAGE))}, got {unknown[0]!r}")
    if len(audit.verdicts) != num_classes:
        raise ValueError(f"verdicts must hold one per class ({num_classes}), got {len(audit.verdicts)}")
    if audit.ship not in ("", "baseline", "balanced"):
        raise ValueError(f"ship must be 'baseline', 'balanced' or '', got {audit.ship!r}")
    if isinstance(audit.media, Rows):
        lengths = [len(each) for each in audit.media.values]
        if lengths != [n] * len(audit.media.columns):
            raise ValueError(f"rows must hold {n} values for each of their columns, got {lengths}")
