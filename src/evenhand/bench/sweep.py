"""Sweep: execute the runs of a bench with identical workers, each of which takes the next unclaimed run.

    agenda = Agenda(Sweep(runs, waves=[waves("digits", PAPER, seeds=[0, 1, 2], changes={})]))
    with Local(jobs=2) as engine:        # or Ray(jobs=2)
        launch(agenda, engine)

A worker claims a run by locking its folder, so workers of several benches or machines that share the folder
never execute the same run. Every process reads the state of runs from disk: a finished run has metrics.json,
a failed one has failure.json, which names the sweeps in which it failed. Workers also send events to the
process that started them. It shows progress, replaces workers that die, and limits the retries of each run.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

import evenhand
from evenhand import tasks
from evenhand.bench import results
from evenhand.bench.grid import SPLITS, Planned, Waves, declared_method, declared_task, parse, task_file
from evenhand.training import plugins
from evenhand.training.recipe import RESOLVED, Recipe
from evenhand.training.record import Record, find, is_finished
from evenhand.training.store import claim, read_json, write_json

if TYPE_CHECKING:
    from evenhand.training.data import Task

RETRIES = 2  # of a run whose worker died, for example because another process took the memory
POLL = 0.5  # seconds between two checks of what other processes have done


@dataclass(frozen=True)
class Sweep:
    """The input of every worker of a bench: its folders and device, and the requested runs."""

    runs: Path = Path("runs")
    data: Path | None = None
    device: str = "auto"
    planned: Sequence[Planned] = ()
    waves: Sequence[Waves] = ()
    end: float = math.inf  # no run starts after this time.time()
    done: frozenset[Path] = frozenset()  # runs known to be finished
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class Facts:
    """The facts about a task that planning needs."""

    spec: str
    grouped: Sequence[str]  # splits with known groups
    recipe: Recipe


@functools.cache
def facts(spec: str, data: Path | None = None) -> Facts:
    """Return the facts that a task's file declares, without torch or data; else those of its data."""
    found, (_, given) = declared_task(spec), tasks.parse(spec)
    recipe = getattr(found.constants, "RECIPE", None)
    # A task with a correlation strength p has groups too.
    has_groups = getattr(found.constants, "HAS_GROUPS", False) or "p" in found.options
    if isinstance(recipe, Recipe) and has_groups and given.keys() <= {*found.options, "limit"}:
        return Facts(spec, SPLITS, recipe)
    task = load(spec, data)
    return Facts(task.spec, grouped(task), task.recipe)


@functools.cache
def load(spec: str, data: Path | None) -> Task:
    """Return a task, loaded once per process."""
    return tasks.load(spec, data)


def grouped(task: Task) -> list[str]:
    """Return the splits of a task with known groups."""
    return [split for split in SPLITS if getattr(task, split).group is not None]


def locate(planned: Planned, task: Task, runs: Path, device: str = "auto") -> Path:
    """Return the folder of a run, as `execute` chooses it."""
    from evenhand.core.ranks import resolve_device
    from evenhand.training.keys import identify

    recipe = task.recipe.replace(**planned.changes)
    identity = identify(task, planned.method, planned.settings, recipe, resolve_device(device))
    return identity.folder(runs, planned.seed)


# -- events of a worker ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begun:
    """A worker has taken a run."""

    path: Path


@dataclass(frozen=True)
class Outcome:
    """A run has ended; without an error if it succeeded."""

    path: Path
    error: str = ""
    traceback: str = ""
    notes: tuple[str, ...] = ()  # evenhand's warnings, for example about a damaged file


@dataclass(frozen=True)
class Ended:
    """A worker has ended, with an error or because nothing is left to do."""

    error: str = ""
    traceback: str = ""


Event = Begun | Outcome | Ended


# -- the runs and their states -----------------------------------------------------------------------------


@dataclass
class Entry:
    """One run and its state."""

    planned: Planned
    path: Path
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    deaths: int = 0  # of workers that were executing it
    error: str = ""
    seconds: float | None = None  # of a finished run

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed")


