"""An engine without processes, and what tests compare of finished benches."""

from pathlib import Path

import numpy as np

from evenhand.bench.grid import PAPER, Planned, waves
from evenhand.bench.sweep import Agenda, Begun, Ended, Entry, Sweep, _carry_out, grouped, launch, load, work


class Inline:
    """A worker in this process; in its first `deaths` runs it ends as if it had been killed."""

    slots = 1

    def __init__(self, deaths: int = 0) -> None:
        self.deaths, self.begun = deaths, []

    def start(self, sweep: Sweep) -> str:
        self._events = work(sweep)
        return "worker"

    def wait(self, timeout: float) -> list:
        event = next(self._events, Ended())
        if isinstance(event, Begun):
            self.begun.append(event.path)
            if self.deaths:
                self._events.close()  # gives the claim up
                self.deaths -= 1
                self._events = iter([Ended("the worker process was killed")])
        return [("worker", event)]


def bench(
    runs: Path, *, specs=("mine.tiny",), methods=PAPER, seeds=(0, 1), changes=None, **options
) -> Agenda:
    """An agenda of these tasks' grids."""
    loaded = [load(spec, None) for spec in specs]
    planned = [waves(task.spec, methods, seeds, changes or {}, grouped(task)) for task in loaded]
    return Agenda(Sweep(runs, device="cpu", waves=planned, **options))


def run_inline(agenda: Agenda, deaths: int = 0) -> list[Planned]:
    """Do what is missing, and give the runs that were begun, in this order."""
    engine = Inline(deaths)
    launch(agenda, engine)
    return [agenda.entries[path].planned for path in engine.begun]


def carry_out(planned: Planned, path: Path, runs: Path) -> str:
    """Do one run by itself, and give its error."""
    return _carry_out(Entry(planned, path), Sweep(runs, device="cpu")).error


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
