"""What a person sees while a model trains: bars at a terminal, plain lines in a log."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

log = logging.getLogger("evenhand")


class Silent:
    """Shows nothing; also the interface that the other two follow."""

    def start(self, title: str, *, epochs: int, samples: int, done: int = 0) -> None:
        """A training of at most `epochs` epochs of `samples` samples begins, `done` epochs being there."""

    def advance(self, samples: int) -> None:
        """One batch more has been issued to the device."""

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch has ended with these figures."""

    def finish(self, reason: str = "") -> None:
        """The training has ended."""


class Lines(Silent):
    """One plain line at the first epoch, then at most every ten seconds, and one at the end."""

    interval = 10.0

    def start(self, title: str, *, epochs: int, samples: int, done: int = 0) -> None:
        self._title, self._epochs, self._samples = title, epochs, samples
        self._begun = self._shown = time.monotonic()
        self._done, self._row = done, {"epoch": done}
        log.info(
            "%s: %d samples, at most %d epochs%s", title, samples, epochs, f", {done} done" if done else ""
        )

    def epoch(self, row: dict[str, Any]) -> None:
        self._row = row
        if time.monotonic() - self._shown >= self.interval:
            self._shown = time.monotonic()
            log.info("%s: %s", self._title, self._figures())

    def finish(self, reason: str = "") -> None:
        log.info("%s: %s; %s", self._title, self._figures(), reason or "done")

    def _figures(self) -> str:
        seconds = max(time.monotonic() - self._begun, 1e-9)
        epochs = self._row["epoch"] - self._done
        figures = [f"epoch {self._row['epoch']}/{self._epochs}", *_describe(self._row)]
        if epochs:
            figures.append(f"{epochs * self._samples / seconds:,.0f} samples/s")
            figures.append(f"at most {_clock(seconds / epochs * (self._epochs - self._row['epoch']))} left")
        return ", ".join(figures)


class Bars(Silent):
    """A bar with epoch, loss, accuracy, samples per second and the time that is left at most."""

    def start(self, title: str, *, epochs: int, samples: int, done: int = 0) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        wide = self._console.width >= 100
        self._title = title
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24 if wide else 8),
            TextColumn("{task.fields[figures]}"),
            *([TextColumn("[dim]{task.fields[rate]}")] if wide else []),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
        )
        self._samples, self._done, self._seen, self._begun = samples, done, 0, time.monotonic()
        self._epochs, self._figures = epochs, f"epoch {done}/{epochs}"
        self._bar = self._progress.add_task(
            title, total=epochs * samples, completed=done * samples, figures=self._figures, rate=""
        )
        self._progress.start()

    def advance(self, samples: int) -> None:
        self._seen += samples
        rate = self._seen / max(time.monotonic() - self._begun, 1e-9)
        self._progress.update(self._bar, advance=samples, rate=f"{rate:,.0f} samples/s")

    def epoch(self, row: dict[str, Any]) -> None:
        figures = [f"epoch {row['epoch']}/{self._epochs}", *_describe(row)]
        completed = row["epoch"] * self._samples
        self._progress.update(self._bar, completed=completed, figures="  ".join(figures))

    def finish(self, reason: str = "") -> None:
        figures = self._progress.tasks[0].fields["figures"]
        self._progress.stop()  # the bar goes, a line stays
        self._console.print(f"[bold]{self._title}[/bold]  {figures}  [green]{reason or 'done'}[/green]")


def choose(quiet: bool = False) -> Silent:
    """Bars when a person watches standard error, lines when not, nothing when asked to be quiet."""
    if quiet:
        return Silent()
    return Bars() if sys.stderr.isatty() else Lines()


def _describe(row: dict[str, Any]) -> list[str]:
    figures = []
    if "loss" in row:
        figures.append(f"loss {row['loss']:.3f}")
    if "accuracy" in row:
        figures.append(f"accuracy {100 * row['accuracy']:.1f}%")
    if row.get("val_accuracy") is not None:
        figures.append(f"validation {100 * row['val_accuracy']:.1f}%")
    return figures


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}:{seconds:02d}"
