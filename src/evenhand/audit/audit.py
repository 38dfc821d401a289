"""Run an audit: read your own data and write a folder with the answer."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import evenhand
from evenhand.audit import describe, estimators, networks, page
from evenhand.audit.describe import Description
from evenhand.audit.evidence import PARTS, Evidence, collect, course
from evenhand.audit.judge import AIMS, Judgement, judge, sentences, side_by_side
from evenhand.audit.labels import wrong_labels
from evenhand.audit.reading import read
from evenhand.audit.shortcut import find, wordings
from evenhand.audit.slices import Slice, check_slices, discover
from evenhand.audit.text_model import TextModel
from evenhand.core.partition import sample_weights
from evenhand.core.ranks import resolve_device
from evenhand.integrations.files import csv_bytes
from evenhand.tasks import table
from evenhand.tasks.samples import TRAIN, VAL, Samples, read_image
from evenhand.training import log, store
from evenhand.training.data import Task, as_input, checksum
from evenhand.training.models import OWN, call_own, make_model, own_function, takes
from evenhand.training.store import Damaged, check_folder, claim, json_bytes, read_json, write_bytes

MOST_PHRASES = 4  # that a sentence names
FEW_VALUES = 1_000_000  # rows times columns
CHEAP_FOLDS, FOLDS = 4, 2  # for trainings that take seconds, and for others
KINDS = {"table": "a table of features", "text": "a table of texts", "images": "images"}
SEEN_SIZE = 64  # pixels of an image that is measured
WRITING = ".evenhand-audit"  # lies in the folder while its files are written
OUR_NAMES = (
    "baseline", "balanced", "checksums.json", "claim", "curves.npz", "indices.npy", "report.html", "runs",
    "samples.csv", "slices.csv", "summary.json", "weights.csv",
)  # fmt: skip
HEADER = (
    "id", "split", "label", "predicted_baseline", "predicted_balanced", "pseudo_group", "margin",
    "first_loss", "last_loss", "mean_loss", "epoch_learned", "times_forgotten", "confidence_unseen", "triage",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Audited:
    """Everything that an audit has found."""

    title: str
    data: Samples
    evidence: Evidence
    judgement: Judgement
    lists: np.ndarray  # (training samples,) "", "minority" or "mislabelled"
    description: Description
    models: dict[str, Any]  # accuracies of both models, side by side
    task: Task | None  # what a network was trained on
    seed: int
    slices: tuple[Slice, ...] = ()

    def rows(self, kind: str) -> np.ndarray:
        """Return the training samples on one of the two lists."""
        return np.flatnonzero(self.lists == kind)


def run(
    source: Any,
    *,
    out: Path,
    label: str | None = None,
    text: str | None = None,
    image: str | None = None,
    group: str | None = None,
    hide_group: bool = False,
    drop: tuple[str, ...] = (),
    header: bool = True,
    missing: bool = False,
    skip_bad: bool = False,
    aim: str = "worst-group",
    model: str | None = None,
    size: int | None = None,
    frozen: bool | None = None,
    seed: int = 0,
    epochs: int | None = None,
    device: str = "auto",
    slices: str | None = None,
    show: log.Silent | None = None,
) -> Audited:
    """Audit a folder of images, a table, a DataFrame, a Task or a task by name, and write the folder `out`.

    Both models are runs under `out`/runs, so that an audit resumes if interrupted. Nothing is written before
    the data have been read and checked. Raises ValueError where the data cannot be used, and where `out`
    holds other files, the audit of other data, or one that another process is writing.
    """
    if epochs is not None and epochs < 2:
        raise ValueError(f"--epochs must be at least 2, got {epochs}; a loss history needs several epochs")
    if aim not in AIMS:
        raise ValueError(f"--aim must be {' or '.join(AIMS)}, got {aim!r}")
    check_slices(slices)
    check_place(out)
    resolve_device(device)  # refuses an unavailable device, even if none is needed
    columns = {"label": label, "text": text, "image": image, "group": group}
    data, task = read(
        source, **columns, header=header, drop=drop, hide_group=hide_group, skip_bad=skip_bad, missing=missing
    )
    title = source if isinstance(source, str) else type(source).__name__
    if (size is not None or frozen is not None) and (task is not None or data.kind != "images"):
        raise ValueError(
            "--size, --frozen and --fine-tune are about your own images, but "
            f"{title} is {'a task by name' if task else KINDS[data.kind]}; leave them out"
        )
    _check_same(out, title, data)
    with _claimed(out):
        data, found, task = _trained(
            data, task, model=model, seed=seed, epochs=epochs, device=device, out=out,
            images={"size": size, "device": device, "frozen": frozen}, show=show or log.choose_progress(),
        )  # fmt: skip
        done = _judged(title, data, found, task, seed, aim)
        if slices is not None:
            done = dataclasses.replace(done, slices=discover(slices, found, task, seed))
        write(done, out)
    return done


def _trained(
    data: Samples,
    task: Task | None,
    *,
    model: str | None,
    seed: int,
    epochs: int | None,
    device: str,
    out: Path,
    images: dict[str, Any],
    show: log.Silent,
) -> tuple[Samples, Evidence, Task | None]:
    """Train estimators on tables and texts, and networks on everything else; return the evidence."""
    settings: dict[str, Any] = {"seed": seed, "runs": out / "runs", "device": device, "show": show}
    y, size = data.y[data.rows(TRAIN)], len(data.class_names)
    made = None
    if task is None and data.kind != "images" and not _is_folder(model, data):
        made = None if model is None else own_model(model, data)()
        if not isinstance(made, nn.Module):
            chosen = estimators.Estimated(data, own=model or "", made=made, epochs=epochs)
            with _few_threads(data):
                task, words = chosen.task(), set[str]()
                if data.kind == "text":
                    texts = [data.texts[row] for row in data.rows(TRAIN)]
                    value, phrases, words = wordings(texts, y, size)
                    named = " or ".join(f"“{phrase}”" for phrase in phrases[:MOST_PHRASES])
                    shortcut = find({named: value}, y, size, "the wording")
                else:
                    columns = describe.frame_columns(data.frame.iloc[data.rows(TRAIN)])
                    shortcut = find(columns, y, size)
                settings |= {"num_folds": estimators.FOLDS, "estimator": chosen.settings}
                if shortcut is not None:
                    without = chosen.features_of(task, shortcut, words)
                    settings |= {"shortcut": shortcut, "without": without}
                found = collect(task, **settings)
            return data, chosen.finished(found), None
    data, task, finish = _task(data, task, model, images)
    vectors = len(networks.shape_of(task)) == 1  # features, embeddings or a table's numbers
    cheap = isinstance(finish, networks.Backbone) or (finish is None and vectors)
    recipe = task.recipe if epochs is None else task.recipe.replace(epochs=epochs)
    columns = {name: values[data.rows(TRAIN)] for name, values in _properties(data, task)[0].items()}
    settings |= {"recipe": recipe, "shortcut": find(columns, y, size, "the property")}
    found = collect(task, num_folds=CHEAP_FOLDS if cheap else FOLDS, **settings)
    return data, networks.finished(found) if finish is None else finish.finished(found), task


def _few_threads(data: Samples) -> Any:
    """Use one thread for small tables, because more threads cost more time than they save."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    values = len(data.y) * (1 if data.frame is None else len(data.frame.columns))
    return threadpool_limits(1 if values <= FEW_VALUES else None)


