"""Embeddings in Parquet shards: the minority is found, and Ray Data with a killed worker changes no bit."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
from pyarrow import parquet  # noqa: E402

from evenhand.integrations.shards import balance_shards, read_parquet  # noqa: E402


def written(folder: Path, samples: int = 1200, shards: int = 3) -> tuple[list[Path], np.ndarray, np.ndarray]:
    """Shards of different lengths; a strong direction shows the site, a weaker one the class."""
    rng = np.random.default_rng(0)
    y = (rng.random(samples) < 0.4).astype(np.int64)
    site = np.where(rng.random(samples) < 0.06, 1 - y, y)
    x = rng.normal(0, 1, (samples, 10)).astype(np.float32)
    x[:, :4] += 3 * site[:, None] - 1.5
    x[:, 4] += 5 * y - 2.5
    paths, cuts = [], [0, *sorted(rng.choice(np.arange(200, samples - 200), shards - 1)), samples]
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        names = np.array(["no", "yes"])[y[start:end]]
        paths.append(folder / f"part-{number}.parquet")
        parquet.write_table(pa.table({"embedding": list(x[start:end]), "label": names}), paths[-1])
    return paths, x, (y != site)


def test_the_minority_is_found_and_written_shard_by_shard(tmp_path: Path) -> None:
    paths, x, planted = written(tmp_path)
    made = balance_shards(paths, tmp_path / "out")
    found = np.asarray(made.partition.minority)
    assert (found & planted).sum() > 0.8 * planted.sum() and (found & planted).sum() > 0.8 * found.sum()
    assert made.sample_weight.mean() == pytest.approx(1) and made.class_names == ("no", "yes")
    files = sorted((tmp_path / "out").glob("*.parquet"))
    tables = [parquet.read_table(file) for file in files]
    assert [len(each) for each in tables] == [parquet.read_metadata(path).num_rows for path in paths]
    rows = np.concatenate([each.column("sample_weight").to_numpy() for each in tables])
    np.testing.assert_array_equal(rows, made.sample_weight)
    predicted = (x @ made.weight.T + made.bias).argmax(1)
    y = np.concatenate([parquet.read_table(path).column("label").to_numpy() for path in paths]) == "yes"
    assert (predicted == y)[planted].mean() > 0.8
    with np.load(tmp_path / "out" / "head.npz") as head:
        np.testing.assert_array_equal(head["weight"], made.weight)


def test_how_the_samples_are_divided_hardly_matters(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    whole = balance_shards(written(tmp_path / "one", shards=1)[0], tmp_path / "a", steps=10)
    parts = balance_shards(written(tmp_path)[0], tmp_path / "b", steps=10)
    np.testing.assert_allclose(parts.weight, whole.weight, rtol=1e-9)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected shards and at least one step, got 0 shards"):
        balance_shards([], tmp_path)
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"embedding": [[1.0, float("nan")]] * 4, "label": [0, 1, 0, 1]}), path)
    with pytest.raises(ValueError, match=r"a\.parquet must hold vectors of finite numbers"):
        balance_shards([path], tmp_path / "out")


def deadly(path: Path, *, flag: Path) -> tuple[np.ndarray, np.ndarray]:
    """Reads a shard; the first worker that comes here after the flag was raised is killed."""
    if flag.exists():
        flag.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return read_parquet(path, embedding="embedding", label="label")


@pytest.mark.long
def test_two_workers_of_ray_of_which_one_is_killed_give_the_same_weights(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    paths, *_ = written(tmp_path)
    alone, flag = balance_shards(paths, tmp_path / "alone", steps=3), tmp_path / "kill"
    # The workers cannot import this file.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        flag.touch()
        read = partial(deadly, flag=flag)
        together = balance_shards(paths, tmp_path / "ray", steps=3, read=read, ray=True)
    finally:
        ray.shutdown()
    assert not flag.exists(), "a worker was killed"
    np.testing.assert_array_equal(together.weight, alone.weight)
    np.testing.assert_array_equal(together.sample_weight, alone.sample_weight)
