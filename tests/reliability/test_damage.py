"""Damaged on purpose: a flipped bit, a file cut short, an empty one; each is noticed, named and made again."""

import functools
import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scenarios import run

from evenhand.bench import pack as records
from evenhand.bench import results
from evenhand.report import render, tables
from evenhand.report.page import build
from evenhand.training.record import Record, is_finished
from evenhand.training.store import Damaged

RUN_FILES = (
    "checksums.json",
    "config.json",
    "dynamics.json",
    "metrics.json",
    "model.safetensors",
    "partition.npz",
    "predictions.npz",
    "timing.json",
    "val_partition.npz",
)
STAGE_FILES = ("epochs.jsonl", "hits.npy", "losses.npy", "val_hits.npy", "val_losses.npy")
CHECKPOINTS = ("last.ckpt", "train.ckpt", "val.ckpt")


def _flip(content: bytes, seed: int) -> bytes:
    chosen = random.Random(seed)
    at, changed = chosen.randrange(len(content)), bytearray(content)
    changed[at] ^= 1 << chosen.randrange(8)
    return bytes(changed)


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "flip": lambda content: _flip(content, 0),
    "other flip": lambda content: _flip(content, 1),
    "cut": lambda content: content[: 2 * len(content) // 3],
    "empty": lambda content: b"",
}
harmed = pytest.mark.parametrize("harm", HARMS)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of tab and masktune; nothing is changed here."""
    root = tmp_path_factory.mktemp("base")
    for method in ("tab", "masktune"):
        run(method)(root)
    return root


def content(root: Path) -> dict[str, object]:
    """What must be as it was: files to the byte, histories by their values."""
    found: dict[str, object] = {}
    for path in sorted((root / "runs").rglob("*.*")):
        name = str(path.relative_to(root))
        if path.suffix == ".npy":
            found[name] = np.load(path).tolist()
        elif path.suffix in (".jsonl", ".npz", ".safetensors") or path.name in (
            "config.json",
            "metrics.json",
        ):
            found[name] = path.read_bytes()
    return found


def again(root: Path, *methods: str) -> list[str]:
    """Run the same again; gives the warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for method in methods:
            run(method)(root)
    return [str(one.message) for one in said if "computed again" in str(one.message)]


def damage(base: Path, root: Path, pattern: str, harm: str) -> Path:
    shutil.copytree(base, root)
    (path,) = root.glob(pattern)
    before = path.read_bytes()
    path.write_bytes(HARMS[harm](before))
    assert path.read_bytes() != before
    return path


@harmed
@pytest.mark.parametrize("name", RUN_FILES)
def test_a_damaged_file_of_a_finished_run_is_made_again(
    base: Path, tmp_path: Path, name: str, harm: str
) -> None:
    path = damage(base, tmp_path / "root", f"runs/tiny/tab/*/{name}", harm)
    told = again(tmp_path / "root", "tab")
    # A checksum that is wrong itself accuses the file that it is of, which costs a moment and loses nothing.
    assert told if name == "checksums.json" else str(path) in told[0]
    assert content(tmp_path / "root") == content(base)
    assert again(tmp_path / "root", "tab") == []


def readers(runs: Path, out: Path) -> dict[str, Callable[[], bytes]]:
    """Every table of these runs, and their page."""
    names = ("1", "2", "selected", "cost", "field", "compare")

    def table(name: str) -> bytes:
        return render.write(tables.make(name, results.load(runs)), "csv").encode()

    def page() -> bytes:
        return build(records.load(runs), out, load_task=lambda _: None).read_bytes()

    return {**{name: functools.partial(table, name) for name in names}, "page": page}


