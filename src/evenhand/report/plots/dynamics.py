"""Figures 2 and 4: how aligned and conflicting samples are learned, epoch by epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from evenhand.bench.grid import DYNAMICS, PAIR, Settings, named
from evenhand.bench.results import Frame, counting, frame, inherited_pair
from evenhand.report.plots.style import (
    ACCENT,
    GOLD,
    INK,
    MAJORITY,
    MINORITY,
    OUTLINE,
    RULE,
    SOFT,
    Drawn,
    epoch_axis,
    finish,
    new,
    percent_axis,
)
from evenhand.report.words import count
from evenhand.training.record import Record

Curve = npt.NDArray[np.float64]  # (epochs,)
STAGE = "erm"  # plain training, which is also TAB's identifier


@dataclass(frozen=True, eq=False)
class Dynamics:
    """The learning of one task's two kinds of samples: (seeds, epochs) curves of each score."""

    spec: str
    model: str
    stopped_early: bool
    other_pair: str  # what the caption says where it is not ERM's selected pair, or empty
    seeds: list[int]
    curves: dict[tuple[str, str, str], npt.NDArray[np.float64]]  # (split, kind, score)
    counts: dict[tuple[str, str], int]  # (split, kind)
    records: list[Record]

    def mean(self, split: str, kind: str, score: str) -> Curve:
        return np.asarray(self.curves[split, kind, score].mean(0))

    def all(self, split: str) -> npt.NDArray[np.float64]:
        """The accuracy of all samples of a split, (seeds, epochs)."""
        counts = [self.counts[split, kind] for kind in ("aligned", "conflicting")]
        both = [self.curves[split, kind, "accuracy"] for kind in ("aligned", "conflicting")]
        return np.average(both, axis=0, weights=counts)


def dynamics(runs: Frame, task: str, clusters: bool = True) -> Dynamics | None:
    """The curves of a task's plain training: of runs that did not stop early where there are any.

    They are of one recipe, and of ERM's selected learning rate and weight decay where a run has them. Methods
    share that training and leave it where their own rule stops: taken is TAB's for its `clusters`, else that
    with the most epochs.
    """
    rows = runs[(runs.task == task) | (runs.spec == task)]
    known = [record for record in rows.record if _epochs(record)]
    if not known:
        return None
    found = frame([record for record in known if _whole(record)] or known)
    found = found[found.alike].assign(
        pair=lambda own: own[[*PAIR]].to_dict("records"),
        curve=lambda own: [_epochs(record) for record in own.record],
        num_settings=lambda own: own.hyperparameters.map(len),
    )
    wanted, usual = inherited_pair(rows), inherited_pair(found)
    pair = min(found.pair, key=lambda own: (own != wanted, own != usual, named(own)))
    paired = found[[own == pair for own in found.pair]]
    ordered = paired.assign(text=paired.path.map(str)).sort_values(
        ["num_settings", "curve", "text"], ascending=[True, False, True]
    )
    by_method = dict(list(ordered.drop_duplicates(["method", "seed"]).groupby("method")))

    def rank(name: str) -> tuple[bool, int, bool]:
        own = by_method[name]
        shown = len(own) * int(own.curve.min())  # curves are cut to the shortest
        return clusters and name == "tab", shown, name == "erm"

    chosen = by_method[max(sorted(by_method), key=rank)].sort_values("seed")
    return _curves(list(chosen.record), _other(rows, pair, wanted))


def _other(rows: Frame, pair: Settings, wanted: Settings) -> str:
    """What the caption says of a pair that ERM's selection is not."""
    if pair == wanted or counting(rows, "erm").empty:
        return ""
    return f", with {named(pair)} because no such run has ERM's selected {named(wanted)}"


