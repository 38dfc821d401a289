"""Seal: the checksums of all that a finished run has left, by which it is known to be as it was written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenhand.training.shape import CONFIG, misshapen
from evenhand.training.store import Damaged, json_bytes, read_json, write_json

SEAL = "checksums.json"
WEIGHTS = "model.safetensors"
FILES = (
    "config.json",
    "dynamics.json",
    WEIGHTS,
    "partition.npz",
    "predictions.npz",
    "timing.json",
    "val_partition.npz",
)
HISTORIES = ("losses", "hits", "val_losses", "val_hits")
STAGE_FILES = ("epochs.jsonl", *(f"{name}.npy" for name in HISTORIES))
SHAPE = {"files": {str: str}, "stages": {str: {str: str}}}


def write(path: Path, metrics: bytes, stages: Mapping[str, tuple[Path, int]]) -> None:
    """Seal a run whose metrics.json, the last of its files, will hold `metrics`.

    `stages`: the folder of each training and the number of its epochs that the run has seen.
    """
    files = {name: digest(path / name) for name in FILES if (path / name).exists()}
    files["metrics.json"] = hashlib.sha256(metrics).hexdigest()
    sums = {name: _stage_sums(folder, epochs) for name, (folder, epochs) in stages.items()}
    write_json(path / SEAL, {"files": files, "stages": sums})


def of(files: Mapping[str, bytes]) -> bytes:
    """The seal of files with this content, without any training's."""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return json_bytes({"files": sums, "stages": {}})


def read(path: Path) -> dict[str, Any]:
    """A run's seal; an empty one for runs that have none, such as those of earlier versions."""
    if not (path / SEAL).exists():
        return {"files": {}, "stages": {}}
    content: dict[str, Any] = read_json(path / SEAL)
    wrong = misshapen(content, SHAPE)
    if not wrong:  # the record may be anybody's: no other file is opened for it
        names = {*content["files"], *(name for sums in content["stages"].values() for name in sums)}
        unknown = names - {*FILES, "metrics.json", *STAGE_FILES}
        wrong = f"it names {sorted(unknown)[0]!r}" if unknown else ""
    if wrong:
        raise Damaged(f"{path / SEAL} should hold the checksums of a run, but {wrong}")
    return content


def check(file: Path, seal: Mapping[str, Any]) -> None:
    """Raise Damaged if a file of a run is not what was sealed; one that was not sealed is not looked at."""
    sealed = seal["files"].get(file.name)
    if sealed is None:
        return
    if not file.exists():
        raise Damaged(f"{file} should be there, but it is gone")
    if digest(file) != sealed:
        raise Damaged(f"{file} is not as it was written: its checksum does not match")


def check_stage(folder: Path, epochs: int, sealed: Mapping[str, str], only: str | None = None) -> None:
    """Raise Damaged if a training's curve or histories are not what the run saw; they may be gone."""
    names = [name for name in sealed if only in (None, name)]
    found = _stage_sums(folder, epochs, names)
    for name in names:
        if (folder / name).exists() and found.get(name) != sealed[name]:
            raise Damaged(f"{folder / name} is not as the run saw it: its checksum does not match")


def damaged(path: Path, *, everything: bool) -> list[tuple[Path, Damaged]]:
    """The files of a finished run that are not as they were written.

    Not `everything` leaves out what no table reads and what may be large: the weights and the histories.
    """
    try:
        seal = read(path)
    except Damaged as error:
        return [(path / SEAL, error)]
    found = []
    for name in seal["files"]:
        if (everything or name != WEIGHTS) and (trouble := _trouble(check, path / name, seal)):
            found.append((path / name, trouble))
    if everything and not found:
        config = read_json(path / "config.json") if seal["stages"] else {}
        stages = {} if misshapen(config, CONFIG) else config["stages"]
        for name, stage in stages.items():
            folder = path.parent.parent / "stages" / Path(stage["folder"]).name
            sums = seal["stages"].get(name, {})
            found += [
                (folder / file, trouble)
                for file in sums
                if (trouble := _trouble(check_stage, folder, stage["epochs"], sums, file))
            ]
    return found


def digest(file: Path) -> str:
    """The SHA-256 of a file, read a part at a time."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _trouble(function: Any, *arguments: Any) -> Damaged | None:
    try:
        function(*arguments)
    except Damaged as error:
        return error
    return None


def _stage_sums(folder: Path, epochs: int, names: list[str] | None = None) -> dict[str, str]:
    """Checksums of a training's first epochs, which stay as they are when it goes further."""
    from evenhand.training.histories import column_sums  # loads torch, which who reads records may lack

    sums: dict[str, str] = {}
    for name in STAGE_FILES if names is None else names:
        file = folder / name
        if not file.exists():
            continue
        if name == "epochs.jsonl":
            content = b"\n".join(file.read_bytes().splitlines()[:epochs])
        else:
            content = "".join(column_sums(file, epochs) or ()).encode()
        sums[name] = hashlib.sha256(content).hexdigest()
    return sums
