"""What a run says of itself: log.txt, --verbose, warnings, and what the doctor finds."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from shortcut import shortcut_task

import evenhand
from evenhand import cli, tasks
from evenhand.cli import doctor as examined
from evenhand.training import log

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["evenhand", *map(str, words)])
        handlers = list(log._log.handlers)
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            log._log.handlers[:] = handlers
        return code, *capfd.readouterr()

    return call


def lines(path: Path) -> list[str]:
    """The notes without their times."""
    return [line.split(" ", 1)[1] for line in (path / "log.txt").read_text().splitlines()]


def test_a_run_keeps_a_log_of_its_stages(tmp_path: Path) -> None:
    record = evenhand.execute(shortcut_task(), "tab", runs=tmp_path, device="cpu")
    said = lines(record.path)
    assert said[0].startswith("begin: tiny tab seed 0 on cpu; evenhand ")
    assert said[1].startswith("settings: {'epochs': 4")
    assert [line.split(":")[0] for line in said[2:]] == ["erm", "erm", "model", "model", "end"]
    assert "erm: begins in" in said[2] and "epochs, " in said[3] and said[-1].startswith("end: finished, ")
    before = (record.path / "log.txt").read_bytes()
    assert len(before) < 2000
    evenhand.execute(shortcut_task(), "tab", runs=tmp_path, device="cpu")  # finished: nothing is done or said
    assert (record.path / "log.txt").read_bytes() == before


def test_what_is_shared_continued_or_damaged_is_noted(tmp_path: Path) -> None:
    evenhand.execute(shortcut_task(), "erm", runs=tmp_path, device="cpu")
    record = evenhand.execute(shortcut_task(), "tab", runs=tmp_path, device="cpu")
    assert any(line.startswith("erm: reused, 4 epochs") for line in lines(record.path))
    (record.path / "metrics.json").unlink()
    snapshot = record.stage("erm") / "train.ckpt"
    snapshot.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="kept as train.ckpt.damaged"):
        evenhand.execute(shortcut_task(), "tab", runs=tmp_path, device="cpu")
    said = lines(record.path)
    assert sum(line.startswith("begin:") for line in said) == 2  # appended, not written anew
    assert any(line.startswith("warning: ") and "train.ckpt.damaged" in line for line in said)


def test_a_failure_is_the_last_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lower the learning rate"):
        evenhand.execute(
            shortcut_task(), "erm", {"lr": 1e30, "optimizer": "sgd"}, runs=tmp_path, device="cpu"
        )
    (kept,) = tmp_path.rglob("log.txt")
    assert "end: TrainingDiverged: erm: the training loss is not finite" in kept.read_text().splitlines()[-1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, tried = Path.open, []

    def full(self: Path, *arguments: Any, **settings: Any) -> Any:
        if self.name != "log.txt":
            return real(self, *arguments, **settings)
        tried.append(self)
        return real(Path("/dev/full"), *arguments, **settings)

    monkeypatch.setattr(Path, "open", full)
    record = evenhand.execute(shortcut_task(), "erm", runs=tmp_path, device="cpu")
    assert record.metrics["test"] and set(tried) == {record.path / "log.txt"}
    monkeypatch.undo()
    assert not (record.path / "log.txt").exists()


def test_verbose_says_what_is_read_reused_and_written(command: Command, tmp_path: Path) -> None:
    words = (
        "run",
        "digits_even_odd",
        "erm",
        "--limit",
        60,
        "--epochs",
        2,
        "-q",
        "--device",
        "cpu",
        "--runs",
        tmp_path,
    )
    code, _, err = command(*words)
    assert code == 0 and err == ""
    code, _, err = command(*words, "-v")
    assert code == 0 and "loaded digits_even_odd:" in err and "reused the finished run" in err
    code, _, err = command("table", "selected", "--runs", tmp_path, "--verbose", "-o", tmp_path / "t.md")
    assert code == 0 and "found 1 finished runs in" in err and "wrote" in err and "t.md" in err


@pytest.mark.parametrize(
    "name", ["demo", "run", "bench", "audit", "partition", "predict", "table", "figure", "report"]
)
def test_every_command_that_computes_can_be_verbose(command: Command, name: str) -> None:
    assert "--verbose" in command(name, "--help")[1]


def test_a_warning_is_one_line_and_comes_once(tmp_path: Path) -> None:
    task, method = "digits_even_odd:limit=60", "erm"
    words = [sys.executable, "-m", "evenhand", "run", task, method, "--epochs", "2", "-q", "--device", "cpu"]
    evenhand.execute(tasks.load(task), method, {"epochs": 2}, runs=tmp_path, device="cpu")
    (metrics,) = tmp_path.rglob("metrics.json")
    metrics.write_text("{")
    done = subprocess.run([*words, "--runs", str(tmp_path)], capture_output=True, text=True, check=True)
    (said,) = done.stderr.splitlines()
    assert said.startswith("evenhand: warning: ") and "kept as metrics.json.damaged-" in said


# -- the doctor --------------------------------------------------------------------------------------


@pytest.fixture
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    for name in ("EVENHAND_DATA", "EVENHAND_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "data").mkdir()
    return tmp_path


def told(checks: list[examined.Check], state: str) -> list[str]:
    return [f"{check.what}: {check.found}; {check.remedy}" for check in checks if check.state == state]


def test_the_doctor_finds_a_healthy_machine_usable_and_writes_nothing(
    command: Command, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = command("doctor", "--data", "data")
    assert code == 0 and "No problems found." in out and "✗" not in out
    for word in ("torch", "CPUs", "of memory free", "runs folder", "digits_even_odd ready, in data"):
        assert word in out
    assert "○  data          none for bar, " in out and "→ evenhand data fetch TASK" in " ".join(out.split())
    assert len(out.splitlines()) <= 24, "one screen"
    assert [path.name for path in healthy.iterdir()] == ["data"]
    code, out, _ = command("doctor", "--json")
    content = json.loads(out)
    assert code == 0 and content["ok"] and "problem" not in {check["state"] for check in content["checks"]}
    assert content["versions"]["evenhand"] == evenhand.__version__ and content["versions"]["numpy"]
    assert any("$EVENHAND_DATA is not set" in check["found"] for check in content["checks"])


def test_the_doctor_says_what_would_go_wrong(
    command: Command, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (healthy / "runs").write_text("in the way")
    monkeypatch.setenv("EVENHAND_WEIGHTS", "nowhere")
    code, out, _ = command("doctor", "--data", "absent", "--json")
    problems = told([examined.Check(**check) for check in json.loads(out)["checks"]], "problem")
    assert code == 1 and len(problems) == 3
    assert any("runs folder" in line and "is a file; choose another with --runs" in line for line in problems)
    assert any("--data is absent, which is not a folder; create it or set" in line for line in problems)
    assert any("$EVENHAND_WEIGHTS is nowhere, which does not exist; unset or" in line for line in problems)
    code, out, _ = command("doctor", "--data", "absent")
    assert code == 1 and out.count("✗") == 4 and "3 of these would make a command fail (✗)." in out


def test_the_doctor_notices_a_folder_that_cannot_be_written_to(
    healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *given: object, **options: object) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)
    problems = told(examined.examine(), "problem")
    assert any("cache folder" in line and "$EVENHAND_CACHE" in line for line in problems)


@pytest.mark.parametrize(("free", "state"), [(50 << 20, "problem"), (500 << 20, "missing")])
def test_the_doctor_counts_the_disk(
    healthy: Path, monkeypatch: pytest.MonkeyPatch, free: int, state: str
) -> None:
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr(examined.shutil, "disk_usage", lambda path: usage)
    found = told(examined.examine(), state)
    assert any(f"runs folder: only {free / 1e9:.1f} GB free" in line for line in found)


def test_the_doctor_notices_versions_that_do_not_fit(healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, needs = (
        examined._version,
        ["torch>=2.6", "pyarrow>=16 ; extra == 'table'", "torchvision; extra == 'vision'"],
    )
    monkeypatch.setattr(
        examined, "_version", lambda name: {"pyarrow": None, "torch": "2.4.0+cpu"}.get(name, real(name))
    )
    wanted = {"evenhand": needs, "torchvision": ["numpy", "torch==2.15.0"]}
    monkeypatch.setattr(examined.importlib.metadata, "requires", wanted.get)
    found = examined.examine()
    problems = told(found, "problem")
    assert any("is made for torch 2.15.0, but torch 2.4.0+cpu is installed" in line for line in problems)
    optional = told(found, "missing")
    assert any("pyarrow not installed; pip install 'evenhand[table]'" in line for line in optional)
