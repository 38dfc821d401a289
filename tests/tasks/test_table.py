"""Tables of one's own: reading, cleaning, labels, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from evenhand import tasks
from evenhand.tasks import samples, table

pandas = pytest.importorskip("pandas", reason="tables need pandas")


def frame(rows: int = 40) -> pandas.DataFrame:
    number = np.arange(rows)
    return pandas.DataFrame(
        {
            "size": np.where(number % 7 == 0, np.nan, number * 1.5),
            "colour": np.where(number % 3 == 0, "red", "blue"),
            "sold": number % 2 == 0,
            "day": pandas.Timestamp("2024-01-01") + pandas.to_timedelta(number, unit="D"),
            "name": [f"item number {each}" for each in range(rows)],
            "same": 1,
            "site": np.where(number % 4 == 0, "a", "b"),
            "label": np.where(number % 2 == 0, "yes", "no"),
        }
    )


def test_dates_gaps_and_nullable_columns_become_numbers() -> None:
    content = pandas.DataFrame(
        {
            "day": pandas.to_datetime(["2024-01-01", None, "2024-01-03"]),
            "zone": pandas.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"]).tz_localize("UTC"),
            "flag": pandas.array([True, None, False], dtype="boolean"),
            "count": pandas.array([1, None, 3], dtype="Int64"),
            "limit": [1.0, np.inf, 2.0],
            "kind": pandas.Categorical(["a", None, "b"]),
        }
    )
    clean = table.cleaned(content, notes := [])
    assert table.word_columns(clean) == ["kind"] and clean["day"][2] - clean["day"][0] == 2
    assert clean.isna().sum().tolist() == [1, 0, 1, 1, 1, 1]
    assert notes == ["5 of 18 feature values are missing; missing is a value of its own"]


def saved(content: pandas.DataFrame, file: Path) -> Path:
    content.to_parquet(file) if file.suffix == ".parquet" else content.to_csv(file, index=False)
    return file


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_columns_are_cleaned_and_what_was_done_is_said(tmp_path: Path, name: str) -> None:
    file = saved(frame(200), tmp_path / name)
    assert "site" in table.read_table(file, label="label", group="site").frame.columns
    data = table.read_table(file, label="label", group="site", hide_group=True)
    assert data.class_names == ("no", "yes") and data.kind == "table"
    assert {"size", "colour", "sold", "day"} <= set(data.frame.columns) and not {
        "label",
        "site",
        "name",
        "same",
    } & set(data.frame.columns)
    assert table.word_columns(data.frame)[0] == "colour"
    assert any("name (200 different words" in note and "same (one value)" in note for note in data.notes)
    assert any("feature values are missing" in note for note in data.notes)
    assert data.group_names == ("no, a", "no, b", "yes, a", "yes, b")
    assert np.array_equal(data.group // 2, data.y)


def test_the_task_is_finite_scaled_by_training_rows_and_reproducible(tmp_path: Path) -> None:
    file = saved(frame(200), tmp_path / "t.csv")
    task = tasks.load(f"table:path={file},label=label,group=site")
    x = task.train.x[task.train.rows]
    assert x.dtype == torch.float32 and torch.isfinite(task.train.x).all()
    assert x[:, 0].mean().abs() < 1e-5 and (x[:, 0].std(correction=0) - 1).abs() < 1e-4
    assert tasks.load(f"table:path={file},label=label,group=site").checksum == task.checksum


def test_floats_are_read_exactly(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).standard_normal(2000) * 10.0 ** np.arange(-10, 10).repeat(100)
    (tmp_path / "t.csv").write_text("a,label\n" + "".join(f"{each!r},x\n" for each in numbers.tolist()))
    assert table.read(tmp_path / "t.csv")["a"].tolist() == numbers.tolist()


def test_every_class_is_divided_alike() -> None:
    y = np.repeat([0, 1, 2], [100, 40, 5])
    split = samples.stratified_split(y)
    assert [np.bincount(y[split == part]).tolist() for part in range(3)] == [
        [70, 28, 3],
        [15, 6, 1],
        [15, 6, 1],
    ]


def test_rows_without_label_are_left_out_and_whole_numbers_stay_whole(tmp_path: Path) -> None:
    content = frame()
    content["label"] = np.where(np.arange(40) % 2 == 0, 1.0, 2.0)
    content.loc[3, "label"] = np.nan
    data = table.read_table(saved(content, tmp_path / "t.csv"), label="label")
    assert data.class_names == ("1", "2") and len(data.y) == 39 and "3" not in data.ids
    assert "1 rows without a label were left out" in data.notes


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_and_no_header(tmp_path: Path, separator: str) -> None:
    file = tmp_path / "t.data"
    frame()[["size", "colour", "label"]].to_csv(file, sep=separator, header=False, index=False)
    data = table.read_table(file, label="2", header=False)
    assert list(data.frame.columns) == ["0", "1"] and data.class_names == ("no", "yes")


def test_texts_and_images(tmp_path: Path) -> None:
    content = frame().assign(message=[f"word{n % 5} common thing" for n in range(40)])
    content.loc[0, "message"] = None
    file = saved(content, tmp_path / "t.csv")
    data = table.read_table(file, label="label", text="message")
    assert data.kind == "text" and data.texts[0] == "" and data.texts[1] == "word1 common thing"
    task = tasks.load(f"table:path={file},label=label,text=message")
    assert task.train.x.shape == (40, 7)
    with pytest.raises(ValueError, match="40 of 40 paths in the column 'name' lead nowhere"):
        table.read_table(file, label="label", image="name")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 1}, "at least two classes.*column 'label'.*has one, '1'"),
        ({"label": [f"id{n}" for n in range(40)]}, "at least 5 samples of every class"),
        ({"label": np.linspace(0, 1, 40)}, r"quantities such as 0\.0256.*\(40 different ones\).*cut them"),
    ],
)
def test_labels_that_are_no_classes_are_refused(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table.read_table(saved(frame().assign(**change), tmp_path / "t.csv"), label="label")


def test_other_mistakes_say_what_is_there(tmp_path: Path) -> None:
    file = saved(frame(), tmp_path / "t.csv")
    with pytest.raises(
        ValueError, match="--label must name a column of .*'nothing'; its columns are size, colour"
    ):
        table.read_table(file, label="nothing")
    with pytest.raises(ValueError, match="not both"):
        table.read_table(file, label="label", text="name", image="name")
    with pytest.raises(ValueError, match="at least 5 samples"):
        table.read_table(saved(frame(2), tmp_path / "two.csv"), label="label")
    many = pandas.DataFrame({"a": range(10_000), "label": [f"c{n}" for n in range(10_000)]})
    with pytest.raises(ValueError, match="at most 1,000 classes.*has 10,000 in 10,000 samples"):
        table.read_table(saved(many, tmp_path / "many.csv"), label="label")
    (tmp_path / "t.xlsx").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"ends in \.csv.*got 't\.xlsx'"):
        table.read(tmp_path / "t.xlsx")
    (tmp_path / "t.parquet").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"t\.parquet cannot be read as a table"):
        table.read(tmp_path / "t.parquet")
    (tmp_path / "empty.csv").write_text("a,label\n")
    with pytest.raises(ValueError, match="table with rows, but .* has none; name another file"):
        table.read(tmp_path / "empty.csv")


@pytest.mark.parametrize("name", ["t.csv", "t.data"])
def test_columns_of_one_name_are_refused_by_name(tmp_path: Path, name: str) -> None:
    lines = [f"{n % 2}, {n}, {n % 2}" for n in range(20)]
    (tmp_path / name).write_text("\n".join(["y, f,y", *lines]))
    with pytest.raises(ValueError, match=r"different names, but .* more than one called 'y'; rename"):
        table.read_table(tmp_path / name, label="y")
    (tmp_path / name).write_text("\n".join(["1,2,1", *lines]))
    assert list(table.read(tmp_path / name, header=False).columns) == ["0", "1", "2"]


def test_another_encoding_and_ragged_lines_are_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(b"name,y\n" + "Zoë,1\n".encode("latin-1") * 20)
    with pytest.raises(ValueError, match=r"CSV in UTF-8, .*Latin-1.*iconv -f LATIN1 -t UTF-8 t\.csv"):
        table.read(file)
    file.write_bytes("Größe,y\n1,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match="CSV in UTF-8"):
        table.read(file)
    file.write_text("a,y\n1,2\n3,4\n1,2,3\n")
    with pytest.raises(
        ValueError,
        match=r"t\.csv cannot be read as a table: Expected 2 fields in line 4, saw 3; is it damaged",
    ) as end:
        table.read(file)
    assert "\n" not in str(end.value) and "C error" not in str(end.value)


def test_gaps_in_nullable_columns_are_read(tmp_path: Path) -> None:
    content = frame().assign(
        site=pandas.array([1, None] * 20, dtype="Int64"), message=pandas.array(["a b", None] * 20, "string")
    )
    file = saved(content, tmp_path / "t.parquet")
    assert table.read_table(file, label="label", group="site").attribute_names == ("1", "missing")
    assert table.read_table(file, label="label", text="message").texts[:2] == ["a b", ""]