class Agenda:
    """All runs of a sweep in the order in which they start. Second waves follow when ERM's runs have ended.

    `path_of` gives the folder of a run; by default the one that `execute` chooses.
    """

    def __init__(self, sweep: Sweep, path_of: Callable[[Planned], Path] | None = None) -> None:
        self.sweep, self._path = sweep, path_of or self._locate
        self.entries: dict[Path, Entry] = {}
        self.notes = [note for wave in sweep.waves for note in wave.notes]
        self._idle_deaths = 0
        self._add(sweep.planned)
        first = [one for wave in sweep.waves for one in wave.first]
        self._add(sorted(first, key=lambda one: one.method != "erm"))
        self.later = [  # second waves that are not added yet, and the runs for which they wait
            (wave, [self.entries[self._path(one)] for one in wave.first if one.method == "erm"])
            for wave in sweep.waves
            if wave.methods
        ]
        self.follow()

    def _add(self, planned: Iterable[Planned]) -> None:
        for one in planned:
            path = self._path(one)
            if path not in self.entries:
                self.entries[path] = Entry(one, path, "done" if path in self.sweep.done else "waiting")
                self.look(self.entries[path])

    def _locate(self, planned: Planned) -> Path:
        return locate(planned, load(planned.spec, self.sweep.data), self.sweep.runs, self.sweep.device)

    def follow(self) -> None:
        """Add every second wave whose ERM runs have all ended, even if some of them failed."""
        for wave, erm in list(self.later):
            if not all(map(self.look, erm)):
                continue
            self.later.remove((wave, erm))
            done = [Record(entry.path) for entry in erm if entry.state == "done"]
            if not done:
                self.notes.append(
                    f"{wave.spec}: all runs of erm failed, so no learning rate can be inherited and "
                    f"{', '.join(wave.methods)} cannot run"
                )
                continue
            if len(done) < len(erm):
                self.notes.append(f"{wave.spec}: erm is selected from {len(done)} of its {len(erm)} runs")
            self._add(wave.second(results.inherited_pair(results.frame(done))))

    def look(self, entry: Entry) -> bool:
        """Return whether a run has ended, whichever process executed it."""
        if entry.over:
            return True
        if is_finished(entry.path):
            self.finish(entry)
        elif self.sweep.key in (failure := _failure(entry.path)).get("sweeps", ()):
            entry.state, entry.error = "failed", str(failure["error"])
        return entry.over

    def finish(self, entry: Entry) -> None:
        """Mark a run as done."""
        entry.state, entry.error = "done", ""
        with contextlib.suppress(OSError, ValueError, KeyError):  # only estimates need it
            entry.seconds = float(Record(entry.path).timing["seconds"])
        (entry.path / "failure.json").unlink(missing_ok=True)

    def fail(self, entry: Entry, error: str, text: str) -> None:
        """Mark a run as failed, also in its folder, where other processes see it."""
        entry.state, entry.error = "failed", error
        sweeps = [*_failure(entry.path).get("sweeps", ())[-8:], self.sweep.key]  # of concurrent benches
        content = {"error": error, "traceback": text, "time": int(time.time()), "sweeps": sweeps}
        # If another process is already repeating the run, that process will write how it ended.
        with contextlib.suppress(BlockingIOError), claim(entry.path, wait=False):
            write_json(entry.path / "failure.json", content)

    def note(self, event: Event, path: Path | None) -> Entry | None:
        """Update and return the run of an event; `path` is the run that the worker was executing."""
        if not isinstance(event, Ended):
            path = event.path
        elif path is None:
            self._idle_deaths += bool(event.error)
            if self._idle_deaths > RETRIES:
                raise RuntimeError(f"workers end before they start a run: {event.error}\n{event.traceback}")
            return None
        if path not in self.entries:
            self.follow()  # a worker may notice before this process that ERM's runs have ended
        if path not in self.entries:
            raise ValueError(
                f"a worker started {path}, which is not planned here, because its machine has another "
                "device or other data; use the same --device and --data everywhere"
            )
        entry = self.entries[path]
        if isinstance(event, Begun):
            entry.state = "running"
        elif isinstance(event, Outcome):
            self.notes += event.notes
            if event.error:
                entry.state, entry.error = "failed", event.error
            else:
                self.finish(entry)
        elif event.error and entry.deaths < RETRIES:
            entry.state, entry.deaths = "waiting", entry.deaths + 1
            self.notes.append(f"{entry.planned.words()}: {event.error}; tried again")
        elif event.error:
            self.fail(entry, event.error, event.traceback)
        return entry

    def count(self, *states: str) -> int:
        return sum(entry.state in states for entry in self.entries.values())

    def records(self) -> list[Record]:
        """Return the records of the runs that are done."""
        return [Record(entry.path) for entry in self.entries.values() if entry.state == "done"]

    def failures(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.state == "failed"]

    def expected(self) -> list[Planned]:
        """Return the runs of second waves that are not added yet; their learning rate is unknown."""
        return [one for wave, _ in self.later for one in wave.second({})]

    def left(self) -> int:
        """Return the number of runs that are neither done nor failed."""
        return self.count("waiting", "running") + len(self.expected())


