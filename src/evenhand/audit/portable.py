"""Store estimators as arrays: boosted trees and linear models on words are read again without pickle."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from evenhand.tasks import table
from evenhand.training.estimator import NODES, tree_scores
from evenhand.training.estimator_histories import softmax
from evenhand.training.store import NUMBER, parse_json, schema_error

ABOUT = "evenhand"  # the key of a model file's description, JSON
COLUMNS = {"numbers": [str], "words": {str: {str: NUMBER}}}
CODES = {str: (None, int, float)}  # of gaps and of unknown words; None: boosting treats them as missing


@dataclass(frozen=True)
class ModelFile:
    """A model's arrays and its description, both of which may come from an untrusted file."""

    path: Path
    about: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def need(self, **expected: tuple[Any, int]) -> None:
        """Raise ValueError if the file lacks one of these arrays, name=(type, number of dimensions)."""
        for name, (kind, dimensions) in expected.items():
            array = self.arrays.get(name)
            if array is None or array.ndim != dimensions or array.dtype != kind:
                wanted = f"{name!r} as {np.dtype(kind)} with {dimensions} dimensions"
                raise ValueError(f"{self.path} should hold {wanted}; audit again")


def read(path: Path, arrays: bool = True) -> ModelFile:
    """Return the content of a model file."""
    try:
        with safe_open(path, "np") as file:
            about = parse_json((file.metadata() or {}).get(ABOUT, "null"), path)
            found = {name: file.get_tensor(name) for name in file.keys()} if arrays else {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error}; audit again") from error
    if schema_error(about, {"kind": str, "classes": [str]}) or len(about["classes"]) < 2:
        raise ValueError(f"{path} does not say what the model takes; audit again with this version")
    return ModelFile(path, about, found)


def network_bytes(weights: bytes, about: dict[str, Any]) -> bytes:
    """Return a network's weights as a file that also describes the network's inputs."""
    from safetensors.torch import load
    from safetensors.torch import save as save_tensors

    return bytes(save_tensors(load(weights), {ABOUT: json.dumps({"kind": "network", **about})}))


def linear_bytes(vectorizer: Any, model: dict[str, np.ndarray], classes: tuple[str, ...]) -> bytes:
    """Return a linear model on TF-IDF as a file; `model` contains its weights and intercepts."""
    words = vectorizer.get_feature_names_out().tolist()
    arrays: dict[str, np.ndarray] = {
        "vocabulary": np.frombuffer("\n".join(words).encode(), dtype=np.uint8),
        "idf": np.asarray(vectorizer.idf_, dtype=np.float64),
        "coefficients": model["weight"],
        "intercept": model["intercept"],
    }
    return bytes(save(arrays, {ABOUT: json.dumps({"kind": "words", "classes": list(classes)})}))


def linear_probabilities(file: ModelFile, texts: list[str]) -> np.ndarray:
    """Return one-vs-rest probabilities, normalized to sum to one, (texts, classes)."""
    number = np.float64
    file.need(vocabulary=(np.uint8, 1), idf=(number, 1), coefficients=(number, 2), intercept=(number, 1))
    words = file.arrays["vocabulary"].tobytes().decode(errors="replace").split("\n")
    rows = 1 if len(file.about["classes"]) == 2 else len(file.about["classes"])
    shapes = {"idf": (len(words),), "coefficients": (rows, len(words)), "intercept": (rows,)}
    if any(file.arrays[name].shape != shape for name, shape in shapes.items()):
        raise ValueError(f"{file.path} should hold one weight for every word and class; audit again")
    vectorizer = table.bag_of_words().set_params(vocabulary=words)
    vectorizer.idf_ = file.arrays["idf"]
    scores = vectorizer.transform(texts) @ file.arrays["coefficients"].T + file.arrays["intercept"]
    if rows == 1:
        return softmax(scores)
    odds = 1 / (1 + np.exp(-scores.clip(-500, 500)))
    shares: np.ndarray = odds / odds.sum(axis=1, keepdims=True)
    return shares


def boosting_bytes(columns: Any, model: dict[str, np.ndarray], classes: tuple[str, ...]) -> bytes:
    """Return boosted trees as a file; `columns` turns a frame into numbers, with the codes of words first."""
    about = {"kind": "trees", "classes": list(classes), **_columns(columns)}
    arrays = {name: model[name] for name in (*NODES, "sets", "roots", "start")}
    return bytes(save(arrays, {ABOUT: json.dumps(about)}))


def _columns(columns: Any) -> dict[str, Any]:
    """Return the numeric columns, the code of every word, and the codes of gaps and of unknown words."""
    (_, codes, words), (_, _, numbers) = columns.transformers_
    names = [str(name) for name in words]
    known = codes if words else table.WordCodes().fit(pandas.DataFrame())
    return {
        "numbers": [str(name) for name in numbers],
        "words": dict(zip(names, known.codes_, strict=True)),
        "gaps": dict(zip(names, known.gaps_, strict=True)),
        "unseen": dict(zip(names, known.unseen_, strict=True)),
    }


def boosting_probabilities(file: ModelFile, frame: Any) -> np.ndarray:
    """Return the probabilities, (rows, classes), from the log odds that the leaves of all trees sum to."""
    nodes = {name: (kind, 1) for name, (_, kind) in NODES.items()}
    file.need(sets=(np.int64, 2), roots=(np.int64, 1), start=(np.float64, 1), **nodes)
    if len(file.arrays["start"]) != (1 if len(file.about["classes"]) == 2 else len(file.about["classes"])):
        raise ValueError(f"{file.path} should hold 'start' with one number for every class; audit again")
    wrong = schema_error(file.about, COLUMNS)
    wrong = wrong or schema_error({"gaps": {}, "unseen": {}} | file.about, {"gaps": CODES, "unseen": CODES})
    if wrong:
        raise ValueError(f"{file.path} should say which columns the model takes, but {wrong}; audit again")
    x = _numbers(file, frame)
    try:
        return softmax(tree_scores(file.arrays, x))
    except IndexError as error:
        raise ValueError(f"{file.path} should hold whole trees, but {error}; audit again") from error


def _numbers(file: ModelFile, frame: Any) -> np.ndarray:
    """Return the columns that the model takes, in its order, (rows, columns) float64."""
    wanted = [*file.about["words"], *file.about["numbers"]]
    absent = [repr(name) for name in wanted if name not in frame.columns]
    if absent:
        raise ValueError(
            f"expected the columns that the model was trained on, but {len(absent)} of {len(wanted)} are "
            f"not there: {', '.join(absent[:10])}"
        )
    columns = [
        table.coded(
            table.words(frame[name]),
            codes,
            file.about.get("gaps", {}).get(name),
            file.about.get("unseen", {}).get(name),
        )
        for name, codes in file.about["words"].items()
    ]
    columns += [table.numbers(frame[name]) for name in file.about["numbers"]]
    # Training uses float32 too.
    return np.stack([np.asarray(column, dtype=np.float32) for column in columns], axis=1).astype(np.float64)
