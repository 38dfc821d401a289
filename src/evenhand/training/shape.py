"""Shapes of JSON: what a record must hold, so that nothing that a stranger wrote is taken on trust."""

from __future__ import annotations

import math
from typing import Any

NUMBER, SHARE, COUNT = "a finite number", "a share between 0 and 1", "a number of samples"
# A type, None, NUMBER, SHARE, COUNT, [shape of each], {key: shape}, {str: shape of each value}, or a tuple of
# choices.
Shape = Any

PART = {"name": str, "count": COUNT, "accuracy": SHARE, "interval": [NUMBER]}
SCORES = {
    **dict.fromkeys(("wga", "worst_class", "accuracy", "accuracy_weighted", "accuracy_balanced"), SHARE),
    "wga_over": str,
    "worst_group": str,
    "groups": (None, [PART]),
    "classes": [PART],
}
IDENTIFICATION = (None, {str: (None, NUMBER)})
METRICS = {
    "task": str,
    "method": str,
    "seed": int,
    "val": SCORES,
    "test": SCORES,
    "identification": IDENTIFICATION,
    "epochs": {str: int},
}
CONFIG = {
    "task": str,
    "method": str,
    "seed": int,
    "hyperparameters": {str: object},
    "recipe": {str: object},
    "stages": {str: {"folder": str, "epochs": int}},
}
# What a config also has, unless it is of an earlier version.
COMPUTED = {
    "numerics": int,
    "arithmetic": {"device": str, "precision": str, "compute": str, "slices": int},
}
TIMING = {"seconds": NUMBER, "stages": {str: NUMBER}, "unshared": NUMBER}
EPOCH = {"epoch": int, "loss": NUMBER, "accuracy": NUMBER, "val_accuracy": (None, NUMBER)}
INPUTS = {
    "shape": [int],
    "dtype": str,
    "mean": (None, [NUMBER]),
    "std": (None, [NUMBER]),
    "classes": [str],
    "own_model": bool,
}


def misshapen(content: Any, shape: Shape, where: str = "it") -> str:
    """What of the content is not as it should be, in words; empty where all of it is.

    >>> misshapen({"seed": "x"}, {"seed": int}), misshapen({"seed": 1, "more": 2}, {"seed": int})
    ("its 'seed' is not int", '')
    """
    if isinstance(shape, tuple):
        found = [misshapen(content, choice, where) for choice in shape]
        return found[-1] if all(found) else ""
    if isinstance(shape, list):
        if not isinstance(content, list):
            return f"{where} is not a list"
        return next((wrong for each in content if (wrong := misshapen(each, shape[0], where))), "")
    if isinstance(shape, dict):
        return _misshapen_object(content, shape, where)
    return "" if _is(content, shape) else f"{where} is not {getattr(shape, '__name__', shape)}"


def _misshapen_object(content: Any, shape: dict[Any, Shape], where: str) -> str:
    if not isinstance(content, dict):
        return f"{where} is not an object"
    every = shape.get(str)
    for key in content if every is not None else shape:
        if key not in content:
            return f"{where} has no {key!r}"
        inside = f"its {key!r}" if where == "it" else f"{where} {key!r}"
        if wrong := misshapen(content[key], shape[key] if every is None else every, inside):
            return wrong
    return ""


def _is(content: Any, shape: Shape) -> bool:
    if shape is None:
        return content is None
    if shape in (NUMBER, SHARE, COUNT, int) and isinstance(content, bool):
        return False
    if shape in (NUMBER, SHARE):
        number = isinstance(content, (int, float)) and abs(content) < math.inf
        return number and (shape is NUMBER or 0 <= content <= 1)
    if shape in (COUNT, int):
        return isinstance(content, int) and (1 if shape is COUNT else -(2**63)) <= content < 2**63
    return isinstance(content, shape)
