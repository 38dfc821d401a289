"""The command line as a script or a person uses it."""

import dataclasses
import errno
import importlib
import json
import linecache
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import evenhand as package
from evenhand import cli, tasks
from evenhand.bench.grid import FIGURES
from evenhand.bench.results import CRITERIA
from evenhand.cli.common import OWN, app
from evenhand.report.render import FORMATS
from evenhand.report.tables import NAMES


def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one call."""
    monkeypatch.setattr(sys, "argv", ["evenhand", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.fixture
def evenhand(capsys, monkeypatch):
    return lambda *words: call(capsys, monkeypatch, *words)


def help_text(*words: str) -> str:
    """What a terminal of 100 columns shows; a process of its own, so that nothing is imported before."""
    code = (
        f"import sys; sys.argv = ['evenhand', *{words!r}]\nfrom evenhand import cli\n"
        "try: cli.main()\nfinally: print('torch' in sys.modules)"
    )
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    shown, _, loaded = answer.stdout.strip().rpartition("\n")
    assert loaded == "False", "help must not import torch"
    return shown


def test_help_groups_every_command_and_loads_no_torch() -> None:
    shown = help_text("-h")
    assert shown == help_text("--help")
    panels = dict(re.findall(r"╭─ ([^─]+) ─+╮\n(.*?)╰", shown, re.S))
    listed = {title: re.findall(r"^│ (\w+)  ", rows, re.M) for title, rows in panels.items()}
    registered = [
        each.name or each.callback.__name__ for each in (*app.registered_commands, *app.registered_groups)
    ]
    assert sorted(name for names in listed.values() for name in names) == sorted(registered)
    assert list(listed) == ["Options", "Start here", "Train and compare", "Read results", OWN]
    assert "demo" in listed["Start here"] and "report" in listed["Read results"]


def test_summaries_take_one_line_of_a_terminal() -> None:
    rows = re.findall(r"^│ (.*)│$", help_text("-h"), re.M)
    assert len(rows) > 12 and all(re.match(r"(--)?\w", row) for row in rows), "a summary is wrapped"
    assert "…" not in "".join(rows)


@pytest.mark.parametrize("columns", [80, 100])
def test_no_help_is_cut_off_and_no_word_is_broken(columns: int) -> None:
    commands = {(): typer.main.get_command(app)}
    for words, command in list(commands.items()):
        commands |= {(*words, name): each for name, each in command.commands.items()}
    commands |= {("data", name): each for name, each in commands["data",].commands.items()}
    assert len(commands) > 15
    for words, command in commands.items():
        answer = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": str(columns), "TERM": "dumb"})
        shown = re.sub(r"[\s│╭╮╰╯─]+", " ", answer.stdout)
        texts = [command.help, *(getattr(parameter, "help", None) for parameter in command.params)]
        wanted = " ".join(filter(None, texts)).replace("`", "").split()
        assert wanted and not [word for word in wanted if word not in shown], words


def test_the_version_is_shown(evenhand) -> None:
    assert evenhand("--version") == (0, f"evenhand {package.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "choices"),
    [(("run", "digits", "tab", "--precision", "fp8"), ("auto", "fp32", "bf16")),
     (("bench", "digits", "--engine", "slurm"), ("local", "ray")),
     (("bench", "digits", "--figure", "mona_lisa"), tuple(FIGURES)),
     (("figure", "mona_lisa"), tuple(FIGURES)),
     (("table", "3"), NAMES),
     (("table", "1", "--by", "luck"), CRITERIA),
     (("table", "1", "--format", "xls"), tuple(FORMATS)),
     (("predict", "run", "in.npy", "--model", "best"), ("baseline", "balanced"))],
)  # fmt: skip
def test_a_value_that_is_no_choice_is_refused_with_the_choices(evenhand, words, choices) -> None:
    code, out, err = evenhand(*words)
    assert code == 2 and not out and all(choice in err for choice in choices)
    assert all(choice in help_text(words[0], "--help") for choice in choices)


def test_the_demo_trains_erm_and_even_and_writes_a_page(evenhand, monkeypatch, tmp_path: Path) -> None:
    load, task = tasks.load, tasks.load("digits_even_odd:limit=120")
    small = dataclasses.replace(task, recipe=task.recipe.replace(epochs=3))
    monkeypatch.setattr(
        tasks, "load", lambda name, *rest: small if name == "digits_even_odd" else load(name, *rest)
    )
    code, out, _ = evenhand("demo", "--out", tmp_path / "demo", "--json", "--quiet")
    assert code == 0
    assert [result["method"] for result in json.loads(out)["results"]] == ["erm", "evenhand"]
    assert (tmp_path / "demo" / "report.html").stat().st_size > 5000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--minutes", "nan"), "--minutes must be 0 or more, got nan"),
        (("--minutes", "-1"), "--minutes must be 0 or more, got -1"),
        (("--methods", ""), "methods must be names with commas between, such as erm,tab, got ''"),
        (("--seeds", "99999999999999999999"), "--seeds must be integers below 2**32"),
        (("--address", "localhost:1"), "--address needs --engine ray; give both, or omit --address"),
        (("--runs", "a_file"), "--runs must be a folder, got the file 'a_file'; name another place"),
        (("--runs", "a_file/runs"), "a_file on the way to a_file/runs is a file; name another place"),
    ],
)
def test_a_bench_refuses_rubbish_before_it_begins(
    evenhand, monkeypatch, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a_file").write_text("")
    code, out, err = evenhand("bench", "digits", "--limit", 60, "--epochs", 1, *words)
    assert code == 2 and message in " ".join(err.split()) and not out
    assert [path.name for path in tmp_path.iterdir()] == ["a_file"]


def test_a_bench_under_torchrun_is_refused(evenhand, monkeypatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "here"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    code, _, err = evenhand("bench", "digits", "--dry-run")
    assert code == 2 and "run it without torchrun" in " ".join(err.split())


def test_tasks_and_methods_have_one_line_each(evenhand) -> None:
    for command, name in (("tasks", "digits_even_odd"), ("methods", "tab")):
        code, out, _ = evenhand(command)
        assert code == 0 and re.search(rf"^{name} +\S", out, re.M)
        assert all(len(line.split(maxsplit=1)) == 2 for line in out.splitlines())
        code, out, _ = evenhand(command, "--json")
        assert code == 0 and json.loads(out)[name]


def test_a_run_prints_figures_between_0_and_1_and_a_second_call_returns_them(
    evenhand, tmp_path: Path
) -> None:
    words = (
        "run",
        "digits_even_odd",
        "tab",
        "lr=2e-3",
        "--epochs",
        2,
        "--limit",
        120,
        "--runs",
        tmp_path,
        "--json",
    )
    code, out, err = evenhand(*words)
    assert code == 0 and "erm" in err
    (row,) = json.loads(out)["results"]
    assert row["method"] == "tab" and row["seed"] == 0
    for name in ("wga", "accuracy_weighted", "accuracy_balanced", "identified", "purity", "share"):
        assert 0 <= row[name] <= 1, name
    code, again, err = evenhand(*words)
    assert json.loads(again)["results"][0] == row and err == ""


def test_report_makes_a_page_of_runs(evenhand, tmp_path: Path) -> None:
    runs, page = tmp_path / "runs", tmp_path / "page.html"
    for method in ("erm", "tab"):
        evenhand("run", "digits_even_odd", method, "--epochs", 2, "--limit", 120, "--runs", runs)
    code, out, _ = evenhand("report", "--runs", runs, "-o", page)
    assert code == 0 and str(page) in out
    assert "<html" in page.read_text() and page.stat().st_size < 5_000_000


def test_a_run_without_conflicting_samples_can_be_reported(evenhand, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    evenhand("run", "digits_even_odd:p=1.0", "tab", "--epochs", 1, "--limit", 60, "--runs", runs)
    code, _, err = evenhand("report", "--runs", runs, "-o", tmp_path / "page.html")
    assert code == 0, err
    code, _, err = evenhand("report", "--runs", runs, "-o", tmp_path)
    assert code == 2 and "--out must be a file to write, got the folder" in err
    code, _, err = evenhand("report", runs)
    assert code == 2 and f"for a folder of runs use --runs {runs}" in err


def test_divergence_is_a_sentence(evenhand, tmp_path: Path) -> None:
    code, _, err = evenhand("run", "digits", "lff", "lr=1e30", "--limit", 60, "--runs", tmp_path, "--quiet")
    assert code == 2 and "lower the learning rate (now 1e+30)" in err and "Traceback" not in err


def test_a_file_in_place_of_the_runs_folder_is_refused(evenhand, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = evenhand("run", "digits", "erm", "--runs", tmp_path / "file")
    assert code == 2 and "runs must be a folder, got the file" in err


def test_own_modules_are_read_again_and_their_errors_are_said(evenhand, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "edited").mkdir()
    method = tmp_path / "edited" / "method.py"
    words = (
        "run",
        "digits",
        "edited.method",
        "--limit",
        60,
        "--epochs",
        1,
        "--runs",
        tmp_path / "runs",
        "--json",
    )
    paths = []
    for text in ("", "# edited\n"):
        method.write_text(text + "def train(run):\n    return run.fit('erm').model\n")
        for name in [name for name in sys.modules if name.startswith("edited")]:
            del sys.modules[name]
        linecache.clearcache()
        importlib.invalidate_caches()
        paths.append(json.loads(evenhand(*words)[1])["results"][0]["path"])
    assert paths[0] != paths[1]
    (tmp_path / "edited" / "broken.py").write_text("1 / 0\n")
    code, _, err = evenhand("run", "digits", "edited.broken")
    assert code == 2 and "ZeroDivisionError: division by zero" in err and "broken.py, line 1" in err


@pytest.mark.parametrize(
    "words, message",
    [
        (("run", "nothing", "tab"), "unknown task 'nothing'; known tasks are .*digits"),
        (("run", "digits", "nothing"), "unknown method 'nothing'; known methods are .*tab"),
        (("run", "digits:q=1", "tab"), "has no option 'q'; it has p"),
        (("run", "digits:p=2", "tab"), "p must be a share between 0 and 1, got 2"),
        (("run", "digits", "tab", "lr"), "expected name=value, got 'lr'"),
        (("run", "digits", "tab", "speed=1"), "has no setting 'speed'"),
        (("run", "digits", "tab", "lr=-1"), "lr must be positive, got -1"),
        (("run", "digits", "tab", "lr=fast"), "lr must be a number, got 'fast'"),
        (
            ("run", "digits", "jtt", "appended=maybe"),
            "appended of method 'jtt' must be true or false, got 'maybe'",
        ),
        (
            ("run", "digits", "jtt", "identifier_epochs=1.5"),
            "identifier_epochs of method 'jtt' must be a whole number",
        ),
        (("run", "digits", "lff", "q=abc"), "q of method 'lff' must be a number, got 'abc'"),
        (
            ("run", "digits", "jtt", "upweight=some"),
            "upweight of method 'jtt' must be a whole number or 'ratio', got 'some'",
        ),
        (("run", "digits", "tab", "epochs=2", "--epochs", 3), "epochs is given twice"),
        (("run", "digits", "tab", "--epochs", 0), "epochs must be at least 1, got 0"),
        (
            ("run", "digits", "tab", "--device", "cuda:7"),
            r"device cuda:7 was asked for, but torch sees (no|\d) GPU here",
        ),
        (("run", "digits", "tab", "--device", "quantum"), "device must be auto, cpu, cuda, cuda:N or mps"),
        (
            ("report", "--runs", "not-there"),
            "not-there must be a folder of runs .* but it does not exist; make a",
        ),
        (("table", "1", "--runs", "no.zip"), "no.zip must be .* a packed .zip file, but it does not exist"),
        (
            ("table", "1", "-o", "t.xlsx"),
            r"--out must end with .md, .csv, .tex, .json, .html, got 't.xlsx'",
        ),
        (("table", "1", "-o", "."), "--out must be a file to write, got the folder .; try table.md"),
        (("table", "1", "-o", ".", "--format", "csv"), "--out must be a file to write, got the folder ."),
        (("report", "-o", "page.pdf"), "--out must end with .html or .htm, got 'page.pdf'"),
        (("pack", "-o", "p.tar"), "a packed file must end with .zip, got 'p.tar'; try p.zip"),
        (
            ("run", "digits", "erm", "--runs", "/proc/no"),
            r"/proc cannot be written to \(.*\); name another place",
        ),
        (("report", "not-there"), "not-there must be the folder of a finished run"),
    ],
)
def test_what_a_user_can_mend_is_said_in_a_line_with_exit_code_2(
    evenhand, tmp_path, monkeypatch, words, message
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = evenhand(*words)
    assert code == 2 and out == ""
    assert re.search(message, err), err
    assert "Traceback" not in err and len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir()), "nothing half-written is left"


def test_a_full_disk_is_said_with_what_to_do(evenhand, tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("evenhand.training.store.os.fsync", full)
    code, _, err = evenhand("run", "digits", "erm", "--epochs", 1, "--limit", 40, "-q", "--runs", tmp_path)
    assert code == 2 and "No space left on device; free some space, then repeat the command to resume" in err
