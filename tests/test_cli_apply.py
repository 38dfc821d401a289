"""`evenhand partition` and `evenhand predict`, as a script or a person uses them."""

import csv
import io
import json
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenhand import Partition, cli, partition, rebalance, sample_weights, tasks
from evenhand.integrations.files import csv_bytes
from evenhand.training.execute import execute
from evenhand.training.record import Record


@pytest.fixture
def evenhand(capsys, monkeypatch):
    """Exit code, standard output and standard error of one call."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["evenhand", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# -- partition -------------------------------------------------------------------------------------------


def planted(num_samples: int = 80, num_epochs: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """The last tenth of every class is learned late; class "alone" has one sample."""
    random = np.random.default_rng(0)
    labels = np.where(np.arange(num_samples) % 2, "=HYPERLINK(1)", "[red]dog")
    labels[0] = "alone"
    late = np.arange(num_samples) >= 0.9 * num_samples
    return np.where(late, 2.0, 0.2)[:, None] + 0.1 * random.random((num_samples, num_epochs)), labels


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    losses, labels = planted()
    np.save(tmp_path / "losses.npy", losses)
    np.save(tmp_path / "labels.npy", labels)
    return tmp_path / "losses.npy", tmp_path / "labels.npy"


def test_partition_writes_what_the_library_computes(evenhand, files, tmp_path: Path) -> None:
    out, (losses, labels) = tmp_path / "out", planted()
    code, said, _ = evenhand("partition", *files, "-o", out, "--seed", 3)
    assert code == 0 and "80 samples, 5 epochs" in said and "[red]dog" in said and "one sample" in said
    parts = partition(losses, labels)
    assert parts.minority.sum() == 8
    stored = Partition.load(out / "partition.npz")
    assert np.array_equal(stored.minority, parts.minority) and stored.unsplit == {"alone": "one sample"}
    indices = np.load(out / "indices.npy", allow_pickle=False)
    assert np.array_equal(indices, rebalance(parts, seed=3)) and indices.dtype == np.int64
    weights = [float(row["weight"]) for row in table(out / "weights.csv")]
    assert np.array_equal(weights, sample_weights(parts))
    samples = table(out / "samples.csv")
    assert [row["index"] for row in samples] == [str(row) for row in range(80)]
    assert [row["pseudo_group"] == "minority" for row in samples] == parts.minority.tolist()
    assert samples[0]["pseudo_group"] == "whole" and samples[0]["label"] == "alone"
    assert samples[1]["label"] == "'=HYPERLINK(1)" and samples[2]["label"] == "[red]dog"
    for name, wanted in (
        ("mean_loss", losses.mean(1)),
        ("last_loss", losses[:, -1]),
        ("margin", parts.margin),
    ):
        assert np.allclose([float(row[name]) for row in samples], wanted, rtol=1e-5), name
    assert not list(out.glob(".*")) and len(list(out.iterdir())) == 5


def test_a_large_file_is_read_and_its_tables_are_written_by_parts(
    evenhand, files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evenhand("partition", *files, "-o", tmp_path / "whole")[0] == 0
    monkeypatch.setattr("evenhand.integrations.files._ROWS", 7)
    monkeypatch.setattr("evenhand.core.twomeans.STREAMED", 10)
    monkeypatch.setattr("evenhand.core.twomeans.as_matrix", None)  # which would copy all of it
    assert evenhand("partition", *files, "-o", tmp_path / "parts")[0] == 0
    for name in ("weights.csv", "indices.npy"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    for whole, part in zip(
        *(table(tmp_path / name / "samples.csv") for name in ("whole", "parts")), strict=True
    ):
        for name in ("margin", "separation"):
            assert float(whole.pop(name)) == pytest.approx(float(part.pop(name)), abs=1e-4)
        assert whole == part


def test_partition_as_json_says_what_summary_json_holds(evenhand, files, tmp_path: Path) -> None:
    code, said, _ = evenhand("partition", *files, "-o", tmp_path / "out", "--json")
    summary = json.loads(said)
    assert code == 0 and summary == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["samples"] == 80 and summary["balanced_rows"] == len(
        np.load(tmp_path / "out" / "indices.npy")
    )
    found = {row["label"]: (row["majority"], row["minority"], row["unsplit"]) for row in summary["classes"]}
    assert found == {"alone": (1, 0, "one sample"), "=HYPERLINK(1)": (36, 4, None), "[red]dog": (35, 4, None)}
    first = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    evenhand("partition", *files, "-o", tmp_path / "out")
    again = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert {name for name in first if first[name] != again[name]} <= {
        "partition.npz"
    }  # zip files carry the time


def test_many_classes_are_not_all_printed(evenhand, tmp_path: Path) -> None:
    np.save(tmp_path / "losses.npy", np.random.default_rng(0).random((120, 3)))
    np.save(tmp_path / "labels.npy", np.arange(120) % 40)
    code, said, _ = evenhand(
        "partition", tmp_path / "losses.npy", tmp_path / "labels.npy", "-o", tmp_path / "o"
    )
    assert code == 0 and "and 20 more classes, in summary.json" in said


@pytest.mark.parametrize(
    "losses, labels, message",
    [
        (np.zeros(4), np.zeros(4, int), r"losses must be shaped \(samples, epochs\), got \(4,\)"),
        (np.zeros((4, 0)), np.zeros(4, int), "losses|cannot be read"),
        (np.full((4, 2), np.nan), np.zeros(4, int), "must be finite, got nan for sample 0 in epoch 0"),
        (np.zeros((4, 2)), np.zeros(5, int), "one row per sample, got 4 and 5"),
        (
            np.zeros((4, 2)),
            np.zeros((4, 1), int),
            r"labels must hold one class per sample, got shape \(4, 1\)",
        ),
        (np.zeros((4, 2)), np.zeros(4), "labels must be whole numbers or strings, got float64"),
        (np.zeros((4, 2)), np.array(["a", None, 1, 2], object), "labels as an array.* holds Python objects"),
        (np.zeros((4, 2), complex), np.zeros(4, int), "losses must be real numbers, got complex128"),
        (b"not an array", np.zeros(4, int), "should hold losses as an array.* is no .npy file"),
        (b"", np.zeros(4, int), "should hold losses as an array, but it cannot be read"),
        (pickle.dumps([1]), np.zeros(4, int), "should hold losses as an array.* is no .npy file"),
        (None, np.zeros(4, int), "losses must be an .npy file, but there is no file"),
    ],
)
def test_partition_refuses_what_it_cannot_use_and_writes_nothing(
    evenhand, tmp_path: Path, losses, labels, message
) -> None:
    for name, content in (("losses.npy", losses), ("labels.npy", labels)):
        if isinstance(content, bytes):
            (tmp_path / name).write_bytes(content)
        elif content is not None:
            np.save(tmp_path / name, content, allow_pickle=True)
    before = set(tmp_path.rglob("*"))
    words = ("partition", tmp_path / "losses.npy", tmp_path / "labels.npy", "-o", tmp_path / "out")
    code, out, err = evenhand(*words)
    assert code == 2 and out == "" and re.search(message, err), err
    assert "Traceback" not in err and len(err.strip().splitlines()) == 1
    assert set(tmp_path.rglob("*")) == before


def test_archives_and_files_in_the_way_are_refused(evenhand, files, tmp_path: Path) -> None:
    np.savez(tmp_path / "both.npz", a=np.zeros(3), b=np.zeros(3))
    code, _, err = evenhand("partition", tmp_path / "both.npz", files[1], "-o", tmp_path / "out")
    assert code == 2 and "should hold losses as an array, but it is an archive" in err
    code, _, err = evenhand("partition", *files, "-o", files[0])
    assert code == 2 and "--out must be a folder, got the file" in err


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00")), min_size=1, max_size=4))
def test_no_text_of_a_table_is_a_formula_and_all_are_read_back(texts) -> None:
    text = csv_bytes(("text",) * len(texts), [texts]).decode()
    _, cells = csv.reader(io.StringIO(text, newline=""))
    for text, cell in zip(texts, cells, strict=True):
        assert cell.lstrip(" ")[:1] not in {"=", "+", "-", "@", "\t", "\r", "\n"}
        assert cell in (text, f"'{text}")


# -- predict ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Record:
    task = tasks.load("digits_even_odd:limit=200")
    recipe = task.recipe.replace(epochs=2)
    return execute(task, "erm", recipe=recipe, runs=tmp_path_factory.mktemp("runs"), device="cpu")


def new_data(run: Record) -> np.ndarray:
    test = tasks.load(run.config["spec"]).test
    return np.asarray(test.x)[test.rows.numpy()]


@pytest.mark.parametrize("kind", ["npy", "npz", "float64"])
def test_predictions_are_those_that_the_run_made_of_the_same_samples(
    evenhand, run, kind, tmp_path: Path
) -> None:
    x, file = new_data(run), tmp_path / f"x.{'npz' if kind == 'npz' else 'npy'}"
    if kind == "npz":
        np.savez(file, anything=x)
    else:
        np.save(file, (x / 255 if x.dtype == np.uint8 else x).astype(np.float64) if kind == "float64" else x)
    code, said, err = evenhand("predict", run.path, file, "-o", tmp_path / "p.csv", "--device", "cpu")
    assert code == 0, err
    rows, names = table(tmp_path / "p.csv"), tasks.load(run.config["spec"]).class_names
    with np.load(run.path / "predictions.npz") as known:
        assert [row["predicted"] for row in rows] == [names[label] for label in known["test"]]
        confidence = [float(row["confidence"]) for row in rows]
        assert np.allclose(confidence, known["test_confidence"], atol=2e-3)
    assert [row["id"] for row in rows] == [str(number) for number in range(len(x))]
    assert f"p.csv: {len(x)} predictions" in said


def test_images_are_decoded_as_the_task_does_it(evenhand, run, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs evenhand[vision]")
    x = new_data(run)[:6]
    pixels = x if x.dtype == np.uint8 else np.round(x * 255).astype(np.uint8)
    folder = tmp_path / "new"
    (folder / "more").mkdir(parents=True)
    names = ["=1.png", "b.png", "c.png", "more/d.png", "more/e.png", "more/f.png"]
    for name, picture in zip(names, pixels, strict=True):
        image.fromarray(picture.transpose(1, 2, 0)).save(folder / name)
    for name in ("notes.txt", "g.heic", "h.heic", "._b.png"):  # the last as Finder leaves it
        (folder / name).write_text("no image")
    np.save(tmp_path / "x.npy", pixels / np.float32(255) if x.dtype != np.uint8 else pixels)
    note = (
        "new: 3 files were left out because of their endings: 2 .heic, 1 .txt; convert images to PNG or JPEG"
    )
    with pytest.warns(UserWarning, match=note):
        assert evenhand("predict", run.path, folder, "-o", tmp_path / "images.csv")[0] == 0
    assert evenhand("predict", run.path, tmp_path / "x.npy", "-o", tmp_path / "array.csv")[0] == 0
    assert evenhand("predict", run.path, folder / "b.png", "-o", tmp_path / "one.csv")[0] == 0
    images, array, one = (table(tmp_path / f"{name}.csv") for name in ("images", "array", "one"))
    assert [row["id"] for row in images] == ["'=1.png", *names[1:]]
    for key in ("predicted", "confidence"):
        assert [row[key] for row in images] == [row[key] for row in array]
    assert one == [images[1]]
    (folder / "broken.png").write_bytes(b"no image")
    code, _, err = evenhand("predict", run.path, folder, "-o", tmp_path / "broken.csv")
    assert code == 2 and "broken.png cannot be decoded" in err and not (tmp_path / "broken.csv").exists()


@pytest.mark.parametrize(
    "content, message",
    [
        (np.zeros((2, 5), np.uint8), r"must be shaped \(samples, 3, 8, 8\) as in training, got \(2, 5\)"),
        (np.zeros((0, 3, 8, 8), np.float32), r"must be shaped|cannot be read"),
        (np.full((2, 3, 8, 8), np.nan, np.float32), "must hold finite numbers, but row 0 does not"),
        (np.array(["a"]), r"must be shaped \(samples, 3, 8, 8\)"),
        (np.array([None]), "should hold one array of numbers, but it cannot be read"),
        (b"nothing", "should hold one array of numbers, but it cannot be read"),
        (None, "INPUT must be an .npy or .npz file, an image or a folder of images; no file"),
    ],
)
def test_predict_refuses_what_it_cannot_use_and_writes_nothing(
    evenhand, run, tmp_path, content, message
) -> None:
    if isinstance(content, bytes):
        (tmp_path / "x.npy").write_bytes(content)
    elif content is not None:
        np.save(tmp_path / "x.npy", content, allow_pickle=True)
    code, out, err = evenhand("predict", run.path, tmp_path / "x.npy", "-o", tmp_path / "p.csv")
    assert code == 2 and out == "" and re.search(message, err), err
    assert len(err.strip().splitlines()) == 1 and not (tmp_path / "p.csv").exists()


def test_predict_says_what_is_wrong_with_a_run(evenhand, run, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", new_data(run))
    code, _, err = evenhand("predict", tmp_path, tmp_path / "x.npy")
    assert code == 2 and "should be the folder of a finished run, but it holds no config.json" in err
    own = tmp_path / "own"
    own.mkdir()
    (own / "model.safetensors").write_bytes(b"")
    inputs = {**run.config["inputs"], "own_model": True}
    (own / "config.json").write_text(json.dumps({**run.config, "inputs": inputs}))
    code, _, err = evenhand("predict", own, tmp_path / "x.npy")
    assert code == 2 and "trained with a model of your own" in err
    (own / "config.json").write_text(json.dumps(run.config))
    code, _, err = evenhand("predict", own, tmp_path / "x.npy", "-o", tmp_path / "p.csv")
    assert code == 2 and "model.safetensors should hold the weights of cnn, but" in err
    code, _, err = evenhand("predict", run.path, tmp_path / "x.npy", "-o", tmp_path)
    assert code == 2 and "--out must be a file to write, got the folder" in err
    (tmp_path / "empty").mkdir()
    code, _, err = evenhand("predict", run.path, tmp_path / "empty")
    assert code == 2 and "should hold images (.bmp" in err and "but it holds none\n" in err
    (tmp_path / "empty" / "photo.heic").write_bytes(b"")
    code, _, err = evenhand("predict", run.path, tmp_path / "empty")
    assert code == 2 and "but it holds none (1 file was left out because of its ending: 1 .heic" in err
