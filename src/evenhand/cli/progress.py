"""Progress of a bench: a table on a terminal, plain lines in a log."""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter, defaultdict
from typing import Any

from evenhand.bench.grid import Planned
from evenhand.bench.sweep import Agenda, Entry
from evenhand.report.render import Column, Section, Table, terminal
from evenhand.training.log import printable
from evenhand.training.record import Record

STATES = ("done", "running", "failed", "waiting")


class Lines:
    """One line for every finished run and for every note."""

    def __init__(self) -> None:
        self._num_shown = 0

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def update(self, agenda: Agenda) -> None:
        for note in agenda.notes[self._num_shown :]:
            self.say(f"evenhand: {note}")
        self._num_shown = len(agenda.notes)

    def finished(self, agenda: Agenda, entry: Entry) -> None:
        total = len(agenda.entries) + len(agenda.expected())
        self.say(f"{agenda.count('done', 'failed')}/{total}  {_line(entry)}")

    def say(self, line: str) -> None:
        print(printable(line), file=sys.stderr, flush=True)


class Live(Lines):
    """A table with a row for every task and method, below the notes and failures."""

    def __init__(self, jobs: int) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self._jobs, self._begun = jobs, time.monotonic()
        self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)

    def __enter__(self) -> Live:
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
        from rich.console import Group

        left = seconds_left(agenda, self._jobs)
        estimate = "unknown time" if left is None else f"about {clock(left)}"
        note = f"{clock(time.monotonic() - self._begun)} elapsed, {estimate} left"
        columns = [Column("task", words=True), Column("method", words=True)]
        columns += [Column(state, lambda count: str(count or "")) for state in STATES]
        rows = [
            {"task": spec, "method": method, **counts} for (spec, method), counts in by_state(agenda).items()
        ]
        table = Table("", "", columns, [Section("", rows)], [note])
        return Group(*terminal(table, self._live.console.width))


def choose(jobs: int) -> Lines:
    """Return a table if standard error is a terminal, else lines."""
    return Live(jobs) if sys.stderr.isatty() else Lines()


def by_state(agenda: Agenda) -> dict[tuple[str, str], Counter[str]]:
    """Return the number of runs in each state, by (task, method); runs of later waves are waiting."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for entry in agenda.entries.values():
        counts[entry.planned.spec, entry.planned.method][entry.state] += 1
    for planned in agenda.expected():
        counts[planned.spec, planned.method]["waiting"] += 1
    return counts


def seconds_left(agenda: Agenda, jobs: int) -> float | None:
    """Return an estimate from finished runs of the same task and method, or of all; None before the first."""
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    for entry in agenda.entries.values():
        if entry.seconds is not None:
            took[entry.planned.spec, entry.planned.method].append(entry.seconds)
    if not took:
        return None
    usual = statistics.fmean(seconds for many in took.values() for seconds in many)

    def expect(planned: Planned) -> float:
        return statistics.fmean(took.get((planned.spec, planned.method), [usual]))

    shares = {"waiting": 1.0, "running": 0.5}
    begun = sum(shares.get(entry.state, 0) * expect(entry.planned) for entry in agenda.entries.values())
    return (begun + sum(map(expect, agenda.expected()))) / jobs


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
