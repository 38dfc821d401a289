"""One run of a bench, wherever it is carried out: what a worker is told, does and answers."""

from __future__ import annotations

import functools
import gc
import traceback
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import evenhand
from evenhand import tasks
from evenhand.bench.plan import Planned

if TYPE_CHECKING:
    from evenhand.training.data import Task


@dataclass(frozen=True)
class Place:
    """Where a bench works; the same for all its runs."""

    runs: Path = Path("runs")
    data: Path | None = None
    device: str = "auto"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: well, or with an error; or its worker died, so that nothing is known."""

    path: Path
    error: str = ""
    traceback: str = ""
    died: bool = False
    notes: tuple[str, ...] = ()  # warnings of ours, such as of a damaged file that was computed again


@functools.cache
def load(spec: str, data: Path | None) -> Task:
    """A task, loaded once in each process."""
    return tasks.load(spec, data)


def work(planned: Planned, path: Path, place: Place) -> Outcome:
    """Carry out a run whose folder should be `path`; an error is an answer, not an exception."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        outcome = _work(planned, path, place)
    ours = Path(evenhand.__file__).parent
    notes = (str(one.message) for one in said if Path(one.filename).is_relative_to(ours))
    return replace(outcome, notes=tuple(dict.fromkeys(notes)))


def _work(planned: Planned, path: Path, place: Place) -> Outcome:
    from evenhand.training.execute import execute
    from evenhand.training.progress import Silent

    try:
        task = load(planned.spec, place.data)
        record = execute(
            task,
            planned.method,
            planned.settings,
            recipe=task.recipe.replace(**planned.changes),
            seed=planned.seed,
            runs=place.runs,
            device=place.device,
            show=Silent(),
        )
        assert record.path == path, f"the run was looked for in {path}, but is kept in {record.path}"
    except Exception as error:
        return Outcome(path, f"{type(error).__name__}: {error}", traceback.format_exc())
    finally:
        _give_memory_back()
    return Outcome(path)


def _give_memory_back() -> None:
    """Several workers share a GPU: what one no longer needs is for the others."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()  # does nothing where CUDA was not used


def to_json(planned: Planned, path: Path, place: Place) -> dict[str, Any]:
    """The order for one run as plain values."""
    return {"planned": planned.as_json(), "path": path, "place": asdict(place)}


def from_json(order: dict[str, Any]) -> tuple[Planned, Path, Place]:
    """What `to_json` was given."""
    place = order["place"]
    data = None if place["data"] is None else Path(place["data"])
    return (
        Planned(**order["planned"]),
        Path(order["path"]),
        Place(Path(place["runs"]), data, place["device"]),
    )
