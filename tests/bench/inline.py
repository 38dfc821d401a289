"""An engine without processes, and what tests compare of finished benches."""

from pathlib import Path

import numpy as np

from evenhand.bench.agenda import Agenda
from evenhand.bench.launch import launch
from evenhand.bench.plan import PAPER, Planned, waves
from evenhand.bench.work import Outcome, Place, load, work


class Inline:
    """Carries a run out at once, in this process; the first `deaths` runs end as if their worker had died."""

    def __init__(self, place: Place, deaths: int = 0) -> None:
        self.place, self.deaths, self.submitted = place, deaths, []
        self._outcomes: list[Outcome] = []

    @property
    def free(self) -> int:
        return 1 - len(self._outcomes)

    def submit(self, planned: Planned, path: Path) -> None:
        self.submitted.append(planned)
        if self.deaths > 0:
            self.deaths -= 1
            self._outcomes.append(Outcome(path, "the worker process was killed", died=True))
        else:
            self._outcomes.append(work(planned, path, self.place))

    def wait(self, timeout: float) -> list[Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes


def bench(runs: Path, *, specs=("mine.tiny",), methods=PAPER, seeds=(0, 1), changes=None) -> Agenda:
    """An agenda of these tasks' grids."""
    agenda = Agenda(Place(runs, device="cpu"))
    loaded = [load(spec, None) for spec in specs]
    agenda.add_waves([waves(task, methods, seeds, changes or {}) for task in loaded])
    return agenda


def run_inline(agenda: Agenda, **options) -> Inline:
    engine = Inline(agenda.place, options.pop("deaths", 0))
    launch(agenda, engine, **options)
    return engine


def metrics(runs: Path) -> dict[str, bytes]:
    """Every finished run's scores, to the byte."""
    return {
        str(path.relative_to(runs)): path.read_bytes() for path in sorted(runs.glob("*/*/*/metrics.json"))
    }


def predictions(runs: Path) -> dict[str, np.ndarray]:
    found = {}
    for path in sorted(runs.glob("*/*/*/predictions.npz")):
        with np.load(path, allow_pickle=False) as file:
            found.update({f"{path.relative_to(runs)}/{name}": file[name] for name in file.files})
    return found
