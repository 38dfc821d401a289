"""Audits made by hand, with a planted minority and planted wrong labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evenhand.report.page import Audit, Score, Verdict, render_audit
from evenhand.report.samples import Pictures, Rows, Samples, Texts

HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(2)</script>"
STRANGE = [
    HOSTILE,
    "=cmd|'/c calc'!A1",
    "\u202egnp.exe\u202c reversed",
    "line one\nline two\r\n\u2028three",
    "🙂 שלום мир",
    "-1+1",
    "a\x00b\ud800c",
    'quo"te, comma',
    "{{7*7}}<!-- <script>",
]


def samples(
    n: int = 400, epochs: int = 12, classes: int = 2, seed: int = 0, ids: Sequence[str] | None = None
) -> Samples:
    """One in ten is learned late; one in twenty-five is wrongly labelled and never learned."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, n)
    kind = random.choice(3, n, p=[0.86, 0.1, 0.04])  # majority, minority, mislabelled
    speed = np.array([0.75, 0.22, 0.02])[kind] * random.lognormal(0, 0.35, n)
    start = np.array([1.2, 3.0, 4.5])[kind] * random.lognormal(0, 0.3, n)
    curves = (
        start[:, None] * np.exp(-speed[:, None] * np.arange(epochs)) * random.lognormal(0, 0.25, (n, epochs))
    )
    predicted = np.where(kind > 0, (labels + 1) % classes, labels)
    return Samples(
        ids=ids or [f"photos/class {label}/{i:06d}.jpg" for i, label in enumerate(labels)],
        labels=labels,
        minority=kind > 0,
        margin=np.array([-0.5, 0.5, 0.9])[kind] + random.normal(0, 0.15, n),
        curves=curves.astype(np.float32),
        triage=[("", "minority", "mislabelled")[each] for each in kind],
        predicted_baseline=predicted,
        predicted_balanced=np.where(kind == 2, predicted, labels),
    )


def picture(index: int) -> np.ndarray:
    """(3, 24, 24) uint8: a disc on a ground whose colours depend on the sample."""
    random = np.random.default_rng(index)
    y, x = np.mgrid[:24, :24]
    disc = (y - random.integers(8, 16)) ** 2 + (x - random.integers(8, 16)) ** 2 < random.integers(20, 60)
    colours = random.integers(30, 226, (2, 3, 1, 1))
    return np.where(disc[None], colours[0], colours[1]).astype(np.uint8)


def audit(own: Samples | None = None, *, kind: str = "pictures", **more: object) -> Audit:
    """A whole audit; `more` replaces its fields."""
    own = own or samples()
    n, classes = len(own.ids), int(np.max(own.labels)) + 1
    random = np.random.default_rng(1)
    media = {
        "pictures": Pictures(picture),
        "texts": Texts(
            lambda i: f"Review {i}: the plot was thin, but the actors were good enough to stay. " * 3
        ),
        "rows": Rows(
            ["age", "hours", "work", "weight"],
            [
                random.integers(17, 90, n),
                random.normal(40, 9, n),
                np.array(["private", "state", "self-employed", None], object)[random.integers(0, 4, n)],
                np.where(random.random(n) < 0.1, np.nan, random.random(n)),
            ],
        ),
        "none": None,
    }[kind]
    fields: dict[str, object] = {
        "title": "photos",
        "headline": "One class hides a minority that the model learns late; retraining on the balanced set helps.",
        "lede": (
            f"{int(np.sum(own.minority)):,} of {n:,} training samples were set apart by their loss histories alone.",
            "The balanced model is better on the worst pseudo-group and no worse on average.",
        ),
        "samples": own,
        "class_names": [f"class {i}" for i in range(classes)],
        "verdicts": [
            Verdict(strength=0.93, words="strong", advice="Retrain on the balanced set.", threshold=0.8)
            if i == 0
            else Verdict(strength=0.35, words="weak", advice="Look at the late samples first.", threshold=0.8)
            for i in range(classes)
        ],
        "scores": (
            _score("Worst pseudo-group", 0.412, 0.861, 170, "class 0, minority"),
            _score("Worst class", 0.884, 0.921, 480, "class 0"),
            _score("Validation accuracy", 0.952, 0.957, 1000),
        ),
        "recommendation": "Ship the balanced model: its worst pseudo-group gains 44.9 points, more than chance explains, and accuracy is kept.",
        "ship": "balanced",
        "groups": (
            _score("class 0, outdoors", 0.38, 0.84, 120),
            _score("class 1, indoors", 0.97, 0.96, 640),
        ),
        "facts": (("Data", "photos/"), ("Model", "small CNN"), ("Epochs", str(np.shape(own.curves)[1]))),
        "media": media,
    }
    return Audit(**{**fields, **more})


def write(path: Path, own: Audit) -> Path:
    """The page in a file; names that are no text become question marks, as `evenhand audit` has it."""
    path.write_bytes(render_audit(own).encode(errors="replace"))
    return path


def hostile_audit(kind: str = "rows") -> Audit:
    """Attacks wherever a name, a path or a text can stand."""
    n = 4 * len(STRANGE)
    own = samples(n, ids=[STRANGE[i % len(STRANGE)] + str(i) * (i >= len(STRANGE)) for i in range(n)])
    media = {
        "rows": Rows([HOSTILE, "=1+1"], [[STRANGE[i % len(STRANGE)] for i in range(n)], np.arange(n)]),
        "texts": Texts(lambda i: STRANGE[i % len(STRANGE)]),
        "pictures": Pictures(picture),
    }[kind]
    score = Score(name=HOSTILE, baseline=0.5, balanced=None, note=HOSTILE)
    verdict = Verdict(strength=0.5, words=HOSTILE, advice=HOSTILE)
    return audit(
        own,
        title=HOSTILE,
        headline=HOSTILE,
        lede=STRANGE,
        class_names=[HOSTILE, '"><svg onload=alert(3)>'],
        verdicts=[verdict, verdict],
        scores=[score],
        groups=[score],
        recommendation=HOSTILE,
        facts=[(HOSTILE, HOSTILE)],
        baseline_name=HOSTILE,
        media=media,
    )


def _score(name: str, baseline: float, balanced: float, n: int, note: str = "") -> Score:
    wide = 1.96 * np.sqrt(0.1 / n)
    return Score(
        name=name,
        baseline=baseline,
        balanced=balanced,
        baseline_interval=(max(0.0, baseline - wide), min(1.0, baseline + wide)),
        balanced_interval=(max(0.0, balanced - wide), min(1.0, balanced + wide)),
        num_samples=n,
        note=note,
    )
