"""transformers.Trainer: what is recorded, how it resumes, and that two processes know the whole history."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from evenhand import LossHistory

transformers = pytest.importorskip("transformers", reason="needs evenhand[transformers]")
pytest.importorskip("accelerate", reason="needs evenhand[transformers]")
from evenhand.integrations.transformers import FILE, record_losses  # noqa: E402

SAMPLES, BATCH = 30, 8
WORDS = ["[PAD]", "[UNK]", *(f"name{sample}" for sample in range(SAMPLES)), "bad", "good", "film"]


def make_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def make_texts() -> list[dict]:
    """Texts of two to seven words, of which the first is the sample's name; no model takes "comment"."""
    random, tokenizer = np.random.default_rng(0), make_tokenizer()
    texts = [
        f"name{sample} " + " ".join(random.choice(WORDS[-3:], 1 + sample % 6)) for sample in range(SAMPLES)
    ]
    return [{**tokenizer(text), "label": int("good" in text), "comment": "no tensor"} for text in texts]


class Watched(transformers.Trainer):
    """A user's own trainer, which keeps a list of what it was trained on."""

    def compute_loss(self, model, inputs, return_outputs=False, **settings):
        if model.training:
            self.left = getattr(self, "left", 10**6) - 1
            if self.left < 0:
                raise KeyError("power cut")
        labels = inputs["labels"]
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **settings)
        if model.training:
            losses = F.cross_entropy(outputs.logits.detach(), labels, reduction="none")
            names = inputs["input_ids"][:, 0] - 2
            self.seen = [*getattr(self, "seen", []), (int(self.state.epoch or 0), names, losses)]
        return (loss, outputs) if return_outputs else loss


def history_of(seen) -> torch.Tensor:
    history = LossHistory(SAMPLES)
    for epoch in sorted({epoch for epoch, _, _ in seen}):
        for _, index, losses in (part for part in seen if part[0] == epoch):
            history.record(index, losses)
        history.end_epoch()
    return history.losses


def make_trainer(folder: Path, kind=Watched, dropout: float = 0.1, data=None, **settings):
    transformers.set_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=len(WORDS), dim=8, hidden_dim=8, n_layers=1, n_heads=2, max_position_embeddings=8,
        dropout=dropout, attention_dropout=dropout, seq_classif_dropout=dropout,
    )  # fmt: skip
    model = transformers.DistilBertForSequenceClassification(config)
    usual = {"num_train_epochs": 3, "per_device_train_batch_size": BATCH, "learning_rate": 1e-2}
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    arguments = transformers.TrainingArguments(str(folder), **{**usual, **quiet, **settings})
    collator = transformers.DataCollatorWithPadding(make_tokenizer())
    return kind(
        model, arguments, train_dataset=make_texts() if data is None else data, eval_dataset=make_texts(),
        data_collator=collator,
    )  # fmt: skip


def test_the_losses_are_those_of_a_loop_by_hand(tmp_path: Path) -> None:
    same = {"max_grad_norm": 0.0, "optim": "adamw_torch", "lr_scheduler_type": "constant", "dropout": 0.0}
    trainer = make_trainer(tmp_path, eval_strategy="epoch", **same)
    recorder = record_losses(trainer)
    trainer.train()
    model, texts, history = make_trainer(tmp_path, **same).model.train(), make_texts(), LossHistory(SAMPLES)
    collate, steps = transformers.DataCollatorWithPadding(make_tokenizer()), iter(trainer.seen)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(3):
        for _, index, _ in (next(steps) for _ in range(4)):
            items = [{key: value for key, value in texts[i].items() if key != "comment"} for i in index]
            inputs = collate(items)
            logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
            losses = F.cross_entropy(logits, inputs["labels"], reduction="none")
            history.record(index, losses)
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        history.end_epoch()
    assert recorder.history.losses.shape == (SAMPLES, 3)
    assert torch.allclose(recorder.history.losses, history.losses, atol=1e-5)
    assert recorder.history.losses.std(1).min() > 1e-4, "every sample's loss has moved"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1},
        {"remove_unused_columns": True, "dataloader_num_workers": 1},
    ],
)
def test_recording_changes_nothing_and_keeps_every_sample_apart(settings, tmp_path: Path) -> None:
    alone, watched = (make_trainer(tmp_path, kind=transformers.Trainer, **settings) for _ in range(2))
    given = []

    def losses(outputs, inputs):
        assert "index" not in inputs
        values = F.cross_entropy(outputs.logits, inputs["labels"], reduction="none")
        given.append((int(watched.state.epoch or 0), inputs["input_ids"][:, 0] - 2, values.detach()))
        return values

    recorder = record_losses(watched, losses=losses)
    for trainer in (alone, watched):
        transformers.set_seed(1)
        trainer.train()
    for name, value in alone.model.state_dict().items():
        assert torch.equal(value, watched.model.state_dict()[name]), name
    assert recorder.history.num_epochs == 3
    assert torch.equal(recorder.history.losses, history_of(given))


