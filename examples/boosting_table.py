"""Gradient boosting on a table: the rounds of its one fit show which rows it learns late.

Run it with `python examples/boosting_table.py`; the table is made here, so nothing is downloaded.
"""

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from evenhand import worst_group_accuracy
from evenhand.integrations.sklearn import TabClassifier


def make_table(num_rows: int, aligned: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Column 0 gives most labels away; the cause is faint in the other twenty. Group: label, column 0."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, num_rows)
    shortcut = np.where(random.random(num_rows) < aligned, y, 1 - y)
    x = random.standard_normal((num_rows, 21))
    x[:, 0] = 2 * shortcut - 1 + 0.1 * x[:, 0]
    x[:, 1:] += 0.4 * (2 * y - 1)[:, None]
    return x, y, 2 * y + shortcut


def main() -> dict[str, float]:
    x, y, _ = make_table(2000, aligned=0.95, seed=0)
    model = TabClassifier(HistGradientBoostingClassifier(max_iter=50, max_depth=3), random_state=0).fit(x, y)
    x, y, group = make_table(4000, aligned=0.5, seed=1)
    before = worst_group_accuracy(model.baseline_.predict(x), y, group)
    after = worst_group_accuracy(model.predict(x), y, group)
    print(f"{model.partition_.minority.sum()} rows are learned late")
    print(f"worst group's accuracy: {before:.1%} before, {after:.1%} after")
    return {"before": before, "after": after}


if __name__ == "__main__":
    main()
