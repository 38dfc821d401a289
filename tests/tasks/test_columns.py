"""datasets.Dataset in, and a partition as columns out."""

from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import evenhand
from evenhand import partition, rebalance, sample_weights
from evenhand.tasks.columns import add_columns, balanced, class_names, split_of

datasets = pytest.importorskip("datasets", reason="needs evenhand[datasets]")
RECIPE = evenhand.Recipe(epochs=2, batch_size=16)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    datasets.disable_progress_bars()


def vectors(num_samples: int = 60):
    random = np.random.default_rng(0)
    y = np.arange(num_samples) % 2
    x = (random.standard_normal((num_samples, 4)) + y[:, None]).astype(np.float32)
    features = datasets.Features(
        {"x": datasets.List(datasets.Value("float32")), "kind": datasets.ClassLabel(names=["cat", "dog"])}
    )
    return datasets.Dataset.from_dict({"x": x.tolist(), "kind": y.tolist()}, features=features)


def test_vectors_give_what_their_tensors_give() -> None:
    data = vectors()
    split = split_of(data)
    assert split.x.dtype == np.float32 and split.x.shape == (60, 4) and class_names(data) == ("cat", "dog")
    same = torch.utils.data.TensorDataset(torch.tensor(data["x"][:]), torch.tensor(data["kind"][:]))
    first, second = (
        evenhand.fit(lambda: nn.Linear(4, 2), each, recipe=RECIPE, class_names=("cat", "dog"))
        for each in (data, same)
    )
    assert all(
        torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True)
    )
    assert first.task.class_names == ("cat", "dog")


def test_a_dataset_dict_has_its_own_validation_set() -> None:
    parts = datasets.DatasetDict({"train": vectors(), "validation": vectors(20)})
    result = evenhand.fit("linear", parts, recipe=RECIPE)
    assert result.partition.clustered.all() and len(result.task.val) == 20
    with pytest.raises(ValueError, match="must have a part 'train', got test"):
        evenhand.fit("linear", datasets.DatasetDict({"test": vectors()}), recipe=RECIPE)


def test_images_are_decoded_and_numbers_are_joined() -> None:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (4, 6, 5, 3), np.uint8)
    data = datasets.Dataset.from_dict({"image": [Image.fromarray(p) for p in pixels], "label": [0, 1, 0, 1]})
    split = split_of(data)
    assert all(np.array_equal(split.x[row], pixels[row].transpose(2, 0, 1)) for row in range(4))
    table = datasets.Dataset.from_dict({"age": [1, 2], "height": [1.5, 2.5], "label": [0, 1]})
    assert split_of(table).x.tolist() == [[1, 1.5], [2, 2.5]]
    assert split_of(table, "height").x.tolist() == [[1.5], [2.5]]
    odd = datasets.Dataset.from_dict(
        {"image": [Image.new("L", (4, 4)), Image.new("L", (5, 4))], "label": [0, 1]}
    )
    with pytest.raises(ValueError, match=r"one size, but row 0 has \(4, 4\) and row 1 has \(4, 5\) pixels"):
        split_of(odd).x[1]


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"text": ["a", "b"], "label": [0, 1]}, {}, "got text; turn texts into token ids"),
        ({"x": [[1.0], [2.0]], "label": ["a", "b"]}, {}, r"dataset.class_encode_column\('label'\)"),
        ({"x": [[1.0], [2.0, 3.0]], "label": [0, 1]}, {}, "the column 'x' must hold"),
        ({"x": [[1.0], [2.0]], "z": [[1.0], [2.0]], "label": [0, 1]}, {}, "Name it with inputs=…; got x, z"),
        ({"x": [[1.0], [2.0]]}, {}, "Name it with label=…; got x"),
        (
            {"x": [[1.0], [2.0]], "y": [0, 1]},
            {"inputs": "q"},
            "expected a column 'q', but the columns are x, y",
        ),
    ],
)
def test_columns_that_cannot_be_used_are_explained(columns: dict, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_of(datasets.Dataset.from_dict(columns), **settings)


def parts_of_ten():
    random = np.random.default_rng(0)
    late = np.arange(10) >= 8
    return partition(np.where(late, 2.0, 0.1)[:, None] + 0.01 * random.random((10, 3)), [0] * 9 + [1])


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("kind", ["dataset", "frame"])
def test_a_partition_becomes_columns_that_files_keep(kind: str, suffix: str, tmp_path: Path) -> None:
    parts, frame = parts_of_ten(), pandas.DataFrame({"text": [f"t{i}" for i in range(10)]})
    data = frame if kind == "frame" else datasets.Dataset.from_pandas(frame)
    out, file = add_columns(data, parts), tmp_path / f"data.{suffix}"
    getattr(out, f"to_{suffix}")(file)
    read = pandas.read_csv(file) if suffix == "csv" else pandas.read_parquet(file)
    assert read["text"].tolist() == frame["text"].tolist()
    assert read["sample_weight"].tolist() == sample_weights(parts).tolist()
    assert read["pseudo_group"].tolist() == ["majority"] * 8 + ["minority", "whole"]
    assert np.allclose(read["margin"], parts.margin)
    rows = balanced(data, parts, seed=3)["text"]
    assert list(rows) == [f"t{i}" for i in rebalance(parts, seed=3)]
    with pytest.raises(ValueError, match="data have a column 'pseudo_group' already"):
        add_columns(out, parts)
    with pytest.raises(ValueError, match="as many rows, got 3 and 10"):
        add_columns(frame[:3], parts)


def test_an_audits_triage_becomes_a_column(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = np.arange(300) % 2
    frame = pandas.DataFrame({"a": y + 0.1 * random.standard_normal(300), "b": random.standard_normal(300)})
    frame["label"] = np.where(y == 1, "yes", "no")
    frame.to_csv(tmp_path / "data.csv", index=False)
    done = evenhand.audit(str(tmp_path / "data.csv"), label="label", epochs=5, out=tmp_path / "audit")
    html = done._repr_html_()  # what a notebook shows of it
    assert "recommended model" in html and "data.csv" in html
    assert (
        sum(patch.get_width() for patch in done.plot().axes[0].patches)
        == (done.samples["split"] == "train").sum()
    )
    out = add_columns(frame, tmp_path / "audit")
    samples = pandas.read_csv(tmp_path / "audit" / "samples.csv", keep_default_na=False)
    assert out["triage"].tolist() == samples["triage"].tolist()
    weights = pandas.read_csv(tmp_path / "audit" / "weights.csv")
    assert out["sample_weight"].sum() == pytest.approx(weights["weight"].sum())
    assert (out["sample_weight"][samples["split"] != "train"] == 0).all()
    with pytest.raises(ValueError, match="a partition or the folder of an audit, but there is no"):
        add_columns(frame, tmp_path)
