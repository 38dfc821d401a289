"""How often an audit's advice is right: on data without bias up to p = 99.5%, with and without wrong labels.

    python benchmarks/verdict.py --families table,text,clouds,faint --seeds 0-9          seconds a seed
    python benchmarks/verdict.py --families digits_even_odd,digits --seeds 0-9 --workers 8

Every line is one audit; the table at the end is what docs/verdict.md shows. For digits the seed also decides
splits and colours. `noise` is the share of wrong labels among training and validation samples. --only picks
settings, such as 0.99 or 0.95+0.05, which has 5% of wrong labels. What --out already has is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "audit"))

import numpy as np

SWEEP = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995)
UNBIASED = {"digits": 0.1}  # ten colours: one in ten agrees by chance


def settings(family: str) -> list[tuple[float, float]]:
    """Pairs of p and the share of wrong labels; clouds have no shortcut."""
    if family in ("clouds", "faint"):
        return [(0.5 if family == "clouds" else 0.95, noise) for noise in (0.0, 0.05)]
    sweep = (UNBIASED.get(family, 0.5), *SWEEP[1 if family != "digits" else 2 :])
    return [(p, 0.0) for p in sweep] + [(sweep[0], 0.05), (0.95, 0.05)]


def one(job: tuple[str, float, float, int]) -> dict[str, Any]:
    """One audit: its advice, and its lists against the truth."""
    from evenhand.audit.choice import recommend
    from evenhand.audit.triage import sort_out
    from evenhand.audit.verdict import judge

    family, p, noise, seed = job
    begun = time.monotonic()
    found, conflicting, swapped = (_digits if family.startswith("digits") else _planted)(
        family, p, noise, seed
    )
    verdict = judge(found)
    lists = sort_out(found, verdict).verdict
    result: dict[str, Any] = {
        "family": family,
        "p": p,
        "noise": noise,
        "seed": seed,
        "advice": verdict.advice,
    }
    result |= {"strength": round(verdict.strength, 3), "ship": recommend(found, verdict)["model"]}
    result["minority"] = _precision_recall(lists == "minority", conflicting & ~swapped)
    result["mislabelled"] = _precision_recall(lists == "mislabelled", swapped)
    result["astray"] = int((conflicting & ~swapped & (lists == "mislabelled")).sum())
    for part in ("val", "test"):
        right = {key: getattr(found, key)[part] == found.y[part] for key in ("baseline", "balanced")}
        result[part] = {key: round(float(value.mean()), 3) for key, value in right.items()}
        groups = found.group[part] if found.group is not None else found.y[part]
        result[f"{part}_worst"] = {
            key: round(min(float(value[groups == each].mean()) for each in np.unique(groups)), 3)
            for key, value in right.items()
        }
    return {**result, "seconds": round(time.monotonic() - begun, 1)}


def _precision_recall(listed: np.ndarray, truth: np.ndarray) -> tuple[float | None, float | None, int]:
    both = int((listed & truth).sum())
    precision = round(both / int(listed.sum()), 3) if listed.any() else None
    return precision, round(both / int(truth.sum()), 3) if truth.any() else None, int(listed.sum())


def _planted(family: str, p: float, noise: float, seed: int) -> tuple[Any, np.ndarray, np.ndarray]:
    import planted

    from evenhand.audit import estimators
    from evenhand.tasks import table

    frame = getattr(planted, family)(p, seed, noise=noise)
    label, text = ("topic", "message") if family == "text" else ("outcome", None)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.csv"
        frame.drop(columns="swapped").to_csv(file, index=False)
        data = table.read_table(file, label=label, text=text, group="aligned")
    found = estimators.evidence(data, seed=seed, epochs=None)
    train = data.rows(0)
    return found, (frame["aligned"] == "no").to_numpy()[train], frame["swapped"].to_numpy()[train]


def _digits(family: str, p: float, noise: float, seed: int) -> tuple[Any, np.ndarray, np.ndarray]:
    import torch

    from evenhand import tasks
    from evenhand.audit import networks
    from evenhand.tasks import samples
    from evenhand.training.progress import Silent

    torch.set_num_threads(1)
    samples.DATA_SEED = seed
    task = tasks.load(f"{family}:p={p}")
    wrong = [np.zeros(len(task.train), dtype=bool), np.zeros(len(task.val), dtype=bool)]
    if noise:
        splits = {}
        for part, name in enumerate(("train", "val")):
            split, rng = getattr(task, name), np.random.default_rng([seed, part, 7])
            wrong[part] = rng.random(len(split)) < noise
            others = (split.y.numpy() + rng.integers(1, task.num_classes, len(split))) % task.num_classes
            splits[name] = dataclasses.replace(
                split, y=torch.from_numpy(np.where(wrong[part], others, split.y))
            )
        task = dataclasses.replace(task, **splits, checksum=f"{task.checksum}-noise{noise}")
    with tempfile.TemporaryDirectory() as runs:
        found = networks.evidence(
            task, seed=seed, epochs=None, runs=Path(runs), device="cpu", num_folds=2, show=Silent()
        )
    assert task.train.group is not None
    return found, np.isin(task.train.group.numpy(), sorted(task.conflicting)), wrong[0]


def table_of(results: list[dict[str, Any]]) -> str:
    """Rates and means of every family, p and noise, as Markdown."""
    groups: dict[tuple[str, float, float], list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        groups[result["family"], result["noise"], result["p"]].append(result)
    lines = [
        "| data | p | wrong labels | audits | retrain | look first | leave it | strength | ship balanced | "
        "minority: precision, recall | mislabelled: listed, precision, recall | test accuracy | "
        "worst true group |",
        "|" + " --- |" * 13,
    ]
    for (family, noise, p), rows in sorted(groups.items()):
        advice = Counter(row["advice"] for row in rows)
        strengths = [row["strength"] for row in rows]
        cells = [family, f"{100 * p:g}%", f"{100 * noise:g}%", str(len(rows))]
        cells += [str(advice[name]) for name in ("retrain", "look first", "leave it")]
        cells += [
            f"{min(strengths):.2f}–{max(strengths):.2f}",
            str(sum(row["ship"] == "balanced" for row in rows)),
        ]
        cells.append(f"{_mean(rows, 'minority', 0)}, {_mean(rows, 'minority', 1)}")
        listed = np.mean([row["mislabelled"][2] for row in rows])
        cells.append(f"{listed:.0f}, {_mean(rows, 'mislabelled', 0)}, {_mean(rows, 'mislabelled', 1)}")
        for part in ("test", "test_worst"):
            before, after = (np.mean([row[part][key] for row in rows]) for key in ("baseline", "balanced"))
            cells.append(f"{100 * before:.1f} → {100 * after:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(rows: list[dict[str, Any]], kind: str, which: int) -> str:
    values = [row[kind][which] for row in rows if row[kind][which] is not None]
    return f"{np.mean(values):.2f}" if values else "–"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", default="table,text")
    parser.add_argument("--seeds", default="0-9", help="first-last")
    parser.add_argument("--only", default="", help="such as 0.95,0.95+0.05; all if empty")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, help="keep the results here, as JSON lines")
    arguments = parser.parse_args()
    first, last = map(int, arguments.seeds.split("-"))
    only = [
        (float(p), float(n or 0)) for p, _, n in (e.partition("+") for e in arguments.only.split(",") if e)
    ]
    jobs = [
        (family, p, noise, seed)
        for seed in range(first, last + 1)
        for family in arguments.families.split(",")
        for p, noise in settings(family)
        if not only or (p, noise) in only
    ]
    kept = arguments.out.read_text().splitlines() if arguments.out and arguments.out.exists() else []
    results = [json.loads(line) for line in kept]
    done = {(each["family"], each["p"], each["noise"], each["seed"]) for each in results}
    with ProcessPoolExecutor(arguments.workers) as pool:
        for result in pool.map(one, [job for job in jobs if job not in done]):
            results.append(result)
            print(json.dumps(result), flush=True)
            if arguments.out:
                with arguments.out.open("a") as file:
                    file.write(json.dumps(result) + "\n")
    print(table_of(results))


if __name__ == "__main__":
    main()
