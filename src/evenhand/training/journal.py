"""Journal: what a run does, line by line, in its folder's log.txt and, when asked for, at the terminal.

`note` is for what is worth keeping (begin, stages, reuse, warnings, end), `detail` for every file that is
read or written. Both go to the logger `evenhand.journal`, which nothing else listens to.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

NAME = "log.txt"
_journal = logging.getLogger("evenhand.journal")
_journal.propagate = False  # a program that shows all logs did not ask for these
_journal.setLevel(logging.DEBUG)
_journal.addHandler(logging.NullHandler())

note, detail = _journal.info, _journal.debug


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
    """Appends to a file, a line at a time; a log that cannot be written stops nobody."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._path, self._thread = path, threading.get_ident()
        self.setFormatter(_Plain("%(asctime)sZ %(message)s", "%Y-%m-%dT%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread:  # of another run in this process
            return
        line = self.format(record) + "\n"
        # One call appends one line, so that processes that share a folder do not mix theirs.
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(file, line.encode("utf-8", "replace"))
            finally:
                os.close(file)


@contextlib.contextmanager
def kept(folder: Path) -> Iterator[None]:
    """Keep the notes of what happens inside in the folder's log.txt, and how it ends."""
    handler, begun = _File(folder / NAME), time.monotonic()
    _journal.addHandler(handler)
    try:
        yield
        note("end: finished, %.1f s", time.monotonic() - begun)
    except BaseException as error:
        note("end: %s: %s, %.1f s", type(error).__name__, error, time.monotonic() - begun)
        raise
    finally:
        _journal.removeHandler(handler)


class _Terminal(logging.StreamHandler[TextIO]):
    """Prints to standard error."""


def show() -> None:
    """Print notes and details to standard error from now on; called twice, they still come once."""
    if any(isinstance(handler, _Terminal) for handler in _journal.handlers):
        return
    handler = _Terminal()
    handler.setFormatter(_Plain("%(asctime)s %(message)s", "%H:%M:%S"))
    _journal.addHandler(handler)