def _failure(path: Path) -> dict[str, Any]:
    """Return the content of a failed run's failure.json; empty if there is none."""
    try:
        content = read_json(path / "failure.json")
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and isinstance(content.get("sweeps"), list) else {}


# -- a dry run ---------------------------------------------------------------------------------------------


def outline(sweep: Sweep) -> Agenda:
    """Return the agenda of a dry run. It recognizes finished runs by their settings, without torch or data.

    So it does not notice other data or another arithmetic.
    """
    finished = {}
    for record in find(sweep.runs):
        with contextlib.suppress(OSError, ValueError):  # a damaged record is recomputed
            device = sweep.device.partition(":")[0]
            if not record.older and device in ("auto", record.made_with["device"]):
                finished[_record_key(record)] = record.path

    def path_of(planned: Planned) -> Path:
        key = _planned_key(planned, facts(planned.spec, sweep.data).recipe)
        return finished.get(key) or sweep.runs / key

    return Agenda(sweep, path_of)


def _record_key(record: Record) -> str:
    config = record.config
    recipe = {name: value for name, value in config["recipe"].items() if name not in RESOLVED}
    version = config.get("version", config.get("source"))
    return _key(config["spec"], record.method, version, config["hyperparameters"], recipe, record.seed)


def _planned_key(planned: Planned, recipe: Recipe) -> str:
    found = declared_method(planned.method)
    own = {name: value for name, value in planned.settings.items() if name in found.options}
    changes = {name: value for name, value in planned.settings.items() if name not in found.options}
    recipe = recipe.replace(**{**planned.changes, **changes})
    is_ours = "." not in planned.method
    version = getattr(found.constants, "VERSION", 0) if is_ours else plugins.version(found.constants)
    changed = {name: value for name, value in own.items() if value != found.options[name]}
    return _key(planned.spec, planned.method, version, changed, recipe.changed(), planned.seed)


def _key(spec: str, *parts: Any) -> str:
    """Return a key that is equal for runs with equal settings, however their task's spec is written."""
    name, given = parse(spec)
    defaults = getattr(task_file(spec), "options", {})
    options = {key: plugins.parse_value(text) for key, text in given.items()}
    options = {key: value for key, value in options.items() if value != defaults.get(key)}
    return json.dumps([name, options, *parts], sort_keys=True, default=str)


# -- a worker ----------------------------------------------------------------------------------------------


def work(sweep: Sweep, folders: Sequence[str] = ()) -> Iterator[Event]:
    """Execute one unclaimed run after another until all have ended or the time is up.

    An error in a run is an event. `folders` hold the user's modules, as on the machine of the bench.
    """
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    agenda = Agenda(sweep)
    while agenda.left() and time.time() < sweep.end:
        for entry in list(agenda.entries.values()):
            if agenda.look(entry):
                continue
            try:
                with claim(entry.path, wait=False):
                    if agenda.look(entry):  # it ended between the two lines above
                        continue
                    yield Begun(entry.path)
                    outcome = _carry_out(entry, sweep)
                    if outcome.error:
                        agenda.fail(entry, outcome.error, outcome.traceback)
            except BlockingIOError:  # another worker, here or on another machine, is executing it
                continue
            agenda.look(entry)
            yield outcome
            break
        else:
            time.sleep(POLL)
        agenda.follow()


def _carry_out(entry: Entry, sweep: Sweep) -> Outcome:
    """Execute a run; an error becomes part of the outcome."""
    import torch

    from evenhand.training.execute import execute
    from evenhand.training.log import Silent

    planned, error, text = entry.planned, "", ""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        try:
            task = load(planned.spec, sweep.data)
            record = execute(
                task,
                planned.method,
                planned.settings,
                recipe=task.recipe.replace(**planned.changes),
                seed=planned.seed,
                runs=sweep.runs,
                device=sweep.device,
                show=Silent(),
            )
            assert record.path == entry.path, f"the run of {entry.path} is kept in {record.path}"
        except Exception as raised:
            error, text = f"{type(raised).__name__}: {raised}", traceback.format_exc()
    gc.collect()
    torch.cuda.empty_cache()  # for other workers on the same GPU; does nothing without CUDA
    ours = Path(evenhand.__file__).parent
    notes = dict.fromkeys(str(one.message) for one in said if Path(one.filename).is_relative_to(ours))
    return Outcome(entry.path, error, text, tuple(notes))


