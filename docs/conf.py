"""How the site is built: `make docs`. Nothing here needs a network."""

import dataclasses
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import numpy.typing

import evenhand

# Signatures name it, instead of the seven types that it is.
numpy.typing.ArrayLike = type("ArrayLike", (), {"__module__": "numpy.typing"})

project = "evenhand"
author = "the evenhand authors"
version = release = evenhand.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "lab"]  # the lab notebook is not part of the site
myst_heading_anchors = 3

default_role = "code"  # docstrings write `name` for code
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
napoleon_use_ivar = True

html_theme = "furo"
html_title = "evenhand"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False

# Files outside docs/ that the site holds as pages: so links work on the site and where the sources are read.
PAGES = {
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changelog.md",
}


def _within(app: Any, name: str, source: list[str]) -> None:
    for file, page in PAGES.items():
        source[0] = source[0].replace(f"]({file})", f"]({page})")
    source[0] = re.sub(r"<!-- notebook (\w+) -->", lambda found: _notebook(found[1]), source[0])
    source[0] = source[0].replace("<!-- every command -->", _commands() if name == "command_line" else "")
    if name == "methods":
        source[0] = source[0].replace("<!-- table of methods -->", _methods())
        source[0] = source[0].replace("<!-- settings of every method -->", _settings())


def _notebook(name: str) -> str:
    """The cells of an example notebook as Markdown."""
    content = json.loads((Path(__file__).parents[1] / "examples" / f"{name}.ipynb").read_text())
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in content["cells"]]
    return "\n\n".join(text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells)


def _commands() -> str:
    """Every command with its help, arguments and options, as the program declares them."""
    import typer

    from evenhand.cli import app

    def listed(name: str, command: Any) -> list[str]:
        lines = [f"### {name}", inspect.cleandoc(command.help or ""), ""]
        for given in command.params:
            argument = given.param_type_name == "argument"
            names = (
                f"`{given.metavar or given.name}`" if argument else ", ".join(f"`{n}`" for n in given.opts)
            )
            shown = given.default not in (None, False, "") and not callable(given.default)
            default = f" Default: `{given.default}`." if shown else ""
            lines.append(f"- {names}: {getattr(given, 'help', None) or ''}{default}")
        below = getattr(command, "commands", {}).items()
        return [*lines, "", *(line for key, each in below for line in listed(f"{name} {key}", each))]

    return "\n".join(listed("evenhand", typer.main.get_command(app)))


def _methods() -> str:
    """A row for each method, from its file: what it does, when it helps, and how often it trains."""
    from evenhand.bench.grid import method_file
    from evenhand.report import catalog

    lines = ["| method | what it does | helps when | trainings |", "| --- | --- | --- | --- |"]
    for section in catalog.table_methods().sections:
        for row in section.rows:
            helps = method_file(row["method"]).constants.HELPS
            lines.append(f"| `{row['method']}` | {row['what it does']} | {helps} | {row['trainings']} |")
    return "\n".join(lines)


def _settings() -> str:
    """Every method with its arguments and their meaning, from its docstring."""
    from evenhand.training import plugins

    names = list(plugins.describe("evenhand.methods", "train"))
    each = [f".. autofunction:: evenhand.methods.{name}.train" for name in names]
    return "\n".join(["```{eval-rst}", *each, "```"])


def _plain(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with code in backticks: a star or a bar means itself."""
    doctest = False
    for number, line in enumerate(lines):
        doctest = line.lstrip().startswith(">>>") or (doctest and bool(line.strip()))
        if not doctest:
            lines[number] = re.sub(r"(`[^`]*`)|([*|])", lambda part: part[1] or f"\\{part[2]}", line)


def _fields(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """A dataclass's fields with the comments that its source has beside or above them."""
    if what != "class" or not dataclasses.is_dataclass(value):
        return
    names, above = {field.name for field in dataclasses.fields(value)}, ""
    for line in inspect.getsource(value).splitlines():
        words, _, comment = line.partition("# ")
        if not words.strip():
            above = f"{above} {comment}".strip()
        elif (found := re.match(r"    (\w+): ", line)) and found[1] in names:
            comment, above = re.sub(r"^type: ignore\S*\s*(# )?", "", comment) or above, ""
            lines += [f"- `{found[1]}`: {comment}"] if comment else []
    lines.append("")


def _factories(app: Any, what: str, name: str, value: Any, options: Any, signature: Any, returns: Any) -> Any:
    """A default that is made anew each time is shown as dots, which can be parsed and so laid out."""
    return (signature or "").replace("<factory>", "...") or None, returns


def setup(app: Any) -> None:
    app.connect("autodoc-process-signature", _factories)
    app.connect("autodoc-process-docstring", _fields, priority=300)
    app.connect("source-read", _within)
    app.connect("autodoc-process-docstring", _plain, priority=400)  # before napoleon writes its own stars
