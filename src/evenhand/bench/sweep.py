"""Sweep: carry out the runs of a bench with identical workers, each of which takes the next unclaimed run.

    agenda = Agenda(Sweep(runs, waves=[waves("digits", PAPER, seeds=[0, 1, 2], changes={})]))
    with Local(jobs=2) as engine:        # or Ray(jobs=2)
        launch(agenda, engine)

A run is claimed by the lock on its folder, so workers of several benches, also on several machines that share
the folder, never do the same run. Every process reads from disk what is over: a finished run has
metrics.json, a failed one has failure.json, which names the sweeps in which it failed. Workers also send
events to the process that started them, which shows progress, replaces workers that die, and counts how
often each run's worker died.
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

RETRIES = 2  # of a run whose worker dies: another process may have taken the memory
POLL = 0.5  # seconds between two looks at what other processes have done


@dataclass(frozen=True)
class Sweep:
    """What every worker of a bench is given: where it works, and which runs are wanted."""

    runs: Path = Path("runs")
    data: Path | None = None
    device: str = "auto"
    planned: Sequence[Planned] = ()
    waves: Sequence[Waves] = ()
    end: float = math.inf  # the time, as time.time() counts it, after which no run begins
    done: frozenset[Path] = frozenset()  # runs that are known to be finished
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class Facts:
    """What planning needs to know of a task."""

    spec: str
    grouped: Sequence[str]  # the splits whose groups are known
    recipe: Recipe


@functools.cache
def facts(spec: str, data: Path | None = None) -> Facts:
    """What a task's file declares, which needs neither torch nor data, or else what the loaded task says."""
    found, (_, given) = declared_task(spec), tasks.parse(spec)
    recipe = getattr(found.constants, "RECIPE", None)
    # A task with a strength p of its correlation has groups too.
    has_groups = getattr(found.constants, "HAS_GROUPS", False) or "p" in found.options
    if isinstance(recipe, Recipe) and has_groups and given.keys() <= {*found.options, "limit"}:
        return Facts(spec, SPLITS, recipe)
    task = load(spec, data)
    return Facts(task.spec, grouped(task), task.recipe)


@functools.cache
def load(spec: str, data: Path | None) -> Task:
    """A task, loaded once in each process."""
    return tasks.load(spec, data)


def grouped(task: Task) -> list[str]:
    """The splits of a task whose groups are known."""
    return [split for split in SPLITS if getattr(task, split).group is not None]


def locate(planned: Planned, task: Task, runs: Path, device: str = "auto") -> Path:
    """The folder in which `execute` keeps this run."""
    from evenhand.core.ranks import resolve_device
    from evenhand.training.keys import identify

    recipe = task.recipe.replace(**planned.changes)
    identity = identify(task, planned.method, planned.settings, recipe, resolve_device(device))
    return identity.folder(runs, planned.seed)


# -- what a worker tells -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begun:
    """A worker has taken a run."""

    path: Path


@dataclass(frozen=True)
class Outcome:
    """How a run ended: well, or with an error."""

    path: Path
    error: str = ""
    traceback: str = ""
    notes: tuple[str, ...] = ()  # warnings of ours, such as of a damaged file that was computed again


@dataclass(frozen=True)
class Ended:
    """A worker has ended: because nothing is left to do, or with an error."""

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
    deaths: int = 0  # of workers that were doing it
    error: str = ""
    seconds: float | None = None  # that a finished run took

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed")