@pytest.mark.parametrize("filed", [False, True])
@pytest.mark.parametrize(
    "when, cut, kept",
    [
        ({"save_strategy": "epoch"}, 10, 8),  # the end of the second epoch, of four steps each
        ({"save_strategy": "steps", "save_steps": 3}, 7, 6),  # its middle
        ({"save_strategy": "steps", "save_steps": 4}, 10, 8),  # its last step, before it has ended
    ],
)
def test_a_resumed_training_records_what_an_unbroken_one_does(filed, when, cut, kept, tmp_path: Path) -> None:
    whole = make_trainer(tmp_path / "whole", **when)
    expected = record_losses(whole)
    whole.train()
    path = tmp_path / "losses.npy" if filed else None
    broken = make_trainer(tmp_path / "broken", **when)
    broken.left = cut
    record_losses(broken, path=path)
    with pytest.raises(KeyError, match="power cut"):
        broken.train()
    resumed = make_trainer(tmp_path / "broken", **when)
    recorder = record_losses(resumed, path=path)
    last = tmp_path / "broken" / f"checkpoint-{kept}"
    assert (last / FILE).is_file()
    resumed.train(resume_from_checkpoint=True if cut == 7 else str(last))
    assert torch.equal(recorder.history.losses, history_of(broken.seen[:kept] + resumed.seen))
    assert torch.equal(recorder.history.losses, expected.history.losses)
    resumed.train()
    assert recorder.history.num_epochs == 3, "another training has another history"


# The Trainer keeps its process group alive, and gloo's threads can abort the interpreter as it exits
# (pytorch issue 190489). The results are saved by then, so the script ends without that shutdown.
SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv[1])
from test_transformers import *
settings = {"save_strategy": "steps", "save_steps": 1, "ddp_backend": "gloo", "save_only_model": True}
for name, checkpoint in (("whole", None), ("resumed", "out/checkpoint-3")):
    trainer = make_trainer(Path("out"), **settings)
    recorder = record_losses(trainer)
    trainer.train(resume_from_checkpoint=checkpoint)
    rank = trainer.args.process_index
    np.save(f"{name}-{rank}.npy", recorder.history.losses)
    torch.save(trainer.seen, f"{name}-{rank}.pt")
torch.distributed.barrier()
os._exit(0)
"""


def test_two_processes_both_have_the_whole_history(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [*launch, "script.py", str(Path(__file__).parent)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = {
        name: [torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True) for rank in (0, 1)]
        for name in ("whole", "resumed")
    }
    assert [len(part) for part in seen["whole"]] == [6, 6], "two steps an epoch in each"
    whole = history_of(seen["whole"][0] + seen["whole"][1])
    before = seen["whole"][0][:3] + seen["whole"][1][:3]  # the checkpoint is of the middle of an epoch
    resumed = history_of(before + seen["resumed"][0] + seen["resumed"][1])
    for rank in (0, 1):
        assert np.array_equal(np.load(tmp_path / f"whole-{rank}.npy"), whole)
        assert np.allclose(
            np.load(tmp_path / f"resumed-{rank}.npy"), resumed, rtol=1e-6
        )  # another order of sums


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="trainer must be a transformers.Trainer, got int"):
        record_losses(3)
    trainer = make_trainer(tmp_path)
    trainer.train_dataset = None
    with pytest.raises(ValueError, match="must have a train_dataset, got None"):
        record_losses(trainer)
    trainer = make_trainer(tmp_path)
    collate = trainer.data_collator
    trainer.data_collator = lambda items: {
        key: value for key, value in collate(items).items() if key != "index"
    }
    record_losses(trainer)
    with pytest.raises(ValueError, match="trainer records its losses already"):
        record_losses(trainer)
    with pytest.raises(ValueError, match='data_collator must keep "index", but its batch has none'):
        trainer.train()
    trainer = make_trainer(tmp_path, kind=transformers.Trainer)
    trainer.model.config.problem_type = "regression"
    trainer.model.num_labels = trainer.model.config.num_labels = 1
    trainer.model.classifier = torch.nn.Linear(8, 1)
    trainer.train_dataset = [{**item, "label": 0.5} for item in make_texts()]
    record_losses(trainer)
    with pytest.raises(ValueError, match=r"must classify: .* got logits \(8, 1\) and labels .*float32"):
        trainer.train()


def test_a_checkpoint_without_a_history_is_refused(tmp_path: Path) -> None:
    make_trainer(tmp_path, save_strategy="epoch").train()
    trainer = make_trainer(tmp_path)
    record_losses(trainer)
    with pytest.raises(ValueError, match="checkpoint-12 should hold loss_history.ckpt, but it does not"):
        trainer.train(resume_from_checkpoint=True)


def test_without_transformers_the_error_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ImportError, match=r"transformers and accelerate: pip install 'evenhand\[transformers\]'"
    ):
        record_losses(None)
