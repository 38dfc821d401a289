"""Arrays from any caller and from files that anybody may have written, and the file of a loss history."""

from __future__ import annotations

import functools
import operator
import os
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # who only reads files of arrays need not load torch
    import torch
    from torch import Tensor

_LARGE = 1 << 30  # bytes that a small archive may unpack to, and a larger one a hundred times its own size
_HEAD = 128  # bytes before the data of a history: an .npy header, padded so that it never grows
_CHUNK = 1 << 22  # samples worked on at once


def _is_tensor(values: object) -> bool:
    """Return whether the values are a tensor; none can be where torch has not been loaded."""
    return "torch" in sys.modules and isinstance(values, sys.modules["torch"].Tensor)


def as_numpy(values: Tensor | npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Convert the values to a numpy array in this machine's byte order; copies only if necessary."""
    try:
        if _is_tensor(values):
            tensor: Any = values.detach().cpu().resolve_conj().resolve_neg()  # type: ignore[union-attr]
            return np.asarray((tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{name} must be an array, got {type(values).__name__}: {error}") from error
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array.astype(np.float64) if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array


def as_real(values: Tensor | npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Convert the values to a numpy array of real numbers or bools."""
    array = as_numpy(values, name)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be real numbers, got {array.dtype}")
    return array


def as_batch(index: Tensor | npt.ArrayLike, losses: Tensor | npt.ArrayLike) -> tuple[Tensor, Tensor]:
    """Return the positions (int64) and losses of a batch, one per sample, without waiting for a device.

    Batches of any types can be concatenated: torch cannot promote uint16, uint32, uint64 and float8, so these
    are converted here. bool, float16, bfloat16 and float32 losses stay as they are.
    """
    whole, promoted = _dtypes()
    where, values = _dense(index, "index"), _dense(losses, "losses")
    if values.ndim != 1:
        raise ValueError(
            f"losses must hold one value per sample, got shape {tuple(values.shape)}; "
            "compute the loss with reduction='none'"
        )
    if where.shape != values.shape:
        raise ValueError(
            f"index and losses must be equally long, got {tuple(where.shape)} and {tuple(values.shape)}"
        )
    if where.dtype not in whole and len(where):  # an empty list has the type float64
        raise ValueError(f"index must hold whole numbers, got {where.dtype}")
    if not (values.is_floating_point() or values.dtype in whole or values.dtype in promoted):
        raise ValueError(f"losses must be real numbers, got {values.dtype}")
    return where.long(), values.detach() if values.dtype in promoted else values.detach().float()


@functools.cache
def _dtypes() -> tuple[frozenset[torch.dtype], frozenset[torch.dtype]]:
    """Return the dtypes of whole numbers, and the dtypes of losses that torch can concatenate."""
    import torch

    whole = (torch.int64, torch.int32, torch.int16, torch.int8)
    unsigned = (torch.uint64, torch.uint32, torch.uint16, torch.uint8)
    promoted = (torch.bool, torch.float16, torch.bfloat16, torch.float32)
    return frozenset({*whole, *unsigned}), frozenset(promoted)


def _dense(values: Tensor | npt.ArrayLike, name: str) -> Tensor:
    """Return the values as a dense tensor on its own device."""
    import torch

    if not isinstance(values, torch.Tensor):
        return torch.from_numpy(np.array(as_real(values, name)))
    if values.is_meta:
        raise ValueError(f"{name} must have values, got a tensor on the meta device")
    if values.layout != torch.strided or values.is_quantized or values.is_nested:
        kind = "quantized" if values.is_quantized else "nested" if values.is_nested else str(values.layout)
        raise ValueError(
            f"{name} must be a dense tensor, got a {kind} one; use to_dense() or dequantize() first"
        )
    return values


def whole_number(value: Any, name: str, *, least: int = 0) -> int:
    """Return the value as an int. Whole numbers of numpy and torch are accepted; truth values are not."""
    try:
        if isinstance(value, bool) or str(getattr(value, "dtype", None)) == "torch.bool":
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def value_device(device: str | torch.device) -> torch.device:
    """Return a device that can hold values."""
    import torch

    found = torch.device(device)
    if found.type == "meta":
        raise ValueError("device must hold values, got meta; use cpu or cuda")
    return found


def as_whole(values: Tensor | npt.ArrayLike, name: str) -> npt.NDArray[np.int64]:
    """Convert the values to a numpy array of int64."""
    array = as_numpy(values, name)
    if array.dtype.kind not in "iu" and array.size:
        raise ValueError(f"{name} must be whole numbers, got {array.dtype}")
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise ValueError(f"{name} must be below 2**63, got {array.max()}")
    return array.astype(np.int64, copy=False)


def read_array(
    path: str | Path, what: str = "an array", *, mode: Literal["c", "r"] = "c"
) -> npt.NDArray[Any]:
    """Open the array of an .npy file, memory-mapped and copy-on-write. A damaged file is a ValueError.

    With mode "r" nothing can be changed, so that an array larger than memory may be read from its file.
    """
    try:
        array = np.load(path, mmap_mode=mode, allow_pickle=False)
    except Exception as error:
        raise _explained(error, path, what) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{path} should hold {what}, but it is an archive; use numpy.save")
    return array


def read_arrays(path: str | Path, what: str = "arrays") -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of an .npz file by their names. A damaged file is a ValueError."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > max(_LARGE, 100 * Path(path).stat().st_size):
            raise ValueError(f"it would unpack to {size:,} bytes")
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
        if not all(isinstance(array, np.ndarray) for array in found.values()):
            raise ValueError("it is a .zip file of something else than arrays")
        return found
    except Exception as error:
        raise _explained(error, path, what) from error


def _explained(error: Exception, path: str | Path, what: str) -> Exception:
    """Describe what is wrong with a file; numpy and zipfile raise a dozen kinds of errors."""
    if isinstance(error, OSError) and error.filename is not None:
        return error  # it is not there, or must not be read
    objects = "pickle" in str(error) or "Python objects" in str(error)
    reason = "it holds Python objects or is no .npy file" if objects else str(error) or type(error).__name__
    return ValueError(f"{path} should hold {what}, but it cannot be read: {reason}")


def as_labels(labels: Tensor | npt.ArrayLike) -> npt.NDArray[Any]:
    """Return one class per sample, given as whole numbers, truth values or strings."""
    names = as_numpy(labels, "labels")
    if names.ndim != 1:
        raise ValueError(f"labels must hold one class per sample, got shape {names.shape}")
    if names.dtype.kind not in "iubU":
        raise ValueError(f"labels must be whole numbers or strings, got {names.dtype}")
    if names.dtype.kind == "U" and names.nbytes:
        letters = np.ascontiguousarray(names).view(np.uint32)
        if letters.max() > 0x10FFFF:  # only a damaged file holds such; Python cannot even print them
            raise ValueError("labels must be strings of Unicode characters, but some hold others")
    return names


def as_matrix(values: Tensor | npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Return real numbers of shape (samples, epochs) with contiguous rows; copied only if necessary."""
    array = as_real(values, name)
    if array.ndim != 2:
        raise ValueError(f"{name} must be shaped (samples, epochs), got {array.shape}")
    if 0 in array.shape:
        raise ValueError(f"{name} need at least one sample and one epoch, got shape {array.shape}")
    if array.flags.c_contiguous and array.flags.writeable:
        return array
    copy = np.empty(array.shape, array.dtype)
    for start in range(0, len(array), 1 << 16):  # by parts, so that columns of a mapped file are read in turn
        copy[start : start + (1 << 16)] = array[start : start + (1 << 16)]
    return copy


def class_positions(labels: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the distinct labels, ascending, and the index of each sample's label in a small dtype.

    >>> class_positions(np.array([7, 3, 7]))
    (array([3, 7]), array([1, 0, 1], dtype=uint8))
    """
    chunks = [slice(start, start + _CHUNK) for start in range(0, len(labels), _CHUNK)]
    small = labels.dtype.kind in "ib" or (labels.dtype.kind == "u" and labels.dtype.itemsize < 8)
    low, high = (int(labels.min()), int(labels.max())) if small and len(labels) else (0, 1 << 62)
    if high - low >= max(_CHUNK, len(labels)):
        classes, position = np.unique(labels, return_inverse=True)
        return classes, position.astype(np.min_scalar_type(max(len(classes) - 1, 0)))
    present = np.zeros(high - low + 1, bool)
    for chunk in chunks:
        present[labels[chunk].astype(np.int64) - low] = True
    classes = (np.flatnonzero(present) + low).astype(labels.dtype)
    table = (np.cumsum(present) - 1).astype(np.min_scalar_type(len(classes) - 1))
    found = np.empty(len(labels), table.dtype)
    for chunk in chunks:
        found[chunk] = table[labels[chunk].astype(np.int64) - low]
    return classes, found


class HistoryFile:
    """Columns on disk. The header counts a column only when all of it has been written.

    Written data survive the process. After a power failure, data that were not synced may be
    missing. File systems extend a file only after its data are on disk, and a count beyond it is corrected.
    """

    def __init__(self, path: Path, num_samples: int, dtype: str) -> None:
        self.path, self.num_samples, self._dtype = path, num_samples, np.dtype(dtype)
        self._column_bytes = num_samples * self._dtype.itemsize

    def mapped(self) -> npt.NDArray[np.generic]:
        """Return the whole history, (samples, epochs), memory-mapped; changes to it do not reach the file."""
        array: npt.NDArray[np.generic] = np.load(self.path, mmap_mode="c", allow_pickle=False)
        return array

    def append(self, column: npt.NDArray[Any], num_epochs: int) -> None:
        """Append the next column, which must follow `count` columns."""
        data = column.tobytes()
        if num_epochs == 0:
            write_whole(self.path, self._header(1) + data)
            return
        with self.path.open("r+b") as file:
            end = _HEAD + num_epochs * self._column_bytes
            if file.seek(0, os.SEEK_END) < end:
                raise ValueError(
                    f"{self.path} should hold {num_epochs} epochs, but somebody has cut it; "
                    "only one LossHistory may write to a file"
                )
            file.seek(end)
            _write(file, data)
            file.truncate()
            file.seek(0)
            file.write(self._header(num_epochs + 1))

    def create(self) -> None:
        """Create a file without columns, which the ranks fill."""
        write_whole(self.path, self._header(0))

    def write_part(self, part: npt.NDArray[Any], start: int, num_epochs: int) -> None:
        """Write a part of the column that follows so many, from sample `start` on; `count` then counts it."""
        with self.path.open("r+b") as file:
            file.seek(_HEAD + num_epochs * self._column_bytes + start * self._dtype.itemsize)
            _write(file, part.tobytes())

    def count(self, num_epochs: int) -> None:
        """Write the number of columns to the header."""
        with self.path.open("r+b") as file:
            _write(file, self._header(num_epochs))

    def sync(self) -> None:
        """Flush all columns, and their count, to the disk."""
        with self.path.open("r+b") as file:
            os.fsync(file.fileno())

    def truncate(self, num_epochs: int) -> None:
        """Drop the columns after so many."""
        if self.path.exists():
            with self.path.open("r+b") as file:
                file.write(self._header(num_epochs))
                file.truncate(_HEAD + num_epochs * self._column_bytes)

    def num_epochs(self) -> int:
        """Return the number of columns; a file that is no history of these samples is a ValueError."""
        if not self.path.exists():
            return 0
        try:
            with self.path.open("rb") as file:
                version = np.lib.format.read_magic(file)
                assert version == (1, 0)
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
                usable = file.tell() == _HEAD and fortran and len(shape) == 2
        except Exception:  # numpy's parser of headers raises many kinds, among them tokenize.TokenError
            usable, shape, dtype = False, (), np.dtype("V1")
        if not usable:
            raise ValueError(f"{self.path} should be a loss history, but it is not one; choose another path")
        if shape[0] != self.num_samples or dtype != self._dtype:
            raise ValueError(
                f"{self.path} should hold {self.num_samples} samples as {self._dtype}, "
                f"but it holds {shape[0]} as {dtype}; choose another path"
            )
        whole = (self.path.stat().st_size - _HEAD) // self._column_bytes
        if whole < shape[1]:  # the end was lost in a power failure; the rest is intact
            self.count(whole)
        return int(min(shape[1], whole))

    def _header(self, num_epochs: int) -> bytes:
        shape = f"({self.num_samples}, {num_epochs})"
        text = f"{{'descr': '{self._dtype.str}', 'fortran_order': True, 'shape': {shape}, }}"
        return (
            b"\x93NUMPY\x01\x00"
            + (_HEAD - 10).to_bytes(2, "little")
            + text.encode().ljust(_HEAD - 11)
            + b"\n"
        )


def write_whole(path: Path, content: bytes) -> None:
    """Write a file by atomic rename, so that a file that exists is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        _write(file, content)
        os.fsync(file.fileno())  # before the rename, which a loss of power may not undo
    new.replace(path)


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