@pytest.mark.parametrize("name", [*RUN_FILES, *STAGE_FILES])
def test_a_flipped_bit_changes_no_table_or_page_unnoticed(base: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(base / "runs", tmp_path / "runs")
    reads = readers(tmp_path / "runs", tmp_path / "page.html")
    whole = {reader: read() for reader, read in reads.items()}
    record = Record(next(tmp_path.glob("runs/tiny/tab/*-s0")))
    path = record.path / name if name in RUN_FILES else record.stage("erm") / name
    content, noticed = path.read_bytes(), 0
    for seed in range(4):
        path.write_bytes(_flip(content, seed))
        for reader, read in reads.items():
            try:
                assert read() == whole[reader], f"{reader}, seed {seed}"
            except ValueError as error:
                assert name in str(error) or name == "checksums.json"
                noticed += 1
    unread = ("model.safetensors", "hits.npy", "val_hits.npy", "val_losses.npy", "val_partition.npz")
    assert noticed or name in unread


@harmed
@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("name", STAGE_FILES)
def test_a_damaged_file_of_a_training_is_made_again(
    base: Path, tmp_path: Path, name: str, harm: str, finished: bool
) -> None:
    shutil.copytree(base, tmp_path / "root")
    path = Record(next(tmp_path.glob("root/runs/tiny/tab/*-s0"))).stage("erm") / name
    path.write_bytes(HARMS[harm](path.read_bytes()))
    if not finished:
        for metrics in tmp_path.glob("root/runs/tiny/*/*/metrics.json"):
            metrics.unlink()
    told = again(tmp_path / "root", "tab", "masktune")
    assert any(str(path) in one for one in told)
    assert content(tmp_path / "root") == content(base)


@harmed
@pytest.mark.parametrize("name", [*CHECKPOINTS, "saliency-*.npy"])
def test_damage_to_what_a_run_continues_from_changes_nothing(
    base: Path, tmp_path: Path, name: str, harm: str
) -> None:
    shutil.copytree(base, tmp_path / "root")
    stage = Record(next(tmp_path.glob("root/runs/tiny/tab/*-s0"))).stage("erm")
    (path,) = stage.glob(name)
    path.write_bytes(HARMS[harm](path.read_bytes()))
    for metrics in tmp_path.glob("root/runs/tiny/*/*/metrics.json"):
        metrics.unlink()
    told = again(tmp_path / "root", "tab", "masktune")
    assert any(str(path) in one for one in told) or name == "last.ckpt"  # which a finished training ignores
    assert content(tmp_path / "root") == content(base)


@harmed
def test_a_damaged_packed_file_is_refused_or_does_no_harm(
    base: Path, tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    records.pack(records.load(base / "runs"), tmp_path / "whole.zip")
    whole = {record.method: record.metrics for record in records.load(tmp_path / "whole.zip")}
    noticed = 0
    for seed in range(20):
        file = tmp_path / f"{seed}.zip"
        packed = (tmp_path / "whole.zip").read_bytes()
        file.write_bytes(_flip(packed, seed) if "flip" in harm else HARMS[harm](packed))
        try:
            found = {record.method: (record.metrics, record.config) for record in records.load(file)}
        except ValueError as error:
            assert file.name in str(error) or "checksum" in str(error)
            noticed += 1
        else:
            assert {method: metrics for method, (metrics, _) in found.items()} == whole
    assert noticed > 10


def test_a_record_says_which_file_is_damaged_and_records_without_checksums_are_read(
    base: Path, tmp_path: Path
) -> None:
    path = damage(base, tmp_path / "root", "runs/tiny/tab/*/predictions.npz", "flip")
    with pytest.raises(Damaged, match=r"predictions.npz is not as it was written.*run the same again"):
        _ = Record(path.parent).predictions
    record = Record(next(base.glob("runs/tiny/tab/*-s0")))
    old = tmp_path / "old" / "tiny" / "tab" / record.path.name
    shutil.copytree(record.path, old)
    (old / "checksums.json").unlink()
    assert is_finished(old) and Record(old).metrics == record.metrics


@pytest.mark.parametrize("name", ["/dev/zero", "../../secret", "other.json"])
def test_a_strangers_checksums_open_no_other_file(base: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(base, tmp_path / "root")
    path = next(tmp_path.glob("root/runs/tiny/tab/*-s0"))
    (path / "checksums.json").write_text(json.dumps({"files": {name: "0" * 64}, "stages": {}}))
    assert not is_finished(path)
    with pytest.raises(Damaged, match=r"checksums.json should hold the checksums of a run, but it names"):
        _ = Record(path).metrics
