"""Tables: the paper's tables from the results frame. `make` returns one, and render.py writes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.bench import results
from evenhand.bench.grid import combinations, grid_of, named, parse, reads_groups, rule, task_file, title
from evenhand.bench.results import CRITERIA, Frame, Result, counting, of_task, result, spec_of
from evenhand.core.metrics import Mean
from evenhand.report import catalog, notes, paper
from evenhand.report.catalog import groups_read
from evenhand.report.commands import bench_command
from evenhand.report.notes import Failure
from evenhand.report.render import Column, Row, Section, Table, interval, percents, plain, ratio
from evenhand.report.words import duration, listed
from evenhand.training.record import Record

NAMES = {
    "1": "WGA, PoU, MMS and mean accuracy of every method (the paper's Table 1)",
    "2": "bias-conflicting samples represented and identified (Table 2)",
    "datasets": "size, classes, groups and smallest group of every task",
    "methods": "groups, hyperparameters and trainings that every method needs (Table B.1)",
    "selected": "the selected hyperparameters, the paper's, and the oracle's",
    "cost": "time of the longest run and of the entire search",
    "field": "WGA, PoU, accuracy, cost and group use of every method that was run",
    "compare": "every method with every setting that was run, seed by seed against TAB or another",
}


def times(value: float, digits: int = 1) -> str:
    """Return a multiple."""
    return f"{value:.{digits}f}×"


def values_of(settings: dict[str, Any]) -> str:
    """Return the values of settings without their names."""
    return ", ".join(map(plain, settings.values()))


def make(
    name: str,
    runs: Frame,
    *,
    wanted: Sequence[str] = (),
    by: str | None = None,
    failed: Sequence[Failure] = (),
    root: Path | None = None,
    against: str | None = None,
) -> Table:
    """Return one of the tables in NAMES, of the `wanted` tasks or of all that have runs.

    - `by`: the selection criterion, instead of the paper's rule
    - `root`: the folder of the datasets
    - `against`: the method or variant with which `compare` compares the others, TAB by default
    """
    check(name)
    if against is not None and name != "compare":
        raise ValueError(f"--against is for the table compare, got the table {name}; leave it out")
    if name == "methods":
        return catalog.table_methods()
    if name == "datasets":
        found = {spec_of(rows): rows for rows in by_task(runs)}
        return catalog.table_datasets(list(wanted) or list(found) or list(paper.TASKS), found, root)
    parts = by_task(runs, wanted)
    if name == "compare":
        from evenhand.report.compare import table_compare

        return table_compare(parts, root, against)
    made = table_two(parts, by) if name == "2" else OF_TASKS[name](parts, by, failed)
    return replace(made, notes=[*made.notes, *notes.unsealed(parts, "alike"), *notes.older(parts, "alike")])


def check(name: str) -> None:
    """Raise ValueError for an unknown table."""
    if name not in NAMES:
        raise ValueError(f"unknown table {name!r}; known tables are {', '.join(NAMES)}")


def by_task(runs: Frame, wanted: Sequence[str] = ()) -> list[Frame]:
    """Return the runs of every task: first the paper's tasks in its order, last those with other options."""
    names = list(wanted) or sorted(set(runs.task))
    found = {str(rows.task.iloc[0]): rows for rows in (of_task(runs, name) for name in names)}

    def place(rows: Frame) -> tuple[bool, int, str]:
        spec = spec_of(rows)
        name = spec.partition(":")[0]
        position = paper.TASKS.index(name) if name in paper.TASKS else len(paper.TASKS)
        return name in paper.TASKS and paper.counterpart(spec)[0] is None, position, spec

    return sorted(found.values(), key=place)


def methods_of(rows: Frame) -> list[str]:
    """Return the methods in a task's tables: those with numbers in the paper, and all that were run."""
    compared, _ = paper.counterpart(spec_of(rows))
    wanted = [name for name in paper.METHODS if paper.score("wga", name, compared) is not None]
    known = [*paper.METHODS, "eta_tab", "minibatch_tab", "erm_randaug"]
    place = {name: position for position, name in enumerate(known)}
    return sorted({*wanted, *results.methods(rows)}, key=lambda name: (place.get(name, len(known)), name))


