"""`evenhand audit --text COLUMN --model FOLDER`: a tiny BERT of made-up words, without any download."""

from __future__ import annotations

import csv
import json
import re
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evenhand import cli
from evenhand.audit.text_model import LONGEST, TUNED, TextModel
from evenhand.tasks import table
from evenhand.training.batches import Batches, Source

pandas = pytest.importorskip("pandas", reason="tables need pandas")
transformers = pytest.importorskip("transformers", reason="transformers models need transformers")

TOPICS = [[f"{stem}{number}" for number in range(120)] for stem in ("parcel", "invoice")]
CHATTER = [f"word{number}" for number in range(40)]
CLOSINGS = ["cheers", "regards"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIAL, *TOPICS[0], *TOPICS[1], *CHATTER, *CLOSINGS]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: socket.socket, address: object) -> None:
        raise AssertionError(f"an audit must not call anybody, but it called {address}")

    monkeypatch.setattr(socket.socket, "connect", refused)


@pytest.fixture
def evenhand(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["evenhand", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


def messages(seed: int, *, p: float = 0.95, num_samples: int = 900) -> Any:
    """Texts of five words, four in five of their topic, seven of none, and a closing that agrees for a share p."""
    rng = np.random.default_rng([seed, 4])
    y = np.arange(num_samples) % 2
    follows = np.arange(num_samples) < p * num_samples
    topic = np.where(rng.random((num_samples, 5)) < 0.8, y[:, None], 1 - y[:, None])
    topical = np.array(TOPICS)[topic, rng.integers(0, len(TOPICS[0]), (num_samples, 5))]
    words = rng.permuted(np.concatenate([topical, rng.choice(CHATTER, (num_samples, 7))], axis=1), axis=1)
    closing = np.array(CLOSINGS)[np.where(follows, y, 1 - y)]
    texts = [" ".join([*row, end]) for row, end in zip(words, closing, strict=True)]
    frame = pandas.DataFrame({"message": texts, "topic": np.array(["delivery", "billing"])[y]})
    return frame.assign(aligned=np.where(follows, "yes", "no"))


def config(**changes: Any) -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.BertConfig(
        **{"vocab_size": len(VOCABULARY), "max_position_embeddings": 16, **sizes, **changes}
    )


def model_folder(folder: Path, *, weights: Any = None, **changes: Any) -> Path:
    """A folder as the hub has them; without weights unless a class to take them from is given."""
    folder.mkdir(parents=True)
    config(**changes).save_pretrained(folder)
    if weights is not None:
        torch.manual_seed(0)
        weights(config(**changes)).half().save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return folder


def saved(frame: Any, file: Path) -> Path:
    frame.to_csv(file, index=False)
    return file


def test_a_planted_shortcut_is_found_and_the_models_can_be_used(evenhand: Any, tmp_path: Path) -> None:
    frame = messages(0)
    model, out = model_folder(tmp_path / "tiny"), tmp_path / "out"
    words = ("--label", "topic", "--text", "message", "--group", "aligned", "--model", model, "-o", out)
    words = ("audit", saved(frame, tmp_path / "texts.csv"), *words, "--device", "cpu", "--json")
    code, printed, err = evenhand(*words)
    assert code == 0, err
    summary = json.loads(printed)
    assert summary["judgement"]["advice"] == "retrain"
    assert summary["data"]["notes"] == ["tiny holds no weights, so the model was trained from fresh ones"]
    assert summary["training"]["model"] == "BertForSequenceClassification of tiny"
    with (out / "samples.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    listed = np.array([row["triage"] == "minority" for row in rows])
    truth = (frame["aligned"] == "no").to_numpy() & np.array([row["split"] == "train" for row in rows])
    # One sample in twenty is of the minority. Seeds 10-13, 20-22 and 30-34: precision 0.79-1, recall 0.55-1.
    assert (listed & truth).sum() > 0.6 * listed.sum() and (listed & truth).sum() > 0.4 * truth.sum()
    check_scores(frame, rows, summary)
    assert frame["message"][int(rows[np.flatnonzero(listed)[0]]["id"])] in (out / "report.html").read_text()
    for name in ("baseline", "balanced"):
        assert predicted(out / name, frame["message"].tolist()) == [row[f"predicted_{name}"] for row in rows]
        code, _, err = evenhand(
            "predict",
            out,
            tmp_path / "texts.csv",
            "--model",
            name,
            "-o",
            tmp_path / "p.csv",
            "--device",
            "cpu",
        )
        assert code == 0, err
        with (tmp_path / "p.csv").open(newline="") as file:
            found = [row["predicted"] for row in csv.DictReader(file)]
        assert found == [row[f"predicted_{name}"] for row in rows]
    stages = {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*.ckpt")}
    assert evenhand(*words)[1] == printed  # what is finished is not done again
    assert stages == {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*.ckpt")}


def check_scores(frame: Any, rows: list[dict[str, str]], summary: dict[str, Any]) -> None:
    """On held-out samples the minority gains, the others lose little, and the advice does not say otherwise."""
    apart, held_out = (
        (frame["aligned"] == "no").to_numpy(),
        np.array([row["split"] != "train" for row in rows]),
    )
    right = {
        name: np.array([row[f"predicted_{name}"] == row["label"] for row in rows])
        for name in ("baseline", "balanced")
    }
    before, after = (right[name][held_out & apart].mean() for name in right)
    assert after > before  # on 11 of 12 other seeds too; on seed 34 the baseline itself learns half of it
    assert right["balanced"][held_out].mean() > right["baseline"][held_out].mean() - 0.05
    assert (summary["ship"]["model"] == "balanced") == (summary["judgement"]["advice"] == "retrain")


@torch.no_grad()
def predicted(folder: Path, texts: list[str]) -> list[str]:
    """What transformers itself makes of the texts with a model that the audit has left."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    logits = model(**tokenizer(texts, padding=True, truncation=True, return_tensors="pt")).logits
    return [model.config.id2label[label] for label in logits.argmax(1).tolist()]


def test_weights_of_the_folder_are_where_training_starts(tmp_path: Path) -> None:
    data = table.read_table(
        saved(messages(0, num_samples=40), tmp_path / "t.csv"), label="topic", text="message"
    )
    folder = model_folder(tmp_path / "tiny", weights=transformers.BertForMaskedLM)
    texts = TextModel(folder, data.class_names)
    noted, task = texts.task(data)
    assert task.recipe is TUNED
    assert re.fullmatch(r"fresh weights, not from tiny: .*classifier.weight.*", noted.notes[-1])
    original = transformers.BertForMaskedLM.from_pretrained(folder)
    torch.manual_seed(1)
    first = texts.make()
    torch.manual_seed(2)
    second = texts.make()
    for made in (first, second):
        embeddings = made.model.bert.embeddings.word_embeddings.weight
        assert embeddings.dtype == torch.float32
        assert torch.equal(embeddings, original.bert.embeddings.word_embeddings.weight.float())
    assert not torch.equal(first.model.classifier.weight, second.model.classifier.weight)
    torch.manual_seed(1)
    assert torch.equal(first.model.classifier.weight, texts.make().model.classifier.weight)


def test_a_classifier_of_other_classes_gets_a_fresh_last_layer(tmp_path: Path) -> None:
    def of_five(settings: Any) -> Any:
        settings.num_labels = 5
        return transformers.BertForSequenceClassification(settings)

    data = table.read_table(
        saved(messages(0, num_samples=40), tmp_path / "t.csv"), label="topic", text="message"
    )
    noted, _ = TextModel(model_folder(tmp_path / "five", weights=of_five), data.class_names).task(data)
    assert noted.notes == ("fresh weights, not from five: classifier.bias, classifier.weight",)


def test_texts_become_ids_that_reach_the_model_as_they_are(tmp_path: Path) -> None:
    frame = messages(0, num_samples=40)
    frame.loc[0, "message"] = " ".join(TOPICS[0])
    frame.loc[1, "message"] = ""
    data = table.read_table(saved(frame, tmp_path / "t.csv"), label="topic", text="message")
    texts = TextModel(model_folder(tmp_path / "tiny"), data.class_names)
    noted, task = texts.task(data)
    assert noted.notes[-1] == "1 of 40 texts were cut after 16 tokens"
    ids = task.train.x
    assert ids.shape == (40, 16) and ids.dtype == torch.int32
    assert [VOCABULARY[number] for number in ids[1, :3]] == ["[CLS]", "[SEP]", "[PAD]"]
    assert [VOCABULARY[number] for number in ids[2, 1:14]] == frame["message"][2].split()
    batches = Batches(task.train, task, Source(ids, torch.device("cpu")), batch_size=8)
    for batch in batches(torch.arange(len(task.train)), torch.Generator()):
        assert torch.equal(batch.x, ids[task.train.rows[batch.row]])
    model = texts.make().eval()
    with torch.no_grad():
        together, alone = model(ids), torch.cat([model(row[None]) for row in ids])
        empty = model(torch.zeros_like(ids[:2]))
    assert torch.allclose(together, alone, atol=1e-6) and empty.isfinite().all()


def test_another_folder_is_another_run_and_long_texts_have_a_bound(tmp_path: Path) -> None:
    data = table.read_table(
        saved(messages(0, num_samples=40), tmp_path / "t.csv"), label="topic", text="message"
    )
    first = TextModel(model_folder(tmp_path / "a", max_position_embeddings=2048), data.class_names)
    second = TextModel(
        model_folder(tmp_path / "b", max_position_embeddings=2048, hidden_size=16), data.class_names
    )
    assert first.tokenizer.model_max_length == LONGEST
    assert first.task(data)[1].checksum != second.task(data)[1].checksum
    shutil.copytree(tmp_path / "a", tmp_path / "moved")
    moved = TextModel(tmp_path / "moved", data.class_names)
    assert first.task(data)[1].checksum == moved.task(data)[1].checksum


def _edited(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**content, **changes}))

    return edit


def _only_a_pickle(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"not read")


def _shards_that_are_pickles(folder: Path) -> None:
    _only_a_pickle(folder)
    listed = {"weight_map": {"bert.pooler.dense.bias": "pytorch_model.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listed))


def _weights_of_another(folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({"other.weight": torch.zeros(2)}, folder / "model.safetensors", metadata={"format": "pt"})


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
    "broken config": (lambda folder: (folder / "config.json").write_text("{"), "config.json should hold JSON, but it is damaged"),
    "unknown kind": (_edited(model_type="nothing"), "the config in .* cannot be used"),
    "no tokenizer": (lambda folder: (folder / "vocab.txt").unlink(), "expected a tokenizer in .*tokenizer.json"),
    "pickle": (_only_a_pickle, r"got pytorch_model.bin; no pickle is read"),
    "pickled shards": (_shards_that_are_pickles, r"got pytorch_model.bin; no pickle is read"),
    "damaged weights": (lambda folder: (folder / "model.safetensors").write_bytes(b"x"), "the model in .* cannot be used"),
    "other weights": (_weights_of_another, "are not of this model: .* such as bert."),
    "own code": (_edited(auto_map={"AutoModel": "evil.Model"}), "code of its own, which evenhand does not run"),
    "kernel": (_edited(_attn_implementation="some/kernel"), "code of its own.*some/kernel"),
    "quantized": (_edited(quantization_config={"quant_method": "x"}), "is quantized"),
    "adapter": (lambda folder: (folder / "adapter_config.json").write_text("{}"), "holds an adapter"),
    "small vocabulary": (_edited(vocab_size=20), "do not belong together: .*knows 20"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_folder_is_a_sentence_and_leaves_nothing_behind(
    evenhand: Any, tmp_path: Path, case: str
) -> None:
    spoil, message = BAD[case]
    spoil(model_folder(tmp_path / "tiny"))
    file = saved(messages(0, num_samples=40), tmp_path / "t.csv")
    words = ("--label", "topic", "--text", "message", "--model", tmp_path / "tiny", "-o", tmp_path / "out")
    refused(evenhand("audit", file, *words), message, tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--text", "message", "--model", "google-bert/bert-base-uncased"),
            "nothing is downloaded: download",
        ),
        (("--text", "message", "--model", "distilbert"), "no folder distilbert; nothing is downloaded"),
        (("--model", "tiny"), "such a model classifies texts; add --text COLUMN"),
    ],
)
def test_a_name_of_the_hub_or_a_table_is_refused(
    evenhand: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    model_folder(tmp_path / "tiny")
    file = saved(messages(0, num_samples=40), tmp_path / "t.csv")
    refused(evenhand("audit", file, "--label", "topic", *words, "-o", "out"), message, tmp_path)


def test_the_missing_extra_is_named(evenhand: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved(messages(0, num_samples=40), tmp_path / "t.csv")
    words = ("--label", "topic", "--text", "message", "--model", model_folder(tmp_path / "tiny"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    answer = evenhand("audit", file, *words, "-o", tmp_path / "out")
    refused(answer, r"pip install 'evenhand\[transformers\]'", tmp_path)


def refused(answer: tuple[int, str, str], message: str, place: Path) -> None:
    code, out, err = answer
    assert code == 2 and out == "" and err.startswith("evenhand: ")
    assert re.search(message, err), err
    assert not (place / "out").exists()
