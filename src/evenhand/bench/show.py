"""What a person sees of a bench: a table that keeps up at a terminal, plain lines in a log."""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from typing import Any

from evenhand.bench.agenda import Agenda, Entry
from evenhand.bench.plan import Planned
from evenhand.training.log import printable
from evenhand.training.record import Record


class Silent:
    """Shows nothing; also the interface that the others follow."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def update(self, agenda: Agenda) -> None:
        """Something may have changed."""

    def finished(self, agenda: Agenda, entry: Entry) -> None:
        """A run has ended, well or not."""


class Lines(Silent):
    """A line for every run that ends, and for everything else that is worth saying."""

    def __init__(self) -> None:
        self._told = 0

    def update(self, agenda: Agenda) -> None:
        for note in agenda.notes[self._told :]:
            self.say(f"evenhand: {note}")
        self._told = len(agenda.notes)

    def finished(self, agenda: Agenda, entry: Entry) -> None:
        over = agenda.count("done") + agenda.count("failed")
        self.say(f"{over}/{len(agenda.entries) + len(agenda.expected())}  {_line(entry)}")

    def say(self, line: str) -> None:
        print(printable(line), file=sys.stderr, flush=True)


class Table(Lines):
    """A row for every task and method: done, running, failed, left; below it the time."""

    def __init__(self, jobs: int) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self._jobs, self._begun = jobs, time.monotonic()
        self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)

    def __enter__(self) -> Table:
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def update(self, agenda: Agenda) -> None:
        super().update(agenda)
        self._live.update(self._render(agenda))

    def finished(self, agenda: Agenda, entry: Entry) -> None:
        if entry.state == "failed":  # the table counts the others
            self.say(_line(entry))

    def say(self, line: str) -> None:
        self._live.console.print(printable(line), markup=False, highlight=False)

    def _render(self, agenda: Agenda) -> Any:
        from rich import box
        from rich.table import Table as RichTable

        elapsed, left = clock(time.monotonic() - self._begun), seconds_left(agenda, self._jobs)
        estimate = "not known yet" if left is None else f"about {clock(left)}"
        table = RichTable("task", "method", box=box.SIMPLE, caption=f"{elapsed} elapsed, {estimate} left")
        for name in ("done", "running", "failed", "left"):
            table.add_column(name, justify="right")
        for (spec, method), counts in progress(agenda).items():
            cells = [str(counts[name] or "") for name in ("done", "running", "failed", "waiting")]
            table.add_row(spec, method, *cells)
        return table


def choose(jobs: int, quiet: bool = False) -> Silent:
    """A table when a person watches standard error, lines when not, nothing when asked to be quiet."""
    if quiet:
        return Silent()
    return Table(jobs) if sys.stderr.isatty() else Lines()


def progress(agenda: Agenda) -> dict[tuple[str, str], dict[str, int]]:
    """(task, method) -> how many of its runs are in each state; those of later waves are waiting."""
    counts: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for entry in agenda.entries:
        counts[entry.planned.spec, entry.planned.method][entry.state] += 1
    for planned in agenda.expected():
        counts[planned.spec, planned.method]["waiting"] += 1
    return counts


def seconds_left(agenda: Agenda, jobs: int) -> float | None:
    """From what finished runs took: of the same task and method, else of all; None before the first."""
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    for entry in agenda.entries:
        if entry.seconds is not None:
            took[entry.planned.spec, entry.planned.method].append(entry.seconds)
    if not took:
        return None
    usual = statistics.fmean(seconds for many in took.values() for seconds in many)
    means = {key: statistics.fmean(many) for key, many in took.items()}

    def expect(planned: Planned) -> float:
        return means.get((planned.spec, planned.method), usual)

    waiting = sum(expect(entry.planned) for entry in agenda.entries if entry.state == "waiting")
    running = sum(expect(entry.planned) / 2 for entry in agenda.entries if entry.state == "running")
    return (waiting + running + sum(map(expect, agenda.expected()))) / jobs


def clock(seconds: float) -> str:
    """
    >>> clock(3725), clock(61)
    ('1:02:05', '1:01')
    """
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _line(entry: Entry) -> str:
    if entry.state == "failed":
        return f"{entry.planned.words()}  failed: {entry.error.splitlines()[0]}"
    wga = Record(entry.path).metrics["test"]["wga"]
    return f"{entry.planned.words()}  WGA {100 * wga:.1f}%  {entry.seconds or 0:.1f} s"
