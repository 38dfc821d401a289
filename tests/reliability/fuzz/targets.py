"""What is fuzzed: every reader of a file that somebody else may have written.

A target gives valid files to start from, and reads one of them as evenhand does. The only error that may come
out is a ValueError that says which file is wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

TESTS = Path(__file__).parents[2]
for folder in (TESTS, TESTS / "tasks"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

import made_bench  # noqa: E402
import published_layouts as layouts  # noqa: E402

from evenhand import Partition, by_group, partition, tasks  # noqa: E402
from evenhand.audit import portable, text_model  # noqa: E402
from evenhand.audit import predict as audited  # noqa: E402
from evenhand.bench import pack as records  # noqa: E402
from evenhand.bench.results import frame  # noqa: E402
from evenhand.core.history import LossHistory  # noqa: E402
from evenhand.core.partition import rebalance, sample_weights  # noqa: E402
from evenhand.integrations import files, prediction  # noqa: E402
from evenhand.report import render, tables  # noqa: E402
from evenhand.report.page import build  # noqa: E402
from evenhand.tasks import bar, celeba, colour, cub, samples, table, waterbirds  # noqa: E402
from evenhand.training import models, plugins, store  # noqa: E402
from evenhand.training import record as record_files  # noqa: E402
from evenhand.training.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from evenhand.training.estimator import tree_arrays  # noqa: E402
from evenhand.training.recipe import Recipe  # noqa: E402
from evenhand.training.record import Record, is_finished, read_metrics  # noqa: E402
from evenhand.training.store import write_manifest  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Target:
    """A reader, the name of the file that it is given, and a folder in which the other files are sound."""

    name: str
    file: str  # what is fuzzed, below the folder
    prepare: Callable[[Path], None]  # writes a sound folder
    read: Callable[[Path], object]
    seeds: Callable[[Path], list[bytes]] | None = None  # besides the file itself
    named: bool = True  # whether an error must name the file
    parse: Callable[[bytes], object] | None = None  # reads the bytes themselves, in place of `read`


def _saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _parts() -> Partition:
    losses = np.random.default_rng(0).random((12, 3))
    return partition(losses, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3])


# -- datasets ----------------------------------------------------------------------------------------


def _idx(folder: Path) -> None:
    rng = np.random.default_rng(0)
    (folder / "train-images-idx3-ubyte").write_bytes(
        layouts.idx_bytes(rng.integers(0, 255, (2, 3, 3), dtype=np.uint8))
    )


def _idx_gz(folder: Path) -> None:
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(
        gzip.compress(layouts.idx_bytes(np.arange(9, dtype=np.uint8)))
    )


TABLE = "age,town,when,label,group\n" + "".join(
    f"{20 + i}.5,{'abc'[i % 3]},2020-01-{i % 28 + 1:02d},{'yes' if i % 2 else 'no'},{i % 3}\n"
    for i in range(14)
)


def _csv(folder: Path) -> None:
    (folder / "t.csv").write_text(TABLE)


def _read_csv(folder: Path) -> object:
    frame = table.read(folder / "t.csv")
    return frame, table.read_table(folder / "t.csv", label="label", group="group")


def _parquet(folder: Path) -> None:
    import pandas

    pandas.read_csv(io.StringIO(TABLE)).to_parquet(folder / "t.parquet", index=False)


def _read_parquet(folder: Path) -> object:
    return table.read_table(folder / "t.parquet", label="label")


def _embeddings(folder: Path) -> None:
    import pandas

    x, y = np.random.default_rng(0).random((24, 3), np.float32), np.arange(24) % 2
    np.save(folder / "vectors.npy", x)
    np.save(folder / "labels.npy", np.array(["a", "b"])[y])
    np.savez(folder / "all.npz", embedding=x, label=y)
    pandas.DataFrame({"embedding": list(x), "label": y}).to_parquet(folder / "all.parquet")


def _read_embeddings(path: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        os.environ["EVENHAND_CACHE"] = str(folder / "cache")
        try:
            return tasks.load(f"embeddings:path={path}", folder)
        finally:
            shutil.rmtree(folder / "cache", ignore_errors=True)

    return read


def _scored(folder: Path) -> None:
    rows = (f"{'ab'[i % 2]},{'ab'[i % 3 % 2]},{0.5 + i / 100},{'xyz'[i % 3]}" for i in range(30))
    (folder / "predictions.csv").write_text("\n".join(["y,predicted,confidence,site", *rows]) + "\n")


def _read_scored(folder: Path) -> object:
    made = by_group.evaluate(folder / "predictions.csv", label="y", groups=["site"], least=1)
    return render.write(made.table(), "html")


# -- records -----------------------------------------------------------------------------------------


def _runs(folder: Path) -> None:
    for method in ("erm", "tab"):
        curves = made_bench.curves(4) if method == "tab" else None
        made_bench.write(folder / "runs", method, pseudo=method == "tab", task="t", dynamics=curves)
    (folder / "run").symlink_to(next((folder / "runs/t/tab").iterdir()))
    (folder / "stage").symlink_to(next((folder / "runs/t/stages").iterdir()))


def _read_record(folder: Path) -> object:
    """All that tables and pages read of a record."""
    path = (folder / "run").resolve()
    record = Record(path)
    _ = record.config, record.metrics, record.timing, record.partition, record.val_partition, record.dynamics
    _ = record.predictions, record.seed, record.method
    return [record.epochs(name) for name in record.config["stages"]], [
        record.losses(n) for n in record.config["stages"]
    ]


def _read_metrics(folder: Path) -> object:
    path = (folder / "run").resolve() / "metrics.json"
    read_metrics(path)
    found = records.load(folder / "runs")
    for name in ("1", "selected", "cost"):
        render.write(tables.make(name, frame(found)), "md")
    return is_finished(path.parent)


def _sealed(folder: Path) -> None:
    _runs(folder)
    path = (folder / "run").resolve()
    write_manifest(path, {each.name: each.read_bytes() for each in path.iterdir()})


def _read_page(folder: Path) -> object:
    """A page and the tables that read curves and clusters."""
    found = records.load(folder / "runs")
    _read_record(folder)
    return build(found, folder / "page.html", load_task=lambda _: None)


def _door(name: str, file: str, schema: store.Schema) -> Target:
    """The check that every JSON file of a record passes, without the file: many times as fast."""
    path = Path(file)
    return Target(
        name, file, _sealed, _read_record, parse=lambda data: store.check_json(data, path, schema, "a record")
    )


def _packed(folder: Path) -> None:
    _runs(folder)
    records.pack(records.load(folder / "runs"), folder / "p.zip")


def _read_packed(folder: Path) -> object:
    os.environ["EVENHAND_CACHE"] = str(folder / "cache")
    try:
        return records.load(folder / "p.zip"), records.unpack(folder / "p.zip", folder / "unpacked")
    finally:
        shutil.rmtree(folder / "cache", ignore_errors=True)
        shutil.rmtree(folder / "unpacked", ignore_errors=True)


def _partition_file(folder: Path) -> None:
    _parts().save(folder / "partition.npz")


def _read_partition(folder: Path) -> object:
    parts = Partition.load(folder / "partition.npz")
    return repr(parts), rebalance(parts), sample_weights(parts)


def _predictions(folder: Path) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, val=np.arange(4, dtype=np.int32), test=np.arange(3, dtype=np.int32))
    (folder / "predictions.npz").write_bytes(buffer.getvalue())


# -- trainings ---------------------------------------------------------------------------------------


def _state() -> dict[str, object]:
    return {
        "epoch": 3,
        "model": {"w": torch.arange(4.0)},
        "log": [{"loss": 0.5}],
        "rules": {"val": {"best": 0.5}},
    }


def _checkpoint(folder: Path) -> None:
    save_checkpoint(folder / "last.ckpt", _state())


def _payload(folder: Path) -> None:
    buffer = io.BytesIO()
    torch.save(_state(), buffer)
    (folder / "payload").write_bytes(buffer.getvalue())


def _read_payload(folder: Path) -> object:
    """The payload with a checksum that agrees: what one finds who fools the checksum, or makes it."""
    payload, path = (folder / "payload").read_bytes(), folder / "last.ckpt"
    path.write_bytes(payload + hashlib.sha256(payload).digest())
    return load_checkpoint(path)


def _history(folder: Path) -> None:
    history = LossHistory(5, path=folder / "losses.npy")
    for epoch in range(3):
        history.record(np.arange(5), np.arange(5) / (epoch + 1))
        history.end_epoch()


def _weights(kind: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        state = models.make_model("linear", shape=(3,), num_classes=2).state_dict()
        if kind == "safetensors":
            from safetensors.torch import save

            (folder / "w.safetensors").write_bytes(save(state))
        else:
            torch.save(state, folder / "w.pth")

    return prepare


def _read_weights(kind: str) -> Callable[[Path], object]:
    return lambda folder: models.make_model(
        "linear", shape=(3,), num_classes=2, weights=str(folder / f"w.{kind}")
    )


# -- other -------------------------------------------------------------------------------------------


def _picture(form: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        from PIL import Image

        pixels = np.random.default_rng(0).integers(0, 255, (6, 5, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"i.{form}")

    return prepare


def _losses(folder: Path) -> None:
    (folder / "l.npy").write_bytes(_saved(np.random.default_rng(0).random((6, 3), dtype=np.float32)))


def _labels(folder: Path) -> None:
    (folder / "y.npy").write_bytes(_saved(np.array(["a", "b", "a", "b", "a", "b"])))


def _input(folder: Path) -> None:
    np.savez(folder / "x.npz", x=np.zeros((2, 3), np.float32))


def _read_input(folder: Path) -> object:
    return prediction._inputs(folder / "x.npz", torch.zeros(3))


def _run_config(folder: Path) -> None:
    from safetensors.torch import save

    model = models.make_model("linear", shape=(3,), num_classes=2)
    (folder / "model.safetensors").write_bytes(save(model.state_dict()))
    (folder / "x.npy").write_bytes(_saved(np.zeros((2, 3), np.float32)))
    inputs = {
        "shape": [3],
        "dtype": "float32",
        "mean": None,
        "std": None,
        "classes": ["a", "b"],
        "own_model": False,
    }
    recipe = dataclasses.asdict(Recipe(model="linear"))
    (folder / "config.json").write_text(json.dumps({"inputs": inputs, "full_recipe": recipe}))


def _manifest(folder: Path) -> None:
    _picture("png")(folder)
    os.environ["EVENHAND_CACHE"] = str(folder / "cache")
    done = samples.decode_images("t", [folder / "i.png"], 4)
    (folder / "manifest.json").symlink_to(done.folder / "manifest.json")


def _read_manifest(folder: Path) -> object:
    os.environ["EVENHAND_CACHE"] = str(folder / "cache")
    return samples.damaged_chunks(samples.decode_images("t", [folder / "i.png"], 4))


def _names(folder: Path) -> None:
    (folder / "names").write_text("\n".join(f"{name}_{i}.jpg" for i, name in enumerate(bar.CLASSES)))


def _read_names(folder: Path) -> object:
    """Every line is the name of a file in BAR's training folder."""
    root = folder / "root"
    shutil.rmtree(root, ignore_errors=True)
    for part in ("train", "test"):
        (root / "bar" / part).mkdir(parents=True)
    for name in (folder / "names").read_bytes().splitlines():
        if name.strip(b".") and b"/" not in name and b"\x00" not in name and len(name) < 250:
            Path(os.fsdecode(os.fsencode(root / "bar/train/x").replace(b"/x", b"/" + name))).write_bytes(b"")
    return bar.listing(root)


