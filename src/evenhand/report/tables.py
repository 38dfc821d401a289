"""The paper's tables from the frame of all runs: `make` gives one as a Table, which render.py writes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from evenhand import tasks
from evenhand.bench import results
from evenhand.bench.grid import (
    combinations,
    grid_of,
    is_told_groups,
    method_file,
    named,
    parse,
    rule,
    task_file,
    task_recipe,
    title,
)
from evenhand.bench.results import CRITERIA, Frame, Result, counting, of_task, result
from evenhand.core.metrics import Mean
from evenhand.report import paper
from evenhand.report.commands import bench_command, is_packed
from evenhand.report.render import Column, Row, Section, Table, interval, percents, plain, ratio
from evenhand.report.words import count, duration, listed
from evenhand.training import plugins
from evenhand.training.record import Record

NAMES = {
    "1": "WGA, PoU, MMS and mean accuracy of every method (the paper's Table 1)",
    "2": "bias-conflicting samples represented and identified (Table 2)",
    "datasets": "size, classes, groups and smallest group of every task",
    "methods": "groups, hyperparameters and trainings that every method needs (Table B.1)",
    "selected": "the hyperparameters that are selected, the paper's, and the oracle's",
    "cost": "time of the longest run and of the whole search",
    "field": "WGA, PoU, accuracy and cost of all methods that were run, with what each is told",
    "compare": "every method with every setting that was run, seed by seed against TAB or another",
}
MOST = 3  # settings named in a note; of the rest it says how many


def times(value: float, digits: int = 1) -> str:
    """A multiple."""
    return f"{value:.{digits}f}×"


def values_of(settings: dict[str, Any]) -> str:
    """The values of settings without their names, which a machine reads too."""
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
    """One of the tables in NAMES; of the `wanted` tasks, else of all that have runs.

    `by` is what candidates are selected by, in place of the paper's rule; `root` the folder of the datasets;
    `against` the method or variant that `compare` compares the others with, TAB if none is named.
    """
    check(name)
    if against is not None and name != "compare":
        raise ValueError(f"--against is for the table compare, got the table {name}; leave it out")
    if name == "methods":
        return table_methods()
    if name == "datasets":
        found = {spec_of(rows): rows for rows in by_task(runs)}
        return table_datasets(list(wanted) or list(found) or list(paper.TASKS), found, root)
    parts = by_task(runs, wanted)
    if name == "compare":
        from evenhand.report.compare import table_compare

        return table_compare(parts, root, against)
    made = table_two(parts, by) if name == "2" else OF_TASKS[name](parts, by, failed)
    return replace(made, notes=[*made.notes, *unsealed(parts, "alike"), *older(parts, "alike")])


def check(name: str) -> None:
    """Raise for a table that there is not."""
    if name not in NAMES:
        raise ValueError(f"there is no table {name!r}; there are {', '.join(NAMES)}")


def by_task(runs: Frame, wanted: Sequence[str] = ()) -> list[Frame]:
    """The runs of every task, the paper's in its order; last those at another p or size."""
    names = list(wanted) or sorted(set(runs.task))
    found = {str(rows.task.iloc[0]): rows for rows in (of_task(runs, name) for name in names)}

    def place(rows: Frame) -> tuple[bool, int, str]:
        spec = spec_of(rows)
        name = spec.partition(":")[0]
        position = paper.TASKS.index(name) if name in paper.TASKS else len(paper.TASKS)
        return name in paper.TASKS and paper.counterpart(spec)[0] is None, position, spec

    return sorted(found.values(), key=place)


def spec_of(rows: Frame) -> str:
    return str(rows.spec.iloc[0])


def methods_of(rows: Frame) -> list[str]:
    """The methods of a task's tables: the paper's, where it has numbers for it, and all that were run."""
    compared, _ = paper.counterpart(spec_of(rows))
    wanted = [name for name in paper.METHODS if paper.score("wga", name, compared) is not None]
    known = [*paper.METHODS, "eta_tab", "minibatch_tab", "erm_randaug"]
    place = {name: position for position, name in enumerate(known)}
    return sorted({*wanted, *results.methods(rows)}, key=lambda name: (place.get(name, len(known)), name))


def results_of(rows: Frame, methods: Sequence[str], by: str | None = None) -> dict[str, Result]:
    """What every method that has candidates reaches."""
    known = set(results.methods(rows))
    return {method: result(rows, method, by) for method in methods if method in known}


