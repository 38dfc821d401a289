"""Log: what a run does, line by line, in its folder's log.txt and, when asked for, at the terminal.

`note` is for what is worth keeping (begin, stages, reuse, warnings, end), `detail` for every file that is
read or written. Both go to the logger `evenhand.log`, which nothing else listens to.
"""

from __future__ import annotations

import contextlib
import html
import logging
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "log.txt"
_log = logging.getLogger("evenhand.log")
_log.propagate = False  # a program that shows all logs did not ask for these
_log.setLevel(logging.DEBUG)
_log.addHandler(logging.NullHandler())

note, detail = _log.info, _log.debug


def printable(text: object) -> str:
    """Replace characters that could control a terminal with question marks; names come from data.

    >>> printable("a\\x1b[31mb")
    'a?[31mb'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


class _Plain(logging.Formatter):
    """One line per message, without control characters."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _File(logging.Handler):
    """Appends the notes of this thread's run to a file; a log that cannot be written stops nobody."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._path, self._thread = path, threading.get_ident()
        self.setFormatter(_Plain("%(asctime)sZ %(message)s", "%Y-%m-%dT%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:  # else of another run in this process
            with (
                contextlib.suppress(OSError),
                self._path.open("a", encoding="utf-8", errors="replace") as file,
            ):
                file.write(self.format(record) + "\n")


@contextlib.contextmanager
def kept(folder: Path) -> Iterator[None]:
    """Keep the notes of what happens inside in the folder's log.txt, and how it ends."""
    handler, begun = _File(folder / NAME), time.monotonic()
    _log.addHandler(handler)
    try:
        yield
        note("end: finished, %.1f s", time.monotonic() - begun)
    except BaseException as error:
        note("end: %s: %s, %.1f s", type(error).__name__, error, time.monotonic() - begun)
        raise
    finally:
        _log.removeHandler(handler)


def show() -> None:
    """Print notes and details to standard error from now on; called twice, they still come once."""
    if not any(type(handler) is logging.StreamHandler for handler in _log.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(_Plain("%(asctime)s %(message)s", "%H:%M:%S"))
        _log.addHandler(handler)


# -- progress: bars at a terminal, plain lines in a log --------------------------------------------------

_shown = logging.getLogger("evenhand")  # what a person sees


class Silent:
    """Shows nothing; also the interface that the other two follow."""

    def start(self, title: str, *, epochs: int, samples: int, done: int = 0) -> None:
        """Begin a training of at most `epochs` epochs of `samples` samples, of which `done` are complete."""

    def advance(self, samples: int) -> None:
        """Count one more batch that was issued to the device."""

    def epoch(self, row: dict[str, Any]) -> None:
        """End an epoch with these figures."""

    def finish(self, reason: str = "") -> None:
        """End the training."""


class Lines(Silent):
    """One plain line at the first epoch, then at most every ten seconds, and one at the end."""

    interval = 10.0

    def start(self, title: str, *, epochs: int, samples: int, done: int = 0) -> None:
        self._title, self._epochs, self._samples = title, epochs, samples
        self._begun = self._shown = time.monotonic()
        self._done, self._row = done, {"epoch": done}
        _shown.info(
            "%s: %d samples, at most %d epochs%s", title, samples, epochs, f", {done} done" if done else ""
        )

    def epoch(self, row: dict[str, Any]) -> None:
        self._row = row
        if time.monotonic() - self._shown >= self.interval:
            self._shown = time.monotonic()
            _shown.info("%s: %s", self._title, self._figures())

    def finish(self, reason: str = "") -> None:
        _shown.info("%s: %s; %s", self._title, self._figures(), reason or "done")

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


class Notebook(Lines):
    """A bar below the cell of a notebook, which is updated in place."""

    def start(self, title: str, *, epochs: int, samples: int, done: int = 0) -> None:
        import IPython.display as shown

        self._title, self._epochs, self._samples, self._done = title, epochs, samples, done
        self._begun, self._row = time.monotonic(), {"epoch": done}
        self._make: Any = shown.HTML
        display: Any = shown.display
        self._shown_bar = display(self._html(), display_id=True)

    def epoch(self, row: dict[str, Any]) -> None:
        self._row = row
        self._shown_bar.update(self._html())

    def finish(self, reason: str = "") -> None:
        self._shown_bar.update(self._html(reason or "done"))

    def _html(self, end: str = "") -> Any:
        bar = end or f'<progress max="{self._epochs}" value="{self._row["epoch"]}"></progress>'
        return self._make(f"{html.escape(self._title)}: {bar} {self._figures()}")


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which shows HTML."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


def choose_progress(quiet: bool = False) -> Silent:
    """Choose bars for a person at standard error or a notebook, else lines; nothing if `quiet`."""
    if quiet:
        return Silent()
    if in_notebook():
        return Notebook()
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
