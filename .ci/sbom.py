"""Write a CycloneDX bill of materials of what CI installs: `python .ci/sbom.py [OUT.json]`.

Names, versions and SHA-256 come from constraints.txt; licenses from the packages that are installed here.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# A pinned requirement, its marker if it has one, and the lines with its hashes.
PINNED = re.compile(
    r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;\\]+)[^\n]*((?:\n +--hash=\S+(?: \\)?)*)", re.MULTILINE
)


def pinned(text: str) -> list[tuple[str, str, list[str]]]:
    """Name, version and SHA-256 of the files of every package in a constraints file."""
    return [
        (name, version, re.findall("sha256:([0-9a-f]{64})", hashes))
        for name, version, hashes in PINNED.findall(text)
    ]


def component(name: str, version: str, hashes: list[str]) -> dict[str, Any]:
    """What CycloneDX says of one package. It has one file per platform, hence a property for each hash."""
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "properties": [{"name": "evenhand:file:sha256", "value": each} for each in hashes],
    }
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:  # of another platform or version of Python
        return found
    license_ = about.get("License-Expression") or ""
    classified = [
        each.rpartition(" :: ")[2]
        for each in about.get_all("Classifier", [])
        if each.startswith("License ::")
    ]
    if license_:
        found["licenses"] = [{"expression": license_}]
    elif classified:
        found["licenses"] = [{"license": {"name": each}} for each in classified]
    return found


def bill(constraints: str, project: dict[str, Any]) -> dict[str, Any]:
    """The bill of materials; the same constraints and installed packages give the same bytes."""
    name, version = project["name"], project["version"]
    parts = [component(*each) for each in pinned(constraints)]
    direct = {re.split(r"[\[<>=~! ]", each, maxsplit=1)[0] for each in project["dependencies"]}
    root = f"pkg:pypi/{name}@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "library", "bom-ref": root, "name": name, "version": version, "purl": root}
        },
        "components": parts,
        "dependencies": [
            {"ref": root, "dependsOn": [each["bom-ref"] for each in parts if each["name"] in direct]}
        ],
    }


def main() -> None:
    import tomllib

    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    content = bill((HERE / "constraints.txt").read_text(), project)
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "evenhand.cdx.json")
    out.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{out}: {len(content['components'])} components")


if __name__ == "__main__":
    main()