# -- table 1 -----------------------------------------------------------------------------------------------

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
HOW = (
    "Per cent; mean ± population deviation over seeds. The interval is Wilson's, with the size of the worst "
    "group: seeds are tested on the same images. The best of each column is marked, "
    "methods that are told the groups aside."
)


def table_one(parts: Sequence[Frame], by: str | None = None, failed: Sequence[Failure] = ()) -> Table:
    """WGA, PoU, MMS and mean accuracies of every method's selected candidate."""
    chosen = f"Selected by validation {by}." if by else (
        "Selected by validation accuracy, methods that are told the groups by validation WGA."
    )  # fmt: skip
    sections = [_one(rows, by, failed) for rows in parts]
    return Table("1", "Worst-group accuracy, its price, and mean accuracy", ONE, sections, [chosen, HOW])


def _one(rows: Frame, by: str | None, failed: Sequence[Failure]) -> Section:
    methods = methods_of(rows)
    found = results_of(rows, methods, by)
    spec = spec_of(rows)
    begun = [name for name in found if _begun(spec, found[name])]
    said = _without_pseudo_groups(rows, by)
    if unpriced := [name for name in begun if rule(name) == "accuracy"]:
        said.append(f"PoU and MMS need more than the one candidate that is there of {listed(unpriced)}.")
    said += [*ties(rows, methods, [by]), *_zeros(rows, found), *_uneven(rows, methods)]
    return Section(
        spec,
        [_one_row(spec, method, found.get(method), method in begun) for method in methods],
        [*said, *notes_of(rows, methods, failed)],
        unranked=[title(method) for method in methods if is_told_groups(method)],
    )


def _one_row(spec: str, method: str, found: Result | None, begun: bool) -> Row:
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
        # As in the paper, no price for who knows the groups; nor one of a search that has hardly begun.
        if rule(method) == "accuracy" and not begun:
            row["MMS"] = found.mms
            if price := found.pou:
                row |= {"PoU": Mean(price.mean, price.deviation, price.per_seed)}
                row |= {"PoU, of the means": price.ratio_of_means if np.isfinite(price.mean) else None}
    return row


def _without_pseudo_groups(rows: Frame, by: str | None) -> list[str]:
    if by != "worst_pseudo_group":
        return []
    known = results.pseudo_groups(rows)
    lacking = [str(seed) for seed in results.seeds(rows) if seed not in known]
    without = f"Selected without seed {listed(lacking)}, of which no run of tab has left pseudo-groups."
    return [without] if lacking else []


def _begun(spec: str, found: Result) -> bool:
    """Whether only one of several candidates is there, whose price is always 1."""
    return found.num_candidates == 1 and len(combinations(grid_of(spec, found.method) or {})) > 1


def _zeros(rows: Frame, found: dict[str, Result]) -> list[str]:
    """Candidates and seeds that PoU cannot count."""
    dropped, selected, fewer = [], [], []
    for method, each in found.items():
        if rule(method) != "accuracy":
            continue
        highest = counting(rows, method).groupby("point").test_wga.max()
        zero = highest.index[highest == 0]
        if len(zero):
            dropped.append(f"{len(zero)} of {method}'s {each.num_candidates}")
            if each.rows.point.iloc[0] in zero and len(zero) < each.num_candidates:
                selected.append(method)
        if each.pou:
            points = [highest.index[i] for i in (each.pou.selected, each.pou.best)]
            own = counting(rows, method)
            both = len(set.intersection(*(set(own.seed[own.point == point]) for point in points)))
            if len(each.pou.per_seed) < both:
                fewer.append(f"{method} is of {len(each.pou.per_seed)} of {count(both, 'seed')}")
    lines = [f"Candidates with a WGA of zero, dropped from PoU: {', '.join(dropped)}."] if dropped else []
    if fewer:
        lines.append(f"PoU of {listed(fewer)}: in the others the WGA that it divides by is zero.")
    if selected:
        lines.append(f"The selected candidate of {listed(selected)} is among them: PoU is of the next one.")
    return lines


