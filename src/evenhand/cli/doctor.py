"""The `doctor` command: what is installed, what is missing, and how to fix it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from evenhand.cli.common import START, Json, Runs, app, console, say

LITTLE_DISK, LITTLE_MEMORY = 1 << 30, 2 << 30  # bytes below which doctor warns
MARKS = {"ok": "✓", "missing": "○", "problem": "✗"}
VARIABLES = ("EVENHAND_DATA", "EVENHAND_CACHE", "EVENHAND_WEIGHTS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Check:
    """One line of output: what was checked, what was found, and how to fix it."""

    what: str
    found: str
    remedy: str = ""
    state: Literal["ok", "missing", "problem"] = "ok"  # a problem makes commands fail


def problem(what: str, found: str, remedy: str) -> Check:
    return Check(what, found, remedy, "problem")


def missing(what: str, found: str, remedy: str) -> Check:
    return Check(what, found, remedy, "missing")


@app.command(rich_help_panel=START)
def doctor(
    data: Annotated[Path | None, typer.Option(help="Folder of the datasets.")] = None,
    runs: Runs = Path("runs"),
    json_: Json = False,
) -> None:
    """Check the installation and suggest fixes.

    Exit code 1: some command would fail.
    """
    import evenhand

    found, versions = examine(data, runs), package_versions()
    failing = sum(check.state == "problem" for check in found)
    if json_:
        content = {
            "versions": {"evenhand": evenhand.__version__, "python": platform.python_version(), **versions},
            "environment": {name: os.environ.get(name) for name in VARIABLES},
            "checks": [asdict(check) for check in found],
            "ok": not failing,
        }
        typer.echo(json.dumps(content, indent=1))
        raise typer.Exit(1 if failing else 0)
    from rich.table import Table

    lines = Table.grid(padding=(0, 2))
    for check in found:
        remedy = f" → {check.remedy}" if check.remedy else ""
        lines.add_row(MARKS[check.state], check.what, check.found + remedy)
    python = platform.python_version()
    say(f"evenhand {evenhand.__version__}, Python {python}, torch {versions['torch'] or 'not installed'}\n")
    console().print(lines)
    answer = f"{failing} of these would make a command fail (✗)." if failing else "No problems found."
    optional = any(check.state == "missing" for check in found)
    say(f"\n{answer}{' Lines with ○ are optional.' if optional else ''}")
    raise typer.Exit(1 if failing else 0)


def examine(data: Path | None = None, runs: Path = Path("runs")) -> list[Check]:
    """Run all checks. Nothing is downloaded, and only a temporary file is written."""
    return [*_packages(), *_devices(), *_folders(runs), *_data(data), *_environment()]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _required() -> dict[str, list[str]]:
    """Return the packages that evenhand requires, by extra; "" for those that it always requires."""
    found: dict[str, list[str]] = {"": []}
    for line in importlib.metadata.requires("evenhand") or ():
        name, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name and name[0] != "evenhand" and not (extra and extra[1] in ("all", "dev", "docs")):
            found.setdefault(extra[1] if extra else "", []).append(name[0])
    return found


def package_versions() -> dict[str, str | None]:
    """Return the version of every package that evenhand can use; None if not installed."""
    return {name: _version(name) for packages in _required().values() for name in packages}


def _packages() -> Iterator[Check]:
    versions = package_versions()
    always, *extras = _required().items()
    absent = {extra: [name for name in names if versions[name] is None] for extra, names in (always, *extras)}
    if absent[""]:
        yield problem("packages", f"{', '.join(absent[''])} not installed", "pip install --upgrade evenhand")
    else:
        yield Check("packages", f"all {len(always[1])} required ones installed")
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        yield missing("Python", f"{platform.python_version()} is not tested", "use 3.11 or 3.12")
    if there := [extra for extra, _ in extras if not absent[extra]]:
        yield Check("extras", ", ".join(there))
    for extra, _ in extras:
        if absent[extra]:
            remedy = f"pip install 'evenhand[{extra}]'"
            yield missing("extras", f"{' and '.join(absent[extra])} not installed", remedy)
    # torchvision is built for one version of torch. With another one, its import or its operators fail.
    for line in (importlib.metadata.requires("torchvision") or ()) if versions["torchvision"] else ():
        wanted, torch = re.match(r"torch\s*\(?==\s*([\d.]+)", line), versions["torch"]
        if wanted and torch and torch.split("+")[0] != wanted[1]:
            made_for = (
                f"{versions['torchvision']} is made for torch {wanted[1]}, but torch {torch} is installed"
            )
            yield problem("torchvision", made_for, "pip install torch torchvision")


def _devices() -> Iterator[Check]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield problem("torch", f"cannot be imported: {error}", "reinstall torch")
        return
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    free, gpus = _free_memory(), []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        left, total = torch.cuda.mem_get_info(number)
        gpus.append(f"{torch.cuda.get_device_name(number)}, {_size(left)} of {_size(total)} free")
    memory = "" if free is None else f", {_size(free)} of memory free"
    yield Check("devices", f"{cpus} CPUs{memory}; {'; '.join(gpus) or 'no GPU'}")
    if free is not None and free < LITTLE_MEMORY:
        yield missing("memory", f"only {_size(free)} free", "large image tasks may need more")
    if not gpus and torch.version.cuda and shutil.which("nvidia-smi"):
        built = f"torch is built for CUDA {torch.version.cuda} and there is a driver, but torch sees no GPU"
        yield problem("GPU", built, "update the driver, or install a torch that fits it")


def _folders(runs: Path) -> Iterator[Check]:
    from evenhand.tasks import cache_root

    for name, place, option in (
        ("runs folder", runs.absolute(), "--runs"),
        ("cache folder", cache_root().absolute(), "$EVENHAND_CACHE"),
    ):
        standing = next(each for each in (place, *place.parents) if each.exists())
        free, change = shutil.disk_usage(standing).free, f"choose another with {option}"
        if not standing.is_dir():
            yield problem(name, f"{place} cannot be created: {standing} is a file", change)
        elif not _writable(standing):
            yield problem(name, f"{place} is not writable", change)
        elif free < LITTLE_DISK:
            lacking = problem if free < LITTLE_DISK // 10 else missing
            yield lacking(name, f"only {_size(free)} free in {place}", f"free some space or {change}")
        else:
            yield Check(name, f"{place}, {_size(free)} free")


def _writable(folder: Path) -> bool:
    """Return whether a file can be created in a folder. Permissions do not reveal a read-only file system."""
    probe = folder / f".evenhand-doctor-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True


def _data(data: Path | None) -> Iterator[Check]:
    from evenhand.tasks import data_root
    from evenhand.tasks.datasets import data_list

    named = "--data" if data is not None else "$EVENHAND_DATA" if os.environ.get("EVENHAND_DATA") else ""
    root = data_root(data)
    if named and not root.is_dir():
        yield problem("data", f"{named} is {root}, which is not a folder", "create it or set another")
    try:
        lines = data_list(root)
    except (ImportError, OSError) as error:
        yield problem("data", f"cannot be listed: {error}", f"check the folder {root}")
        return
    there, absent = (", ".join(line.task for line in lines if line.present is here) for here in (True, False))
    yield Check("data", f"{there} ready, in {root}{'' if named else ' ($EVENHAND_DATA is not set)'}")
    if absent:
        yield missing("data", f"none for {absent}", "evenhand data fetch TASK")


def _environment() -> Iterator[Check]:
    weights = os.environ.get("EVENHAND_WEIGHTS")
    if weights and not Path(weights).exists():
        yield problem(
            "weights", f"$EVENHAND_WEIGHTS is {weights}, which does not exist", "unset or change it"
        )
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        yield missing("environment", "$PYTHONDONTWRITEBYTECODE slows down every start", "unset it")


def _free_memory() -> int | None:
    """Return the bytes available without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
