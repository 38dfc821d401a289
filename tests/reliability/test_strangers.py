"""What anybody may hand you is data: hostile and old records, closed streams, long errors, other platforms."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS))

import made_bench  # noqa: E402

from evenhand import cli  # noqa: E402
from evenhand.audit import text_model  # noqa: E402
from evenhand.bench import pack as records  # noqa: E402
from evenhand.bench import results  # noqa: E402
from evenhand.core import ranks  # noqa: E402
from evenhand.report import tables  # noqa: E402
from evenhand.report.page import build  # noqa: E402
from evenhand.training import plugins, store  # noqa: E402
from evenhand.training.record import Record  # noqa: E402


def nested(content: Any, *keys: str | int) -> tuple[Any, str | int]:
    """The part of a content that the last of the keys is in, and that key."""
    for key in keys[:-1]:
        content = content[key]
    return content, keys[-1]


STAGE = ("stages", "erm", "train", "aligned")
HOSTILE: dict[str, tuple[str, Callable[[Any], object]]] = {
    "dynamics without stages": ("dynamics.json", lambda c: c.pop("stages")),
    "dynamics without clusters": ("dynamics.json", lambda c: c.pop("clusters")),
    "dynamics as a list": ("dynamics.json", lambda c: [c]),
    "clusters without sizes": ("dynamics.json", lambda c: c["clusters"][0].pop("size")),
    "clusters as numbers": ("dynamics.json", lambda c: {**c, "clusters": [1, 2]}),
    "a curve of texts": ("dynamics.json", lambda c: nested(c, *STAGE)[0]["aligned"].update(loss=["x"])),
    "a curve beyond floats": ("dynamics.json", lambda c: nested(c, *STAGE)[0]["aligned"].update(loss=[10**400])),
    "a curve of NaN": ("dynamics.json", lambda c: nested(c, *STAGE)[0]["aligned"].update(loss=[float("nan")])),
    "a huge setting": ("config.json", lambda c: c["hyperparameters"].update(upweight=10**400)),
    "an infinite setting": ("config.json", lambda c: c["full_recipe"].update(lr=float("inf"))),
    "a huge time": ("timing.json", lambda c: c.update(seconds=10**400)),
    "an infinite score": ("metrics.json", lambda c: c["val"].update(accuracy=float("inf"))),
    "a huge count": ("metrics.json", lambda c: c["test"]["groups"][0].update(count=10**400)),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_record_without_checksums_is_refused_in_a_sentence(case: str, tmp_path: Path) -> None:
    """Everything that tables and pages read: a number that is none, or is missing, is Damaged."""
    name, change = HOSTILE[case]
    path = made_bench.write(tmp_path / "runs", "tab", pseudo=True, dynamics=made_bench.curves(4)).path
    content = json.loads((path / name).read_text())
    changed = change(content)
    (path / name).write_text(
        json.dumps(changed if case in ("dynamics as a list", "clusters as numbers") else content)
    )
    record = Record(path)
    with pytest.raises(store.Damaged, match=name):
        _ = record.config, record.metrics, record.timing, record.dynamics


def test_a_sound_record_passes_the_same_door(tmp_path: Path) -> None:
    record = made_bench.write(tmp_path / "runs", "tab", pseudo=True, dynamics=made_bench.curves(4))
    assert record.config and record.metrics and record.timing and record.dynamics


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "NaN", "[Infinity]", "1e999", f"[{10**400}]", f"-{2**64}", "", "\xff"]
)
def test_json_holds_finite_numbers_of_a_sensible_depth(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(store.Damaged, match=r"a\.json should hold JSON") as caught:
        store.read_json(tmp_path / "a.json")
    assert len(str(caught.value)) < 500
    assert store.parse_json("[1, -2.5, 18446744073709551615]", "it") == [1, -2.5, 2**64 - 1]


def test_a_record_that_names_a_module_without_the_function_is_of_an_unknown_method() -> None:
    assert plugins.known("evenhand.methods", "os.path", "train") is None


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": [1]}', '{"weight_map": {"a": "../b.safetensors"}}', "[" * 200_000])  # fmt: skip
def test_a_hub_folder_whose_index_names_no_weights_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match="index|expected weights in .*, got"):
        text_model._check(tmp_path)


# -- records without checksums ----------------------------------------------------------------------------


def test_unsealed_records_are_marked_in_tables_and_pages(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for method in ("erm", "tab"):
        path = made_bench.write(runs, method, task="t").path
        content = {each.name: each.read_bytes() for each in path.iterdir()}
        store.write_manifest(path, content)
    build(records.load(runs), tmp_path / "sealed.html", load_task=lambda _: None)
    sealed = [tables.make(name, results.frame(records.load(runs))) for name in ("1", "compare")]
    assert "Unsealed" not in (tmp_path / "sealed.html").read_text() + str(sealed)
    (path / "checksums.json").unlink()
    build(records.load(runs), tmp_path / "page.html", load_task=lambda _: None)
    assert "Unsealed: these records have no checksums" in (tmp_path / "page.html").read_text()
    for name in ("1", "compare"):
        notes = tables.make(name, results.frame(records.load(runs))).notes
        assert any(note.startswith("Unsealed: 1 of 2 runs.") for note in notes), notes


def test_a_file_that_a_manifest_does_not_list_is_not_read(tmp_path: Path) -> None:
    record = made_bench.write(tmp_path / "runs", "tab", task="t")
    kept = ("config.json", "metrics.json")
    store.write_manifest(record.path, {name: (record.path / name).read_bytes() for name in kept})
    assert Record(record.path).metrics == record.metrics
    with pytest.raises(store.Damaged, match=r"timing\.json is not in checksums\.json"):
        _ = Record(record.path).timing


def test_a_folder_of_files_is_verified_as_a_whole(tmp_path: Path) -> None:
    content = {"model/config.json": b"{}", "model/w.safetensors": b"weights", "other": b""}
    for name, data in content.items():
        store.write_bytes(tmp_path / name, data)
    store.write_manifest(tmp_path, content)
    files = store.read_manifest(tmp_path, known=None)["files"]
    assert store.verified(tmp_path, "model", files) == tmp_path / "model"
    with pytest.raises(
        store.Damaged, match="checksums.json should hold the checksums of a run, but it names"
    ):
        store.read_manifest(tmp_path)
    (tmp_path / "model/more.py").write_text("")
    with pytest.raises(store.Damaged, match=r"more\.py is not in checksums\.json"):
        store.verified(tmp_path, "model", files)
    (tmp_path / "model/more.py").unlink()
    (tmp_path / "model/config.json").unlink()
    with pytest.raises(store.Damaged, match=r"config\.json should be there, but it is gone"):
        store.verified(tmp_path, "model", files)


# -- terminals and platforms ----------------------------------------------------------------------------


def test_an_error_does_not_echo_megabytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["evenhand", "run", "x" * 3_000_000, "erm"])
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr().err
    assert (
        1000 < len(said) < 3000 and said.startswith("evenhand: unknown task 'xxx") and "known tasks" in said
    )


CLOSED = """
import os, sys
os.close(1)
sys.stdout = None  # as Python does where the descriptor is closed at its start
from evenhand import cli
sys.argv = ["evenhand", *sys.argv[1:]]
try:
    cli.main()
