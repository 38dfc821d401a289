"""Histories larger than memory are split as those in memory are, in little memory, and by ranks together."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_twomeans import best_of_ten, inertia

from evenhand import partition
from evenhand.core import passes, twomeans
from evenhand.core.arrays import class_positions
from evenhand.core.passes import TAIL, read_blocks
from evenhand.core.twomeans import TwoMeans, two_means
from evenhand.core.twomeans import two_means_in_blocks as in_blocks

HERE = Path(__file__).parent


def made(samples: int, epochs: int, classes: int, *, apart: float = 1.0, seed: int = 0):
    """Losses that fall, a tenth of them much later: the further apart, the clearer. And labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=samples)
    late = random.random(samples) < 0.1
    speed = random.gamma(16.0, 0.0225, size=samples) * np.where(late, 1 - 0.95 * apart, 1.0)
    x = 2.3 * np.exp(-speed[:, None] * np.arange(epochs)) + 0.05 * np.abs(
        random.standard_normal((samples, epochs))
    )
    return x.astype(np.float32), labels


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, parts and samples so small that few rows need many of them."""
    monkeypatch.setattr(passes, "_BLOCK_BYTES", 1 << 17)
    monkeypatch.setattr(passes, "_ROWS", 300)
    monkeypatch.setattr(passes, "_SAMPLE", 2 * TAIL)


def same(ours: TwoMeans, theirs: TwoMeans) -> None:
    np.testing.assert_array_equal(ours.assignment, theirs.assignment)
    np.testing.assert_array_equal(ours.sizes, theirs.sizes)
    np.testing.assert_array_equal(ours.classes, theirs.classes)
    np.testing.assert_allclose(ours.inertia, theirs.inertia, rtol=1e-3, atol=1e-5 * float(theirs.total.max()))
    np.testing.assert_allclose(ours.total, theirs.total, rtol=1e-4)
    np.testing.assert_allclose(ours.centroids, theirs.centroids, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(ours.margin, theirs.margin, atol=5e-3)


# -- blocks ----------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    samples=st.integers(1, 60),
    epochs=st.integers(1, 9),
    order=st.sampled_from("CF"),
    kind=st.sampled_from(["f2", "f4", "f8", "?", "i8"]),
    mode=st.sampled_from(["r", "c", "r+", None]),
    cut=st.booleans(),
    backwards=st.booleans(),
)
def test_blocks_are_the_matrix_however_it_is_stored(
    tmp_path_factory, samples: int, epochs: int, order: str, kind: str, mode: str | None, cut: bool, backwards
) -> None:
    matrix = np.asarray(np.random.default_rng(0).normal(size=(samples, epochs)) * 3, kind, order=order)
    file = tmp_path_factory.mktemp("blocks") / "matrix.npy"
    np.save(file, matrix)
    stored = matrix if mode is None else np.load(file, mmap_mode=mode)
    stored, matrix = (stored[:, : epochs // 2 + 1], matrix[:, : epochs // 2 + 1]) if cut else (stored, matrix)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "_BLOCK_BYTES", 200)
        found = {start: block.numpy().copy() for start, block in read_blocks(stored, backwards=backwards)}
    starts = list(found)
    assert starts == sorted(starts, reverse=backwards) and (matrix.nbytes <= 200) == (len(starts) == 1)
    np.testing.assert_array_equal(np.concatenate([found[start] for start in sorted(found)]), matrix)


def test_changes_to_a_private_mapping_are_seen(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 2), np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    mapped[3, 1] = 7
    ((_, block),) = read_blocks(mapped)
    assert block[3, 1] == 7


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5000, 2), np.float32, order="F"))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with (tmp_path / "x.npy").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(ValueError, match="ended early"):
        list(read_blocks(mapped))


@pytest.mark.parametrize(
    "labels",
    [
        np.array([5, -3, 5, 900]),
        np.array([2**62, -(2**62), 0]),
        np.array([True, False, True]),
        np.array(["b", "a", "b"]),
        np.array([2**64 - 1, 3], np.uint64),
        np.arange(300, dtype=np.int16)[::-1],
        np.array([-128, 127], np.int8),
    ],
)
def test_positions_in_few_bytes(labels: np.ndarray) -> None:
    classes, position = class_positions(labels)
    expected, inverse = np.unique(labels, return_inverse=True)
    np.testing.assert_array_equal(classes, expected)
    np.testing.assert_array_equal(position, inverse)
    assert classes.dtype == labels.dtype and position.dtype == (
        np.uint8 if len(classes) <= 256 else np.uint16
    )


# -- the split -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("classes", [1, 3, 40])
def test_the_same_as_in_memory(small, kind: str, order: str, classes: int) -> None:
    x, y = made(12_000, 20, classes)
    x = np.asarray(x, kind, order=order)
    same(in_blocks(x, y), two_means(x, y))


@pytest.mark.parametrize("seed", range(3))
def test_no_more_than_a_thousandth_worse_where_clusters_run_into_each_other(small, seed: int) -> None:
    x, y = made(40_000, 20, 2, apart=0.6, seed=seed)
    ours, theirs = in_blocks(x, y), two_means(x, y)
    assert (ours.inertia <= 1.001 * theirs.inertia).all()
    for c in range(2):
        own, inside = x[y == c], ours.assignment.numpy()[y == c]
        assert inertia(own, inside) <= 1.001 * best_of_ten(own)
        assert float(ours.inertia[c]) == pytest.approx(inertia(own, inside), rel=1e-4)
    assert (ours.assignment == theirs.assignment).float().mean() > 0.98
    np.testing.assert_allclose(ours.total, theirs.total, rtol=1e-5)


def test_few_rows_far_out_are_a_cluster_wherever_they_stand(small) -> None:
    for rows in ([7, 11_111, 19_999], [0, 1, 2], [8_000, 8_001, 12_345], [501, 9_876, 17_017]):
        x, y = made(20_000, 10, 2)
        x[rows], y[rows] = 5000.0, 1
        same(in_blocks(x, y), two_means(x, y))
        assert in_blocks(x, y).sizes[1, 1] == 3


def test_classes_of_every_kind(small) -> None:
    x, y = made(9_000, 8, 3)
    y[0], y[1:5000:7] = 7, 8  # one sample; identical ones
    x[y == 8] = 0.1
    x[y == 8] += 1e6
    ours = in_blocks(x, y)
    assert ours.sizes[3:, 1].tolist() == [0, 0] and ours.total[3:].tolist() == [0, 0]
    assert not ours.assignment[y >= 7].any() and not ours.margin[y >= 7].any()
    assert (ours.sizes[:3, 1] > 0).all()


def test_large_numbers_keep_their_digits(small) -> None:
    x, y = made(6_000, 10, 2)
    far = x.astype(np.float64) + 1e6
    np.testing.assert_array_equal(in_blocks(far, y).assignment, in_blocks(x, y).assignment)
    for scale in (1e30, 1e200):
        huge = in_blocks(x.astype(np.float64) * scale, y)
        np.testing.assert_array_equal(huge.assignment, in_blocks(x, y).assignment)
        np.testing.assert_allclose(huge.centroids / scale, in_blocks(x, y).centroids, rtol=1e-4, atol=1e-4)


def test_the_answer_does_not_depend_on_threads(small) -> None:
    x, y = made(12_000, 20, 3, apart=0.6)
    answers = []
    for threads in (1, 2, 1):
        torch.set_num_threads(threads)
        answers.append(in_blocks(x, y))
        assert torch.get_num_threads() == threads
    for other in answers[1:]:
        assert torch.equal(other.margin, answers[0].margin)
        assert torch.equal(other.centroids, answers[0].centroids)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(small, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    monkeypatch.setattr(twomeans, "STREAMED", 100)
    x, y = made(3_000, 5, 2)
    x[2_345, 3] = value
    with pytest.raises(ValueError, match=f"losses must be finite, got {value} for sample 2345 in epoch 3"):
        partition(x, y)
    with pytest.raises(ValueError, match="histories must be finite"):
        in_blocks(x, y)
    with pytest.raises(ValueError, match="losses and labels must have one row per sample, got 3000 and 2999"):
        partition(x, y[1:])


def test_partition_reads_a_file_in_blocks(small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = made(12_000, 20, 3)
    np.save(tmp_path / "losses.npy", np.asfortranarray(x))
    mapped, names = np.load(tmp_path / "losses.npy", mmap_mode="r"), np.array(["a", "b", "c"])[y]
    expected = partition(x, names)
    monkeypatch.setattr(twomeans, "STREAMED", 100)
    monkeypatch.setattr(twomeans, "as_matrix", None)  # which would copy all of it
    for source in (mapped, torch.from_numpy(x)):
        found = partition(source, names)
        np.testing.assert_array_equal(found.minority, expected.minority)
        np.testing.assert_array_equal(found.sizes, expected.sizes)
        np.testing.assert_allclose(found.margin, expected.margin, atol=5e-3)
        np.testing.assert_allclose(found.separation, expected.separation, atol=1e-4)
    with pytest.raises(ValueError, match="must lie between"):
        partition(x.astype(np.float64) * 1e101, names)


def test_two_means_of_many_numbers_reads_blocks(small, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = made(12_000, 20, 3)
    monkeypatch.setattr("evenhand.core.twomeans.STREAMED", 1000)
    assert torch.equal(two_means(x, y).margin, in_blocks(x, y).margin)
    assert two_means(x).sizes.tolist() == in_blocks(x, np.zeros(len(x), int)).sizes.tolist()
    described = two_means(x, y, assignment=np.arange(len(x)) % 2)
    assert described.assignment.float().mean() == 0.5


# -- ranks -----------------------------------------------------------------------------------------------


def test_two_ranks_with_a_part_each_find_what_one_process_finds(tmp_path: Path) -> None:
    worker = HERE / "blocks_worker.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*command, str(worker), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    first, second = (dict(np.load(tmp_path / f"{rank}.npz")) for rank in range(2))
    whole = dict(np.load(tmp_path / "whole.npz"))
    joined = {name: np.concatenate([first[name], second[name]]) for name in ("minority", "margin", "labels")}
    np.testing.assert_array_equal(joined["minority"], whole["minority"])
    np.testing.assert_array_equal(joined["labels"], whole["labels"])
    np.testing.assert_allclose(joined["margin"], whole["margin"], atol=1e-5)
    for name in ("classes", "sizes"):
        np.testing.assert_array_equal(first[name], whole[name])
    for name in first.keys() - joined.keys():
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    assert whole["sizes"][:, 1].all() and len(whole["classes"]) == 4
    np.testing.assert_allclose(first["separation"], whole["separation"], rtol=1e-5)


PEAK = """
import resource, sys
import numpy as np
from evenhand.core import passes, twomeans
from evenhand import partition
twomeans.STREAMED, passes._SAMPLE = 1000, 2048
passes._BLOCK_BYTES = 1 << 22
def used():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
mapped, labels = np.load(sys.argv[1], mmap_mode="r"), np.load(sys.argv[2])
partition(np.array(mapped[:20000]), labels[:20000])
before = used()
partition(mapped, labels)
print(used() - before)
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """180 MB, of which a copy would show; what is kept is five bytes a sample and two blocks of 4 MiB."""
    samples, epochs = 300_000, 150
    random = np.random.default_rng(0)
    mapped = np.lib.format.open_memmap(
        tmp_path / "x.npy", "w+", np.float32, (samples, epochs), fortran_order=True
    )
    level = random.exponential(size=samples).astype(np.float32)
    for epoch in range(epochs):
        mapped[:, epoch] = level
    mapped.flush()
    np.save(tmp_path / "y.npy", random.integers(3, size=samples, dtype=np.int8))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "x.npy"), str(tmp_path / "y.npy")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64, f"{done.stdout.strip()} MiB"
