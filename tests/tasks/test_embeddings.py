"""Embeddings from every kind of file: the same task, standardized, mapped or in memory, for every method."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import evenhand
from evenhand import tasks
from evenhand.integrations.prediction import predict
from evenhand.tasks import embeddings
from evenhand.training.batches import Batches, Source
from evenhand.training.execute import execute


def mixture(samples: int = 900, dimensions: int = 12, conflicting: float = 0.1) -> tuple[np.ndarray, ...]:
    """Vectors whose first dimension shows the class a little and whose second shows the site a lot."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, samples)
    site = np.where(rng.random(samples) < conflicting, 1 - y, y)
    x = rng.normal(0, 1, (samples, dimensions)) * np.linspace(0.5, 4, dimensions) + 7
    x[:, 0] += 2 * y - 1
    x[:, 1] += 6 * site - 3
    return x.astype(np.float16), y, site


@pytest.fixture
def files(tmp_path: Path) -> Path:
    x, y, site = mixture()
    for name, array in (("x", x), ("y", y), ("site", np.array(["a", "b"])[site])):
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


NPY = "embeddings:path=x.npy,labels=y.npy,groups=site.npy"


def saved(files: Path, kind: str) -> str:
    """The same embeddings in another kind of file."""
    x, y, site = (np.load(files / f"{name}.npy") for name in ("x", "y", "site"))
    if kind == "npz":
        np.savez(files / "all.npz", embedding=x, label=y, group=site)
        return "embeddings:path=all.npz"
    columns = {"vector": list(x.astype(np.float32)), "label": y, "site": site}
    if kind == "parquet":
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
        pandas.DataFrame(columns).to_parquet(files / "all.parquet")
        return "embeddings:path=all.parquet,column=vector,groups=site"
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    datasets.Dataset.from_dict(columns).save_to_disk(str(files / "saved"))
    return "embeddings:path=saved,column=vector,groups=site"


@pytest.mark.parametrize("kind", ["npz", "parquet", "dataset"])
def test_every_kind_of_file_gives_the_same_task(files: Path, kind: str, monkeypatch) -> None:
    expected = tasks.load(NPY, files)
    monkeypatch.setattr(embeddings, "BLOCK", 256)  # several blocks
    for _ in range(2):  # the second time from the cache
        found = tasks.load(saved(files, kind), files)
        assert torch.equal(torch.as_tensor(found.train.x), torch.as_tensor(expected.train.x))
        for name in ("train", "val", "test"):
            ours, theirs = getattr(found, name), getattr(expected, name)
            assert torch.equal(ours.y, theirs.y) and torch.equal(ours.group, theirs.group)
            assert torch.equal(ours.rows, theirs.rows)
        assert found.mean == expected.mean and found.recipe == expected.recipe
        assert found.conflicting == expected.conflicting == {1, 2}
        assert found.class_names == ("0", "1") and found.group_names[1] == "0, b"


def test_a_model_sees_standardized_vectors(files: Path) -> None:
    task = tasks.load(NPY, files)
    batches = Batches(task.train, task, Source(task.train.x, torch.device("cpu")), batch_size=len(task.train))
    (batch,) = batches(torch.arange(len(task.train)), torch.Generator())
    assert batch.x.dtype == torch.float32
    assert batch.x.mean(0).abs().max() < 1e-5 and (batch.x.std(0, correction=0) - 1).abs().max() < 1e-5


def test_a_mapped_array_gives_the_numbers_of_one_in_memory(files: Path, monkeypatch) -> None:
    whole = tasks.load(NPY, files)
    monkeypatch.setattr(embeddings, "IN_MEMORY", 0)
    mapped = tasks.load(NPY, files)
    assert isinstance(mapped.train.x, np.memmap) and mapped.train.x.dtype == np.float16
    records = [
        execute(task, "tab", recipe=task.recipe.replace(epochs=4), runs=files / name, device="cpu")
        for name, task in (("whole", whole), ("mapped", mapped))
    ]
    assert records[0].path.name == records[1].path.name, "one key"
    assert records[0].metrics == records[1].metrics


@pytest.mark.parametrize("method", ["erm", "tab", "evenhand", "xrm", "afr", "dfr", "jtt", "class_balanced"])
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_methods_train_heads(files: Path, method: str, model: str) -> None:
    task = tasks.load(f"{NPY},model={model}", files)
    record = execute(task, method, runs=files / "runs", device="cpu")
    assert record.metrics["test"]["accuracy"] > 0.8


def test_tab_finds_the_planted_minority_and_raises_the_worst_group(files: Path) -> None:
    task = tasks.load(NPY, files)
    erm, tab = (execute(task, method, runs=files / "runs", device="cpu") for method in ("erm", "tab"))
    found = tab.metrics["identification"]
    assert found["identified"] > 0.5 and found["purity"] > 0.5
    assert tab.metrics["test"]["wga"] > erm.metrics["test"]["wga"] + 0.05


