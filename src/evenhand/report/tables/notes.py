"""What must be said below a table: how runs differ from the paper's, what was left out, what is missing."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenhand.bench.grid import combinations, named, task_recipe
from evenhand.bench.select import Bench, num_equal, recipe_changes, rule, scores
from evenhand.report import paper
from evenhand.report.words import count, listed
from evenhand.tasks import cache_root
from evenhand.training.record import Record

MOST = 3  # settings named in a note; of the rest it says how many


@dataclass(frozen=True)
class Failure:
    """A run that ended with an error."""

    task: str  # the folder's name
    method: str
    folder: str
    error: str


def failures(sources: Iterable[Path]) -> list[Failure]:
    """The failed runs below folders of runs, as the bench notes them."""
    found = []
    for source in {source.resolve(): source for source in sources}:
        for file in sorted(source.glob("*/*/*/failure.json")) if source.is_dir() else ():
            if (file.parent / "metrics.json").exists():
                continue
            try:
                error = str(json.loads(file.read_text())["error"])
            except (OSError, ValueError, KeyError, TypeError):
                error = "its failure.json cannot be read"
            task, method, folder = file.parts[-4:-1]
            found.append(Failure(task, method, folder, (error.splitlines() or [""])[0]))
    return found


def of_task(bench: Bench, methods: Sequence[str], failed: Sequence[Failure] = ()) -> list[str]:
    """All that a reader must know about a task's numbers."""
    return [
        *differences(bench),
        *other_data(
            [r for name in methods for each in bench.candidates(name) for r in each.records.values()]
        ),
        *told_left_out(bench.left_out),
        *_missing(bench, methods),
        *_failed(failure for failure in failed if failure.task == bench.task),
    ]


def differences(bench: Bench) -> list[str]:
    """Where the runs are not what the paper did: model, other fields of the recipe, the task's options."""
    lines = trained_otherwise(bench)
    compared, how = paper.counterpart(bench.spec)
    if how:
        lines.append(f"Compared with the paper's {compared}, though made with {how}.")
    worst = {record.metrics["test"]["wga_over"] for record in bench.records}
    if worst == {"classes"}:
        lines.append("No groups are annotated: the worst class stands for the worst group.")
    return lines


def other_data(records: Sequence[Record]) -> list[str]:
    """Runs whose data have another checksum than most: another version, or images decoded otherwise."""
    known = Counter(record.config["data"] for record in records)
    if len(known) < 2:
        return []
    most = known.most_common(1)[0][0]
    others = Counter(record.method for record in records if record.config["data"] != most)
    parts = [f"{number} of {method}" for method, number in sorted(others.items())]
    return [f"Other data than the rest, by their checksums: {listed(parts)}."]


def older(records: Sequence[Record]) -> list[str]:
    """Which of the runs are older records, said once below a table."""
    old, new = ({str(r.config["spec"]) for r in records if r.older is each} for each in (True, False))
    if not old:
        return []
    which = "all runs" if not new else listed([f"some of {s}" if s in new else s for s in sorted(old)])
    return [
        f"Older records: {which}. They do not say how they were computed, nor by which version of a method. "
        "No bench goes on from them, and no mean mixes them with newer ones."
    ]


def ties(bench: Bench, methods: Sequence[str], criteria: Sequence[str | None]) -> list[str]:
    """Where a criterion cannot choose; None is the paper's for the method."""
    equal: dict[str, list[str]] = {}
    for criterion in criteria:
        for method in methods:
            found, by = bench.candidates(method), criterion or rule(method)
            if not found or (by == "worst_pseudo_group" and not bench.pseudo):
                continue
            number = num_equal(scores(found, by, pseudo=bench.pseudo))
            if number > 1:
                equal.setdefault(by, []).append(f"{number} of {method}'s {len(found)}")
    parts = [f"by {by} {listed(each)}" for by, each in equal.items()]
    return (
        [f"Equal candidates, of which the first in the grid is taken: {'; '.join(parts)}."] if parts else []
    )


def trained_otherwise(bench: Bench) -> list[str]:
    """Where the recipe is not the task's own."""
    lines = []
    changed, own = recipe_changes(bench), task_recipe(bench.spec)
    if "model" in changed and own is not None:
        lines.append(f"The model is {changed['model']} in place of {own.model}.")
    rest = {name: value for name, value in changed.items() if name not in ("model", "weights")}
    if rest:
        lines.append(f"The recipe differs from the task's own: {named(rest)}.")
    return lines


def command(bench: Bench, methods: Sequence[str]) -> str:
    """The bench command that makes what is missing of these methods."""
    words = ["evenhand", "bench", bench.spec, "--methods", ",".join(methods)]
    words += ["--seeds", ",".join(str(seed) for seed in bench.seeds)]
    for name, value in recipe_changes(bench).items():
        words += ["--epochs", str(value)] if name == "epochs" else ["--set", f"{name}={_written(value)}"]
    first = bench.records[0]
    if not first.older:  # what is computed otherwise would not count beside these
        compiled = str(first.config.get("full_recipe", {}).get("compile", "auto"))
        words += ["--set", f"compile={compiled}"] if compiled != "auto" else []
        words += ["--device", str(first.made_with["device"])]
    runs = first.path.parents[2]
    if runs != Path("runs") and not _packed(runs):
        words += ["--runs", str(runs)]
    return shlex.join(words)


def _written(value: object) -> str:
    """A value as the command line reads it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def told_left_out(reasons: Counter[str]) -> list[str]:
    if not reasons:
        return []
    parts = [f"{number} {reason}" for reason, number in sorted(reasons.items())]
    return [f"Left out: {count(sum(reasons.values()), 'run')} ({', '.join(parts)})."]


def _missing(bench: Bench, methods: Sequence[str]) -> list[str]:
    """Which runs of the grids are not there, and the command that does them."""
    lines, lacking = [], []
    for method in methods:
        missing = bench.missing(method)
        if not bench.candidates(method):
            lines.append(f"Missing: {method}, all of it.")
            lacking.append(method)
        elif missing:
            total = len(combinations(bench.grid(method) or {})) * len(bench.seeds)
            seeds: dict[str, list[int]] = {}
            for point, seed in missing:
                seeds.setdefault(named(point) or "the run", []).append(seed)
            shown = [f"{name} (seed {', '.join(map(str, own))})" for name, own in list(seeds.items())[:MOST]]
            more = [count(len(seeds) - MOST, "more setting")] if len(seeds) > MOST else []
            lines.append(f"Missing: {method}, {len(missing)} of {total} runs: {listed([*shown, *more])}.")
            lacking.append(method)
    packed = _packed(bench.records[0].path.parents[2])
    first = "Unpack the records (evenhand unpack FILE --runs runs), then do" if packed else "Do"
    return [*lines, f"{first} what is missing with: {command(bench, lacking)}"] if lacking else []


def _packed(runs: Path) -> bool:
    """Whether runs lie in the cache, where packed ones are read and from where no bench goes on."""
    return runs.absolute().is_relative_to(cache_root().absolute())


def _failed(failed: Iterable[Failure]) -> list[str]:
    return [f"Failed: {each.method}/{each.folder}: {each.error}" for each in failed]