def results_of(rows: Frame, methods: Sequence[str], by: str | None = None) -> dict[str, Result]:
    """Return the result of every method that has candidates."""
    known = set(results.methods(rows))
    return {method: result(rows, method, by) for method in methods if method in known}


# -- table 1, and the same for all methods -----------------------------------------------------------------

ONE = (
    Column("method", words=True),
    Column("seeds"),
    Column("WGA", percents, best="highest"),
    Column("95% interval", interval, below="WGA"),
    Column("WGA, paper", percents, below="WGA", best="highest"),
    Column("PoU", ratio, best="lowest"),
    Column("PoU, paper", ratio, below="PoU", best="lowest"),
    Column("PoU, of the means", ratio, below="PoU", best="lowest"),
    Column("MMS", percents, best="highest"),
    Column("MMS, paper", percents, below="MMS", best="highest"),
    Column("accuracy, weighted", percents, best="highest"),
    Column("accuracy, balanced", percents, best="highest"),
    Column("accuracy, paper", percents, below="accuracy, balanced", label="paper", best="highest"),
)
SHARED = ("seeds", "WGA", "95% interval", "PoU", "accuracy, weighted", "accuracy, balanced")
FIELD = (
    Column("method", words=True),
    Column("needs groups for", words=True),
    *(column for column in ONE if column.name in SHARED),
    Column("candidates"),
    Column("over ERM's", partial(times, digits=2)),
)
HOW = (
    "Percentages; mean ± population standard deviation over seeds. The interval is Wilson's with the size of "
    "the worst group, since all seeds share the test samples. The best value of each column is marked; "
    "methods that read groups are not ranked."
)


def table_one(parts: Sequence[Frame], by: str | None = None, failed: Sequence[Failure] = ()) -> Table:
    """Return WGA, PoU, MMS and mean accuracies of every method's selected candidate."""
    chosen = f"Selected by validation {by}." if by else (
        "Selected by validation accuracy; methods that read groups by validation WGA."
    )  # fmt: skip
    sections = [_one(rows, by, failed) for rows in parts]
    return Table("1", "Worst-group accuracy, its price, and mean accuracy", ONE, sections, [chosen, HOW])


def table_field(parts: Sequence[Frame], by: str | None = None, failed: Sequence[Failure] = ()) -> Table:
    """Return table 1 of the methods that were run, with group use and cost instead of paper numbers."""
    one = table_one(parts, by, failed)
    sections = []
    for rows, each in zip(parts, one.sections, strict=True):
        found = results_of(rows, methods_of(rows), by)
        erm = found["erm"].rows.unshared.mean() if "erm" in found else None
        more = {
            "needs groups for": list(map(groups_read, found)),
            "candidates": [own.num_candidates for own in found.values()],
            "over ERM's": [erm and own.rows.unshared.mean() / erm for own in found.values()],
        }
        known = each.frame.set_axis(methods_of(rows)).loc[list(found)]
        sections.append(replace(each, rows=known.assign(**more)))
    explained = (
        "Over ERM's: seconds of the selected candidate relative to ERM's; shared trainings count in full."
    )
    return Table("field", "All methods", FIELD, sections, [*one.notes, explained])


def _one(rows: Frame, by: str | None, failed: Sequence[Failure]) -> Section:
    methods, spec = methods_of(rows), spec_of(rows)
    found = results_of(rows, methods, by)
    lone = [name for name, own in found.items() if _is_lone_candidate(spec, own)]
    below = notes.without_pseudo_groups(rows, by)
    if unpriced := [name for name in lone if rule(name) == "accuracy"]:
        below.append(f"PoU and MMS are omitted for {listed(unpriced)}, of which only one candidate was run.")
    below += [*notes.ties(rows, methods, [by]), *notes.zeros(rows, found), *notes.uneven(rows, methods)]
    return Section(
        spec,
        [_one_row(spec, method, found.get(method), method in lone) for method in methods],
        [*below, *notes.of_task(rows, methods, failed)],
        unranked=[title(method) for method in methods if reads_groups(method)],
    )