def _uneven(rows: Frame, methods: Sequence[str]) -> list[str]:
    """Searches of which a seed has fewer candidates than another."""
    sizes = counting(rows).groupby(["method", "seed"]).size()
    uneven = [name for name in methods if name in sizes.index and sizes[name].nunique() > 1]
    said = f"MMS of {listed(uneven)} is of other candidates with some seeds: runs are missing."
    return [said] if uneven else []


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
    """How many bias-conflicting samples were in the data, in the balanced set, and found."""
    lines: list[Row] = []
    said = []
    for rows in parts:
        spec = spec_of(rows)
        found = {
            method: scored
            for method, each in results_of(rows, methods_of(rows), by).items()
            if len(scored := each.rows[~each.rows.share.isna()])
        }
        lines += [_two(spec, method, each) for method, each in found.items()]
        if not found and all(_knows_no_conflicts(record) for record in rows.record[rows.alike]):
            said.append(f"{spec} does not say which samples conflict, so none can be counted.")
        elif not found:
            said.append(f"Missing: {spec}; do it with: {bench_command(rows, ['tab'])}")
        said += [f"{spec}: {note}" for note in differences(rows)] if found else []
    explained = (
        "Per cent of bias-conflicting samples. In D: of the training set; in D': of the balanced set; "
        "purity: of the minority clusters; times: over D; identified: of all conflicting ones, those in "
        "minority clusters."
    )
    if any(paper.identification("bc_identified", paper.counterpart(spec_of(rows))[0]) for rows in parts):
        explained += (
            " Three of the four shares in D' that the paper prints are well above half, which balancing does "
            "not exceed at the shares it identifies."
        )
    name = "Bias-conflicting samples: represented and identified"
    return Table("2", name, TWO, [Section("", lines, said)], [explained])


def _knows_no_conflicts(record: Record) -> bool:
    """Whether a run says that its task has no groups, or none of them that breaks the shortcut."""
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
    known = values.dropna()
    return results.mean(known) if len(known) else None


def conflicting_share(record: Record) -> float | None:
    """The bias-conflicting part of the training set, from whatever the record holds; None if unknown."""
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
    return None if p is None else 1 - float(p)  # the task says how many carry their class's own colour


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
    """What is selected, by us and by the paper, and the oracle: the best test WGA."""
    sections = []
    for rows in parts:
        found = results_of(rows, methods_of(rows), by)
        lines = [_selected(rows, each) for each in found.values()]
        inherited = named(results.inherited_pair(rows))
        said = [f"Methods that do not search them train with ERM's {inherited}."]
        said += [*ties(rows, list(found), CRITERIA), *notes_of(rows, list(found), failed)]
        sections.append(Section(spec_of(rows), lines, said))
    explained = (
        "Selected: by validation "
        + (f"{by}" if by else "accuracy, or WGA for methods that are told the groups, as in the paper")
        + "; oracle: the best test WGA. By …: the test WGA, per cent, mean ± population deviation over "
        "seeds, of what each criterion would select on the validation set."
    )
    return Table("selected", "Selected hyperparameters", SELECTED, sections, [explained])


def _selected(rows: Frame, found: Result) -> Row:
    compared, _ = paper.counterpart(spec_of(rows))
    pseudo = results.pseudo_groups(rows)
    # Without pseudo-groups for every seed, candidates could not be compared.
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
    """The longest run of every method, and its whole search, as the paper counts and as really spent."""
    sections = []
    for rows in parts:
        known = set(results.methods(rows))
        methods = [name for name in methods_of(rows) if name in known]
        every = counting(rows[rows.method.isin(methods)])
        lines = [_cost(rows, method) for method in methods]
        # A baseline is cheap, and so is a part of a search.
        unranked = [
            name for name in methods if name == "erm" or rule(name) == "wga" or results.missing(rows, name)
        ]
        whole = {"method": "all", "runs": len(every), "really spent": spent(every.record)}
        sections.append(
            Section(
                spec_of(rows),
                [*lines, whole],
                notes_of(rows, methods, failed),
                unranked=["all", *map(title, unranked)],
            )
        )
    explained = (
        "Seconds of training. A run counts all its trainings, as if none were shared, as in the paper; a "
        "search is one seed's sum over all candidates, averaged over seeds. Really spent: by all "
        "seeds, trainings that runs share counted once. The paper's numbers are of cMNIST on other hardware."
    )
    return Table("cost", "What a run and a search cost", COST, sections, [explained])


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
    """The seconds of the slowest run of any candidate, trainings counted as if none were shared."""
    longest = float(rows.unshared.max()) if len(rows) else float("nan")
    return None if np.isnan(longest) else longest


def search_seconds(rows: Frame) -> float | None:
    """The seconds of trying every candidate once: of each the mean over its seeds."""
    means = rows.groupby("point").unshared.mean()
    return None if means.isna().any() else float(means.sum()) or None


def spent(records: Iterable[Record]) -> float | None:
    """Seconds of all trainings of these runs, each counted once however many runs share it."""
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


