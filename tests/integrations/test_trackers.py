"""Trackers, each read back with its own library."""

import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from shortcut import shortcut_task

import evenhand
from evenhand.integrations.trackers import track
from evenhand.report.worst import summary
from evenhand.training.record import Record


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    recipe = evenhand.Recipe(model="linear", epochs=3, batch_size=64)
    runs = tmp_path_factory.mktemp("runs")
    return evenhand.execute(shortcut_task(), "tab", recipe=recipe, runs=runs, device="cpu")


def test_the_scores_name_the_worst_class_and_pseudo_group(record: Record) -> None:
    found = summary(record)
    assert {"accuracy", "worst_class", "worst_pseudo_group"} <= found.keys()
    assert found["worst_pseudo_group"] <= found["accuracy"] + 0.2


def test_tensorboard_reads_curves_scores_tables_and_finds_the_page(record: Record, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs evenhand[trackers]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    track(record, "tensorboard", place=tmp_path)
    [folder] = tmp_path.iterdir()
    events = EventAccumulator(str(folder)).Reload()
    assert [event.value for event in events.Scalars("model/loss")] == pytest.approx(
        [row["loss"] for row in record.epochs("model")]
    )
    assert [event.step for event in events.Scalars("erm/accuracy")] == [1, 2, 3]
    for name, value in summary(record).items():
        assert events.Scalars(f"scores/{name}")[0].value == pytest.approx(value)
    assert "worst/text_summary" in events.Tags()["tensors"]
    assert (folder / "report.html").stat().st_size > 10_000


def test_mlflow_reads_curves_scores_tables_and_the_page(record: Record, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs evenhand[trackers]")
    for _ in range(2):
        track(record, "mlflow", place=tmp_path / "store", project="mine")
    client = mlflow.MlflowClient((tmp_path / "store").as_uri())
    experiment = client.get_experiment_by_name("mine").experiment_id
    run, again = client.search_runs([experiment])
    assert run.info.status == again.info.status == "FINISHED" and run.data.params["method"] == "tab"
    losses = client.get_metric_history(run.info.run_id, "model/loss")
    assert {each.step: each.value for each in losses} == {
        row["epoch"]: row["loss"] for row in record.epochs("model")
    }
    assert run.data.metrics["worst_class"] == summary(record)["worst_class"]
    assert {each.path for each in client.list_artifacts(run.info.run_id)} == {"report.html", "worst.json"}
    table = json.loads(Path(client.download_artifacts(run.info.run_id, "worst.json")).read_text())
    assert [row[0] for row in table["data"]][:3] == ["all", "worst class", "worst pseudo-group"]


def log_records(content: bytes) -> Iterator[bytes]:
    """The records of W&B's file: LevelDB's log format after a header of seven bytes."""
    position, record = 7, b""
    while position + 7 <= len(content):
        rest = 32768 - position % 32768
        if rest < 7:  # blocks end with padding
            position += rest
            continue
        size, kind = struct.unpack("<HB", content[position + 4 : position + 7])
        record += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a whole record, or the end of one
            yield record
            record = b""


def test_wandb_keeps_curves_scores_tables_and_the_page_offline(record: Record, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs evenhand[trackers]")
    from wandb.proto import wandb_internal_pb2

    track(record, "wandb", place=tmp_path)
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    history, final, kinds = [], {}, set()
    end = time.monotonic() + 60
    while file.stat().st_size < 1000 and time.monotonic() < end:  # a process of W&B's own writes it
        time.sleep(0.2)
    for data in log_records(file.read_bytes()):
        entry = wandb_internal_pb2.Record()
        entry.ParseFromString(data)
        kinds.add(entry.WhichOneof("record_type"))
        history.append({"/".join(i.nested_key) or i.key: i.value_json for i in entry.history.item})
        final |= {i.key: i.value_json for i in entry.summary.update}
    losses = [float(row["model/loss"]) for row in history if "model/loss" in row]
    assert losses == pytest.approx([row["loss"] for row in record.epochs("model")])
    assert float(final["worst_class"]) == pytest.approx(summary(record)["worst_class"])
    assert "artifact" in kinds
    assert list(tmp_path.rglob("*worst*.table.json"))


def test_an_unknown_or_missing_tracker_is_explained(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="to must be one of tensorboard, wandb, mlflow, got 'paper'"):
        track(record, "paper")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"needs wandb: pip install 'evenhand\[trackers\]'"):
        track(record, "wandb")
