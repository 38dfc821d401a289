"""Records packed into one file, read like a folder, and put back so that a bench goes on."""

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from inline import bench, metrics, run_inline

from evenhand.bench import pack as records
from evenhand.core.partition import Partition
from evenhand.training.record import Record

METHODS = ["erm", "tab", "masktune"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, mine_folder: Path) -> Path:
    """The runs of a finished bench; read only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(mine_folder))
        runs = tmp_path_factory.mktemp("made")
        run_inline(bench(runs, methods=METHODS, seeds=[0]))
    return runs


def packed(made: Path, out: Path) -> Path:
    records.pack(records.load(made), out)
    return out


def test_packed_records_are_those_of_the_folder(made: Path, tmp_path: Path) -> None:
    file = packed(made, tmp_path / "records.zip")
    loaded, original = records.load(file), records.load(made)
    assert [one.path.parts[-3:] for one in loaded] == [one.path.parts[-3:] for one in original]
    for one, other in zip(loaded, original, strict=True):
        assert one.metrics == other.metrics and one.config == other.config and one.timing == other.timing
        for stage in one.config["stages"]:
            assert one.epochs(stage) == other.epochs(stage)
        with np.load(one.path / "predictions.npz") as few, np.load(other.path / "predictions.npz") as all_:
            assert sorted(few.files) == ["test", "val"]
            assert all(np.array_equal(few[name], all_[name]) for name in few.files)
    (tab,) = [one for one in loaded if one.method == "tab"]
    (same,) = [one for one in original if one.method == "tab"]
    few, full = (Partition.load(one.path / "val_partition.npz") for one in (tab, same))
    assert np.array_equal(few.minority, full.minority) and np.array_equal(few.labels, full.labels)
    assert (tab.path / "dynamics.json").read_bytes() == (same.path / "dynamics.json").read_bytes()


def test_packing_leaves_out_what_is_heavy_and_gives_the_same_bytes_each_time(
    made: Path, tmp_path: Path
) -> None:
    file = packed(made, tmp_path / "records.zip")
    with zipfile.ZipFile(file) as zipped:
        names = {name.rpartition("/")[2] for name in zipped.namelist()}
    assert names == {
        "config.json",
        "metrics.json",
        "timing.json",
        "predictions.npz",
        "val_partition.npz",
        "dynamics.json",
        "epochs.jsonl",
        "checksums.json",
    }
    again = packed(made, tmp_path / "again.zip")
    assert again.read_bytes() == file.read_bytes()
    records.pack(reversed(records.load(file)), tmp_path / "repacked.zip")
    assert (tmp_path / "repacked.zip").read_bytes() == file.read_bytes()


def test_the_same_run_in_two_sources_counts_once(made: Path, tmp_path: Path) -> None:
    file = packed(made, tmp_path / "records.zip")
    both = records.load(made, file)
    assert len(both) == len(records.load(made)) and all(one.path.is_relative_to(made) for one in both)


def test_an_unpacked_bench_goes_on_to_the_same_results(made: Path, tmp_path: Path) -> None:
    file, runs = packed(made, tmp_path / "records.zip"), tmp_path / "runs"
    assert records.unpack(file, runs) == (len(METHODS) + 2, 0)
    assert bench(runs, methods=METHODS, seeds=[0]).left() == 0
    for path in runs.glob("*/masktune/*/metrics.json"):  # needs ERM's weights, which were left out
        path.unlink()
    again = bench(runs, methods=METHODS, seeds=[0])
    assert len(run_inline(again)) == 2 and not again.failures()
    assert metrics(runs) == metrics(made)


def test_going_on_leaves_the_curves_that_finished_runs_refer_to(made: Path, tmp_path: Path) -> None:
    """JTT asks for one epoch of ERM's training, whose weights were left out, so it is begun again."""
    file, runs = packed(made, tmp_path / "records.zip"), tmp_path / "runs"
    records.unpack(file, runs)
    before = {record.path: record.epochs("erm") for record in records.load(runs) if record.method == "erm"}
    assert before and all(len(rows) > 1 for rows in before.values()), "the test needs longer curves"
    again = bench(runs, methods=["erm", "jtt:identifier_epochs=1,upweight=2"], seeds=[0])
    assert run_inline(again) and not again.failures()
    for path, rows in before.items():
        assert Record(path).epochs("erm") == rows


def test_unpacking_keeps_what_is_there(made: Path, tmp_path: Path) -> None:
    file, runs = packed(made, tmp_path / "records.zip"), tmp_path / "runs"
    shutil.copytree(made, runs)
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file() and path.name != "claim"}
    assert records.unpack(file, runs) == (0, len(METHODS) + 2)
    removed = next(runs.glob("*/tab/*/metrics.json"))
    removed.unlink()
    assert records.unpack(file, runs) == (1, len(METHODS) + 1)
    assert removed.read_bytes() == before[removed]
    for path in runs.glob("*/stages/*/*"):
        assert path.name == "claim" or path.read_bytes() == before[path]


def test_failures_are_packed_beside_the_records(made: Path, tmp_path: Path) -> None:
    failure = tmp_path / "runs" / "mine.tiny" / "lff" / "0123456789ab-s0" / "failure.json"
    failure.parent.mkdir(parents=True)
    failure.write_text("{}")
    records.pack(records.load(made), tmp_path / "records.zip", failures=[failure])
    with zipfile.ZipFile(tmp_path / "records.zip") as zipped:
        assert zipped.read("mine.tiny/lff/0123456789ab-s0/failure.json") == b"{}"


def test_hostile_and_damaged_files_are_refused(made: Path, tmp_path: Path) -> None:
    file = packed(made, tmp_path / "records.zip")
    escaping = tmp_path / "escaping.zip"
    with zipfile.ZipFile(escaping, "w") as zipped:
        zipped.writestr("../../outside/metrics.json", "{}")
    with pytest.raises(ValueError, match="holds an unsafe entry"):
        records.load(escaping)
    data = file.read_bytes()
    for number, damaged in enumerate((data[:-400], data[: len(data) // 2], b"", _scratched(data))):
        path = tmp_path / f"damaged{number}.zip"
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            records.load(path)
    with pytest.raises(ValueError, match="holds no finished run"):
        (tmp_path / "empty").mkdir()
        records.load(tmp_path / "empty")
    with pytest.raises(ValueError, match="does not exist"):
        records.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="must be a .zip file written by `evenhand pack`"):
        records.unpack(made, tmp_path / "runs")


def _scratched(data: bytes) -> bytes:
    changed = bytearray(data)
    for position in range(100, len(data) // 2, 50):
        changed[position] ^= 0xFF
    return bytes(changed)


def test_a_record_that_names_a_folder_outside_is_refused(made: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(made, runs)
    config = next(runs.glob("*/tab/*/config.json"))
    folder = Record(config.parent).config["stages"]["erm"]["folder"]
    config.write_text(config.read_text().replace(folder, "../../../outside"))
    (config.parent / "checksums.json").unlink()  # which would show that somebody has changed it
    with pytest.raises(ValueError, match="names an unsafe folder"):
        records.pack(records.load(runs), tmp_path / "records.zip")