# -- the whole field ---------------------------------------------------------------------------------------

SHARED = ("seeds", "WGA", "95% interval", "PoU", "accuracy, weighted", "accuracy, balanced")
FIELD = (
    Column("method", words=True),
    Column("needs groups for", words=True),
    *(column for column in ONE if column.name in SHARED),
    Column("candidates"),
    Column("over ERM's", partial(times, digits=2)),
)


def table_field(parts: Sequence[Frame], by: str | None = None, failed: Sequence[Failure] = ()) -> Table:
    """Table 1 of the methods that were run, without the paper's numbers but with privileges and costs."""
    one = table_one(parts, by, failed)
    sections = []
    for rows, section in zip(parts, one.sections, strict=True):
        found = results_of(rows, methods_of(rows), by)
        erm = found["erm"].rows.unshared.mean() if "erm" in found else None
        lines = [
            {
                **line,
                "needs groups for": reads_groups(method),
                "candidates": found[method].num_candidates,
                "over ERM's": erm and found[method].rows.unshared.mean() / erm,
            }
            for method, line in zip(methods_of(rows), section.rows, strict=True)
            if method in found
        ]
        sections.append(replace(section, rows=lines))
    explained = "Over ERM's: seconds of the selected candidate, trainings counted as if none were shared."
    return Table("field", "All methods", FIELD, sections, [*one.notes, explained])


# -- what the data and the methods are ---------------------------------------------------------------------

DATASETS = (
    Column("task", words=True),
    Column("N", "{:,}".format),
    Column("N, paper", "{:,}".format, below="N"),
    Column("L"),
    Column("L, paper", below="L"),
    Column("k"),
    Column("k, paper", below="k"),
    Column("worst group", partial(percents, digits=2)),
    Column("worst group, paper", partial(percents, digits=2), below="worst group"),
    Column("conflicting", partial(percents, digits=2)),
    Column("shape", words=True),
    Column("shape, paper", below="shape", words=True),
)


def table_datasets(specs: Sequence[str], runs: dict[str, Frame], root: Path | None = None) -> Table:
    """Every task's size, classes, groups and smallest group, from the records or the data."""
    lines, said = [], []
    for spec in specs:
        if spec not in runs:
            tasks.module(tasks.parse(spec)[0])  # a task that there is not is refused
        facts = {**facts_of_data(spec, root), **(_facts_of_runs(runs[spec]) if spec in runs else {})}
        if "N" not in facts:
            said.append(f"Missing: {spec}; its data are not here, see: evenhand data list")
        compared, how = paper.counterpart(spec)
        theirs = paper.dataset(compared)
        share = theirs.get("worst_group_pct")
        shape = {"shape": facts.get("shape"), "shape, paper": theirs.get("shape")}
        lines.append({
            "task": spec, **facts, "N, paper": theirs.get("n"), "L, paper": theirs.get("L"),
            "k, paper": theirs.get("k"), "worst group, paper": None if share is None else share / 100,
            **{name: "×".join(map(str, sizes)) if sizes else "" for name, sizes in shape.items()},
        })  # fmt: skip
        said += [f"{spec}: compared with the paper's {compared}, though made with {how}."] if how else []
    explained = (
        "N: training samples; L: classes; k: groups; worst group: the smallest one's per cent of the "
        "training set; conflicting: per cent that breaks the shortcut."
    )
    return Table("datasets", "Tasks", DATASETS, [Section("", lines, said)], [explained])


def _facts_of_runs(rows: Frame) -> dict[str, Any]:
    """What finished runs say of their training set."""
    records = rows.record[rows.alike]
    test = records.iloc[0].metrics["test"]
    facts: dict[str, Any] = {"L": len(test["classes"])}
    if test["groups"]:
        facts["k"] = len(test["groups"])
    for record in records:
        for stage in (record.dynamics or {"stages": {}})["stages"].values():
            conflicting, aligned = (int(stage["train"][kind]["count"]) for kind in ("conflicting", "aligned"))
            total = conflicting + aligned
            return {**facts, "N": total, "conflicting": conflicting / total}
        if record.partition is not None:
            return {**facts, "N": len(record.partition.labels)}
    return facts