def _one_row(spec: str, method: str, found: Result | None, lone: bool) -> Row:
    compared, _ = paper.counterpart(spec)
    names = {"WGA": "wga", "PoU": "pou", "MMS": "mms", "accuracy": "mean_accuracy"}
    row: dict[str, Any] = {
        f"{name}, paper": paper.score(key, method, compared) for name, key in names.items()
    }
    row["method"] = title(method)
    if found is not None:
        row |= {
            "seeds": len(found.rows),
            "WGA": found.wga,
            "95% interval": found.interval,
            "accuracy, weighted": results.mean(found.rows.test_accuracy_weighted),
            "accuracy, balanced": results.mean(found.rows.test_accuracy_balanced),
        }
        # As in the paper, no price for methods that know the groups; nor for a search that has hardly begun.
        if rule(method) == "accuracy" and not lone:
            row["MMS"] = found.mms
            if price := found.pou:
                row |= {"PoU": Mean(price.mean, price.deviation, price.per_seed)}
                row |= {"PoU, of the means": price.ratio_of_means if np.isfinite(price.mean) else None}
    return row


def _is_lone_candidate(spec: str, found: Result) -> bool:
    """Return whether only one of several candidates was run, so that its price is always 1."""
    return found.num_candidates == 1 and len(combinations(grid_of(spec, found.method) or {})) > 1


# -- table 2 -----------------------------------------------------------------------------------------------

TWO = (
    Column("task", words=True),
    Column("method", words=True),
    Column("seeds"),
    Column("in D", partial(percents, digits=2)),
    Column("in D, paper", partial(percents, digits=2), below="in D"),
    Column("in D'", percents),
    Column("in D', times", times, below="in D'"),
    Column("purity", percents),
    Column("purity, times", times, below="purity"),
    Column("in D', paper", percents, below="in D'"),
    Column("in D', paper, times", times, below="in D'"),
    Column("identified", percents),
    Column("identified, paper", percents, below="identified"),
)


def table_two(parts: Sequence[Frame], by: str | None = None) -> Table:
    """Return the share of conflicting samples in the data and the balanced set, and how many were found."""
    lines: list[Row] = []
    below = []
    for rows in parts:
        spec = spec_of(rows)
        found = {
            method: scored
            for method, each in results_of(rows, methods_of(rows), by).items()
            if len(scored := each.rows[~each.rows.share.isna()])
        }
        lines += [_two(spec, method, each) for method, each in found.items()]
        if not found and all(_knows_no_conflicts(record) for record in rows.record[rows.alike]):
            below.append(f"{spec} does not mark bias-conflicting samples, so none can be counted.")
        elif not found:
            below.append(f"Missing: {spec}; run: {bench_command(rows, ['tab'])}")
        below += [f"{spec}: {note}" for note in notes.differences(rows)] if found else []
    explained = (
        "Percentages of bias-conflicting samples. In D: in the training set; in D': in the balanced set; "
        "purity: in the minority clusters; times: relative to D; identified: the share of all "
        "bias-conflicting samples that are in minority clusters."
    )
    if any(paper.identification("bc_identified", paper.counterpart(spec_of(rows))[0]) for rows in parts):
        explained += (
            " Three of the paper's four shares in D' are well above one half, which balancing cannot exceed "
            "at the shares that it identifies."
        )
    name = "Bias-conflicting samples: represented and identified"
    return Table("2", name, TWO, [Section("", lines, below)], [explained])


def _knows_no_conflicts(record: Record) -> bool:
    """Return whether a record shows that its task has no groups, or none that conflicts with the shortcut."""
    split = record.partition is not None and not record.metrics.get("identification")
    return split or record.metrics["test"]["groups"] is None


