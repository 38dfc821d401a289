"""Where an audit may be written: a folder that is new, empty or an earlier audit's."""

from __future__ import annotations

import tempfile
from pathlib import Path

from evenhand.training.store import Damaged, check_folder, read_json

OWN_NAMES = (
    "baseline", "balanced", "checksums.json", "curves.npz", "indices.npy", "report.html", "runs",
    "samples.csv", "summary.json", "weights.csv",
)  # fmt: skip

WRITING = ".evenhand-audit"  # lies in the folder while its files are written


def check_place(out: Path) -> None:
    """Refuse, before anything is trained, a place that cannot be written or that holds other files."""
    check_folder(out, "--out")
    place = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    try:
        tempfile.TemporaryDirectory(dir=place, prefix=".evenhand-").cleanup()
    except OSError as error:
        raise ValueError(
            f"--out must be a folder that can be written, but {place} cannot ({error.strerror}); "
            "name another place"
        ) from error
    if out.is_dir():
        _check_own(out)


def _check_own(out: Path) -> None:
    names = sorted(each.name for each in out.iterdir() if not each.name.startswith("."))
    # One that was interrupted has left its runs, or stopped among its files; it has no summary.
    others = [name for name in names if name not in OWN_NAMES and name.partition(".")[0] not in OWN_NAMES[:2]]
    interrupted = (out / WRITING).is_file() or ((out / "runs").is_dir() and not others)
    if names and not interrupted and not _is_summary(out / "summary.json"):
        raise ValueError(
            f"--out must be a new or empty folder, or an earlier audit's, but {out} holds other files such "
            f"as {(others or names)[0]}; name another folder, such as {out / 'audit'}"
        )


def _is_summary(file: Path) -> bool:
    try:
        content = read_json(file)
    except (OSError, Damaged):
        return False
    return isinstance(content, dict) and {"evenhand", "verdict", "triage"} <= content.keys()