# -- starting and watching workers -------------------------------------------------------------------------


class Watcher(Protocol):
    """Shows the progress of a bench."""

    def update(self, agenda: Agenda) -> None: ...
    def finished(self, agenda: Agenda, entry: Entry) -> None: ...


class Engine(Protocol):
    """Starts workers as `Local` processes or `Ray` tasks. A worker is any object that identifies one."""

    @property
    def slots(self) -> int: ...
    def start(self, sweep: Sweep) -> Any: ...
    def wait(self, timeout: float) -> list[tuple[Any, Event]]: ...


def launch(agenda: Agenda, engine: Engine, show: Watcher | None = None) -> None:
    """Start workers, replace those that die, and return when all have ended.

    A failed run does not stop the others. A run whose worker dies is retried up to RETRIES times.
    """
    done = frozenset(path for path, entry in agenda.entries.items() if entry.state == "done")
    sweep = replace(agenda.sweep, done=done)
    doing: dict[Any, Path | None] = {}  # worker -> the run that it executes
    while True:
        for entry in list(agenda.entries.values()):
            if entry.state == "waiting":
                agenda.look(entry)  # another process may have executed it
        agenda.follow()
        wanted = min(engine.slots, agenda.left()) if time.time() < sweep.end else 0
        while len(doing) < wanted:
            doing[engine.start(sweep)] = None
        if show:
            show.update(agenda)
        if not doing:
            return
        for worker, event in engine.wait(POLL):
            changed = agenda.note(event, doing.pop(worker))
            if not isinstance(event, Ended):
                doing[worker] = event.path if isinstance(event, Begun) else None
            if show and changed and changed.over:
                show.finished(agenda, changed)


class Local:
    """Worker processes on this machine, at most `jobs` at a time."""

    def __init__(self, jobs: int) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        self.slots = jobs
        self._workers: list[_Process | None] = [None] * jobs

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_error: object) -> None:
        for worker in filter(None, self._workers):
            worker.close()

    def start(self, sweep: Sweep) -> _Process:
        """Start a worker. Workers are assigned to the GPUs in turn."""
        import torch

        slot = self._workers.index(None)
        gpus = torch.cuda.device_count() if sweep.device in ("auto", "cuda") else 0
        if gpus > 1:
            sweep = replace(sweep, device=f"cuda:{slot % gpus}")
        self._workers[slot] = worker = _Process(sweep, threads=1 if self.slots > 1 else None)
        return worker

    def wait(self, timeout: float) -> list[tuple[Any, Event]]:
        """Return the next events of the workers, after at most `timeout` seconds."""
        by_pipe = {worker.pipe: worker for worker in self._workers if worker is not None}
        ready = multiprocessing.connection.wait(list(by_pipe), timeout)
        events = [(by_pipe[pipe], by_pipe[pipe].event()) for pipe in ready]  # type: ignore[index]
        for worker, event in events:
            if isinstance(event, Ended):
                self._workers[self._workers.index(worker)] = None
                worker.close()
        return events


class _Process:
    """A worker process."""

    def __init__(self, sweep: Sweep, threads: int | None) -> None:
        environment = dict(os.environ)
        if threads:  # several workers with several threads each would compete for the cores
            environment["OMP_NUM_THREADS"] = str(threads)
        self.pipe, theirs = multiprocessing.Pipe()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        program = "from evenhand.bench.sweep import serve; serve()"
        # -P: a file in the current folder must not shadow a library.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=[theirs.fileno()],
            env=environment,
        )
        theirs.close()
        with contextlib.suppress(OSError):  # if it has died, `event` reports it
            self.pipe.send((sweep, search_path()))

    def event(self) -> Event:
        """Return the worker's next event."""
        try:
            event: Event = self.pipe.recv()
        except (EOFError, OSError):
            return self._ended()
        return event

    def _ended(self) -> Ended:
        """Return how the process ended, and the end of its output."""
        code = self._process.wait()
        if code == 0:
            return Ended()
        self._output.seek(0)
        text = self._output.read()[-8000:].decode(errors="replace").strip()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        # After SIGKILL the last output is unrelated, since the kernel prints no reason.
        why = "" if code == -signal.SIGKILL else gist(text)
        return Ended(
            f"the worker process {how}" + (f": {why}" if why else " (was there enough memory?)"), text
        )

    def close(self) -> None:
        """End the process. Its run resumes from the last checkpoint another time."""
        self._process.kill()
        self._process.wait()
        self.pipe.close()
        self._output.close()