def _judged(source: str, data: Samples, found: Evidence, task: Task | None, seed: int, aim: str) -> Audited:
    judgement = judge(found, aim)
    lists = np.full(len(found.late), "", dtype="<U12")
    if judgement.advice != "nothing found":
        lists[judgement.minority(found)] = "minority"
    lists[wrong_labels(found, minority=judgement.advice == "retrain")] = "mislabelled"
    return Audited(
        title=source,
        data=data,
        evidence=found,
        judgement=judgement,
        lists=lists,
        description=_described(data, found, task, judgement),
        models=side_by_side(found),
        task=task,
        seed=seed,
    )


def _described(data: Samples, found: Evidence, task: Task | None, judgement: Judgement) -> Description:
    """Describe what late samples share, properties that predict the label alone, and duplicates."""
    train, held_out = data.rows(TRAIN), np.flatnonzero(data.split != TRAIN)
    val = data.rows(VAL)
    columns, keys = _properties(data, task)
    own = {name: values[train] for name, values in columns.items()}
    texts = [data.texts[row] for row in train] if data.kind == "text" else []
    headline, overall, classes = describe.describe(own, texts, found.y["train"], found.late, data.class_names)
    accuracy = float((found.baseline["val"] == found.y["val"]).mean())
    notes = describe.predicts_alone(columns, data.y, train, val, accuracy)
    notes += describe.duplicates(keys, train, held_out) if keys else []
    if judgement.shortcut is not None and judgement.proven:
        test, detail = judgement.shortcut, headline
        headline = f"Shortcut: {test.words} alone predicts {100 * test.accuracy:.0f}% of the labels"
        if overall and overall[0].name == test.name and detail.startswith("In class"):
            headline += f"; {detail[:1].lower()}{detail[1:-1]}"
        headline += "."
        overall = tuple(sorted(overall, key=lambda each: each.name != test.name))
    headline = headline if judgement.advice != "nothing found" else ""
    return Description(headline, overall, classes, tuple(notes))


