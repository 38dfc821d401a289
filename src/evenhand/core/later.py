"""Later: work on files that another thread does while a training goes on."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache

log = logging.getLogger("evenhand")
SOON = 0.1  # seconds: most steps of a small epoch, a fraction of a large one's


class Later:
    """A piece of work, done when `begin` is called, or soon; `result` raises what went wrong.

    A device that has just finished an epoch should be given the next one before Python does anything else.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._go, self._due = threading.Event(), time.monotonic() + SOON
        try:
            self._job: Future[None] = _writer(os.getpid()).submit(self._run, work)
        except RuntimeError:  # the interpreter is about to end, and has no threads any more
            work()
            self._job = Future()
            self._job.set_result(None)
        _asked.add(self)

    def begin(self) -> None:
        self._go.set()

    def result(self) -> None:
        """Wait until it is done."""
        self.begin()
        self._job.result()

    def settle(self) -> None:
        """Wait until it is done or has failed."""
        self.begin()
        wait([self._job])

    def _run(self, work: Callable[[], None]) -> None:
        self._go.wait(max(0.0, self._due - time.monotonic()))
        try:
            work()
        except Exception as error:
            log.warning("an epoch's losses could not be kept: %s", error)
            raise


_asked: weakref.WeakSet[Later] = weakref.WeakSet()


def _settle_all() -> None:
    for work in list(_asked):
        work.settle()


# A process that is forked has no such thread: what has been asked for is done before.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_settle_all)


@cache
def _writer(process: int) -> ThreadPoolExecutor:
    del process  # one that was forked needs a thread of its own
    return ThreadPoolExecutor(1, "evenhand-history")
