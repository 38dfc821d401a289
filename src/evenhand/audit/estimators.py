"""Turn tables and texts into tasks for estimators: boosting, a linear model on words, or your own."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load as read_arrays

from evenhand.audit import portable
from evenhand.audit.evidence import Evidence
from evenhand.audit.shortcut import Shortcut
from evenhand.core.partition import sample_weights
from evenhand.tasks import table
from evenhand.tasks.samples import TRAIN, Samples
from evenhand.training.data import Task
from evenhand.training.estimator import PREFIX, SparseRows, balances_by_weight
from evenhand.training.estimator_histories import seeded, training_of
from evenhand.training.recipe import Recipe

FOLDS = 4
RECIPE = Recipe(model="linear", batch_size=1024)  # for estimators, only predictions use its batch size
NAMES = {"boosting": "gradient boosting", "linear": "linear on TF-IDF"}


class Estimated:
    """An audit's data as numbers, the estimator that learns from them, and the files of its models."""

    def __init__(self, data: Samples, *, own: str = "", made: Any = None, epochs: int | None = None) -> None:
        """Prepare the estimator; `own` is the user's module:function, and `made` is what it returns."""
        if made is not None and training_of(made) is None:
            raise ValueError(
                "the estimator of --model must learn step by step (boosting, partial_fit or warm_start), "
                f"so that its loss histories can be seen; got {type(made).__name__}"
            )
        self.data, self.made = data, made
        self.estimator = own or ("linear" if data.kind == "text" else "boosting")
        self.num_categories = 0
        if data.kind == "text":
            self.transformer = table.bag_of_words()
        elif own:
            self.transformer = table.dense_columns(data.frame)
        else:
            self.transformer = table.coded_columns(data.frame)
            self.num_categories = len(table.word_columns(data.frame))
        self.settings = {
            "estimator": self.estimator,
            "num_categories": self.num_categories,
            "epochs": epochs or 0,
        }

    def task(self) -> Task:
        """Return the samples as numbers, by a transformer that is fitted to the training split."""
        data, rows = self.data, self.data.rows(TRAIN)
        if data.kind == "text":
            table.fitted_words(self.transformer, [data.texts[row] for row in rows])
            words = SparseRows(self.transformer.transform(data.texts))
            return data.task("text", words, *words.content(), *data.class_names, recipe=RECIPE)  # type: ignore[arg-type]
        x = self.transformer.fit(data.frame.iloc[rows]).transform(data.frame)
        x = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
        return data.task("table", x, x, *data.class_names, recipe=RECIPE)

    def features_of(self, task: Task, shortcut: Shortcut, words: set[str]) -> str:
        """Return the indices of the features that show a property, separated by commas."""
        if self.data.kind == "text":
            names = self.transformer.get_feature_names_out()
            return ",".join(str(row) for row, name in enumerate(names) if name in words)
        column = shortcut.name
        plain = self.data.frame.copy()
        plain[column] = plain[column].iloc[int(plain[column].notna().to_numpy().argmax())]
        hidden = np.asarray(self.transformer.transform(plain), dtype=np.float32)
        shown = np.asarray(task.train.x)
        changed = ((hidden != shown) & ~(np.isnan(hidden) & np.isnan(shown))).any(axis=0)
        return ",".join(str(row) for row in np.flatnonzero(changed))

    def finished(self, found: Evidence) -> Evidence:
        """Return the evidence with both models as files.

        `evenhand predict` reads these files. The user's own estimators are saved as pickles instead.
        """
        files = dict[str, bytes]()
        for name, record in found.records.items():
            if self.made is not None:
                files[f"{name}.joblib"] = self._pickled(found, balanced=name == "balanced")
                continue
            content = read_arrays((Path(record.path) / "model.safetensors").read_bytes())
            arrays = {key.removeprefix(PREFIX): value for key, value in content.items()}
            pack = portable.linear_bytes if self.data.kind == "text" else portable.boosting_bytes
            files[f"{name}.safetensors"] = pack(self.transformer, arrays, found.class_names)
        about = {**found.about, "model": NAMES.get(self.estimator, type(self.made).__name__)}
        return dataclasses.replace(found, files=files, about=about)

    def _pickled(self, found: Evidence, *, balanced: bool) -> bytes:
        """Return a scikit-learn pipeline, trained once more, as a pickle that evenhand itself never reads."""
        import joblib  # type: ignore[import-untyped]
        from sklearn.pipeline import make_pipeline

        data, train = self.data, self.data.rows(TRAIN)
        raw = [data.texts[row] for row in train] if data.kind == "text" else data.frame.iloc[train]
        x, y = self.transformer.transform(raw), np.array(found.class_names)[data.y[train]]
        model, weights = seeded(self.made, found.records["balanced"].config["seed"]), {}
        if balanced and balances_by_weight(model):
            weights = {"sample_weight": sample_weights(found.parts)}
        elif balanced:
            rows = np.asarray(found.balanced_rows)
            x, y = x[rows], y[rows]
        buffer = io.BytesIO()
        joblib.dump(make_pipeline(self.transformer, model.fit(x, y, **weights)), buffer)
        return buffer.getvalue()
