"""Mutants: every patch of mutants.toml must make the test that it names fail.

python tests/mutants.py [--only NAME …] [--jobs N]

A patch replaces a snippet that occurs once in src/evenhand, in whichever file, so that it survives when code
moves. Each patch is applied alone to a copy of src. A test that passes is a gap in the tests: write one that
fails. A snippet that is no longer there must be brought up to date.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "mutants.toml"
CAUGHT, FAILED = 0, 1  # exit status of the command; pytest's for tests that passed or failed


@dataclass(frozen=True)
class Mutant:
    """One patch, and the test that must notice it."""

    name: str
    reason: str  # what would go wrong, in one line
    before: str
    after: str
    test: str  # of pytest: tests/core/test_metrics.py::test_weights_count

    def file(self, source: Path) -> Path:
        """The only file that holds the snippet."""
        files = sorted(source.rglob("*.py"))
        found = [(file, file.read_text(encoding="utf-8").count(self.before)) for file in files]
        found = [(file, count) for file, count in found if count]
        if [count for _, count in found] != [1]:
            where = ", ".join(f"{file.relative_to(source)} ({count})" for file, count in found) or "nowhere"
            raise ValueError(f"must occur once in src/evenhand, but is found {where}: {self.before!r}")
        return found[0][0]

    def apply(self, source: Path) -> None:
        file = self.file(source)
        file.write_text(file.read_text(encoding="utf-8").replace(self.before, self.after), encoding="utf-8")


def read() -> list[Mutant]:
    """All mutants of the list."""
    return [Mutant(**each) for each in tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]]


def run_tests(source: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """pytest on a copy of src, leaving nothing in the repository."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(source / "hypothesis"),
        "OMP_NUM_THREADS": "1",
    }
    options = ["-q", "-m", "", "-p", "no:cacheprovider", "--tb=line", "--show-capture=no"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )


def copied(folder: str) -> Path:
    source = Path(folder) / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    return source


def check(mutant: Mutant) -> str:
    """What became of a mutant: "caught", or what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        source = copied(folder)
        try:
            mutant.apply(source)
        except ValueError as error:
            return f"patch does not apply: {error}"
        done = run_tests(source, [mutant.test])
    if done.returncode == 0:
        return f"SURVIVED: {mutant.test} passes"
    if done.returncode != FAILED or "\nFAILED " not in done.stdout:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        return f"error of the list: pytest ended with {done.returncode}: {' '.join(last)}"
    return "caught"


def check_unpatched(mutants: Sequence[Mutant]) -> list[str]:
    """The tests that fail without any patch, so that their failure would prove nothing."""
    with tempfile.TemporaryDirectory() as folder:
        done = run_tests(copied(folder), sorted({mutant.test for mutant in mutants}))
    if done.returncode == 0:
        return []
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines or [done.stdout + done.stderr]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants; all if none is named")
    parser.add_argument("--jobs", type=int, default=2, help="so many tests at once")
    given = parser.parse_args()
    mutants = read()
    if unknown := set(given.only or ()) - {mutant.name for mutant in mutants}:
        parser.error(
            f"no mutant {', '.join(sorted(unknown))}; there are {', '.join(m.name for m in mutants)}"
        )
    mutants = [mutant for mutant in mutants if not given.only or mutant.name in given.only]
    if failing := check_unpatched(mutants):
        print("these tests fail without a patch:", *failing, sep="\n")
        return FAILED
    width, survived = max(len(mutant.name) for mutant in mutants), 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, outcome in zip(mutants, pool.map(check, mutants), strict=True):
            survived += outcome != "caught"
            print(f"{mutant.name:{width}}  {outcome}", flush=True)
    print(f"{len(mutants) - survived} of {len(mutants)} mutants caught")
    return FAILED if survived else CAUGHT


if __name__ == "__main__":
    sys.exit(main())
