"""Whether two checkouts train the same bits: python tests/golden/compare_checkouts.py A B [METHOD …].

A and B are git revisions or folders of the repository. The golden runs are executed with the code of each, on
this machine, and the SHA-256 of what they leave are compared: final weights, scores and partitions. A checkout
executes its own golden runs; one from before there were any executes those that are here. Exits with 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = ("model.safetensors", "metrics.json", "partition.npz", "val_partition.npz")


@contextlib.contextmanager
def source_of(checkout: str) -> Iterator[Path]:
    """The folder src of a revision, in a temporary worktree, or of a folder."""
    if Path(checkout).is_dir():
        yield Path(checkout).resolve() / "src"
        return
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder) / "worktree")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", target, checkout], check=True)
        try:
            yield Path(target) / "src"
        finally:
            subprocess.run([*git, "remove", "--force", target], check=True)


def hashes(source: Path, methods: Sequence[str]) -> dict[str, dict[str, str]]:
    """What the golden runs leave with this code: run -> file -> SHA-256, or why there is no run."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    own = source.parent / Path(__file__).relative_to(ROOT)
    done = subprocess.run(
        [sys.executable, str(own if own.exists() else __file__), "--execute", *methods],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def execute(methods: Sequence[str]) -> None:
    """Print the hashes of all golden runs, with whichever evenhand can be imported."""
    import golden_runs as golden
    import torch

    torch.set_num_threads(1)
    found: dict[str, dict[str, str]] = {}
    for method in methods or golden.METHODS:
        for case in golden.cases(method):
            with tempfile.TemporaryDirectory() as folder:
                record = (case.execute if case.world_size == 1 else case.execute_together)(Path(folder))
                paths = [record.path / name for name in FILES]
                found[f"{method} {case.name}"] = {
                    path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                    for path in paths
                    if path.exists()
                }
    json.dump(found, sys.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkouts", nargs=2, metavar=("A", "B"), help="revisions or folders")
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="all if none is named")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        sources = [stack.enter_context(source_of(checkout)) for checkout in given.checkouts]
        first, second = (hashes(source, given.methods) for source in sources)
    names = sorted({*first, *second})
    width, differing = max(map(len, names)), 0
    for name in names:
        ours, theirs = first.get(name), second.get(name)
        if ours is None or theirs is None:
            outcome = f"only in {given.checkouts[0] if theirs is None else given.checkouts[1]}"
        else:
            files = sorted({*ours, *theirs})
            differ = [file for file in files if ours.get(file) != theirs.get(file)]
            outcome = f"DIFFER: {', '.join(differ)}" if differ else f"same  {ours['model.safetensors'][:12]}"
        differing += not outcome.startswith("same")
        print(f"{name:{width}}  {outcome}")
    print(f"{len(names) - differing} of {len(names)} golden runs are the same")
    return 1 if differing else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--execute"]:
        execute(sys.argv[2:])
    else:
        sys.exit(main())
