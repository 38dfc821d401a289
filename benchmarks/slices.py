"""How well slice discovery finds the samples that break a shortcut, on coloured digits.

    python benchmarks/slices.py [--task digits_even_odd:p=0.95] [--seeds 3]

Embeddings and probabilities are of an ERM network on its training set; FACTS gets those of a network with
strong weight decay, as its paper says. `history` is the margin of TAB's partition. Scores are means over the
conflicting groups: precision among the first ten samples, and average precision, of the best slice.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

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


@torch.no_grad()
def outputs(task: Task, recipe: Recipe, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings and probabilities of the training samples by the network of a finished run."""
    from safetensors.torch import load_file

    def network() -> torch.nn.Module:
        shape = tuple(task.train.x[0].shape)
        return make_model(recipe.model, shape=shape, num_classes=task.num_classes)

    model = rebuilt(None, network, load_file(folder / "model.safetensors"), task.num_classes).eval()
    x = torch.as_tensor(task.train.x)[task.train.rows].float() / 255
    with head_inputs(find_head(model)[1]) as kept:
        logits = model(x)
    return kept[-1].numpy(), logits.softmax(1).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--task", default="digits_even_odd")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    task = tasks.load(arguments.task)
    y, group = task.train.y.numpy(), task.train.group.numpy()
    strong = task.recipe.replace(weight_decay=1e-3)
    results: dict[str, list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
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
                found = [
                    (
                        slices.precision_among_first(scores, group == g),
                        slices.average_precision(scores, group == g),
                    )
                    for g in sorted(task.conflicting)
                    if (group == g).any()
                ]
                results.setdefault(name, []).append((*np.mean(found, axis=0), time.perf_counter() - begun))
    print(f"{arguments.task}, {arguments.seeds} seeds; {machine()}")
    rows = [(name, *(f"{value:.2f}" for value in np.mean(each, axis=0))) for name, each in results.items()]
    table(("method", "precision at 10", "average precision", "seconds"), rows)


if __name__ == "__main__":
    main()
