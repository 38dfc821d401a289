"""Even's development: which check's weights to keep, and how much the cuts explain, from recorded checks.

    python results/development.py

`studies/development.jsonl` has a line for every second training: the share of the squares that the cuts of
all classes explain, and every check: epoch, plain validation accuracy, its standard error, the same two with
even parts, test WGA, weighted test accuracy. Of equal checks the last is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from evenhand.training.stopping import POINT

Check = list[float]  # epoch, plain, its error, evened, its error, WGA, weighted accuracy


def main() -> None:
    lines = [json.loads(line) for line in (Path(__file__).parent / "studies/development.jsonl").open()]
    print("What the cuts explain\n")
    for task in dict.fromkeys(line["task"] for line in lines):
        shares = {line["seed"]: line["share"] for line in lines if line["task"] == task}
        print(f"{task}: {', '.join(f'{share:.2f}' for share in shares.values())}")
    print("\nWGA (weighted accuracy) of what is kept")
    for kind in dict.fromkeys((family(line["task"]), line["second"]) for line in lines):
        runs = [line["checks"] for line in lines if (family(line["task"]), line["second"]) == kind]
        print(f"\n{kind[0]}, {kind[1]}, {len(runs)} runs")
        for name, rule in RULES.items():
            kept = [rule(checks) for checks in runs]
            print(f"  {name}: {100 * fmean(c[5] for c in kept):.1f} ({100 * fmean(c[6] for c in kept):.1f})")


def family(task: str) -> str:
    return task if task.startswith("digits") else "Even-Odd" if task.startswith("even_odd") else "cMNIST"


def allowed(checks: list[Check], least: float = POINT) -> list[Check]:
    top = max(checks, key=lambda check: check[1])
    return [check for check in checks if check[1] >= top[1] - max(least, top[2])]


def summed(checks: list[Check]) -> Check:
    return max(checks, key=lambda check: (round(check[1] + check[3], 5), check[1], check[0]))


def near(checks: list[Check]) -> Check:
    best = max(check[3] for check in checks)
    return [check for check in checks if check[3] >= best - check[4]][-1]


RULES: dict[str, Callable[[list[Check]], Check]] = {
    "last": lambda checks: checks[-1],
    "last near the best (first version)": near,
    "the same, a point at most (second)": lambda checks: near(allowed(checks)),
    "best sum, a point at most (third and fourth)": lambda checks: summed(allowed(checks)),
    "best sum of all checks": summed,
    "best sum, half a point at most": lambda checks: summed(allowed(checks, 0.005)),
    "best sum, its standard error at most": lambda checks: summed(allowed(checks, 0)),
    "best evened accuracy, a point at most": lambda checks: max(allowed(checks), key=lambda c: (c[3], c[0])),
}

if __name__ == "__main__":
    main()