class Agenda:
    """All runs of a sweep in the order in which they begin. Second waves follow when ERM's runs are over.

    `path_of` gives the folder of a run; by default the one in which `execute` keeps it.
    """

    def __init__(self, sweep: Sweep, path_of: Callable[[Planned], Path] | None = None) -> None:
        self.sweep, self._path = sweep, path_of or self._locate
        self.entries: dict[Path, Entry] = {}
        self.notes = [note for wave in sweep.waves for note in wave.notes]
        self._idle_deaths = 0
        self._add(sweep.planned)
        first = [one for wave in sweep.waves for one in wave.first]
        self._add(sorted(first, key=lambda one: one.method != "erm"))
        self.later = [  # second waves that are not added yet, and the runs that they wait for
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
        """Add every second wave whose ERM runs are over, also if some of them failed."""
        for wave, erm in list(self.later):
            if not all(map(self.look, erm)):
                continue
            self.later.remove((wave, erm))
            done = [Record(entry.path) for entry in erm if entry.state == "done"]
            if not done:
                self.notes.append(
                    f"{wave.spec}: all of erm's runs failed, so there is no learning rate to inherit; "
                    f"not run: {', '.join(wave.methods)}"
                )
                continue
            if len(done) < len(erm):
                self.notes.append(f"{wave.spec}: erm is selected from {len(done)} of its {len(erm)} runs")
            self._add(wave.second(results.inherited_pair(results.frame(done))))

    def look(self, entry: Entry) -> bool:
        """Whether a run is over, whoever did it."""
        if entry.over:
            return True
        if is_finished(entry.path):
            self.finish(entry)
        elif self.sweep.key in (failure := _failure(entry.path)).get("sweeps", ()):
            entry.state, entry.error = "failed", str(failure["error"])
        return entry.over

    def finish(self, entry: Entry) -> None:
        """Note that a run is done."""
        entry.state, entry.error = "done", ""
        with contextlib.suppress(OSError, ValueError, KeyError):  # only estimates need it
            entry.seconds = float(Record(entry.path).timing["seconds"])
        (entry.path / "failure.json").unlink(missing_ok=True)

    def fail(self, entry: Entry, error: str, text: str) -> None:
        """Note that a run has failed, also beside its files, where other processes see it."""
        entry.state, entry.error = "failed", error
        sweeps = [*_failure(entry.path).get("sweeps", ())[-8:], self.sweep.key]  # of several benches at once
        content = {"error": error, "traceback": text, "time": int(time.time()), "sweeps": sweeps}
        # If another process is already doing the run again, that process will note how it ended.
        with contextlib.suppress(BlockingIOError), claim(entry.path, wait=False):
            write_json(entry.path / "failure.json", content)

    def note(self, event: Event, path: Path | None) -> Entry | None:
        """Update the run that an event is about, and return that run; `path` is what the worker was doing."""
        if not isinstance(event, Ended):
            path = event.path
        elif path is None:
            self._idle_deaths += bool(event.error)
            if self._idle_deaths > RETRIES:
                raise RuntimeError(f"workers end before they begin a run: {event.error}\n{event.traceback}")
            return None
        if path not in self.entries:
            self.follow()  # a worker may see before this process does that ERM's runs are over
        if path not in self.entries:
            raise ValueError(
                f"a worker has begun {path}, which is not among the runs planned here: its machine has "
                "another device or other data; name the same --device and --data for all"
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
        """The records of the runs that are done."""
        return [Record(entry.path) for entry in self.entries.values() if entry.state == "done"]

    def failures(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.state == "failed"]

    def expected(self) -> list[Planned]:
        """The runs of second waves that are not added yet; their learning rate is not known."""
        return [one for wave, _ in self.later for one in wave.second({})]

    def left(self) -> int:
        """How many runs are neither done nor failed."""
        return self.count("waiting", "running") + len(self.expected())


def _failure(path: Path) -> dict[str, Any]:
    """What is noted of a run that has failed; empty where nothing is."""
    try:
        content = read_json(path / "failure.json")
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and isinstance(content.get("sweeps"), list) else {}


# -- a dry run ---------------------------------------------------------------------------------------------


def outline(sweep: Sweep) -> Agenda:
    """The agenda of a dry run. It recognizes finished runs by their settings, without torch and the data.

    So it cannot see whether they were made from the same data and by the same arithmetic.
    """
    finished = {}
    for record in find(sweep.runs):
        with contextlib.suppress(OSError, ValueError):  # a damaged record is computed again
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
    """Equal for runs with equal settings, however the task is written."""
    name, given = parse(spec)
    defaults = getattr(task_file(spec), "options", {})
    options = {key: plugins.parse_value(text) for key, text in given.items()}
    options = {key: value for key, value in options.items() if value != defaults.get(key)}
    return json.dumps([name, options, *parts], sort_keys=True, default=str)


# -- a worker ----------------------------------------------------------------------------------------------


def work(sweep: Sweep, folders: Sequence[str] = ()) -> Iterator[Event]:
    """Do one unclaimed run after another, until all are over or the time is. An error of a run is an event.

    `folders`: where a user's modules are found, as on the machine that began the bench.
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
            except BlockingIOError:  # another worker, here or on another machine, is doing it
                continue
            agenda.look(entry)
            yield outcome
            break
        else:
            time.sleep(POLL)
        agenda.follow()


def _carry_out(entry: Entry, sweep: Sweep) -> Outcome:
    """Carry out a run; an error is an answer, not an exception."""
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
    torch.cuda.empty_cache()  # several workers may share a GPU; does nothing where CUDA was not used
    ours = Path(evenhand.__file__).parent
    notes = dict.fromkeys(str(one.message) for one in said if Path(one.filename).is_relative_to(ours))
    return Outcome(entry.path, error, text, tuple(notes))


# -- starting and watching workers -------------------------------------------------------------------------


class Watcher(Protocol):
    """What shows a person how a bench goes on."""

    def update(self, agenda: Agenda) -> None: ...
    def finished(self, agenda: Agenda, entry: Entry) -> None: ...


class Engine(Protocol):
    """Where workers run: `Local` processes or tasks of `Ray`. A worker is any object that stands for one."""

    @property
    def slots(self) -> int: ...
    def start(self, sweep: Sweep) -> Any: ...
    def wait(self, timeout: float) -> list[tuple[Any, Event]]: ...


def launch(agenda: Agenda, engine: Engine, show: Watcher | None = None) -> None:
    """Start workers, replace those that die, and return when all have ended. A failed run stops no other.

    A run whose worker dies is tried again, RETRIES times at most.
    """
    done = frozenset(path for path, entry in agenda.entries.items() if entry.state == "done")
    sweep = replace(agenda.sweep, done=done)
    doing: dict[Any, Path | None] = {}  # worker -> the run that it is doing
    while True:
        for entry in list(agenda.entries.values()):
            if entry.state == "waiting":
                agenda.look(entry)  # another process may have done it
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
    """Worker processes of this machine, at most `jobs` at a time."""

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
        """Start a worker. Workers are dealt out to the GPUs in turn."""
        import torch

        slot = self._workers.index(None)
        gpus = torch.cuda.device_count() if sweep.device in ("auto", "cuda") else 0
        if gpus > 1:
            sweep = replace(sweep, device=f"cuda:{slot % gpus}")
        self._workers[slot] = worker = _Process(sweep, threads=1 if self.slots > 1 else None)
        return worker

    def wait(self, timeout: float) -> list[tuple[Any, Event]]:
        """What the workers tell, after at most so many seconds."""
        by_pipe = {worker.pipe: worker for worker in self._workers if worker is not None}
        ready = multiprocessing.connection.wait(list(by_pipe), timeout)
        events = [(by_pipe[pipe], by_pipe[pipe].event()) for pipe in ready]  # type: ignore[index]
        for worker, event in events:
            if isinstance(event, Ended):
                self._workers[self._workers.index(worker)] = None
                worker.close()
        return events


class _Process:
    """A process that works on a sweep."""

    def __init__(self, sweep: Sweep, threads: int | None) -> None:
        environment = dict(os.environ)
        if threads:  # several workers with several threads each only wait for each other
            environment["OMP_NUM_THREADS"] = str(threads)
        self.pipe, theirs = multiprocessing.Pipe()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        program = "from evenhand.bench.sweep import serve; serve()"
        # -P: a file in the current folder must not hide a library.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=[theirs.fileno()],
            env=environment,
        )
        theirs.close()
        with contextlib.suppress(OSError):  # if it has died, `event` will say so
            self.pipe.send((sweep, search_path()))

    def event(self) -> Event:
        """What it tells next."""
        try:
            event: Event = self.pipe.recv()
        except (EOFError, OSError):
            return self._ended()
        return event

    def _ended(self) -> Ended:
        """How it ended, in a line, and the last of what it printed."""
        code = self._process.wait()
        if code == 0:
            return Ended()
        self._output.seek(0)
        text = self._output.read()[-8000:].decode(errors="replace").strip()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        # The kernel does not write down why it kills: what was printed last is then about something else.
        why = "" if code == -signal.SIGKILL else gist(text)
        return Ended(
            f"the worker process {how}" + (f": {why}" if why else " (was there enough memory?)"), text
        )

    def close(self) -> None:
        """End the process; a run in the middle of its training continues from there another time."""
        self._process.kill()
        self._process.wait()
        self.pipe.close()
        self._output.close()


def serve() -> None:
    """A worker process: the file descriptor of its pipe and its parent's process id are its arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
    die_with(int(sys.argv[2]))
    with multiprocessing.connection.Connection(int(sys.argv[1])) as pipe:
        for event in work(*pipe.recv()):
            pipe.send(event)


def die_with(parent: int) -> None:
    """End this process when its parent ends, in whatever way and whatever this process is doing."""
    with contextlib.suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG

    def watch() -> None:  # elsewhere, and for a parent that has already ended
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)  # in the middle of a training: all that matters is on disk

    threading.Thread(target=watch, daemon=True).start()


def search_path() -> list[str]:
    """Where modules are found here; a worker in another folder or on another machine looks there too."""
    return [folder or str(Path.cwd()) for folder in sys.path]


def gist(text: str) -> str:
    """The line of a process's last words that says what was wrong: C++ says what(), Python the last line.

    >>> gist("terminate called\\n  what():  CUDA error: out of memory\\nframe #0: here")
    'CUDA error: out of memory'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [reason for line in lines if (reason := line.partition("what():")[2].strip())]
    return ([*lines, *reasons] or [""])[-1][:300]


class Ray:
    """Workers as tasks of a Ray cluster whose machines share the runs folder.

    A worker takes a CPU, or the share 1/jobs of a GPU where the cluster has any. Without GPUs and without
    `address`, `jobs` workers run on this machine.
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
        # `launch` replaces a worker that dies, as it does for local ones, so Ray need not retry.
        self._work = self._ray.remote(max_retries=0, num_returns="streaming", **share)(work)
        return self

    def __exit__(self, *_error: object) -> None:
        for worker in self._workers:
            self._ray.cancel(worker, force=True)
        if self._started:
            self._ray.shutdown()

    def start(self, sweep: Sweep) -> Any:
        """Start a worker."""
        self._workers.append(self._work.remote(sweep, search_path()))
        return self._workers[-1]

    def wait(self, timeout: float) -> list[tuple[Any, Event]]:
        """What the workers tell, after at most so many seconds."""
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
