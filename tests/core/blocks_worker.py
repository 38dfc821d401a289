"""What each of two ranks does in test_blocks.py: partition its part of the samples, and tell."""

import sys
from pathlib import Path

import numpy as np
from test_blocks import made

from evenhand import partition
from evenhand.core import passes, ranks, twomeans
from evenhand.core.history import LossSummary


def main(folder: Path) -> None:
    passes._BLOCK_BYTES, passes._ROWS, passes._SAMPLE = 1 << 17, 300, 2 * passes.TAIL
    x, y = made(30_000, 20, 3, apart=0.6)
    x[[5, 29_000]] += 300  # a cluster of two, one on each rank
    y[[5, 29_000]], y[20_000::50] = 2, 3  # a class of the second rank alone
    names = np.array(["ape", "bee", "cat", "dog, wild"])[y]
    ranks.join(gpu=False)
    cut = 11_000
    own = slice(0, cut) if ranks.first() else slice(cut, None)
    parts = partition(x[own], names[own], across_ranks=True)
    save(folder / f"{ranks.number()}.npz", parts)
    x[7] = np.nan
    try:
        partition(x[own], names[own], across_ranks=True)
    except ValueError as error:
        assert "losses must be finite" in str(error)
    else:
        raise AssertionError("every rank must hear of it")
    summary = LossSummary(len(x), of="loss")
    summary.record(np.arange(len(x))[own], y[own].astype(float))
    summary.record([0, 1], [5.0, 5.0])
    summary.merge_ranks()
    np.testing.assert_allclose(summary.values[:2], (y[:2] + 10) / 3)
    np.testing.assert_array_equal(summary.values[2:], y[2:])
    if ranks.first():
        x[7] = made(30_000, 20, 3, apart=0.6)[0][7]
        twomeans.STREAMED = 1000
        save(folder / "whole.npz", partition(x, names))
    ranks.barrier()


def save(path: Path, parts) -> None:
    fields = ("minority", "labels", "classes", "sizes", "separation", "margin")
    np.savez(path, **{name: getattr(parts, name) for name in fields})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
