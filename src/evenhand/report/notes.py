"""Notes: what a reader must know about the numbers in a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenhand.bench import results
from evenhand.bench.grid import combinations, grid_of, named, rule, task_recipe
from evenhand.bench.results import Frame, Result, counting, spec_of
from evenhand.report import paper
from evenhand.report.commands import bench_command, is_packed
from evenhand.report.words import count, listed

MOST = 3  # missing settings that are named; of more, only the number is given


@dataclass(frozen=True)
class Failure:
    """A run that ended with an error."""

    task: str  # the folder's name
    method: str
    folder: str
    error: str

    def __str__(self) -> str:
        return f"{self.method}/{self.folder}: {self.error}"


def failures(sources: Iterable[Path]) -> list[Failure]:
    """Return the failed runs in folders of runs, as the bench recorded them."""
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


def of_task(rows: Frame, methods: Sequence[str], failed: Sequence[Failure] = ()) -> list[str]:
    """Return the notes that every table of a task's results needs."""
    task = str(rows.task.iloc[0])
    return [
        *differences(rows),
        *other_data(counting(rows[rows.method.isin(methods)])),
        *excluded(Counter(rows.left_out[rows.left_out != ""])),
        *_missing(rows, methods),
        *(f"Failed: {each}" for each in failed if each.task == task),
    ]


def differences(rows: Frame) -> list[str]:
    """Return how the runs differ from the paper's: model, other recipe fields, options of the task."""
    spec, alike = spec_of(rows), rows[rows.alike]
    lines = other_recipe(alike.recipe.iloc[0], spec)
    compared, how = paper.counterpart(spec)
    if how:
        lines.append(f"Compared with the paper's {compared}, but run with {how}.")
    if set(alike.over) == {"classes"}:
        lines.append("No groups are annotated, so the worst class replaces the worst group.")
    return lines


def other_recipe(recipe: dict[str, Any], spec: str) -> list[str]:
    """Return how a recipe differs from the task's default."""
    lines = []
    changed, default = results.recipe_changes(recipe, spec), task_recipe(spec)
    if "model" in changed and default is not None:
        lines.append(f"The model is {changed['model']} instead of {default.model}.")
    rest = {name: value for name, value in changed.items() if name not in ("model", "weights")}
    if rest:
        lines.append(f"The recipe differs from the task's default: {named(rest)}.")
    return lines


def other_data(rows: Frame) -> list[str]:
    """Return runs whose data have another checksum than most, such as other versions."""
    known = Counter(rows.data)
    if len(known) < 2:
        return []
    others = Counter(rows.method[rows.data != known.most_common(1)[0][0]])
    parts = [f"{number} of {method}" for method, number in sorted(others.items())]
    return [f"Runs whose data have another checksum than most: {listed(parts)}."]


def older(parts: Sequence[Frame], among: str) -> list[str]:
    """Return which of the runs that the column `among` marks are older records."""
    shown = [rows[rows[among]] for rows in parts]
    old, new = ({spec for rows in shown for spec in rows.spec[rows.older == each]} for each in (True, False))
    if not old:
        return []
    which = "all runs" if not new else listed([f"some of {s}" if s in new else s for s in sorted(old)])
    return [
        f"Older records: {which}. They do not name the arithmetic or the methods' versions. "
        "No bench continues from them, and no mean mixes them with newer records."
    ]


def unsealed(parts: Sequence[Frame], among: str) -> list[str]:
    """Return how many of the runs that the column `among` marks have no checksums."""
    shown = [rows[rows[among]] for rows in parts]
    number, total = sum(int((~rows.sealed.astype(bool)).sum()) for rows in shown), sum(map(len, shown))
    which = "all runs" if number == total else f"{number} of {total} runs"
    note = f"Unsealed: {which}. They have no checksums, so a changed number would go unnoticed."
    return [note] if number else []


def excluded(reasons: Counter[str]) -> list[str]:
    """Return how many runs are excluded, and why."""
    parts = [f"{number} {reason}" for reason, number in sorted(reasons.items())]
    return [f"Excluded: {count(sum(reasons.values()), 'run')} ({', '.join(parts)})."] if parts else []


