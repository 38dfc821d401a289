"""Schemas: what each JSON file of a record must hold, so that nothing that a stranger wrote is trusted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from evenhand.training.store import Damaged, read_json

NUMBER, SHARE, COUNT = "a finite number", "a share between 0 and 1", "a number of samples"
# A type, None, NUMBER, SHARE, COUNT, [schema of each item], {key: schema}, {str: schema of each value}, or a
# tuple of alternatives.
Schema = Any

PART = {"name": str, "count": COUNT, "accuracy": SHARE, "interval": [NUMBER]}
SHARES = ("wga", "worst_class", "accuracy", "accuracy_weighted", "accuracy_balanced")
NAMES = {"wga_over": str, "worst_group": str}
SCORES = {**dict.fromkeys(SHARES, SHARE), **NAMES, "groups": (None, [PART]), "classes": [PART]}
RUN = {"task": str, "method": str, "seed": int}
IDENTIFICATION = (None, {str: (None, NUMBER)})
METRICS = {**RUN, "val": SCORES, "test": SCORES, "identification": IDENTIFICATION, "epochs": {str: int}}
STAGES = {str: {"folder": str, "epochs": int}}
CONFIG = {**RUN, "hyperparameters": {str: object}, "recipe": {str: object}, "stages": STAGES}
ARITHMETIC = {"device": str, "precision": str, "compute": str, "slices": int}
COMPUTED = {"numerics": int, "arithmetic": ARITHMETIC}  # in a config, unless it is of an earlier version
TIMING = {"seconds": NUMBER, "stages": {str: NUMBER}, "unshared": NUMBER}
EPOCH = {"epoch": int, "loss": NUMBER, "accuracy": NUMBER, "val_accuracy": (None, NUMBER)}
PER_CHANNEL = {"mean": (None, [NUMBER]), "std": (None, [NUMBER])}
INPUTS = {"shape": [int], "dtype": str, **PER_CHANNEL, "classes": [str], "own_model": bool}
_LIMITS: dict[Any, tuple[Any, float, float]] = {  # schema -> types, least and largest value
    NUMBER: ((int, float), -sys.float_info.max, sys.float_info.max),
    SHARE: ((int, float), 0, 1),
    COUNT: (int, 1, 2**63 - 1),
    int: (int, -(2**63), 2**63 - 1),
}


def schema_error(content: Any, schema: Schema, where: str = "it") -> str:
    """What in the content does not fit the schema, in words; empty where all of it fits.

    >>> schema_error({"seed": "x"}, {"seed": int}), schema_error({"seed": 1, "more": 2}, {"seed": int})
    ("its 'seed' is not int", '')
    """
    if isinstance(schema, tuple):
        errors = [schema_error(content, alternative, where) for alternative in schema]
        return errors[-1] if all(errors) else ""
    if isinstance(schema, list):
        if not isinstance(content, list):
            return f"{where} is not a list"
        parts = [(each, schema[0], where) for each in content]
    elif isinstance(schema, dict):
        if not isinstance(content, dict):
            return f"{where} is not an object"
        if missing := [key for key in schema if key is not str and key not in content]:
            return f"{where} has no {missing[0]!r}"
        inside = "its" if where == "it" else where
        keys = content if str in schema else schema
        parts = [(content[key], schema.get(str, schema.get(key)), f"{inside} {key!r}") for key in keys]
    else:
        return "" if _fits(content, schema) else f"{where} is not {getattr(schema, '__name__', schema)}"
    return next((error for each in parts if (error := schema_error(*each))), "")


def _fits(content: Any, schema: Schema) -> bool:
    if schema in _LIMITS:
        types, least, largest = _LIMITS[schema]
        return isinstance(content, types) and not isinstance(content, bool) and least <= content <= largest
    return content is None if schema is None else isinstance(content, schema)


def read_checked(path: Path, schema: Schema, what: str) -> dict[str, Any]:
    """Read JSON that fits the schema; anything else raises Damaged."""
    content: dict[str, Any] = read_json(path)
    if error := schema_error(content, schema):
        raise Damaged(f"{path} should hold {what}, but it does not: {error}; delete it and run again")
    return content
