"""Ray: a bench's runs as tasks of a Ray cluster whose machines share the runs folder."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

from evenhand.bench.agenda import RETRIES
from evenhand.bench.plan import Planned
from evenhand.bench.work import Outcome, Place, from_json, to_json, work


class Ray:
    """Each run is a Ray task: on a CPU, or on a share of a GPU where the cluster has any.

    `jobs` runs share a GPU; without GPUs and without `address`, as many run at a time here. Ray starts a
    run again whose worker dies; the run then continues from its checkpoint.
    """

    def __init__(self, jobs: int, place: Place, address: str | None = None) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ImportError(
                f"--engine ray needs Ray, which cannot be imported ({error}): pip install 'evenhand[ray]'"
            ) from error
        self.jobs, self.place, self._address, self._ray = jobs, place, address, ray
        self._running: dict[Any, Path] = {}  # reference of the task -> the run's folder
        self._own = False

    def __enter__(self) -> Ray:
        if not self._ray.is_initialized():
            local = {} if self._address else {"num_cpus": self.jobs, "include_dashboard": False}
            self._ray.init(address=self._address, log_to_driver=False, logging_level="error", **local)
            self._own = True
        resources = self._ray.cluster_resources()
        gpus = 0 if self.place.device == "cpu" else int(resources.get("GPU", 0))
        self._slots = gpus * self.jobs if gpus else max(int(resources.get("CPU", 1)), 1)
        part = math.floor(10_000 / self.jobs) / 10_000  # Ray counts in ten-thousandths
        share = {"num_gpus": part, "num_cpus": 0} if gpus else {"num_cpus": 1}
        # max_calls=0: a worker is kept for the next run also on a GPU, since starting torch takes long.
        self._task = self._ray.remote(max_retries=RETRIES, max_calls=0, **share)(_task)
        return self

    def __exit__(self, *_error: object) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        if self._own:
            self._ray.shutdown()

    @property
    def free(self) -> int:
        """How many runs could begin now."""
        return max(self._slots - len(self._running), 0)

    def submit(self, planned: Planned, path: Path) -> None:
        """Begin a run."""
        order = to_json(planned, path, self.place)
        self._running[self._task.remote(order, [folder or str(Path.cwd()) for folder in sys.path])] = path

    def wait(self, timeout: float) -> list[Outcome]:
        """What has ended, waiting at most so long for something to end."""
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout)
        return [self._outcome(reference, self._running.pop(reference)) for reference in ready]

    def _outcome(self, reference: Any, path: Path) -> Outcome:
        try:
            outcome: Outcome = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return Outcome(path, f"Ray gave the run up after {RETRIES} retries: {error}")
        return outcome


def _task(order: dict[str, Any], folders: list[str]) -> Outcome:
    # A user's own methods and tasks are found where they are on the machine that began the bench.
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    return work(*from_json(order))
