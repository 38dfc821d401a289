"""Log: what a run does, line by line, in its folder's log.txt and, when asked for, at the terminal.

`note` is for what is worth keeping (begin, stages, reuse, warnings, end), `detail` for every file that is
read or written. Both go to the logger `evenhand.log`, which nothing else listens to.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

NAME = "log.txt"
_log = logging.getLogger("evenhand.log")
_log.propagate = False  # a program that shows all logs did not ask for these
_log.setLevel(logging.DEBUG)
_log.addHandler(logging.NullHandler())

note, detail = _log.info, _log.debug


def printable(text: object) -> str:
    """Names come from data; what could steer a terminal is shown as a question mark.

    >>> printable("a\\x1b[31mb")
    'a?[31mb'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


class _Plain(logging.Formatter):
    """One line for each message, whatever names it holds."""

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
