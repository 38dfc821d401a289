"""Every code block of the README and the site runs, and the site builds without a warning.

Blocks of `python` share one namespace per page. In `console` blocks the lines after `$ ` are run, in the same
folder, and must succeed; the lines below such a line, if any, must be what it prints, `...` standing for anything.
A `text` block is not run; NOT_RUN lists them all, with the reason.
"""

from __future__ import annotations

import contextlib
import doctest
import html
import io
import logging
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {path.stem: path for path in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]}
FENCE = re.compile(r"^([ ]*)(`{3,})([^\n`]*)\n(.*?)^\1\2[ ]*$", re.DOTALL | re.MULTILINE)
DIRECTIVES = ("{toctree}", "{include}", "{literalinclude}", "{eval-rst}")  # Sphinx's, not code
LANGUAGES = ("python", "console", "text")
LINK = re.compile(r"\]\(([^)\s]+)\)")

# (page, beginning) of every block that is not run, and why.
NOT_RUN = {
    ("README", "git clone "): "sets up a machine; .ci/run does it",
    ("README", "digits_even_odd, seed 0: "): "printed by the demo, which .ci/run runs",
    ("README", "evenhand audit photos/ "): "names a reader's data; audit.md has such commands with data",
    ("audit", "Do some samples "): "printed by a command of that page; numbers depend on versions",
    ("index", "pip install "): "installs; .ci/run runs the demo",
    ("benchmark", "evenhand bench digits_even_odd --figure "): "needs minutes, MNIST, CelebA and a GPU",
    ("architecture", "core/ "): "a drawing",
    ("architecture", "tasks.load("): "a drawing",
    ("architecture", "runs/<task>/"): "a drawing",
    ("architecture", "Run.fit "): "a drawing",
}


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    line: int  # of its first line in the page


def blocks(page: str) -> list[Block]:
    source = PAGES[page].read_text()
    found = []
    for match in FENCE.finditer(source):
        language, text = match[3].strip(), textwrap.dedent(match[4])
        found.append(Block(language, text, source[: match.start(4)].count("\n") + 1))
    return [block for block in found if not block.language.startswith(DIRECTIVES)]


def with_code() -> list[str]:
    return [page for page in PAGES if any(block.language in ("python", "console") for block in blocks(page))]


