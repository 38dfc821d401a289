"""The `doctor` command: what is installed and found here, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from evenhand.cli.common import START, Json, Runs, app, console, say

NEEDED = (
    "torch",
    "numpy",
    "scikit-learn",
    "pillow",
    "safetensors",
    "typer",
    "rich",
    "jinja2",
    "matplotlib",
    "platformdirs",
)
EXTRAS = {
    "vision": ("torchvision",),
    "table": ("pandas", "pyarrow"),
    "boosting": ("lightgbm", "xgboost"),
    "lightning": ("lightning",),
    "transformers": ("transformers", "accelerate"),
    "ray": ("ray",),
}
LITTLE_DISK, LITTLE_MEMORY = 1 << 30, 2 << 30  # bytes below which the user should know
MARKS = {"ok": "✓", "missing": "○", "problem": "✗"}


@dataclass(frozen=True)
class Check:
    """One line of the answer: what was looked at, what was found, and what to do where something lacks."""

    what: str
    state: Literal["ok", "missing", "problem"]  # a problem makes commands fail: exit code 1
    found: str
    remedy: str = ""


@dataclass
class Findings:
    """All checks, and the plain facts that a report of a bug should hold."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def add(
        self, what: str, found: str, remedy: str = "", state: Literal["missing", "problem"] = "problem"
    ) -> None:
        """A check without a remedy is fine."""
        self.checks.append(Check(what, state if remedy else "ok", found, remedy))

    @property
    def problems(self) -> list[Check]:
        return [check for check in self.checks if check.state == "problem"]


@app.command(rich_help_panel=START)
def doctor(
    data: Annotated[Path | None, typer.Option(help="Folder of the datasets.")] = None,
    runs: Runs = Path("runs"),
    json_: Json = False,
) -> None:
    """Check the installation: what is missing, and what to do about it.

    Exit code 1: a command would fail.
    """
    found = examine(data, runs)
    if json_:
        content = {
            **found.facts,
            "checks": [asdict(check) for check in found.checks],
            "ok": not found.problems,
        }
        typer.echo(json.dumps(content, indent=1, default=str))
    else:
        _print(found)
    raise typer.Exit(1 if found.problems else 0)


def examine(data: Path | None = None, runs: Path = Path("runs")) -> Findings:
    """Run all checks. Nothing is downloaded, and nothing is written but a file that is removed at once."""
    found = Findings()
    _packages(found)
    _devices(found)
    _folders(found, runs)
    _data(found, data)
    _environment(found)
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages(found: Findings) -> None:
    import evenhand

    names = [*NEEDED, *(package for packages in EXTRAS.values() for package in packages)]
    versions = {name: _version(name) for name in names}
    found.facts["versions"] = {
        "evenhand": evenhand.__version__,
        "python": platform.python_version(),
        **versions,
    }
    if absent := [name for name in NEEDED if versions[name] is None]:
        found.add("packages", f"{', '.join(absent)} not installed", "pip install --upgrade evenhand")
    else:
        found.add("packages", f"all {len(NEEDED)} that evenhand needs")
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        found.add("Python", f"{platform.python_version()} is not tested", "use 3.11 or 3.12", "missing")
    lacking = {
        extra: absent
        for extra, packages in EXTRAS.items()
        if (absent := [name for name in packages if versions[name] is None])
    }
    if there := [extra for extra in EXTRAS if extra not in lacking]:
        found.add("extras", ", ".join(there))
    for extra, absent in lacking.items():
        remedy = f"pip install 'evenhand[{extra}]'"
        found.add("extras", f"{' and '.join(absent)} not installed", remedy, "missing")
    # torchvision is built for one version of torch. With another one, its import or its operators fail.
    for line in (importlib.metadata.requires("torchvision") or ()) if versions["torchvision"] else ():
        wanted = re.match(r"torch\s*\(?==\s*([\d.]+)", line)
        if wanted and versions["torch"] and versions["torch"].split("+")[0] != wanted.group(1):
            found.add(
                "torchvision",
                f"{versions['torchvision']} is made for torch {wanted.group(1)}, but torch "
                f"{versions['torch']} is installed",
                "pip install torch torchvision",
            )


