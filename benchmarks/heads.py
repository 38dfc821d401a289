"""Heads on embeddings of PACS, CelebA and reviews: worst-group accuracy of six methods, five seeds.

    python benchmarks/heads.py --cache FOLDER --data ROOT          # runs what results/heads.csv lacks
    python benchmarks/heads.py --table                             # the table of results/heads.csv

`embedded.py` says how the embeddings are made. All methods have the recipe of the task `embeddings`. DFR and
Group DRO are told the groups of validation samples, and Group DRO those of training samples, too.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path

import numpy as np
from common import table

TASKS = {
    "pacs:p=0.95": "PACS, 95%",
    "pacs:p=0.99": "PACS, 99%",
    "celeba:fraction=0.33": "CelebA, blond / male",
    "celeba:fraction=0.33,target=Big_Nose,attribute=Male": "CelebA, big nose / male",
    "reviews:p=0.95": "reviews, 95% (TF-IDF)",
}
METHODS = ("erm", "class_balanced", "tab", "evenhand", "dfr", "gdro")
NAMES = {"erm": "ERM", "class_balanced": "even classes", "tab": "TAB", "dfr": "DFR*", "gdro": "G-DRO*"}
FIELDS = ("task", "method", "seed", "wga", "mean_over_groups", "weighted_accuracy", "purity", "identified")
RESULTS = Path(__file__).parents[1] / "results" / "heads.csv"


def results() -> list[dict[str, str]]:
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


def run(spec: str, methods: tuple[str, ...], seeds: int, cache: Path, root: Path | None) -> None:
    """Append a line for every run that the results lack."""
    import embedded

    from evenhand import execute
    from evenhand.training.log import Silent

    known = {(row["task"], row["method"], int(row["seed"])) for row in results()}
    wanted = [(method, seed) for seed in range(seeds) for method in methods]
    wanted = [each for each in wanted if (spec, *each) not in known]
    if not wanted:
        return
    task = embedded.task(spec, cache, root)
    group = task.test.group.numpy()
    with tempfile.TemporaryDirectory() as folder:
        for method, seed in wanted:
            record = execute(task, method, seed=seed, runs=Path(folder), device="cpu", show=Silent())
            hits = record.predictions["test"] == task.test.y.numpy()
            accuracies = [float(hits[group == each].mean()) for each in np.unique(group)]
            weighted = float(np.average(hits, weights=task.test.weight.numpy()))
            found = record.metrics["identification"] or {}
            scores = (
                min(accuracies),
                np.mean(accuracies),
                weighted,
                found.get("purity"),
                found.get("identified"),
            )
            cells = ["" if score is None else f"{score:.4f}" for score in scores]
            with RESULTS.open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow((spec, method, seed, *cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--table", action="store_true", help="print the table only")
    arguments = parser.parse_args()
    if not RESULTS.exists():
        RESULTS.write_text(",".join(FIELDS) + "\n")
    if not arguments.table:
        for spec in arguments.tasks:
            run(spec, tuple(arguments.methods), arguments.seeds, arguments.cache, arguments.data)
    frame: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in results():
        scores = float(row["wga"]), float(row["weighted_accuracy"])
        frame.setdefault((row["task"], row["method"]), []).append(scores)
    lines = []
    for spec in dict.fromkeys(task for task, _ in frame):
        cells = []
        for method in METHODS:
            scores = 100 * np.array(frame.get((spec, method), []))
            if len(scores) == 0:
                cells.append("")
                continue
            spread = f" ± {scores[:, 0].std():.1f}" if len(scores) > 1 else ""
            cells.append(f"{scores[:, 0].mean():.1f}{spread} ({scores[:, 1].mean():.1f})")
        lines.append((TASKS.get(spec, spec), *cells))
    print("Worst-group accuracy in percent, mean ± deviation over seeds (weighted accuracy); * told groups\n")
    table(("task", *(NAMES.get(method, method) for method in METHODS)), lines)


if __name__ == "__main__":
    main()
