"""The audit as a page to explore, in the terms of report/page.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import evenhand
from evenhand.audit.describe import Finding
from evenhand.audit.judge import HEADLINES, class_advice, recommendation
from evenhand.report.page import Audit, Score, Shared, render_audit
from evenhand.report.page import Verdict as ClassLine
from evenhand.report.samples import Pictures, Rows, Samples, Texts

if TYPE_CHECKING:
    from evenhand.audit.audit import Audited

ONE_HUMP = 0.64  # the gap of one normal hump: no evidence at all


def content(done: Audited) -> bytes:
    """Return the page about the training samples."""
    # File names may contain bytes that are not valid text, which become question marks.
    return render_audit(told(done)).encode(errors="replace")


def told(done: Audited) -> Audit:
    """Return an audit as the content of a page."""
    found, data = done.evidence, done.data
    rows = data.rows(0)
    samples = Samples(
        ids=[data.ids[row] for row in rows],
        labels=found.y["train"],
        minority=found.parts.minority,
        margin=found.parts.margin,
        curves=found.losses,
        triage=done.lists.tolist(),
        predicted_baseline=found.baseline["train"],
        predicted_balanced=found.balanced["train"],
    )
    judged, described = done.judgement, done.description
    verdicts = {each.name: each for each in judged.classes}
    return Audit(
        title=Path(done.title).name or done.title,
        headline=HEADLINES[judged.advice],
        lede=[
            *([described.headline] if described.headline else []),
            *(sentence[:1].upper() + sentence[1:] + "." for sentence in (*judged.reasons, *described.notes)),
            list_counts(done),
            *list_notes(done),
        ],
        shared=[
            *(_shared("all classes", each) for each in described.overall),
            *(_shared(name, each) for name, found in described.classes.items() for each in found),
        ],
        samples=samples,
        class_names=data.class_names,
        verdicts=[
            ClassLine(
                strength=min(max(each.gap, 0.0), 1.0),
                words=each.words,
                advice=class_advice(each),
                threshold=each.threshold,
                nothing=ONE_HUMP,
            )
            for each in (verdicts[name] for name in data.class_names)
        ],
        scores=_scores(done.models),
        groups=_groups(done.models),
        recommendation=recommendation(judged),
        ship=judged.model,
        facts=_facts(done),
        media=_media(done, rows),
    )


def _shared(name: str, found: Finding) -> Shared:
    return Shared(
        class_name=name,
        words=found.words,
        late=f"{found.late:,} of {found.num_late:,}",
        others=f"{found.others:,} of {found.num_others:,}",
        effect=100 * found.effect,
        interval=(100 * found.interval[0], 100 * found.interval[1]),
    )


def _number(count: int) -> str:
    return f"{count:,}" if count else "none"


def list_counts(done: Audited) -> str:
    """Return a sentence on the number of samples in the two lists."""
    minority, mislabelled = (len(done.rows(kind)) for kind in ("minority", "mislabelled"))
    return (
        f"Of {len(done.lists):,} training samples, {_number(minority)} {'is' if minority == 1 else 'are'} "
        f"likely of a minority, {_number(mislabelled)} likely mislabelled."
    )


def list_notes(done: Audited) -> list[str]:
    """Return notes on how to read the list of likely mislabeled samples."""
    if not len(done.rows("mislabelled")):
        return []
    return [
        "A sample that is called likely mislabelled looks like an ordinary sample of another class. It may "
        "as well be of a kind that the model cannot learn yet. Look before you change its label."
    ]


def _scores(models: dict[str, Any]) -> list[Score]:
    wanted = (
        ("Validation accuracy", "val", "accuracy"),
        ("Late validation samples", "val", "late"),
        ("Worst class, validation", "val", "worst_class"),
        ("Worst pseudo-group, validation", "val", "worst_pseudo_group"),
        ("Test accuracy", "test", "accuracy"),
        ("Worst class, test", "test", "worst_class"),
    )
    return [
        _score(name, what, *(models[key][part][what] for key in ("baseline", "balanced")))
        for name, part, what in wanted
        if models["baseline"][part][what] is not None
    ]


def _score(name: str, what: str, before: dict[str, Any], after: dict[str, Any]) -> Score:
    both = f"as collected: {before['name']}; balanced: {after['name']}"
    both = before["name"] if before["name"] == after["name"] else both
    notes = {"late": "chosen by the losses of the model as collected", "values": "all classes"}
    return Score(
        name=name,
        baseline=before["accuracy"],
        balanced=after["accuracy"],
        baseline_interval=tuple(before["interval"]),
        balanced_interval=tuple(after["interval"]),
        num_samples=before["count"] if before["count"] == after["count"] else None,  # not of the same ones
        note=both if what.startswith("worst") else notes.get(what, ""),
    )


def _groups(models: dict[str, Any]) -> list[Score]:
    """Return the test scores by value of the group column, if given, and then by group; for scoring only."""

    def lines(kind: str) -> list[Score]:
        before, after = (models[key]["test"].get(kind, []) for key in ("baseline", "balanced"))
        return [
            _score(old["name"].removesuffix(", all classes"), kind, old, new)
            for old, new in zip(before, after, strict=True)
        ]

    return lines("values") + lines("groups")


def _facts(done: Audited) -> list[tuple[str, str]]:
    found = done.evidence
    sizes = ", ".join(f"{len(found.y[part]):,} {part}" for part in ("train", "val", "test"))
    facts = [("data", done.title), ("samples", sizes)]
    facts += [(str(name), str(value)) for name, value in found.about.items()]
    facts += [("note", note) for note in done.data.notes]
    return [*facts, ("seed", str(done.seed)), ("evenhand", evenhand.__version__)]


def _media(done: Audited, rows: np.ndarray) -> Pictures | Rows | Texts | None:
    data = done.data
    if data.kind == "text":
        return Texts(lambda sample: data.texts[int(rows[sample])])
    if data.kind == "table" and data.frame is not None:
        frame = data.frame.iloc[rows]
        return Rows(list(frame.columns), [frame[name].tolist() for name in frame.columns])
    if data.kind == "images" and data.files:
        from evenhand.tasks.samples import read_image

        return Pictures(lambda sample: read_image(data.files[int(rows[sample])], 64))
    if data.kind == "images" and done.task is not None:
        train = done.task.train
        return Pictures(lambda sample: np.asarray(train.x[int(train.rows[sample])]))
    return None
