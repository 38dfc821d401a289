"""How well slice discovery finds the samples that break a shortcut, on colored digits and on embeddings.

    python benchmarks/slices.py --cache FOLDER --data ROOT     # runs all tasks and writes results/slices.md

Probabilities are those of an ERM model on its training set, and vectors the features of its network, or the
embeddings of `embedded.py`. FACTS gets a model with strong weight decay, as its paper says. `history` is the
margin of TAB's partition. Scores are means over the conflicting groups: precision among the first ten
samples, and average precision, of the best slice.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from pathlib import Path

import embedded
import numpy as np
import torch
from common import machine, table

from evenhand import tasks
from evenhand.audit import slices
from evenhand.training.data import Task
from evenhand.training.execute import execute
from evenhand.training.log import Silent
from evenhand.training.models import find_head, head_inputs, make_model, rebuilt
from evenhand.training.recipe import Recipe

TASKS = ("digits_even_odd", "reviews:p=0.95", "celeba:fraction=0.33", "pacs:p=0.95")
RESULTS = Path(__file__).parents[1] / "results" / "slices.md"
COLUMNS = ("task", "seeds", "method", "precision at 10", "average precision", "seconds")


@torch.no_grad()
def outputs(task: Task, recipe: Recipe, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings and probabilities of the training samples by the network of a finished run."""
    from safetensors.torch import load_file

    def network() -> torch.nn.Module:
        shape = tuple(task.train.x[0].shape)
        return make_model(recipe.model, shape=shape, num_classes=task.num_classes)

    model = rebuilt(None, network, load_file(folder / "model.safetensors"), task.num_classes).eval()
    x = torch.as_tensor(task.train.x[task.train.rows]).float()
    x = (x - torch.tensor(task.mean)) / torch.tensor(task.std) if x.ndim == 2 else x / 255
    with head_inputs(find_head(model)[1]) as kept:
        logits = model(x)
    return kept[-1].numpy(), logits.softmax(1).numpy()


def scores_of(task: Task, seeds: int) -> dict[str, np.ndarray]:
    """Precision, average precision and seconds of each method, mean over seeds."""
    y, group = task.train.y.numpy(), task.train.group.numpy()
    strong = task.recipe.replace(weight_decay=1e-3)
    results: dict[str, list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            settings = {"seed": seed, "runs": Path(folder), "device": "cpu", "show": Silent()}
            tab, erm = execute(task, "tab", **settings), execute(task, "erm", **settings)
            amplified = execute(task, "erm", recipe=strong, **settings)
            plain, leaning = outputs(task, task.recipe, erm.path), outputs(task, strong, amplified.path)
            for name in (*slices.METHODS, "history"):
                begun = time.perf_counter()
                if name == "history":
                    scores = slices.history(tab.partition.margin, y)
                else:
                    x, p = leaning if name == "facts" else plain
                    scores = slices.METHODS[name](x, y, p, seed=seed)
                spent = time.perf_counter() - begun
                found = [
                    (
                        slices.precision_among_first(scores, group == g),
                        slices.average_precision(scores, group == g),
                    )
                    for g in sorted(task.conflicting)
                    if (group == g).any()
                ]
                results.setdefault(name, []).append((*np.mean(found, axis=0), spent))
    return {name: np.mean(each, axis=0) for name, each in results.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path, help="where the embeddings are kept")
    arguments = parser.parse_args()
    rows = []
    for spec in arguments.tasks:
        if spec.startswith("digits"):
            task = tasks.load(spec, arguments.data)
        else:
            task = embedded.task(spec, arguments.cache, arguments.data)
        for name, means in scores_of(task, arguments.seeds).items():
            rows.append((f"`{spec}`", arguments.seeds, name, *(f"{value:.2f}" for value in means)))
            print(*rows[-1], flush=True)
    with contextlib.redirect_stdout(io.StringIO()) as made:
        table(COLUMNS, rows)
    text = """# Slice discovery

Mean over the groups that break the shortcut, and over seeds, of the best slice's precision among its first
ten samples and of its average precision.
"""
    command = f"Made by `python benchmarks/slices.py --tasks {' '.join(arguments.tasks)}`.\n"
    RESULTS.write_text(f"{text}{command}Machine: {machine()}.\n\n{made.getvalue()}")


if __name__ == "__main__":
    main()