def serve() -> None:
    """Run a worker process, whose arguments are its pipe's file descriptor and its parent's process id."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    die_with(int(sys.argv[2]))
    with multiprocessing.connection.Connection(int(sys.argv[1])) as pipe:
        for event in work(*pipe.recv()):
            pipe.send(event)


def die_with(parent: int) -> None:
    """End this process as soon as its parent ends, however that happens."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG

    def watch() -> None:  # for other systems, and for a parent that has already ended
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)  # everything that matters is on disk

    threading.Thread(target=watch, daemon=True).start()


def search_path() -> list[str]:
    """Return the absolute search path of modules, for workers in other folders or on other machines."""
    return [folder or str(Path.cwd()) for folder in sys.path]


def gist(text: str) -> str:
    """Return the line of a process's output that gives the reason: after what() in C++, last in Python.

    >>> gist("terminate called\\n  what():  CUDA error: out of memory\\nframe #0: here")
    'CUDA error: out of memory'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [reason for line in lines if (reason := line.partition("what():")[2].strip())]
    return ([*lines, *reasons] or [""])[-1][:300]


class Ray:
    """Workers as tasks of a Ray cluster whose machines share the runs folder.

    A worker takes one CPU, or 1/jobs of a GPU if the cluster has GPUs. Without GPUs and without `address`,
    `jobs` workers run on this machine.
    """

    def __init__(self, jobs: int, device: str = "auto", address: str | None = None) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ImportError(
                f"--engine ray needs Ray, which cannot be imported ({error}): pip install 'evenhand[ray]'"
            ) from error
        self._jobs, self._device, self._address = jobs, device, address
        self._workers: list[Any] = []
        self._started = False
        # Ray prints the deaths of its workers to standard output, which holds the bench's table.
        self._stdout = contextlib.redirect_stdout(sys.stderr)

    def __enter__(self) -> Ray:
        if not self._ray.is_initialized():
            local = {} if self._address else {"num_cpus": self._jobs, "include_dashboard": False}
            self._ray.init(address=self._address, log_to_driver=False, logging_level="error", **local)
            self._started = True
        resources = self._ray.cluster_resources()
        gpus = 0 if self._device == "cpu" else int(resources.get("GPU", 0))
        self.slots = gpus * self._jobs if gpus else max(int(resources.get("CPU", 1)), 1)
        part = math.floor(10_000 / self._jobs) / 10_000  # Ray counts in ten-thousandths
        share = {"num_gpus": part, "num_cpus": 0} if gpus else {"num_cpus": 1}
        # `launch` replaces workers that die, so Ray need not retry.
        self._work = self._ray.remote(max_retries=0, num_returns="streaming", **share)(work)
        self._stdout.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        for worker in self._workers:
            self._ray.cancel(worker, force=True)
        if self._started:
            self._ray.shutdown()
        self._stdout.__exit__(None, None, None)

    def start(self, sweep: Sweep) -> Any:
        """Start a worker."""
        self._workers.append(self._work.remote(sweep, search_path()))
        return self._workers[-1]

    def wait(self, timeout: float) -> list[tuple[Any, Event]]:
        """Return the next events of the workers, after at most `timeout` seconds."""
        ready, _ = self._ray.wait(self._workers, num_returns=1, timeout=timeout)
        return [(worker, self._event(worker)) for worker in ready]

    def _event(self, worker: Any) -> Event:
        try:
            event: Event = self._ray.get(next(worker))
        except StopIteration:
            event = Ended()
        except self._ray.exceptions.RayError as error:
            event = Ended(f"the worker process of Ray ended: {gist(str(error))}", str(error))
        if isinstance(event, Ended):
            self._workers.remove(worker)
        return event
