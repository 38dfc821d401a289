"""Arrays as users bring them: any kind, shape, layout and library, with and without NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

NUMBERS = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint16", "uint64", "bool")
OTHERS = ("complex64", "datetime64[s]", "timedelta64[s]", "<U3", "S3", "O", ">f4", ">i8", "float128")
PLAIN = st.sampled_from(
    [None, "", "abc", 0, -1, 1.5, {}, [], [[]], [[1, 2], [3]], [None], ["a", "b"], object(), b"x", range(3)]
)


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...] | None = None, likely: tuple[str, ...] = NUMBERS) -> Any:
    """Anything that somebody may hand over as an array; mostly of the likely kinds, and of `shape` if one is given."""
    if draw(st.integers(0, 30)) == 0:
        return draw(PLAIN)
    kind = draw(st.sampled_from((*likely * 3, *OTHERS)))
    if shape is None or draw(st.integers(0, 9)) == 0:
        shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
    if kind == "O":
        values = st.sampled_from([1, 2.5, None, "a", float("nan")])
        array = draw(hnp.arrays("O", shape, elements=values))
    else:
        small = draw(st.booleans()) and kind in NUMBERS  # labels and indices are small numbers
        array = draw(
            hnp.arrays(kind, shape, elements=st.integers(0, 3) if small and kind != "bool" else None)
        )
    return _laid_out(array, draw(st.sampled_from(LAYOUTS)))


LAYOUTS = ("C", "Fortran", "strided", "reversed", "read-only", "torch", "list")


def _laid_out(array: np.ndarray, layout: str) -> Any:
    if layout == "Fortran":
        return np.asfortranarray(array)
    if layout == "strided":
        return np.repeat(array, 2, axis=0)[::2] if array.ndim else array
    if layout == "reversed":
        return array[::-1].copy()[::-1] if array.ndim else array
    if layout == "read-only":
        array.flags.writeable = False
    if layout == "list":
        return array.tolist()
    if layout == "torch" and array.dtype.name in NUMBERS and array.dtype.isnative:
        tensor = torch.from_numpy(array.copy())
        return tensor.t() if tensor.ndim == 2 and tensor.shape[0] == tensor.shape[1] else tensor
    return array


def finite(*values: Any) -> bool:
    return all(np.isfinite(np.asarray(value, dtype=np.float64)).all() for value in values)
