"""Each layer imports only what stands above it, and importing evenhand loads no torch."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "evenhand"

# A layer may import itself and those before it. Methods and tasks do not know each other.
LAYERS = [
    "core",
    "training",
    "methods",
    "tasks",
    "bench",
    "report",
    "by_group",
    "api",
    "integrations",
    "audit",
    "cli",
    "__main__",
]
FORBIDDEN_PAIRS = {("tasks", "methods"), ("methods", "tasks")}
CORE_MAY_IMPORT = {"torch", "triton", "numpy", "evenhand"} | set(sys.stdlib_module_names)


def imported(path: Path) -> set[str]:
    """Full names of the modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import; name the layer"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


def layer_of(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "evenhand" and len(parts) > 1 and parts[1] in LAYERS else None


def files() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_its_own_layer_and_those_before_it(path: Path) -> None:
    own = layer_of("evenhand." + ".".join(path.relative_to(SOURCE).with_suffix("").parts))
    assert own is not None, f"{path} belongs to no layer; add it to LAYERS"
    for name in imported(path):
        other = layer_of(name)
        if other is not None:
            assert LAYERS.index(other) <= LAYERS.index(own), f"{own} must not import {name}"
            assert (own, other) not in FORBIDDEN_PAIRS, f"{own} must not import {name}"


@pytest.mark.parametrize("path", sorted((SOURCE / "core").glob("*.py")), ids=lambda path: path.name)
def test_core_needs_only_torch_and_numpy(path: Path) -> None:
    outside = {name.split(".")[0] for name in imported(path)} - CORE_MAY_IMPORT
    assert not outside, f"core must import torch, its compiler triton and numpy only, not {outside}"


@pytest.mark.parametrize("statement", ["import evenhand", "import evenhand.cli", "import evenhand.tasks"])
def test_importing_loads_no_torch(statement: str) -> None:
    code = f"{statement}; import sys; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_everything_that_is_exported_exists() -> None:
    import evenhand

    for name in evenhand.__all__:
        assert getattr(evenhand, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        evenhand.nothing  # noqa: B018


def listed(page: str) -> list[str]:
    """The files that the section "Layers" of docs/architecture.md lists, a line each, below their folder."""
    block = page.partition("## Layers")[2].partition("```text\n")[2].partition("```")[0]
    found, folder = [], ""
    for line in block.splitlines():
        if name := re.match(r"(\w+)/ ", line):
            folder = name.group(1) + "/"
        elif name := re.match(r"(\w+\.py) +\S", line):
            found.append(name.group(1))
        elif name := re.match(r"  ([\w/]+\.py) +\S", line):
            found.append(folder + name.group(1))
    return found


def test_the_architecture_page_lists_every_file_once() -> None:
    """A file __init__.py that only has a docstring need not be listed."""
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    there = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if path.name != "__init__.py" or len(ast.parse(path.read_text()).body) > 1
    }
    names = listed(page)
    assert sorted(there - {*names}) == [], "add these files to the list in docs/architecture.md"
    assert sorted({*names} - there) == [], "these files are listed in docs/architecture.md, but gone"
    assert len(names) == len({*names}), "a file is listed twice in docs/architecture.md"


def test_the_list_of_files_is_read_as_it_is_written() -> None:
    page = "## Layers\n```text\ncore/          c\n  a.py    x\n  b/c.py  y\napi.py  z\n```\n"
    assert listed(page) == ["core/a.py", "core/b/c.py", "api.py"]
