"""The `doctor` command: what is installed and found here, and what would go wrong."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from evenhand.cli.common import Json, Runs, app, say

NEEDED = (
    "torch",
    "numpy",
    "scikit-learn",
    "safetensors",
    "typer",
    "rich",
    "jinja2",
    "matplotlib",
    "platformdirs",
)
EXTRAS = {
    "vision": ("torchvision", "pillow"),
    "table": ("pandas", "pyarrow"),
    "boosting": ("lightgbm", "xgboost"),
    "lightning": ("lightning",),
    "transformers": ("transformers", "accelerate"),
    "ray": ("ray",),
}
LITTLE_DISK, LITTLE_MEMORY = 1 << 30, 2 << 30  # bytes below which a person should know


@dataclass
class Findings:
    """Facts by heading, what fails for certain, and what only may."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # something would fail: exit code 1
    notes: list[str] = field(default_factory=list)  # something is absent that some commands need


@app.command()
def doctor(
    data: Annotated[Path | None, typer.Option(help="The folder that holds the datasets.")] = None,
    runs: Runs = Path("runs"),
    json_: Json = False,
) -> None:
    """Say what is installed and found here, and what would go wrong. Exit code 1: something would fail."""
    found = examine(data, runs)
    if json_:
        content = {**found.facts, "problems": found.problems, "notes": found.notes, "ok": not found.problems}
        typer.echo(json.dumps(content, indent=1, default=str))
    else:
        _print(found)
    raise typer.Exit(1 if found.problems else 0)


def examine(data: Path | None = None, runs: Path = Path("runs")) -> Findings:
    """Look at everything; nothing is fetched, and nothing written but a file that is gone at once."""
    found = Findings()
    _versions(found)
    _devices(found)
    _folders(found, runs)
    _data(found, data)
    _settings(found)
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions(found: Findings) -> None:
    import evenhand

    versions: dict[str, Any] = {"evenhand": evenhand.__version__, "python": platform.python_version()}
    found.facts["versions"] = versions
    for package in NEEDED:
        versions[package] = _version(package)
        if versions[package] is None:
            found.problems.append(f"{package} is missing; pip install --upgrade evenhand")
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        found.notes.append(f"Python {platform.python_version()} is not tested; use 3.11 or 3.12")
    for extra, packages in EXTRAS.items():
        for package in packages:
            versions[package] = _version(package)
        absent = [package for package in packages if versions[package] is None]
        if absent:
            found.notes.append(
                f"{' and '.join(absent)} not installed; pip install 'evenhand[{extra}]' if needed"
            )
    _check_torchvision(found, versions)


def _check_torchvision(found: Findings, versions: dict[str, Any]) -> None:
    """torchvision is built for one version of torch; with another, its import fails or its operators do."""
    if versions["torchvision"] is None or versions["torch"] is None:
        return
    for line in importlib.metadata.requires("torchvision") or ():
        wanted = re.match(r"torch\s*\(?==\s*([\d.]+)", line)
        if wanted and versions["torch"].split("+")[0] != wanted.group(1):
            found.problems.append(
                f"torchvision {versions['torchvision']} is made for torch {wanted.group(1)}, but torch "
                f"{versions['torch']} is installed; install both at once: pip install torch torchvision"
            )


def _devices(found: Findings) -> None:
    try:
        import torch
    except (ImportError, OSError) as error:
        found.problems.append(f"torch cannot be loaded: {error}; install it again")
        return
    free = _free_memory()
    devices: dict[str, Any] = {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads of torch": torch.get_num_threads(),
        "free memory": None if free is None else _size(free),
        "gpus": [],
    }
    found.facts["devices"] = devices
    if free is not None and free < LITTLE_MEMORY:
        found.notes.append(f"only {_size(free)} of memory are free; large image tasks may not fit")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            left, total = torch.cuda.mem_get_info(number)
            name = f"{torch.cuda.get_device_name(number)}, {_size(left)} of {_size(total)} free"
            devices["gpus"].append(name)
        devices["bf16"] = torch.cuda.is_bf16_supported()
    elif torch.version.cuda and shutil.which("nvidia-smi"):
        found.problems.append(
            f"torch is built for CUDA {torch.version.cuda} and there is a driver, but torch sees no GPU; "
            "update the driver, or install a torch for its version"
        )