def _spec(folder: Path) -> None:
    (folder / "spec").write_text("lr=0.1 upweight=ratio weight_decay=1e-4 limit=[1,2]")


def _read_spec(folder: Path) -> object:
    from evenhand import tasks

    text = (folder / "spec").read_bytes().decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        tasks.parse(text)
    values = plugins.parse_assignments(text.split())
    return Recipe(**{name: value for name, value in values.items() if name in Recipe.__dataclass_fields__})


def _own_labels(folder: Path) -> None:
    (folder / "labels").write_text("\n".join("ab"[i % 2] for i in range(12)))


def _read_own_labels(folder: Path) -> object:
    lines = (folder / "labels").read_bytes().decode("utf-8", "surrogateescape").split("\n")
    return samples.stratified_split(samples.encode_classes(lines, "the file labels")[0])


# -- audits ------------------------------------------------------------------------------------------


def _audit(folder: Path, kind: str, arrays: dict[str, np.ndarray], **about: object) -> None:
    from safetensors.numpy import save

    text = json.dumps({"kind": kind, "classes": ["no", "yes"], **about})
    (folder / "baseline.safetensors").write_bytes(save(arrays, {portable.ABOUT: text}))
    reading = {"header": True, "text": "town", "image": None}
    summary = {
        "ship": {"model": "baseline"},
        "data": {"kind": kind, "classes": ["no", "yes"], "reading": reading},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    _csv(folder)


def _trees(folder: Path) -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    x = np.random.default_rng(0).random((60, 1))
    model = HistGradientBoostingClassifier(max_iter=2, min_samples_leaf=5).fit(x, x[:, 0] > 0.5)
    _audit(folder, "trees", tree_arrays(model), numbers=["age"], words={})


def _linear(folder: Path) -> None:
    number = np.random.default_rng(0).random
    words = np.frombuffer(b"abc\nde\nfg", dtype=np.uint8)
    arrays = {
        "vocabulary": words,
        "idf": number(3),
        "coefficients": number((1, 3)),
        "intercept": number(1),
    }
    _audit(folder, "words", arrays)


def _read_audit(folder: Path) -> object:
    return audited.predict(folder, folder / "t.csv", model=None, device="cpu")


def _hub(folder: Path) -> None:
    (folder / "config.json").write_text(
        json.dumps({"model_type": "bert", "architectures": ["Bert"], "text": {"layers": [1, 2]}})
    )
    index = {"metadata": {"total_size": 8}, "weight_map": {"a": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _under(make: Callable[[Path], object], *given: object) -> Callable[[Path], None]:
    return lambda folder: make(folder, *given) and None  # type: ignore[call-arg]


CUB = "cub/CUB_200_2011"
TARGETS = [
    Target("idx", "train-images-idx3-ubyte", _idx, lambda f: colour.read_idx(f, "train-images-idx3-ubyte")),
    Target("idx_gz", "t10k-labels-idx1-ubyte.gz", _idx_gz, lambda f: colour.read_idx(f, "t10k-labels-idx1-ubyte")),
    Target("csv", "t.csv", _csv, _read_csv),
    Target("parquet", "t.parquet", _parquet, _read_parquet),
    Target("embeddings_npy", "vectors.npy", _embeddings, _read_embeddings("vectors.npy,labels=labels.npy")),
    Target("embeddings_labels", "labels.npy", _embeddings, _read_embeddings("vectors.npy,labels=labels.npy"), named=False),
    Target("embeddings_npz", "all.npz", _embeddings, _read_embeddings("all.npz")),
    Target("embeddings_parquet", "all.parquet", _embeddings, _read_embeddings("all.parquet")),
    Target("evaluate", "predictions.csv", _scored, _read_scored, named=False),
    Target("waterbirds", "waterbirds/metadata.csv", _under(layouts.make_waterbirds), waterbirds.listing),
    Target("celeba_txt", "celeba/list_attr_celeba.txt", _under(layouts.make_celeba, "txt"), celeba.listing),
    Target("celeba_csv", "celeba/list_attr_celeba.csv", _under(layouts.make_celeba, "csv"), celeba.listing),
    Target("celeba_split", "celeba/list_eval_partition.txt", _under(layouts.make_celeba, "txt"), celeba.listing),
    Target("cub_images", f"{CUB}/images.txt", _under(layouts.make_cub), cub.listing, named=False),
    Target("cub_labels", f"{CUB}/image_class_labels.txt", _under(layouts.make_cub), cub.listing),
    Target("cub_classes", f"{CUB}/classes.txt", _under(layouts.make_cub), cub.listing, named=False),
    Target("cub_pickle", "cub/class_attr_data_10/val.pkl", _under(layouts.make_cub, True), cub.listing),
    Target("bar_names", "names", _names, _read_names, named=False),
    Target("own_labels", "labels", _own_labels, _read_own_labels, named=False),
    Target("config", "run/config.json", _runs, _read_record),
    Target("metrics", "run/metrics.json", _runs, _read_metrics),
    _door("json_metrics", "run/metrics.json", record_files.METRICS),
    _door("json_config", "run/config.json", record_files.CONFIG),
    _door("json_dynamics", "run/dynamics.json", record_files.DYNAMICS),
    _door("json_timing", "run/timing.json", record_files.TIMING),
    _door("json_checksums", "run/checksums.json", store.MANIFEST_SCHEMA),
    Target("dynamics", "run/dynamics.json", _runs, _read_record),
    Target("timing", "run/timing.json", _runs, _read_record),
    Target("checksums", "run/checksums.json", _sealed, _read_record, named=False),
    Target("page", "run/dynamics.json", _runs, _read_page),
    Target("audit_trees", "baseline.safetensors", _trees, _read_audit, named=False),
    Target("audit_words", "baseline.safetensors", _linear, _read_audit, named=False),
    Target("audit_summary", "summary.json", _trees, _read_audit, named=False),
    Target("hub_config", "config.json", _hub, lambda f: text_model._check(f), named=False),
    Target("hub_index", "model.safetensors.index.json", _hub, lambda f: text_model._check(f), named=False),
    Target("epochs", "stage/epochs.jsonl", _runs, _read_record),
    Target("val_partition", "run/val_partition.npz", _runs, _read_record),
    Target("packed", "p.zip", _packed, _read_packed, named=False),
    Target("partition", "partition.npz", _partition_file, _read_partition),
    Target("predictions", "predictions.npz", _predictions, lambda f: Record(f).predictions),
    Target("checkpoint", "last.ckpt", _checkpoint, lambda f: load_checkpoint(f / "last.ckpt")),
    Target("payload", "payload", _payload, _read_payload, named=False),
    Target("history", "losses.npy", _history, lambda f: LossHistory(5, path=f / "losses.npy").losses),
    Target("safetensors", "w.safetensors", _weights("safetensors"), _read_weights("safetensors")),
    Target("pth", "w.pth", _weights("pth"), _read_weights("pth")),
    Target("png", "i.png", _picture("png"), lambda f: samples.read_image(f / "i.png", 8)),
    Target("jpg", "i.jpg", _picture("jpg"), lambda f: samples.read_image(f / "i.jpg", 8)),
    Target("gif", "i.gif", _picture("gif"), lambda f: samples.read_image(f / "i.gif", 8)),
    Target("losses_npy", "l.npy", _losses, lambda f: partition(files._read(f / "l.npy", "losses"), [0, 1] * 3), named=False),
    Target("labels_npy", "y.npy", _labels, lambda f: partition(np.eye(6), files._read(f / "y.npy", "labels")), named=False),
    Target("predict_input", "x.npz", _input, _read_input),
    Target("predict_config", "config.json", _run_config, lambda f: prediction.predict(f, f / "x.npy", device="cpu"), named=False),
    Target("manifest", "manifest.json", _manifest, _read_manifest),
    Target("spec", "spec", _spec, _read_spec, named=False),
]  # fmt: skip