def _curves(ordered: list[Record], other_pair: str) -> Dynamics:
    shared = min(_epochs(record) for record in ordered)
    stages = [_stage(record) for record in ordered]
    keys = [(split, kind) for split in ("train", "val") for kind in ("aligned", "conflicting")]
    return Dynamics(
        spec=str(ordered[0].config["spec"]),
        model=str(ordered[0].config["full_recipe"]["model"]),
        stopped_early=not _whole(ordered[0]),
        other_pair=other_pair,
        seeds=[record.seed for record in ordered],
        curves={
            (split, kind, score): np.array([stage[split][kind][score][:shared] for stage in stages])
            for split, kind in keys
            for score in ("accuracy", "loss")
        },
        counts={(split, kind): int(stages[0][split][kind]["count"]) for split, kind in keys},
        records=ordered,
    )


def _stage(record: Record) -> dict[str, Any]:
    stages: dict[str, dict[str, Any]] = (record.dynamics or {}).get("stages", {})
    return stages.get(STAGE, {})


def _epochs(record: Record) -> int:
    """How many epochs have curves of conflicting samples, in both splits."""
    stage = _stage(record)
    if not stage or not all(stage[split]["conflicting"]["count"] for split in ("train", "val")):
        return 0
    return min(len(stage[split]["conflicting"]["accuracy"]) for split in ("train", "val"))


def _whole(record: Record) -> bool:
    """Whether the run was made for these figures, without early stopping."""
    recipe = record.config["full_recipe"]
    return bool(recipe["patience"] >= DYNAMICS["patience"])


def unlearning(aligned: Curve, conflicting: Curve) -> tuple[int, int] | None:
    """The longest stretch in which aligned accuracy stays below its start while conflicting accuracy rises.

    Gives the positions of its first and last epoch; None where there is no stretch of three epochs.
    """
    longest: tuple[int, int] | None = None
    for start in range(len(aligned) - 2):
        end = start
        while end + 1 < len(aligned) and aligned[end + 1] < aligned[start]:
            end += 1
        rises = conflicting[end] > conflicting[start]
        if end - start >= 2 and rises and (longest is None or end - start > longest[1] - longest[0]):
            longest = (start, end)
    return longest


def validation(found: Dynamics) -> Drawn:
    """Figure 2: conflicting, aligned and all validation samples, and conflicting training samples."""
    panels = [
        ("a  conflicting,\n    validation", found.curves["val", "conflicting", "accuracy"]),
        ("b  aligned,\n    validation", found.curves["val", "aligned", "accuracy"]),
        ("c  all,\n    validation", found.all("val")),
        ("d  conflicting,\n    training", found.curves["train", "conflicting", "accuracy"]),
    ]
    zone = unlearning(found.mean("val", "aligned", "accuracy"), found.mean("val", "conflicting", "accuracy"))
    figure, axes = new(1.75, ncols=4)
    for panel, (title, curves) in zip(axes[0], panels, strict=True):
        _zoned(panel, 100 * curves, zone)
        panel.set_title(title)
        epoch_axis(panel)
        percent_axis(panel, high=None)
    shaded = (
        f" Shaded, epochs {zone[0] + 1} to {zone[1] + 1}: conflicting accuracy ends higher than it began "
        "(teal above, orange below that level) while aligned accuracy stays lower."
        if zone
        else " There is no stretch in which conflicting accuracy rises while aligned accuracy falls."
    )
    data = {"panels": dict(panels), "zone": zone}
    title = f"Accuracy while training on {found.spec}"
    return finish("validation", figure, title, _caption(found) + shaded, data)


def _zoned(axes: Axes, curves: npt.NDArray[np.float64], zone: tuple[int, int] | None) -> None:
    """A mean curve over its range over seeds, coloured within the zone by its change since the zone began."""
    epochs, mean = np.arange(1, curves.shape[1] + 1), curves.mean(0)
    if len(curves) > 1:
        axes.fill_between(epochs, curves.min(0), curves.max(0), color=RULE, linewidth=0)
    axes.plot(epochs, mean, color=INK, linewidth=1.2)
    if zone is None:
        return
    start, end = zone
    axes.axvspan(epochs[start], epochs[end], color=GOLD, alpha=0.18, linewidth=0)
    for i in range(start, end):
        risen = mean[i + 1] >= mean[start]
        axes.plot(epochs[i : i + 2], mean[i : i + 2], color=ACCENT if risen else MINORITY, linewidth=2)