def _devices(found: Findings) -> None:
    try:
        import torch
    except (ImportError, OSError) as error:
        found.add("torch", f"cannot be imported: {error}", "install it again")
        return
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    free, gpus = _free_memory(), []
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            left, total = torch.cuda.mem_get_info(number)
            gpus.append(f"{torch.cuda.get_device_name(number)}, {_size(left)} of {_size(total)} free")
    found.facts["devices"] = {"cpus": cpus, "threads": torch.get_num_threads(), "memory": free, "gpus": gpus}
    memory = "" if free is None else f", {_size(free)} of memory free"
    found.add("devices", f"{cpus} CPUs{memory}; {'; '.join(gpus) or 'no GPU'}")
    if free is not None and free < LITTLE_MEMORY:
        found.add("memory", f"only {_size(free)} free", "large image tasks may need more", "missing")
    if not gpus and torch.version.cuda and shutil.which("nvidia-smi"):
        found.add(
            "GPU",
            f"torch is built for CUDA {torch.version.cuda} and there is a driver, but torch sees no GPU",
            "update the driver, or install a torch that fits it",
        )


def _folders(found: Findings, runs: Path) -> None:
    from evenhand.tasks import cache_root

    found.facts["folders"] = {}
    for name, place, option in (
        ("runs folder", runs.absolute(), "--runs"),
        ("cache folder", cache_root().absolute(), "$EVENHAND_CACHE"),
    ):
        standing = next(each for each in (place, *place.parents) if each.exists())
        free = shutil.disk_usage(standing).free
        found.facts["folders"][name] = {"path": str(place), "exists": place == standing, "free": free}
        change = f"choose another with {option}"
        if not standing.is_dir():
            found.add(name, f"{place} cannot be made: {standing} is a file", change)
        elif not _writable(standing):
            found.add(name, f"{place} is not writable", change)
        elif free < LITTLE_DISK:
            state: Literal["missing", "problem"] = "problem" if free < LITTLE_DISK // 10 else "missing"
            found.add(name, f"only {_size(free)} free in {place}", f"free some space or {change}", state)
        else:
            found.add(name, f"{place}, {_size(free)} free")


def _writable(folder: Path) -> bool:
    """Whether a file can be made in a folder. Permissions alone do not show a read-only file system."""
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
    if named and not root.is_dir():
        found.add("data", f"{named} names {root}, which is not a folder", "make it or name another")
    try:
        lines = data_list(root)
    except (ImportError, OSError) as error:
        found.add("data", f"cannot be listed: {error}", f"check the folder {root}")
        return
    found.facts["data"] = {"folder": str(root), "tasks": {line.task: line.present for line in lines}}
    there, absent = ([line.task for line in lines if line.present is here] for here in (True, False))
    found.add("data", f"{', '.join(there)} ready, in {root}{'' if named else ' ($EVENHAND_DATA is not set)'}")
    if absent:
        found.add("data", f"none for {', '.join(absent)}", "evenhand data fetch TASK", "missing")


def _environment(found: Findings) -> None:
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
        found.add(
            "weights", f"$EVENHAND_WEIGHTS names {weights}, which is not there", "unset it or change it"
        )
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        slow = "$PYTHONDONTWRITEBYTECODE makes every start slow"
        found.add("environment", slow, "unset it", "missing")


def _free_memory() -> int | None:
    """Bytes that a program can use without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def _print(found: Findings) -> None:
    from rich.table import Table

    versions = found.facts["versions"]
    say(f"evenhand {versions['evenhand']}, Python {versions['python']}, torch {versions['torch']}\n")
    lines = Table.grid(padding=(0, 2))
    for check in found.checks:
        lines.add_row(
            MARKS[check.state], check.what, check.found + (f" → {check.remedy}" if check.remedy else "")
        )
    console().print(lines)
    optional = sum(check.state == "missing" for check in found.checks)
    say("")
    if found.problems:
        say(f"{len(found.problems)} of these would make a command fail (✗).")
    else:
        say("Nothing would fail." + (" Lines with ○ matter only if you need them." if optional else ""))
