"""Old and new keys of all committed records: how a run was named before, and how the same run is named now.

    python results/keys.py --data ROOT    writes results/keys.csv, in some minutes

Keys changed once. Before, they did not say how a run was computed, nor by which version of a method. So one
old key may stand for different numbers, in several files. `new_key` is the key that the same settings, on the
same kind of device, have today; it is empty where settings are gone or the data are not below ROOT. `version`
is the version of `evenhand` that made a record, and `known_by` says how that is known: by the commit that the
record names, or by the file that it is in (results/README.md, docs/lab/log.md). The method was called `even`.
The column `method` has the name of the folder that holds the record.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import subprocess
from pathlib import Path
from unittest import mock

import torch

from evenhand import Recipe, Task, tasks
from evenhand.bench.pack import load
from evenhand.training.keys import identify
from evenhand.training.record import Record

HERE = Path(__file__).parent
COLUMNS = ("file", "task", "method", "seed", "old_key", "new_key", "version", "known_by")
# The commits that brought the versions of `evenhand`, the newest first.
BROUGHT = {"1c529fa": 4, "c2ab4c5": 3, "378ea4b": 2, "2224931": 1}
# Records of a checkout with changes that were committed later.
BEFORE_THEIR_COMMIT = {"aa88bb1+": 4}
# Records that name no commit.
BY_FILE = {
    "studies/even_ablation.zip": 4,
    "studies/even_photos.zip": 4,
    "studies/even_reported.zip": 4,
}


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="the folder that holds the datasets")
    root = parser.parse_args().data
    rows = [
        row(str(file.relative_to(HERE)), record, root)
        for file in [*sorted(HERE.glob("*.zip")), *sorted(HERE.glob("studies/*.zip"))]
        for record in load(file)
    ]
    with (HERE / "keys.csv").open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)


def row(file: str, record: Record, root: Path | None) -> list[object]:
    """What the table says of one record."""
    config = record.config
    version, known_by = made_by(file, record) if record.method == "evenhand" else ("", "")
    method, old = record.path.parent.name, record.path.name.partition("-")[0]
    return [file, config["task"], method, record.seed, old, new_key(record, root), version, known_by]


def made_by(file: str, record: Record) -> tuple[int, str]:
    """Which version of `evenhand` made a record, and how that is known."""
    commit = str(record.config["versions"].get("commit", ""))
    if not commit:
        return BY_FILE[file], "file"
    return BEFORE_THEIR_COMMIT.get(commit) or brought_by(commit.rstrip("+")), f"commit {commit}"


@functools.cache
def brought_by(commit: str) -> int:
    """The version of `evenhand` that a commit has."""
    for first, version in BROUGHT.items():
        git = ["git", "-C", str(HERE), "merge-base", "--is-ancestor", first, commit]
        if subprocess.run(git, check=False).returncode == 0:
            return version
    raise ValueError(f"commit {commit} is of before evenhand's first version")


def new_key(record: Record, root: Path | None) -> str:
    """The key of the same settings today; empty where it cannot be computed."""
    config = record.config
    gpu = config["versions"]["device"] != "cpu"
    known = {field.name for field in dataclasses.fields(Recipe)}
    task = read_task(str(config["spec"]), root)
    if task is None:
        return ""
    try:
        recipe = Recipe(**{name: value for name, value in config["full_recipe"].items() if name in known})
        # The data's checksum is the record's: images may be decoded to other pixels here.
        same_data = dataclasses.replace(task, checksum=config["data"])
        with mock.patch("evenhand.training.keys.has_triton", lambda: True):  # as on the GPU
            found = identify(
                same_data,
                record.method,
                config["hyperparameters"],
                recipe,
                torch.device("cuda" if gpu else "cpu"),
            )
    except ValueError as error:
        print(f"no new key: {'/'.join(record.path.parts[-3:])}: {error}")
        return ""
    return found.folder("runs", record.seed).name.partition("-")[0]


@functools.cache
def read_task(spec: str, root: Path | None) -> Task | None:
    """The task of a record, if its data are here."""
    try:
        return tasks.load(spec, root)
    except (ValueError, OSError, ImportError) as error:
        print(f"no new keys of {spec}: {error}")
        return None


if __name__ == "__main__":
    main()