def _properties(data: Samples, task: Task | None) -> tuple[describe.Columns, list[tuple[str, str]]]:
    """Return the measured properties of all samples, and the keys by which copies are found."""
    if data.kind == "text":
        return {}, describe.text_keys(data.texts)
    if data.frame is not None:
        columns = describe.frame_columns(data.frame)
        return columns, describe.row_keys(columns)
    if data.kind == "images" and data.files:
        return describe.image_columns(
            lambda row: read_image(data.files[row], SEEN_SIZE), len(data.files), data.files
        )
    if data.kind == "images" and task is not None:
        splits = [getattr(task, part) for part in PARTS]
        places = [(split, int(row)) for split in splits for row in split.rows]
        return describe.image_columns(
            lambda row: np.asarray(as_input(places[row][0].x[places[row][1]])), len(places)
        )
    return {}, []


def _is_folder(model: str | None, data: Samples) -> bool:
    """Return whether --model is a folder of a Hugging Face model, or can only be meant as one."""
    if model is None or model in OWN or (":" in model and not Path(model).is_dir()):
        return False
    if Path(model).is_dir() and data.kind != "text":
        raise ValueError(f"--model {model} is a folder: such a model classifies texts; add --text COLUMN")
    return data.kind == "text"


def _task(
    data: Samples, task: Task | None, model: str | None, images: dict[str, Any]
) -> tuple[Samples, Task, networks.Backbone | TextModel | None]:
    """Return the samples with notes, the task for a network, and what later exports the trained models."""
    if _is_folder(model, data):
        texts = TextModel(Path(str(model)), data.class_names)
        return *texts.task(data), texts
    if task is None and data.kind == "images":
        task, backbone = networks.image_task(data, model=model, **images)
        if backbone is None:  # else the task is of what its last layer sees
            networks.check_model(task, model)
        return data, task, backbone
    task = task or table.task(data)
    if model is None:
        return data, task, None
    networks.check_model(task, model)
    return data, dataclasses.replace(task, recipe=task.recipe.replace(model=model)), None