def test_a_trained_head_predicts_new_vectors(files: Path) -> None:
    task = tasks.load(NPY, files)
    record = execute(task, "erm", recipe=task.recipe.replace(epochs=3), runs=files / "runs", device="cpu")
    np.save(files / "new.npy", np.load(files / "x.npy")[task.test.rows.numpy()])
    found = predict(record.path, files / "new.npy")
    hits = np.array(found.classes) == np.array(task.class_names)[task.test.y.numpy()]
    assert hits.mean() == pytest.approx(record.metrics["test"]["accuracy"])


def test_fit_takes_mapped_half_precision(files: Path) -> None:
    x, y = np.load(files / "x.npy", mmap_mode="r"), np.load(files / "y.npy")
    recipe = evenhand.Recipe(epochs=3, batch_size=64)
    result = evenhand.fit(lambda: nn.Linear(12, 2), evenhand.Split(x, y), recipe=recipe, device="cpu")
    assert len(result.partition.minority) == len(y)


def test_given_splits_are_kept(files: Path) -> None:
    parts = np.array(["train", "val", "test"])[np.arange(900) % 3]
    np.save(files / "parts.npy", parts)
    task = tasks.load(f"{NPY},splits=parts.npy", files)
    assert (task.val.rows.numpy() % 3 == 1).all() and len(task.val) == 300
    np.save(files / "parts.npy", np.where(parts == "val", "dev", parts))
    with pytest.raises(ValueError, match="splits must be train, val or test, or 0, 1 or 2; got 'dev'"):
        tasks.load(f"{NPY},splits=parts.npy", files)


def test_changed_vectors_change_the_checksum(files: Path) -> None:
    before = tasks.load(NPY, files).checksum
    x = np.load(files / "x.npy")
    x[5, 5] += 1
    np.save(files / "x.npy", x)
    assert tasks.load(NPY, files).checksum != before


def test_the_batch_grows_with_the_data() -> None:
    sizes = {}
    for count in (500, 50_000, 2_000_000):
        task = embeddings.task(np.zeros((count, 1), np.float16), np.arange(count) % 2, digest="x")
        sizes[count] = task.recipe.batch_size
    assert sizes == {500: 8, 50_000: 256, 2_000_000: 8192}


def test_mistakes_are_named(files: Path) -> None:
    np.save(files / "few.npy", np.zeros(9))
    for spec, message in (
        ("embeddings:path=no.npy,labels=y.npy", "there is no .*no.npy"),
        ("embeddings:path=x.npy", "needs labels in a file of their own: labels=labels.npy"),
        (
            "embeddings:path=x.npy,labels=few.npy",
            r"x.npy: labels must hold a number or text for each of 900 samples, got float64 of shape \(9,\)",
        ),
        ("embeddings:path=y.npy,labels=y.npy", r"expected embeddings \(samples, dimensions\) of floats"),
    ):
        with pytest.raises(ValueError, match=message):
            tasks.load(spec, files)
    np.savez(files / "all.npz", embedding=np.zeros((9, 2)), labels=np.zeros(9))
    with pytest.raises(ValueError, match="all.npz has no label; it has embedding, labels"):
        tasks.load("embeddings:path=all.npz", files)
    x = np.load(files / "x.npy")
    x[3, 3] = np.nan
    np.save(files / "x.npy", x)
    with pytest.raises(ValueError, match="must be finite"):
        tasks.load(NPY, files)


