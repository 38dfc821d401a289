"""Time and memory of TAB on embeddings with a planted minority, beside scikit-learn's linear models.

    python benchmarks/embeddings.py                          # 50,000 x 512, with LogisticRegression(saga)
    python benchmarks/embeddings.py --samples 10000000       # 10.2 GB in half precision, with SGDClassifier
    python benchmarks/embeddings.py --samples 10000000 --device cuda

The embeddings are a mixture: one direction shows the class, another the shortcut, which 5% of each class
break. They are written to --folder once. Memory is all of the process's own; pages of the mapped file, which
the kernel gives back when memory is short, are not counted. On a busy machine the CPU seconds count.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from common import Peak, machine, table

from evenhand import tasks
from evenhand.training.data import Task
from evenhand.training.execute import execute
from evenhand.training.log import Silent

BLOCK = 1 << 16


def write(folder: Path, samples: int, dimensions: int) -> None:
    """x.npy (half precision), y.npy and site.npy, block by block."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, samples)
    site = np.where(rng.random(samples) < 0.05, 1 - y, y)
    core, shortcut = rng.normal(0, 1, (2, dimensions)) / np.sqrt(dimensions)
    np.save(folder / "y.npy", y)
    np.save(folder / "site.npy", site)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float16, (samples, dimensions))
    for start in range(0, samples, BLOCK):
        rows = slice(start, min(start + BLOCK, samples))
        noise = rng.standard_normal((rows.stop - rows.start, dimensions), dtype=np.float32)
        x[rows] = noise + np.outer(4 * y[rows] - 2, core) + np.outer(10 * site[rows] - 5, shortcut)
    x.flush()


def wga(task: Task, predicted: np.ndarray) -> float:
    assert task.test.group is not None
    hits, group = predicted == task.test.y.numpy(), task.test.group.numpy()
    return min(hits[group == each].mean() for each in np.unique(group))


def of_scikit_learn(task: Task, mapped: np.ndarray, streamed: bool) -> tuple[str, float]:
    """LogisticRegression (saga), or SGDClassifier.partial_fit in five passes over blocks; its test WGA."""
    from sklearn.linear_model import LogisticRegression, SGDClassifier

    mean, std = np.array(task.mean, np.float32), np.array(task.std, np.float32)
    rows, y = task.train.rows.numpy(), task.train.y.numpy()

    def inputs(which: np.ndarray) -> np.ndarray:
        return (mapped[which].astype(np.float32) - mean) / std

    if streamed:
        model = SGDClassifier(loss="log_loss", alpha=1e-6, random_state=0)
        for _ in range(5):
            for start in range(0, len(rows), BLOCK):
                model.partial_fit(
                    inputs(rows[start : start + BLOCK]), y[start : start + BLOCK], classes=[0, 1]
                )
    else:
        model = LogisticRegression(solver="saga", max_iter=100).fit(inputs(rows), y)
    tested = task.test.rows.numpy()
    parts = [model.predict(inputs(tested[start : start + BLOCK])) for start in range(0, len(tested), BLOCK)]
    return type(model).__name__, wga(task, np.concatenate(parts))


def clocks(begun: tuple[float, float]) -> tuple[str, str]:
    """Seconds, and seconds of all processors, since two readings of the clocks."""
    return f"{time.perf_counter() - begun[0]:.1f}", f"{time.process_time() - begun[1]:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, help="where the embeddings are kept; a temporary one if none")
    parser.add_argument("--methods", nargs="*", default=["erm", "tab", "evenhand"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if not (folder / "site.npy").is_file() or len(np.load(folder / "y.npy")) != arguments.samples:
            folder.mkdir(parents=True, exist_ok=True)
            write(folder, arguments.samples, arguments.dimensions)
        print(f"{arguments.samples:,} x {arguments.dimensions} in half precision; {machine()}")
        rows = []
        with Peak() as peak:
            begun = time.perf_counter(), time.process_time()
            task = tasks.load("embeddings:path=x.npy,labels=y.npy,groups=site.npy", folder)
            loaded = clocks(begun)
        rows.append(("load", *loaded, f"{peak.whole:,.0f}", "", "", ""))
        recipe = task.recipe.replace(epochs=arguments.epochs)
        for method in arguments.methods:
            begun = time.perf_counter(), time.process_time()
            with Peak() as peak:
                settings = {"runs": Path(temporary) / "runs", "device": arguments.device, "show": Silent()}
                record = execute(task, method, recipe=recipe, **settings)
            found = record.metrics["identification"] or {"purity": None, "identified": None}
            scores = [record.metrics["test"]["wga"], found["purity"], found["identified"]]
            cells = ["" if score is None else f"{score:.3f}" for score in scores]
            rows.append((method, *clocks(begun), f"{peak.whole:,.0f}", *cells))
            print(*rows[-1], flush=True)
        mapped = np.load(folder / "x.npy", mmap_mode="r")
        with Peak() as peak:
            begun = time.perf_counter(), time.process_time()
            name, worst = of_scikit_learn(task, mapped, streamed=arguments.samples > 1_000_000)
            learned = clocks(begun)
        rows.append((name, *learned, f"{peak.whole:,.0f}", f"{worst:.3f}", "", ""))
        table(("what", "seconds", "CPU seconds", "MiB", "test WGA", "precision", "recall"), rows)


if __name__ == "__main__":
    main()