finally:
    with open("first", "w") as file:
        file.write("whole")
        number = file.fileno()
    with open("number", "w") as file:
        file.write(str(number))
"""


@pytest.mark.parametrize("words", [["table", "methods"], ["methods"], ["run", "nope", "erm"]], ids=" ".join)
def test_a_closed_standard_output_gives_no_traceback(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr and done.returncode == (2 if "nope" in words else 0), done.stderr
    assert int((tmp_path / "number").read_text()) > 2, "a file has taken the number of a standard stream"


WITHOUT = """
import sys
sys.modules["fcntl"] = None  # as on Windows
import warnings; warnings.simplefilter("ignore")
from pathlib import Path
import evenhand
from evenhand import tasks
from evenhand.report.page import build
from evenhand.training import store
task = tasks.load("digits_even_odd", limit=40)
made = [evenhand.execute(task, method, {"epochs": 1}, runs="runs", device="cpu") for method in ("erm", "tab")]
build(made, Path("report.html"))
with store.claim(Path("runs")):
    assert store.claimed(Path("runs"))
assert not store.claimed(Path("runs")) and not list(Path("runs").rglob("claim.owner"))
assert "fcntl" not in {name for name, module in sys.modules.items() if module is not None}
"""


def test_the_path_of_the_demo_needs_no_fcntl(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", WITHOUT]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_an_apple_gpu_is_a_device_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch sees no Apple GPU here; use --device cpu"):
        ranks.resolve_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert ranks.resolve_device("mps") == torch.device("mps")
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda, cuda:N or mps, got 'tpu'"):
        ranks.resolve_device("tpu")
