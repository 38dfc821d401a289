"""Audit: the results of an audit as an object, and `evenhand.audit`, which runs one in Python."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from evenhand.audit import predict as prediction
from evenhand.audit.audit import run
from evenhand.core.partition import of_mask
from evenhand.training.store import read_json

MODELS = ("baseline", "balanced")


@dataclass(frozen=True)
class Model:
    """One of an audit's two models."""

    folder: Path
    name: str  # "baseline" or "balanced"

    def predict(self, inputs: Any, *, device: str = "auto") -> pandas.DataFrame:
        """Return predictions for a table, a DataFrame or images: id, class and confidence per row."""
        if isinstance(inputs, pandas.DataFrame):
            with tempfile.TemporaryDirectory() as place:
                file = Path(place) / "inputs.csv"
                inputs.to_csv(file, index=False)
                return self.predict(file, device=device)
        found = prediction.predict(self.folder, Path(inputs), model=self.name, device=device)[1]
        return pandas.DataFrame({"id": found.ids, "class": found.classes, "confidence": found.confidence})


@dataclass(frozen=True)
class Audit:
    """A finished audit: its advice, its table of samples and both models, read from the audit's folder.

    `evenhand.audit` returns one, and `Audit.load(folder)` opens a folder that an earlier audit wrote. `load`
    raises ValueError for a folder without a finished audit.

    - `samples`: a DataFrame with one row per sample: its split and label, the losses, the predictions of both
      models, and `triage` ("minority", "mislabelled" or empty).
    - `models`: both models by name. `models["balanced"].predict(frame)` returns a DataFrame of predictions.
    - `indices`: the balanced set, as rows of `samples`. Repeated rows occur several times.

    >>> found = Audit.load("audit")  # doctest: +SKIP
    >>> found.samples[found.samples.triage == "minority"].id.tolist()  # doctest: +SKIP
    ['img_0012', 'img_0345']
    """

    folder: Path
    advice: str  # "retrain", "nothing found" or "cannot tell"
    ship: str  # which model to ship: "baseline" or "balanced"
    sentences: tuple[str, ...]  # the shortcut if there is one, what to do, how sure the audit is
    summary: dict[str, Any] = field(repr=False)  # all of summary.json
    _place: tempfile.TemporaryDirectory[str] | None = field(repr=False, default=None)

    @classmethod
    def load(cls, folder: str | Path) -> Audit:
        """Load the audit that an earlier call or `evenhand audit` wrote to this folder."""
        folder = Path(folder)
        if not prediction.is_audit(folder):
            raise ValueError(f"expected the folder of an audit, but {folder} holds no summary.json of one")
        summary = read_json(folder / "summary.json")
        judged = summary["judgement"]
        return cls(folder, judged["advice"], summary["ship"]["model"], tuple(summary["sentences"]), summary)

    @cached_property
    def samples(self) -> pandas.DataFrame:
        """The table samples.csv."""
        frame = pandas.read_csv(self.folder / "samples.csv", dtype={"id": str}, keep_default_na=False)
        numbers = ("margin", "first_loss", "last_loss", "mean_loss", "confidence_unseen")
        return frame.assign(**{name: pandas.to_numeric(frame[name]) for name in numbers})

    @property
    def models(self) -> dict[str, Model]:
        """Both models by name."""
        return {name: Model(self.folder, name) for name in MODELS}

    @property
    def indices(self) -> np.ndarray:
        """The balanced set: rows of `samples`, those of the minority as often as they were repeated."""
        found: np.ndarray = np.load(self.folder / "indices.npy", allow_pickle=False)
        return found

    def _repr_html_(self) -> str:
        from evenhand.report.notebook import audit_html

        return audit_html(self.summary)

    def plot(self) -> Any:
        """Draw the clusters of each class and their margins, and return a matplotlib Figure."""
        train = self.samples[self.samples["split"] == "train"]
        parts = of_mask((train["pseudo_group"] == "minority").to_numpy(), train["label"].to_numpy(str))
        return replace(parts, margin=train["margin"].to_numpy(np.float32)).plot()

    @property
    def report(self) -> Path:
        """The page."""
        return self.folder / "report.html"


def audit(source: Any, *, out: str | Path | None = None, **options: Any) -> Audit:
    """Audit your own data: which samples break a shortcut, and does retraining help?

    source: A path as for `evenhand audit`, or a DataFrame with `label=` naming the column of classes.
    out: The folder to write. Without it, the folder lives as long as the result.
    options: Those of `evenhand audit`: label, text, image, group, drop, aim, model, seed, epochs, device, …
    """
    place = tempfile.TemporaryDirectory(prefix="evenhand-audit-") if out is None else None
    folder = Path(place.name) / "audit" if place else Path(str(out))
    run(source, out=folder, **options)
    done = Audit.load(folder)
    return Audit(done.folder, done.advice, done.ship, done.sentences, done.summary, place)