def _folders(found: Findings, runs: Path) -> None:
    from evenhand.tasks import cache_root

    places = {"runs": runs.absolute(), "cache": cache_root().absolute()}
    found.facts["folders"] = {}
    for name, place in places.items():
        standing = next(each for each in (place, *place.parents) if each.exists())
        free = shutil.disk_usage(standing).free
        found.facts["folders"][name] = (
            f"{place} ({'there' if place == standing else 'not yet there'}, {_size(free)} free)"
        )
        change = "name another with --runs" if name == "runs" else "name another with $EVENHAND_CACHE"
        if not standing.is_dir():
            found.problems.append(f"the {name} folder {place} cannot be made: {standing} is a file; {change}")
        elif not _writable(standing):
            found.problems.append(f"the {name} folder {place} cannot be written to; {change}")
        elif free < LITTLE_DISK:
            problem = (
                f"only {_size(free)} are free where the {name} folder is, {place}; free some or {change}"
            )
            (found.problems if free < LITTLE_DISK // 10 else found.notes).append(problem)


def _writable(folder: Path) -> bool:
    """Whether a file can be made there; permissions alone do not tell of a read-only file system."""
    probe = folder / f".evenhand-doctor-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True


def _data(found: Findings, data: Path | None) -> None:
    from evenhand.tasks import data_root
    from evenhand.tasks.datasets import data_list

    named = "--data" if data is not None else "$EVENHAND_DATA" if os.environ.get("EVENHAND_DATA") else ""
    root = data_root(data)
    found.facts["data"] = {"folder": f"{root} ({named or 'the default; $EVENHAND_DATA is not set'})"}
    if named and not root.is_dir():
        found.problems.append(f"{named} names {root}, which is not a folder; make it or name another")
    try:
        for line in data_list(root):
            found.facts["data"][line.task] = "there" if line.present else f"missing: {', '.join(line.absent)}"
    except (ImportError, OSError) as error:
        found.problems.append(f"the data cannot be looked through: {error}")
        return
    absent = [task for task, state in found.facts["data"].items() if str(state).startswith("missing")]
    if absent:
        found.notes.append(f"no data for {', '.join(absent)}; evenhand data fetch TASK gets them or says how")


def _settings(found: Findings) -> None:
    names = (
        "EVENHAND_DATA",
        "EVENHAND_CACHE",
        "EVENHAND_WEIGHTS",
        "OMP_NUM_THREADS",
        "PYTHONDONTWRITEBYTECODE",
    )
    found.facts["environment"] = {name: os.environ.get(name) for name in names}
    weights = os.environ.get("EVENHAND_WEIGHTS")
    if weights and not Path(weights).exists():
        found.problems.append(
            f"$EVENHAND_WEIGHTS names {weights}, which is not there; unset it or name another"
        )
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        found.notes.append(
            "$PYTHONDONTWRITEBYTECODE makes every start slow: torch is compiled anew; unset it"
        )


def _free_memory() -> int | None:
    """Bytes that a program can have without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def _print(found: Findings) -> None:
    for heading, facts in found.facts.items():
        say(heading)
        for name, value in facts.items():
            text = (
                ", ".join(value) or "none"
                if isinstance(value, list)
                else "–"
                if value is None
                else str(value)
            )
            say(f"  {name:24} {text}")
    for title, lines in (("Notes:", found.notes), ("What would go wrong:", found.problems)):
        if lines:
            say(f"\n{title}")
            for line in lines:
                say(f"  {line}")
    if not found.problems:
        say("\nNothing would go wrong.")
