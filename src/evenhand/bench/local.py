"""Local: a bench's runs in processes of this machine, each doing one run after another."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from evenhand.bench.plan import Planned
from evenhand.bench.work import Outcome, Place, to_json


class Local:
    """As many worker processes as asked for, started when there is work; one that dies is replaced."""

    def __init__(self, jobs: int, place: Place) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        self.jobs, self.place = jobs, place
        self._workers: list[_Worker | None] = [None] * jobs

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_error: object) -> None:
        for worker in filter(None, self._workers):
            worker.close()

    @property
    def free(self) -> int:
        """How many runs could begin now."""
        return sum(worker is None or worker.path is None for worker in self._workers)

    def submit(self, planned: Planned, path: Path) -> None:
        """Begin a run in a free worker."""
        slots = range(self.jobs)
        slot = min(slots, key=lambda slot: self._preference(slot))  # a process that is there and idle first
        worker = self._workers[slot]
        if worker is None:
            worker = self._workers[slot] = _Worker(self._place(slot), threads=1 if self.jobs > 1 else None)
        assert worker.path is None, "a run was submitted while no worker was free"
        worker.begin(planned, path)

    def wait(self, timeout: float) -> list[Outcome]:
        """What has ended, waiting at most so long for something to end."""
        outcomes = []
        with selectors.DefaultSelector() as selector:
            for slot, worker in enumerate(self._workers):
                if worker is not None:
                    selector.register(worker.answers, selectors.EVENT_READ, slot)
            for key, _ in selector.select(timeout):
                worker = self._workers[key.data]
                assert worker is not None
                path = worker.path
                outcome = worker.answer()
                if outcome is None:  # it died; the next run there gets a new one
                    self._workers[key.data] = None
                    error, text = worker.last_words()
                    outcome = None if path is None else Outcome(path, error, text, died=True)
                    worker.close()
                if outcome is not None:
                    outcomes.append(outcome)
        return outcomes

    def _preference(self, slot: int) -> int:
        worker = self._workers[slot]
        return 1 if worker is None else 0 if worker.path is None else 2

    def _place(self, slot: int) -> Place:
        """Workers are dealt out to the GPUs in turn."""
        import torch

        count = torch.cuda.device_count() if self.place.device in ("auto", "cuda") else 0
        return replace(self.place, device=f"cuda:{slot % count}") if count > 1 else self.place


class _Worker:
    """A process of `evenhand.bench.worker` and the run that it is doing."""

    def __init__(self, place: Place, threads: int | None) -> None:
        environment = dict(os.environ)
        if threads:  # several workers with several threads each only wait for each other
            environment["OMP_NUM_THREADS"] = str(threads)
        self.place, self.path = place, None  # type: tuple[Place, Path | None]
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        # -P: the current folder must not hide a library. Other workers do not get this one's pipes
        # (close_fds is the default), so its input ends when this process does.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "evenhand.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env=environment,
        )
        assert self._process.stdout is not None
        self.answers: Any = self._process.stdout

    def begin(self, planned: Planned, path: Path) -> None:
        self.path = path
        order = json.dumps(to_json(planned, path, self.place), default=str) + "\n"
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died while idle: `answer` will say so
            self._process.stdin.write(order.encode())

    def answer(self) -> Outcome | None:
        """What it says; None when it has died."""
        line = self.answers.readline()
        if not line.endswith(b"\n"):
            return None
        self.path = None
        values = json.loads(line)
        return Outcome(**{**values, "path": Path(values["path"])})

    def last_words(self) -> tuple[str, str]:
        """How it ended, in a line, and the end of what it wrote to standard error."""
        code = self._process.wait()
        self._errors.seek(0)
        text = self._errors.read()[-8000:].decode(errors="replace").strip()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        # The kernel does not write down why it kills: what was written last is then about something else.
        why = "" if code == -signal.SIGKILL else gist(text)
        line = f"the worker process {how}" + (f": {why}" if why else " (was there enough memory?)")
        return line, text

    def close(self) -> None:
        """End the process; a run in the middle of its training continues from there another time."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()


def gist(text: str) -> str:
    """The line of a process's last words that says what was wrong: C++ says what(), Python the last line.

    >>> gist("terminate called\\n  what():  CUDA error: out of memory\\nframe #0: here")
    'CUDA error: out of memory'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [reason for line in lines if (reason := line.partition("what():")[2].strip())]
    return ([*lines, *reasons] or [""])[-1][:300]