def _two(spec: str, method: str, scored: Frame) -> Row:
    compared = paper.counterpart(spec)[0] if method == "tab" else None
    base = conflicting_share(scored.record.iloc[0])
    share, purity, identified = (mean_of_known(scored[name]) for name in ("share", "purity", "identified"))
    printed = paper.identification("bc_share_augmented_as_printed", compared)
    before = paper.identification("bc_share_train", compared)
    return {
        "task": spec,
        "method": title(method),
        "seeds": len(scored),
        "in D": base,
        "in D, paper": before,
        "in D'": share,
        "in D', times": share and base and share.mean / base,
        "purity": purity,
        "purity, times": purity and base and purity.mean / base,
        "in D', paper": printed,
        "in D', paper, times": printed and before and printed.mean / before.mean,
        "identified": identified,
        "identified, paper": paper.identification("bc_identified", compared),
    }


def mean_of_known(values: Any) -> Mean | None:
    """Return the mean of the values that are not missing; None if all are."""
    known = values.dropna()
    return results.mean(known) if len(known) else None


def conflicting_share(record: Record) -> float | None:
    """Return the share of bias-conflicting samples in the training set; None if the record does not tell."""
    if record.dynamics:
        clusters = record.dynamics["clusters"]
        sizes = sum(int(each["size"]) for each in clusters)
        if sizes:
            return sum(int(each["conflicting"]) for each in clusters) / sizes
    found, parts = record.metrics.get("identification"), record.partition
    if parts is not None and found and found["identified"]:
        conflicting = found["purity"] * int(np.count_nonzero(parts.minority)) / found["identified"]
        return float(conflicting / len(parts.minority))
    name, options = parse(str(record.config["spec"]))
    file = task_file(name)
    p = options.get("p") or (file.options.get("p") if file else None)
    return None if p is None else 1 - float(p)  # p is the share of samples that follow the shortcut


# -- the search --------------------------------------------------------------------------------------------

SELECTED = (
    Column("method", words=True),
    Column("searched", below="method", words=True),
    Column("candidates"),
    Column("selected", values_of, words=True),
    Column("selected, paper", values_of, below="selected", words=True),
    Column("oracle", values_of, words=True),
    Column("oracle, paper", values_of, below="oracle", words=True),
    Column(f"by {CRITERIA[0]}", percents),
    *(Column(f"by {by}", percents, below=f"by {CRITERIA[0]}") for by in (*CRITERIA[1:], "the oracle")),
)


def table_selected(parts: Sequence[Frame], by: str | None = None, failed: Sequence[Failure] = ()) -> Table:
    """Return the hyperparameters that we and the paper select, and those of the oracle."""
    sections = []
    for rows in parts:
        found = results_of(rows, methods_of(rows), by)
        inherited = named(results.inherited_pair(rows))
        below = [f"Methods that do not search learning rate and weight decay use ERM's {inherited}."]
        below += [*notes.ties(rows, list(found), CRITERIA), *notes.of_task(rows, list(found), failed)]
        sections.append(Section(spec_of(rows), [_selected(rows, each) for each in found.values()], below))
    explained = (
        f"Selected: by validation {by or 'accuracy, or WGA for methods that read groups, as in the paper'}. "
        "Oracle: by test WGA. By …: the test WGA in per cent, mean ± population standard deviation over "
        "seeds, of the candidate that each criterion selects on the validation set."
    )
    return Table("selected", "Selected hyperparameters", SELECTED, sections, [explained])


def _selected(rows: Frame, found: Result) -> Row:
    compared, _ = paper.counterpart(spec_of(rows))
    pseudo = results.pseudo_groups(rows)
    # Without pseudo-groups for every seed, candidates cannot be compared.
    usable = [by for by in CRITERIA if by != "worst_pseudo_group" or set(pseudo) >= set(results.seeds(rows))]
    own = counting(rows, found.method)
    return {
        "method": title(found.method),
        "searched": ", ".join(found.settings) or "nothing",
        "candidates": found.num_candidates,
        "selected": found.settings,
        "selected, paper": paper.settings(found.method, compared, "selected"),
        "oracle": dict(found.oracle.settings.iloc[0]),
        "oracle, paper": paper.settings(found.method, compared, "oracle"),
        **{f"by {by}": results.mean(results.choose(own, by, pseudo).test_wga) for by in usable},
        "by the oracle": results.mean(found.oracle.test_wga),
    }


