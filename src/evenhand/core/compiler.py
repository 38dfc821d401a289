"""The compiler of GPU kernels that torch brings along, where it does."""

from __future__ import annotations

import functools
import importlib.util
from importlib.metadata import PackageNotFoundError, version

OLDEST = (3, 6)  # of Triton, that the kernels here have been tried with


@functools.cache
def has_triton() -> bool:
    """Whether Triton is here, in a version that the kernels are known to work with; does not import it."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        numbers = version("triton").split(".")[:2]
    except PackageNotFoundError:  # under another name, as AMD's
        return False
    return tuple(map(int, numbers)) >= OLDEST