def ties(rows: Frame, methods: Sequence[str], criteria: Sequence[str | None]) -> list[str]:
    """Return where a criterion selects none of several candidates; None is the method's paper criterion."""
    equal: dict[str, list[str]] = {}
    pseudo = results.pseudo_groups(rows) if "worst_pseudo_group" in criteria else {}
    for criterion in criteria:
        for method in methods:
            own, by = counting(rows, method), criterion or rule(method)
            if own.empty or (by == "worst_pseudo_group" and not pseudo):
                continue
            number = results.num_equal(results.scores(own, by, pseudo))
            if number > 1:
                equal.setdefault(by, []).append(f"{number} of {method}'s {own.point.nunique()}")
    parts = [f"by {by} {listed(each)}" for by, each in equal.items()]
    note = f"Tied candidates, of which the first in the grid is selected: {'; '.join(parts)}."
    return [note] if parts else []


def zeros(rows: Frame, found: Mapping[str, Result]) -> list[str]:
    """Return the candidates and seeds that PoU cannot include."""
    dropped, selected, fewer = [], [], []
    for method, each in found.items():
        if rule(method) != "accuracy":
            continue
        own = counting(rows, method)
        highest = own.groupby("point").test_wga.max()
        zero = highest.index[highest == 0]
        if len(zero):
            dropped.append(f"{len(zero)} of {method}'s {each.num_candidates}")
            if each.rows.point.iloc[0] in zero and len(zero) < each.num_candidates:
                selected.append(method)
        if each.pou:
            points = [highest.index[i] for i in (each.pou.selected, each.pou.best)]
            both = len(set.intersection(*(set(own.seed[own.point == point]) for point in points)))
            if len(each.pou.per_seed) < both:
                fewer.append(f"{method} uses {len(each.pou.per_seed)} of {count(both, 'seed')}")
    lines = [f"Candidates excluded from PoU for a WGA of zero: {', '.join(dropped)}."] if dropped else []
    if fewer:
        lines.append(f"PoU of {listed(fewer)}; in the others its denominator, a WGA, is zero.")
    if selected:
        lines.append(f"The selected candidate of {listed(selected)} is among them; PoU is the next one's.")
    return lines


def uneven(rows: Frame, methods: Sequence[str]) -> list[str]:
    """Return the searches in which a seed has fewer candidates than another."""
    sizes = counting(rows).groupby(["method", "seed"]).size()
    found = [name for name in methods if name in sizes.index and sizes[name].nunique() > 1]
    note = f"MMS of {listed(found)} averages different candidates for different seeds: runs are missing."
    return [note] if found else []


def without_pseudo_groups(rows: Frame, by: str | None) -> list[str]:
    """Return the seeds that selection by pseudo-groups cannot use."""
    if by != "worst_pseudo_group":
        return []
    known = results.pseudo_groups(rows)
    lacking = [str(seed) for seed in results.seeds(rows) if seed not in known]
    note = f"Selected without seed {listed(lacking)}, for which no run of tab has pseudo-groups."
    return [note] if lacking else []


def _missing(rows: Frame, methods: Sequence[str]) -> list[str]:
    """Return the runs of the grids that are missing, and the command that makes them."""
    lines, lacking, known = [], [], set(results.methods(rows))
    for method in methods:
        missing = results.missing(rows, method)
        if method not in known:
            lines.append(f"Missing: {method}, all runs.")
            lacking.append(method)
        elif missing:
            total = len(combinations(grid_of(spec_of(rows), method) or {})) * len(results.seeds(rows))
            seeds: dict[str, list[int]] = {}
            for point, seed in missing:
                seeds.setdefault(named(point) or "the run", []).append(seed)
            shown = [f"{name} (seed {', '.join(map(str, own))})" for name, own in list(seeds.items())[:MOST]]
            more = [count(len(seeds) - MOST, "more setting")] if len(seeds) > MOST else []
            lines.append(f"Missing: {method}, {len(missing)} of {total} runs: {listed([*shown, *more])}.")
            lacking.append(method)
    if not lacking:
        return []
    packed = is_packed(rows.path.iloc[0].parents[2])
    first = "first unpack the records (evenhand unpack FILE --runs runs), then run" if packed else "run"
    return [*lines, f"To complete them, {first}: {bench_command(rows, lacking)}"]