def own_model(name: str, data: Samples) -> Callable[[], Any]:
    """Return a function that makes a fresh model: a network by name or `module:function`, or an estimator."""
    if ":" not in name:
        shape, classes = (1,), len(data.class_names)
        make_model(name, shape=shape, num_classes=classes)  # says what is wrong with the name
        return lambda: make_model(name, shape=shape, num_classes=classes)
    function = own_function(name)
    known = table.task(data) if takes(function, "shape") else None  # else it need not be computed
    size = (1,) if known is None else networks.shape_of(known)
    return lambda: call_own(name, function, size, len(data.class_names))


# -- the folder ------------------------------------------------------------------------------------------


def check_place(out: Path) -> None:
    """Raise ValueError before any training if the folder cannot be written or holds other files."""
    check_folder(out, "--out")
    place = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    try:
        tempfile.TemporaryDirectory(dir=place, prefix=".evenhand-").cleanup()
    except OSError as error:
        raise ValueError(
            f"--out must be a folder that can be written, but {place} cannot ({error.strerror}); "
            "name another place"
        ) from error
    if not out.is_dir():
        return
    names = sorted(each.name for each in out.iterdir() if not each.name.startswith("."))
    # An interrupted audit leaves its runs or some of its files, but no summary.
    others = [name for name in names if name not in OUR_NAMES and name.partition(".")[0] not in OUR_NAMES[:2]]
    begun = (out / WRITING).is_file() or ({"runs", "claim"} & set(names) and not others)
    if names and not begun and not _summary(out):
        raise ValueError(
            f"--out must be a new or empty folder, or an earlier audit's, but {out} holds other files such "
            f"as {(others or names)[0]}; name another folder, such as {out / 'audit'}"
        )


def _summary(out: Path) -> dict[str, Any]:
    """Return the summary of an earlier audit; it is empty if there is none."""
    try:
        content = read_json(out / "summary.json")
    except (OSError, Damaged):
        return {}
    return content if isinstance(content, dict) and {"evenhand", "triage"} <= content.keys() else {}


def _check_same(out: Path, source: str, data: Samples) -> None:
    """Refuse the folder of an audit of other data, that is, of another source with other samples."""
    before = _summary(out).get("data", {})
    if before and before.get("source") != source and before.get("digest") != _digest(data):
        raise ValueError(
            f"--out {out} holds the audit of {before.get('source')}, not of {source}; name another folder, "
            "or remove it first"
        )


def _digest(data: Samples) -> str:
    """Return a digest of the labels, names and splits of the samples."""
    return checksum(*data.class_names, *data.ids, data.y, data.split)


@contextlib.contextmanager
def _claimed(out: Path) -> Any:
    """Lock the folder, because two audits that write into it at the same time would mix their files."""
    new = not out.exists()
    try:
        with claim(out, wait=False):
            yield
    except BlockingIOError as error:
        raise ValueError(f"{error}; wait for it, or name another folder with --out") from error
    except BaseException:
        if new and out.exists() and {each.name for each in out.iterdir()} <= {"claim"}:
            shutil.rmtree(out)  # a refused audit leaves nothing behind
        raise


def write(done: Audited, out: Path) -> dict[str, Any]:
    """Write all files and return the summary. The summary is written last, so it marks a complete audit."""
    summary = summarise(done)
    files = {**contents(done), "report.html": page.content(done)}  # made before the first is written
    write_bytes(out / WRITING, b"")  # if killed from here on, the same command must recognize the folder
    for name in ("summary.json", "slices.csv"):  # the earlier audit's summary; its files are replaced now
        (out / name).unlink(missing_ok=True)
    for name in ("baseline", "balanced"):  # an earlier audit's models may be of another kind
        shutil.rmtree(out / name, ignore_errors=True)
        for suffix in ("joblib", "safetensors"):
            (out / f"{name}.{suffix}").unlink(missing_ok=True)
    for name, content in files.items():
        write_bytes(out / name, content)
    last = json_bytes(summary)
    store.write_manifest(out, {**files, "summary.json": last})
    write_bytes(out / "summary.json", last)
    (out / WRITING).unlink()
    return summary