COST = (
    Column("method", words=True),
    Column("runs"),
    Column("longest run", duration),
    Column("over ERM's", partial(times, digits=2)),
    Column("over ERM's, paper", times, below="over ERM's"),
    Column("search", duration, best="lowest"),
    Column("over TAB's longest run", partial(times, digits=2)),
    Column("over TAB's, paper", "{:g}×".format, below="over TAB's longest run", label="paper"),
    Column("really spent", duration),
)


def table_cost(parts: Sequence[Frame], by: str | None = None, failed: Sequence[Failure] = ()) -> Table:
    """Return the longest run of every method, and its entire search, as the paper counts and as spent."""
    sections = []
    for rows in parts:
        known = set(results.methods(rows))
        methods = [name for name in methods_of(rows) if name in known]
        every = counting(rows[rows.method.isin(methods)])
        total = {"method": "all", "runs": len(every), "really spent": spent(every.record)}
        # A baseline is cheap, and so is an incomplete search.
        unranked = [
            name for name in methods if name == "erm" or rule(name) == "wga" or results.missing(rows, name)
        ]
        lines = [*(_cost(rows, method) for method in methods), total]
        below = notes.of_task(rows, methods, failed)
        sections.append(Section(spec_of(rows), lines, below, unranked=["all", *map(title, unranked)]))
    explained = (
        "Seconds of training. As in the paper, a run counts all its trainings, including shared ones, and a "
        "search is the sum over all candidates for one seed, averaged over seeds. Really spent: the time of "
        "all seeds, with shared trainings counted once. The paper's numbers are for cMNIST on other hardware."
    )
    return Table("cost", "Cost of a run and of a search", COST, sections, [explained])


def _cost(rows: Frame, method: str) -> Row:
    own = counting(rows, method)
    cost = paper.numbers()["cost"].get(paper.counterpart(spec_of(rows))[0], {})
    longest, total = longest_run(own), search_seconds(own)
    erm, tab = longest_run(counting(rows, "erm")), longest_run(counting(rows, "tab"))
    return {
        "method": title(method),
        "runs": len(own),
        "longest run": longest,
        "over ERM's": longest and erm and longest / erm,
        "over ERM's, paper": cost.get("tab_over_erm_worst_run") if method == "tab" else None,
        "search": total,
        "over TAB's longest run": total and tab and total / tab,
        "over TAB's, paper": cost.get(f"{method}_search_over_tab"),
        "really spent": spent(own.record),
    }


def longest_run(rows: Frame) -> float | None:
    """Return the seconds of the slowest run, trainings counted as if none were shared."""
    longest = float(rows.unshared.max()) if len(rows) else float("nan")
    return None if np.isnan(longest) else longest


def search_seconds(rows: Frame) -> float | None:
    """Return the seconds of one search: the sum over candidates of their mean over seeds."""
    means = rows.groupby("point").unshared.mean()
    return None if means.isna().any() else float(means.sum()) or None


def spent(records: Iterable[Record]) -> float | None:
    """Return the seconds of all trainings of these runs, each counted once however many runs share it."""
    folders: dict[str, float] = {}
    for record in records:
        try:
            seconds = record.timing["stages"]
        except FileNotFoundError:
            return None
        for stage, content in record.config["stages"].items():
            folder = str(content["folder"])
            folders[folder] = max(folders.get(folder, 0.0), float(seconds.get(stage, 0.0)))
    return sum(folders.values()) or None


OF_TASKS = {"1": table_one, "selected": table_selected, "cost": table_cost, "field": table_field}