def header(shape: str, descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(900 * 4)


HOSTILE: dict[str, object] = {
    "negative": header("(-900, 1), }"),
    "lying": header("(1000000000000, 12), }"),
    "unfinished": header("(900, 12"),
    "code": header("(900, 1), }", "__import__('os')"),
    "structured": header("(900,), }", "[('a', '<f4')]"),
    "beyond Unicode": header("(900,), }", "'<U1'").replace(bytes(3600), b"\xff" * 3600),
    "empty": b"",
    "no file": b"PK\x03\x04",
    "objects": np.array([None] * 900),
    "no dimensions": np.zeros((900, 0)),
    "scalar": np.float32(3),
    "complex": np.zeros((900, 2), complex),
    "bytes": np.array([b"a", b"\xff"] * 450),
    "gaps": np.where(np.arange(900) % 2, 1, np.nan),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("place", ["x", "y", "splits"])
def test_hostile_arrays_are_refused_by_name(files: Path, place: str, case: str) -> None:
    content = HOSTILE[case]
    np.save(files / "splits.npy", np.arange(900) % 3)
    if isinstance(content, bytes):
        (files / f"{place}.npy").write_bytes(content)
    else:
        np.save(files / f"{place}.npy", content, allow_pickle=True)
    with pytest.raises(ValueError, match=r"(x|y|splits)\.npy"):
        tasks.load("embeddings:path=x.npy,labels=y.npy,splits=splits.npy", files)


def test_hostile_archives_are_refused_by_name(files: Path) -> None:
    sound = files / saved(files, "npz").partition("=")[2]
    whole = sound.read_bytes()
    for content in (b"", b"PK\x03\x04", whole[:-50], whole[:300] + b"\xff" + whole[301:]):
        sound.write_bytes(content)
        with pytest.raises(ValueError, match=r"all\.npz should hold embeddings and labels"):
            tasks.load("embeddings:path=all.npz", files)
    with zipfile.ZipFile(sound, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("label.npy", b"x")
        with archive.open("embedding.npy", "w") as bomb:
            [bomb.write(bytes(1 << 20)) for _ in range(1100)]
    with pytest.raises(ValueError, match="it would unpack to 1,153,"):
        tasks.load("embeddings:path=all.npz", files)


def test_hostile_parquet_is_refused_by_name(files: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file, labels = files / "a.parquet", pa.array(["a", "b"] * 30)
    broken = [None, pa.array([b"\xff", b"a"] * 30).buffers()[1], pa.array([b"\xff", b"a"] * 30).buffers()[2]]
    for vectors, names in (
        (pa.array([[1.0] * (1 + 2 * (row % 2)) for row in range(60)]), labels),  # 120 numbers in 60 rows
        (pa.array([None, *[[1.0, 2.0]] * 59]), labels),
        (pa.array([[None, 1.0]] * 60), labels),
        (pa.array([1.0] * 60), labels),
        (pa.array(["a"] * 60), labels),
        (pa.array([["a"]] * 60), labels),
        (pa.array([{"a": 1.0}] * 60), labels),
        (pa.array([[]] * 60, pa.list_(pa.float32())), labels),
        (pa.array([[1.0]] * 60), pa.array([None, *["a", "b"] * 29, "a"])),
        (pa.array([[1.0]] * 60), pa.array([["a"], ["b"]] * 30)),
        (pa.array([[1.0]] * 60), pa.Array.from_buffers(pa.utf8(), 60, broken)),
    ):
        parquet.write_table(pa.table({"embedding": vectors, "label": names}), file)
        with pytest.raises(ValueError, match=r"a\.parquet"):
            tasks.load("embeddings:path=a.parquet", files)
    sound = saved(files, "parquet")
    whole = (files / "all.parquet").read_bytes()
    for content in (b"", b"PAR1xxxxPAR1", whole[:-20], whole[:-400] + b"\xff" * 300 + whole[-100:]):
        (files / "all.parquet").write_bytes(content)
        with pytest.raises(ValueError, match=r"all\.parquet"):
            tasks.load(sound, files)


def test_the_cache_is_keyed_by_content_and_verified(files: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    spec = saved(files, "parquet")
    first, stamp = tasks.load(spec, files), (files / "all.parquet").stat()
    np.save(files / "x.npy", -np.load(files / "x.npy"))
    saved(files, "parquet")  # of the same name and size; now of the same time, too
    os.utime(files / "all.parquet", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    second = tasks.load(spec, files)
    assert first.checksum != second.checksum and torch.equal(first.train.x, -second.train.x)
    for cached in (tmp_path / "cache").rglob("vectors.npy"):
        content = bytearray(cached.read_bytes())
        content[-70] ^= 1
        cached.write_bytes(content)
    with pytest.warns(UserWarning, match=r"vectors\.npy is not as it was written"):
        assert torch.equal(tasks.load(spec, files).train.x, second.train.x)


def test_statistics_lose_no_digits_far_from_zero() -> None:
    x = np.random.default_rng(0).normal(1e4, 1e-2, (1000, 3))
    chosen = np.arange(1000) % 3 > 0
    mean, std = embeddings._statistics(x, chosen)
    rows = x[chosen]
    assert np.allclose(mean, rows.mean(0), rtol=1e-12) and np.allclose(std, rows.std(0), rtol=1e-6)


def test_an_audit_knows_what_lies_beside_the_vectors(files: Path) -> None:
    (files / "names.txt").write_text("".join(f"sample {row}\n" for row in range(900)))
    np.save(files / "words.npy", np.array([f"text of {row}" for row in range(900)]))
    data = tasks.listing(f"{NPY},ids=names.txt,texts=words.npy", files)
    assert data.kind == "text" and data.ids[7] == "sample 7" and data.texts[899] == "text of 899"
    task = tasks.load(f"{NPY},ids=names.txt,texts=words.npy", files)
    assert np.array_equal(data.rows(0), task.train.rows) and np.array_equal(data.y[data.rows(2)], task.test.y)
    plain = tasks.listing(NPY, files)
    assert plain.kind == "embeddings" and plain.ids[:2] == ["0", "1"]


def test_labels_may_be_lines_of_a_text_file(files: Path) -> None:
    (files / "y.txt").write_text("".join(f"{label}\n" for label in np.load(files / "y.npy")))
    spec = "embeddings:path=x.npy,labels=y.txt,groups=site.npy"
    assert tasks.load(spec, files).checksum == tasks.load(NPY, files).checksum