def training(found: Dynamics) -> Drawn:
    """Figure 4: conflicting samples still misclassified, the losses, and what the clusters hold."""
    figure, axes = new(2.3, ncols=3, width_ratios=(1, 1, 1.15))
    wrong, loss, composition = axes[0]
    missed = 100 * (1 - found.curves["train", "conflicting", "accuracy"])
    epochs = np.arange(1, missed.shape[1] + 1)
    wrong.plot(epochs, missed.mean(0), color=MAJORITY)
    if len(missed) > 1:
        wrong.fill_between(epochs, missed.min(0), missed.max(0), color=MAJORITY, alpha=0.15, linewidth=0)
    losses = {kind: found.mean("train", kind, "loss") for kind in ("conflicting", "aligned")}
    for (kind, values), dash in zip(losses.items(), ("--", "-"), strict=True):
        loss.plot(epochs, values, color=MAJORITY, linestyle=dash, label=kind)
    shares = clusters(found)
    _composition(composition, shares)
    wrong.set_title("a  conflicting, still wrong")
    percent_axis(wrong, low=0, high=None)
    loss.set_title("b  training loss")
    loss.set_ylim(bottom=0)
    loss.legend(loc="upper right")
    for panel in (wrong, loss):
        epoch_axis(panel)
    caption = _caption(found) + (
        " a: conflicting training samples that are misclassified. c: their part of the two clusters of loss "
        "histories, all classes together, and of the training set (dotted)."
    )
    data = {found.spec: {"wrong": missed.mean(0), "loss": losses, "clusters": shares}}
    return finish("training", figure, f"How {found.spec} is learned", caption, data)


def clusters(found: Dynamics) -> dict[str, float] | None:
    """The conflicting share of the majority and minority clusters and of all samples; mean over seeds."""
    shares: list[list[float]] = []
    for record in found.records:
        rows = (record.dynamics or {}).get("clusters") or []
        if rows:
            sums = [
                [
                    sum(int(row[key]) for row in rows if row["cluster"] in wanted)
                    for key in ("conflicting", "size")
                ]
                for wanted in (("majority",), ("minority",), ("majority", "minority"))
            ]
            shares.append([part / max(whole, 1) for part, whole in sums])
    if not shares:
        return None
    return dict(zip(("majority", "minority", "all"), np.mean(shares, axis=0).tolist(), strict=True))


def _composition(axes: Axes, shares: dict[str, float] | None) -> None:
    axes.set_title("c  conflicting in the clusters")
    if shares is None:
        axes.text(0.5, 0.5, "no clusters recorded;\nthey come with runs of TAB", transform=axes.transAxes,
                  ha="center", va="center", color=SOFT)  # fmt: skip
        axes.set_xticks([])
    else:
        for x, name in enumerate(("majority", "minority")):
            share = 100 * shares[name]
            axes.bar(x, share, width=0.8, color=MAJORITY, alpha=1 if x else 0.45)
            axes.annotate(f"{share:.1f}%", (x, share), ha="center", va="bottom", fontsize=7, xytext=(0, 1.5),
                          textcoords="offset points", zorder=5, path_effects=OUTLINE)  # fmt: skip
        level = 100 * shares["all"]
        axes.plot([-0.5, 1.5], [level, level], color=INK, linewidth=1, linestyle=":")
        axes.set_xticks([0, 1], ["larger", "smaller"])
    axes.tick_params(axis="x", length=0)
    percent_axis(axes, low=0, high=None)
    axes.margins(y=0.12)


def _caption(found: Dynamics) -> str:
    """Task, model, seeds, and where this is not the paper's figure."""
    ended = "stopped early as usual" if found.stopped_early else "no early stopping"
    text = f"{found.spec} with {found.model}, {count(len(found.seeds), 'seed')}, {ended}{found.other_pair}."
    used = found.spec.partition(":")[0] == "waterbirds"
    return text + ("" if used else " The paper's figure is of Waterbirds with ResNet-34.")