@pytest.fixture(autouse=True)
def _modules_of_pages_are_forgotten(tmp_path: Path) -> Iterator[None]:
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", with_code())
def test_every_block_of_the_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("EVENHAND_DATA", raising=False)
    for name in ("examples", "results"):  # as in a checkout
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.syspath_prepend(str(tmp_path))  # a page may write a module of its own
    namespace: dict[str, object] = {"__name__": f"docs_{page}"}
    for block in blocks(page):
        if block.language == "python":
            code = compile("\n" * (block.line - 1) + block.text, str(PAGES[page]), "exec")
            exec(code, namespace)
        elif block.language == "console":
            for command, expected in commands(block.text):
                run(command, expected, where=f"{PAGES[page].name}, line {block.line}")


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Every command of a console block with the output that is shown, which may be empty.

    >>> list(commands("$ a \\\\\\n  b\\nout\\n$ c\\n"))
    [('a b', 'out\\n'), ('c', '')]
    """
    joined = re.sub(r" *\\\n *", " ", text)
    head, *rest = re.split(r"^\$ ", joined, flags=re.MULTILINE)
    assert not head.strip(), f"a console block must begin with a line after '$ ', got {head!r}"
    for part in rest:
        command, _, expected = part.partition("\n")
        yield command, expected


def run(command: str, expected: str, where: str) -> None:
    code, out, err = evenhand(command) if command.startswith("evenhand ") else shell(command)
    assert code == 0, f"{where}: {command} ended with {code}\n{out}{err}"
    same = doctest.OutputChecker().check_output(
        expected, out, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert same or not expected.strip(), f"{where}: {command} printed\n{out}\nbut the page shows\n{expected}"


def shell(command: str) -> tuple[int, str, str]:
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def evenhand(command: str) -> tuple[int, str, str]:
    """The command line as its own program runs it, but in this process, where torch is loaded already."""
    from evenhand.cli import main

    logger = logging.getLogger("evenhand")
    before = (sys.argv, sys.path[:], logger.handlers, logger.propagate, logger.level)
    out, err, code = io.StringIO(), io.StringIO(), 0
    words = shlex.split(command)
    sys.argv = [
        one for word in words for one in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
    ]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv, sys.path[:], logger.handlers, logger.propagate, logger.level = before
    return code, out.getvalue(), err.getvalue()


def test_what_is_not_run_is_listed() -> None:
    used = []
    for page in PAGES:
        lines = PAGES[page].read_text().splitlines()
        assert not any(line.lstrip().startswith("~~~") for line in lines), f"{page}: fences are of backticks"
        for block in blocks(page):
            where = f"{PAGES[page].name}, line {block.line}"
            assert block.language in LANGUAGES, (
                f"{where}: a block must be {LANGUAGES}, got {block.language!r}"
            )
            if block.language == "text":
                known = [key for key in NOT_RUN if key[0] == page and block.text.startswith(key[1])]
                assert len(known) == 1, f"{where}: NOT_RUN must say why this block is not run, or make it run"
                used += known
    assert sorted(used) == sorted(NOT_RUN)


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in LINK.findall(PAGES["README"].read_text()):
        if not target.startswith(("http", "#")):
            assert (ROOT / target.partition("#")[0]).exists(), f"README.md links to {target}"


def test_the_api_page_has_every_public_name() -> None:
    import evenhand

    text = PAGES["api"].read_text()
    missing = [name for name in evenhand.__all__ if f":: evenhand.{name}\n" not in text]
    assert missing == ["__version__"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("furo", reason="needs evenhand[docs]")
    out = tmp_path_factory.mktemp("site")
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(out / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_the_site_builds_without_a_warning(site: Path) -> None:
    for page in PAGES.keys() - {"README"}:
        assert (site / f"{page}.html").is_file()


def test_the_command_line_page_has_every_command_and_option(site: Path) -> None:
    import typer

    from evenhand.cli import app

    def options(command: Any) -> Iterator[str]:
        for name, each in getattr(command, "commands", {}).items():
            yield f" {name}"
            yield from options(each)
        yield from (option for given in command.params for option in given.opts if option.startswith("--"))

    text = (site / "command_line.html").read_text()
    missing = {each for each in options(typer.main.get_command(app)) if not re.search(rf"{each}\b", text)}
    assert missing == set()


NUMBER = re.compile(r"\d+\.\d ± \d+\.\d")  # a score with its deviation over seeds
MADE = re.compile(r"<!-- made by .*?<!-- end -->", re.DOTALL)


def test_scores_stand_only_in_blocks_that_a_script_makes() -> None:
    pages = ["README", "results", "method", "methods", "fair_comparison", "limits", "index"]
    typed = {page: NUMBER.findall(MADE.sub("", PAGES[page].read_text())) for page in pages}
    assert typed == {page: [] for page in pages}
    assert len(NUMBER.findall(PAGES["results"].read_text())) > 50


def test_the_table_of_heads_is_the_one_that_its_script_prints() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "heads.py"), "--table"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(rows) > 3
    block = PAGES["method"].read_text().partition("<!-- made by benchmarks/heads.py -->\n")[2]
    assert block.partition("\n<!-- end -->")[0].splitlines() == rows


def test_the_methods_page_says_what_every_method_does_and_when_it_helps(site: Path) -> None:
    from evenhand.bench.grid import method_file
    from evenhand.report import catalog

    text = html.unescape(re.sub(r"<[^>]+>", "", (site / "methods.html").read_text()))
    text = " ".join(text.replace("’", "'").split())
    rows = catalog.table_methods().sections[0].rows
    assert len(rows) > 20
    for row in rows:
        declared = method_file(row["method"])
        assert declared is not None and 3 < len(declared.constants.HELPS.split()) < 12
        assert f"{row['method']} {row['what it does']} {declared.constants.HELPS}" in text


def test_the_methods_page_says_who_reads_groups() -> None:
    from evenhand.report import catalog

    rows = catalog.table_methods().sections[0].rows
    readers = {row["method"]: row["needs groups for"] for row in rows if row["needs groups for"] != "nothing"}
    assert readers == {
        "adversarial": "training and selection",
        "gdro": "training and selection",
        "dfr": "validation",
    }
    text = " ".join(PAGES["methods"].read_text().split())
    assert "Only `gdro` and `adversarial` see the groups of training samples, and only `dfr` those of" in text


def test_the_methods_page_has_the_settings_of_every_method(site: Path) -> None:
    from evenhand import methods
    from evenhand.training import plugins

    text = (site / "methods.html").read_text()
    names = list(plugins.describe(methods.__name__, "train"))
    assert len(names) > 20
    assert [name for name in names if f'id="evenhand.methods.{name}.train"' not in text] == []