def facts_of_data(spec: str, root: Path | None) -> dict[str, Any]:
    """The columns of the dataset table as the data themselves give them; {} where they are not here."""
    train = read_split(spec, root, "train")
    if train is None:
        return {}
    size = len(train.labels)
    facts: dict[str, Any] = {"N": size, "L": len(train.class_names), "shape": train.shape}
    if train.groups is not None:
        facts["k"] = len(train.group_names)
        facts["worst group"] = float(np.unique(train.groups, return_counts=True)[1].min() / size)
        if train.conflicting:
            facts["conflicting"] = float(np.isin(train.groups, sorted(train.conflicting)).mean())
    return facts


@dataclass(frozen=True, eq=False)
class Truth:
    """What the data say of the samples of one split."""

    labels: npt.NDArray[np.int64]  # (samples,)
    groups: npt.NDArray[np.int64] | None  # (samples,)
    class_names: Sequence[str]
    group_names: Sequence[str]
    conflicting: Collection[int]  # groups
    shape: tuple[int, ...]  # of a sample


def read_split(spec: str, root: Path | None, name: Literal["train", "test"]) -> Truth | None:
    """A split of a task; None where its data are not here or nobody knows the task.

    Photographs are looked up in their lists, and none is opened.
    """
    declared = task_file(spec)
    if declared is None:
        return None
    try:
        listing = tasks.listing(spec, root)
        if listing is not None and listing.kind == "images":
            from evenhand.tasks.samples import TEST, TRAIN

            rows, group = listing.rows(TRAIN if name == "train" else TEST), listing.group
            size = int(tasks.parse(spec)[1].get("size") or declared.options["size"])
            names = listing.class_names, listing.group_names, listing.conflicting
            return Truth(listing.y[rows], None if group is None else group[rows], *names, (3, size, size))
        task = tasks.load(spec, root)
    except (ValueError, OSError, ImportError):
        return None
    split = task.train if name == "train" else task.test
    groups = None if split.group is None else split.group.numpy()
    names = task.class_names, task.group_names, task.conflicting
    return Truth(split.y.numpy(), groups, *names, tuple(split.x[0].shape))


METHODS = (
    Column("method", words=True),
    Column("name", words=True),
    Column("needs groups for", words=True),
    Column("groups, paper", below="needs groups for", words=True),
    Column("published code selects by", words=True),
    Column("searched", words=True),
    Column("candidates"),
    Column("candidates elsewhere", words=True),
    Column("trainings"),
    Column("paper's hyperparameters", words=True),
    Column("what it does", words=True),
)


def table_methods() -> Table:
    """Which groups a method needs, what must be searched, and how often it trains, as its file declares."""
    known = plugins.describe("evenhand.methods", "train")
    order = [*paper.METHODS, *(name for name in known if name not in paper.METHODS)]
    explained = (
        "Candidates: the points of the paper's grid, each run with every seed. Trainings: of one "
        "run. The paper counts as hyperparameters also those that it does not search."
    )
    return Table("methods", "Methods", METHODS, [Section("", [_method(name) for name in order])], [explained])


def _method(name: str) -> Row:
    declared = method_file(name)
    assert declared is not None, f"{name} is one of our methods"
    grid, theirs = declared.constants.GRID, paper.numbers()["methods"].get(name)
    others = {task: grid_of(task, name) for task in tasks.names()}
    row: dict[str, Any] = {
        "method": name,
        "name": title(name),
        "needs groups for": reads_groups(name),
        "published code selects by": getattr(declared.constants, "PUBLISHED", ""),
        "searched": "; ".join(f"{key}: {' '.join(map(plain, grid[key]))}" for key in grid) or "nothing",
        "candidates": len(combinations(grid)),
        "candidates elsewhere": ", ".join(
            f"{task} {len(combinations(other or {}))}" for task, other in others.items() if other != grid
        ),
        "trainings": getattr(declared.constants, "TRAININGS", 1),
        "what it does": declared.summary.partition(": ")[2] or declared.summary,
    }
    if theirs:
        row["groups, paper"] = _groups(theirs["train_groups"], theirs["val_groups"])
        more = " or more" if theirs.get("or_more") else ""
        row["paper's hyperparameters"] = ", ".join(theirs["hyperparameters"]) + more or "none"
    return row


def reads_groups(method: str) -> str:
    """What a method is given groups for, as its file declares."""
    declared, told = method_file(method), is_told_groups(method)
    reads = getattr(declared and declared.constants, "NEEDS_GROUPS", None)
    return "validation" if reads == "val" else _groups(told, told)


def _groups(training: bool, selection: bool) -> str:
    return " and ".join(["training"] * training + ["selection"] * selection) or "nothing"


