"""launch: carry out an agenda with an engine, until it is done or the time is over."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Protocol

from evenhand.bench.agenda import Agenda
from evenhand.bench.plan import Planned
from evenhand.bench.show import Silent
from evenhand.bench.work import Outcome


class Engine(Protocol):
    """Where runs are carried out: `Local` processes, or `evenhand.bench.ray_engine.Ray`."""

    @property
    def free(self) -> int: ...
    def submit(self, planned: Planned, path: Path) -> None: ...
    def wait(self, timeout: float) -> list[Outcome]: ...


def launch(agenda: Agenda, engine: Engine, show: Silent | None = None, minutes: float = math.inf) -> None:
    """Do what is missing; a run that fails does not stop the others, and after `minutes` none begins.

    Runs that another process holds are waited for at the end, and taken over if that process dies.
    """
    show = show or Silent()
    end = time.monotonic() + 60 * minutes
    while True:
        agenda.follow()
        while time.monotonic() < end and engine.free and (entry := agenda.next()) is not None:
            entry.state = "running"
            engine.submit(entry.planned, entry.path)
        show.update(agenda)
        running = agenda.count("running")
        if not running and (not agenda.left() or time.monotonic() >= end):
            return
        outcomes = engine.wait(0.5) if running else []
        if not running:
            time.sleep(0.5)  # another process holds what is left
        for outcome in outcomes:
            entry = agenda.finish(outcome)
            if entry.over:
                show.finished(agenda, entry)
