"""datasets.Dataset in, weights out as CSV and Parquet; needs evenhand[datasets].

Run it with `python examples/datasets_columns.py`.
"""

from pathlib import Path

import datasets
import numpy as np
import pandas

import evenhand
from evenhand.tasks.columns import add_columns, balanced


def make_data(num_samples: int = 1000) -> datasets.DatasetDict:
    """Two classes that column a mostly predicts; the other columns hold the true, fainter cause."""
    random = np.random.default_rng(0)
    label = np.arange(num_samples) % 2
    shortcut = np.where(random.random(num_samples) < 0.95, label, 1 - label)
    columns = {name: random.standard_normal(num_samples) + label - 0.5 for name in "bcdefg"}
    data = datasets.Dataset.from_dict(
        {"a": 4.0 * shortcut - 2, **columns, "follows": shortcut == label, "label": label}
    )
    data = data.cast_column("label", datasets.ClassLabel(names=["cat", "dog"]))
    parts = data.train_test_split(0.2, seed=0)
    return datasets.DatasetDict({"train": parts["train"], "validation": parts["test"]})


def main(folder: str | Path = ".") -> pandas.DataFrame:
    data = make_data()
    recipe = evenhand.Recipe(epochs=15, batch_size=32)
    result = evenhand.fit("mlp", data, inputs=list("abcdefg"), recipe=recipe)
    weighted = add_columns(data["train"], result.partition)
    weighted.to_csv(Path(folder) / "weighted.csv")
    weighted.to_parquet(Path(folder) / "weighted.parquet")
    print(f"{len(balanced(data['train'], result.partition))} rows in the balanced set")
    frame = pandas.read_parquet(Path(folder) / "weighted.parquet")
    print(frame.groupby(["label", "pseudo_group"])[["sample_weight", "follows"]].mean())
    return frame


if __name__ == "__main__":
    main()
