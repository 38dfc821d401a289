"""Agenda: the runs of a bench, which of them may begin, and what has become of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from evenhand.bench import results
from evenhand.bench.plan import Planned, Waves, locate
from evenhand.bench.work import Outcome, Place, load
from evenhand.training.record import Record, is_finished
from evenhand.training.store import claim, claimed, write_json

State = Literal["waiting", "running", "done", "failed"]
RETRIES = 2  # of a run whose worker dies: another process may have taken the memory


@dataclass
class Entry:
    """One run and its state."""

    planned: Planned
    path: Path
    state: State = "waiting"
    deaths: int = 0
    error: str = ""
    seconds: float | None = None  # that a finished run took

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed")


@dataclass
class Agenda:
    """All runs of a bench; a second wave is added as soon as the task's ERM runs are over."""

    place: Place
    entries: list[Entry] = field(default_factory=list)
    later: list[Waves] = field(default_factory=list)  # whose second waves are not added yet
    notes: list[str] = field(default_factory=list)  # what a person should know besides
    _known: dict[Path, Entry] = field(default_factory=dict)

    def add(self, planned: Iterable[Planned]) -> None:
        """Put runs at the end; one that is there already is not put twice."""
        for one in planned:
            path = locate(one, load(one.spec, self.place.data), self.place.runs, self.place.device)
            if path not in self._known:
                entry = self._known[path] = Entry(one, path)
                self.entries.append(entry)
                self._look(entry)

    def add_waves(self, waves: list[Waves]) -> None:
        """Put the first waves, ERM before all else; the second ones follow."""
        self.notes += [note for wave in waves for note in wave.notes]
        self.add(sorted((one for wave in waves for one in wave.first), key=lambda one: one.method != "erm"))
        self.later += [wave for wave in waves if wave.methods]
        self.follow()

    def follow(self) -> None:
        """Add every second wave whose ERM runs are over, also if some of them failed."""
        for wave in list(self.later):
            erm = [self._find(one) for one in wave.first if one.method == "erm"]
            if not all(entry.over for entry in erm):
                continue
            self.later.remove(wave)
            done = [Record(entry.path) for entry in erm if entry.state == "done"]
            spec = wave.task.spec
            if not done:
                self.notes.append(
                    f"{spec}: all of erm's runs failed, so there is no learning rate to inherit; "
                    f"not run: {', '.join(wave.methods)}"
                )
                continue
            if len(done) < len(erm):
                self.notes.append(f"{spec}: erm is selected from {len(done)} of its {len(erm)} runs")
            self.add(wave.second(results.inherited_pair(results.frame(done))))

    def next(self) -> Entry | None:
        """The first run that waits and that nobody else, here or on another machine, is doing."""
        for entry in self.entries:
            if entry.state == "waiting" and not self._look(entry) and not claimed(entry.path):
                return entry
        return None

    def finish(self, outcome: Outcome) -> Entry:
        """Take note of how a run ended; a failure is also written beside its files."""
        entry = self._known[outcome.path]
        self.notes += outcome.notes
        if not outcome.error:
            self._done(entry)
        elif outcome.died and entry.deaths < RETRIES:
            entry.state, entry.deaths = "waiting", entry.deaths + 1
            self.notes.append(f"{entry.planned.words()}: {outcome.error}; tried again")
        else:
            entry.state, entry.error = "failed", outcome.error
            content = {"error": outcome.error, "traceback": outcome.traceback, "time": int(time.time())}
            # Where another process is already at it again, that one will say what became of it.
            with contextlib.suppress(BlockingIOError), claim(entry.path, wait=False):
                write_json(entry.path / "failure.json", content)
        return entry

    def count(self, state: State) -> int:
        return sum(entry.state == state for entry in self.entries)

    def records(self) -> list[Record]:
        """What is finished."""
        return [Record(entry.path) for entry in self.entries if entry.state == "done"]

    def failures(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.state == "failed"]

    def expected(self) -> list[Planned]:
        """The runs of second waves that are not added yet; their learning rate is not known."""
        return [one for wave in self.later for one in wave.second({})]

    def left(self) -> int:
        """How many runs are neither done nor failed."""
        return self.count("waiting") + self.count("running") + len(self.expected())

    def _look(self, entry: Entry) -> bool:
        """Whether the run is finished, by whomever."""
        if is_finished(entry.path):
            self._done(entry)
        return entry.state == "done"

    def _done(self, entry: Entry) -> None:
        entry.state, entry.error = "done", ""
        with contextlib.suppress(OSError, ValueError, KeyError):  # only estimates need it
            entry.seconds = float(Record(entry.path).timing["seconds"])
        (entry.path / "failure.json").unlink(missing_ok=True)

    def _find(self, planned: Planned) -> Entry:
        task = load(planned.spec, self.place.data)
        return self._known[locate(planned, task, self.place.runs, self.place.device)]
