"""What is installed is pinned, listed and explained; nothing of it names a package index."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED = (ROOT / ".ci" / "constraints.txt").read_text()
NAME = re.compile(r"[A-Za-z0-9._-]+")


def names(requirements: list[str]) -> set[str]:
    found = {match[0].lower().replace("_", "-") for each in requirements if (match := NAME.match(each))}
    return found - {"evenhand"}


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / ".ci" / "sbom.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_pinned_file_has_a_checksum_and_no_address(sbom: ModuleType) -> None:
    found = sbom.pinned(PINNED)
    packages = [line for line in PINNED.splitlines() if line[:1].strip()]
    assert len(found) == len(packages) > 100
    assert all(hashes for _, _, hashes in found)
    assert "://" not in PINNED and not re.search(r"^--|^-[a-z]|find-links|index-url", PINNED, re.MULTILINE)


def test_all_that_the_tests_install_is_pinned_within_the_bounds_of_the_project(sbom: ModuleType) -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = PROJECT["dependencies"] + extras["dev"]
    for extra in re.search(r"\[(.*)\]", extras["dev"][0])[1].split(","):
        wanted = wanted + extras[extra]
    assert names(wanted) | {"uv", "hatchling"} <= {name for name, _, _ in sbom.pinned(PINNED)}


def test_the_bill_of_materials_lists_what_is_pinned(tmp_path: Path, sbom: ModuleType) -> None:
    out = tmp_path / "evenhand.cdx.json"
    subprocess.run([sys.executable, str(ROOT / ".ci" / "sbom.py"), str(out)], check=True, capture_output=True)
    bill = json.loads(out.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    references = [each["bom-ref"] for each in bill["components"]]
    assert len(set(references)) == len(references) == len(sbom.pinned(PINNED))
    assert all(each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}" for each in bill["components"])
    root = bill["metadata"]["component"]["bom-ref"]
    (depends,) = bill["dependencies"]
    assert depends["ref"] == root and set(depends["dependsOn"]) <= set(references)
    direct = {reference.removeprefix("pkg:pypi/").split("@")[0] for reference in depends["dependsOn"]}
    assert direct == names(PROJECT["dependencies"])
    torch = next(each for each in bill["components"] if each["name"] == "torch")
    assert torch["licenses"] and "://" not in out.read_text()


def test_every_dependency_is_explained() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().partition("## Dependencies")[2]
    explained = {
        name
        for row in re.findall(r"^\| ([a-z][a-z0-9, -]+) \|", page, re.MULTILINE)
        for name in row.split(", ")
    }
    assert explained - {"package"} == names(PROJECT["dependencies"])