def contents(done: Audited) -> dict[str, bytes]:
    """Return the content of every file except the summary and the page, by file name."""
    found, train = done.evidence, done.data.rows(0)
    weights = sample_weights(found.parts)
    rows = ((done.data.ids[row], round(float(weight), 6)) for row, weight in zip(train, weights, strict=True))
    curves = {"rows": train, "losses": found.losses.astype(np.float16), "val_rows": done.data.rows(1)}
    return {
        **found.files,
        **({"slices.csv": slice_rows(done)} if done.slices else {}),
        "samples.csv": _samples(done),
        "weights.csv": csv_bytes(("id", "weight"), rows),
        # These are rows of samples.csv, not of the training set, so held-out samples stay held out.
        "indices.npy": _saved(np.save, train[np.asarray(found.balanced_rows)], allow_pickle=False),
        "curves.npz": _saved(np.savez_compressed, **curves, val_losses=found.val_losses.astype(np.float16)),
    }


def slice_rows(done: Audited) -> bytes:
    """Return the samples of each slice, the most typical first."""
    train, names = done.data.rows(0), done.data.class_names
    lines = []
    for number, one in enumerate(done.slices, start=1):
        for rank, row in enumerate(one.first, start=1):
            label, score = names[done.evidence.y["train"][row]], round(float(one.scores[row]), 6)
            lines.append((number, one.method, rank, done.data.ids[train[row]], label, score))
    return csv_bytes(("slice", "method", "rank", "id", "label", "score"), lines)


def _saved(save: Callable[..., None], *arrays: np.ndarray, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, *arrays, **settings)
    return buffer.getvalue()


def summarise(done: Audited) -> dict[str, Any]:
    """Return everything except the samples as plain values."""
    found, data, judged = done.evidence, done.data, done.judgement
    counts = {kind: len(done.rows(kind)) for kind in ("minority", "mislabelled")}
    return {
        "evenhand": evenhand.__version__,
        "data": {
            "source": done.title,
            "kind": data.kind,
            "samples": {part: len(found.y[part]) for part in PARTS},
            "classes": list(data.class_names),
            "digest": _digest(data),
            "notes": list(data.notes),
            "reading": dict(data.reading),
        },
        "seed": done.seed,
        "training": dict(found.about),
        "sentences": list(sentences(judged, done.description.headline)),
        "judgement": judged.as_dict(),
        "description": done.description.as_dict(),
        "triage": {**counts, "late": judged.late, "notes": page.list_notes(done)},
        "models": done.models,
        "ship": {"model": judged.model, "aim": judged.aim},
    }


def _samples(done: Audited) -> bytes:
    """Return one line per sample, in the order of the data. Held-out samples have no training history."""
    found, data = done.evidence, done.data
    learned, forgotten = course(found.hits)
    names = data.class_names
    lines: list[tuple[Any, ...]] = [()] * len(data.ids)
    for number, part in enumerate(PARTS):
        parts = {"train": found.parts, "val": found.val_parts}.get(part)
        losses = {"train": found.losses, "val": found.val_losses}.get(part)
        for position, row in enumerate(data.rows(number).tolist()):
            label = int(found.y[part][position])
            before, after = (int(each[part][position]) for each in (found.baseline, found.balanced))
            line: tuple[Any, ...] = (data.ids[row], part, names[label], names[before], names[after])
            if parts is not None and losses is not None:
                own = losses[position]
                line += ("minority" if parts.minority[position] else "majority",)
                line += tuple(
                    round(float(value), 4) for value in (parts.margin[position], own[0], own[-1], own.mean())
                )
            if part == "train":
                line += (int(learned[position]), int(forgotten[position]))
                line += (round(float(found.unseen[position, label]), 4), str(done.lists[position]))
            lines[row] = line + ("",) * (len(HEADER) - len(line))
    return csv_bytes(HEADER, lines)