# -- what must be said below a table -----------------------------------------------------------------------


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


def notes_of(rows: Frame, methods: Sequence[str], failed: Sequence[Failure] = ()) -> list[str]:
    """All that a reader must know about a task's numbers."""
    task = str(rows.task.iloc[0])
    return [
        *differences(rows),
        *other_data(counting(rows[rows.method.isin(methods)])),
        *told_left_out(Counter(rows.left_out[rows.left_out != ""])),
        *_missing(rows, methods),
        *(f"Failed: {each.method}/{each.folder}: {each.error}" for each in failed if each.task == task),
    ]


def differences(rows: Frame) -> list[str]:
    """Where the runs are not what the paper did: model, other fields of the recipe, the task's options."""
    spec, alike = spec_of(rows), rows[rows.alike]
    lines = trained_otherwise(alike.recipe.iloc[0], spec)
    compared, how = paper.counterpart(spec)
    if how:
        lines.append(f"Compared with the paper's {compared}, though made with {how}.")
    if set(alike.over) == {"classes"}:
        lines.append("No groups are annotated: the worst class stands for the worst group.")
    return lines


def trained_otherwise(recipe: dict[str, Any], spec: str) -> list[str]:
    """Where the recipe is not the task's own."""
    lines = []
    changed, own = results.recipe_changes(recipe, spec), task_recipe(spec)
    if "model" in changed and own is not None:
        lines.append(f"The model is {changed['model']} in place of {own.model}.")
    rest = {name: value for name, value in changed.items() if name not in ("model", "weights")}
    if rest:
        lines.append(f"The recipe differs from the task's own: {named(rest)}.")
    return lines


def other_data(rows: Frame) -> list[str]:
    """Runs whose data have another checksum than most: another version, or images decoded otherwise."""
    known = Counter(rows.data)
    if len(known) < 2:
        return []
    others = Counter(rows.method[rows.data != known.most_common(1)[0][0]])
    parts = [f"{number} of {method}" for method, number in sorted(others.items())]
    return [f"Other data than the rest, by their checksums: {listed(parts)}."]


def older(parts: Sequence[Frame], among: str) -> list[str]:
    """Which of the runs that the column `among` marks are older records, said once below a table."""
    shown = [rows[rows[among]] for rows in parts]
    old, new = ({spec for rows in shown for spec in rows.spec[rows.older == each]} for each in (True, False))
    if not old:
        return []
    which = "all runs" if not new else listed([f"some of {s}" if s in new else s for s in sorted(old)])
    return [
        f"Older records: {which}. They do not say how they were computed, nor by which version of a method. "
        "No bench goes on from them, and no mean mixes them with newer ones."
    ]


def unsealed(parts: Sequence[Frame], among: str) -> list[str]:
    """How many of the runs that the column `among` marks have no checksums, noted once below a table."""
    shown = [rows[rows[among]] for rows in parts]
    number, total = sum(int((~rows.sealed.astype(bool)).sum()) for rows in shown), sum(map(len, shown))
    which = "all runs" if number == total else f"{number} of {total} runs"
    note = f"Unsealed: {which}. They have no checksums, so a changed number in them would not be noticed."
    return [note] if number else []


def ties(rows: Frame, methods: Sequence[str], criteria: Sequence[str | None]) -> list[str]:
    """Where a criterion cannot choose; None is the paper's for the method."""
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
    said = f"Equal candidates, of which the first in the grid is taken: {'; '.join(parts)}."
    return [said] if parts else []


def told_left_out(reasons: Counter[str]) -> list[str]:
    """How many runs do not count, and why."""
    parts = [f"{number} {reason}" for reason, number in sorted(reasons.items())]
    return [f"Left out: {count(sum(reasons.values()), 'run')} ({', '.join(parts)})."] if parts else []


def _missing(rows: Frame, methods: Sequence[str]) -> list[str]:
    """Which runs of the grids are not there, and the command that does them."""
    lines, lacking, known = [], [], set(results.methods(rows))
    for method in methods:
        missing = results.missing(rows, method)
        if method not in known:
            lines.append(f"Missing: {method}, all of it.")
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
    packed = is_packed(rows.path.iloc[0].parents[2])
    first = "Unpack the records (evenhand unpack FILE --runs runs), then do" if packed else "Do"
    return [*lines, f"{first} what is missing with: {bench_command(rows, lacking)}"] if lacking else []


OF_TASKS = {"1": table_one, "selected": table_selected, "cost": table_cost, "field": table_field}
