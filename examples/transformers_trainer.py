"""TAB inside a Hugging Face Trainer (evenhand[transformers]). Run: python examples/transformers_trainer.py"""

import tempfile

import numpy as np
import torch
import transformers
from torch.utils.data import Subset

from evenhand import partition, rebalance, worst_group_accuracy
from evenhand.integrations.transformers import record_losses

WORDS = ["[CLS]", "Jaws", "Heat", "awful", "dull", "weak", "poor", "fine", "great", "lovely", "superb"]


def make_reviews(aligned: float, seed: int, num_samples: int = 1000) -> tuple[list[dict], np.ndarray]:
    """Bad and good reviews of two films: each film gets mostly one kind, and the words are less sure."""
    random = np.random.default_rng(seed)
    label = np.arange(num_samples) % 2
    film = np.where(random.random(num_samples) < aligned, label, 1 - label)
    kind = np.where(random.random((num_samples, 5)) < 0.25, 1 - label[:, None], label[:, None])
    words = 3 + 4 * kind + random.integers(0, 4, (num_samples, 5))
    texts = np.array(WORDS)[np.column_stack([np.zeros_like(film), 1 + film, words])]
    ids = [[WORDS.index(word) for word in text] for text in texts]  # a tokenizer's work
    items = zip(ids, label.tolist(), strict=True)
    return [{"input_ids": tokens, "labels": y} for tokens, y in items], 2 * label + film


def make_trainer(data, folder: str) -> transformers.Trainer:
    transformers.set_seed(0)
    sizes = {"vocab_size": len(WORDS), "dim": 32, "hidden_dim": 64, "n_layers": 1, "n_heads": 2}
    model = transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(**sizes, max_position_embeddings=8)
    )
    settings = {"num_train_epochs": 6, "per_device_train_batch_size": 32, "learning_rate": 1e-3}
    quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    return transformers.Trainer(
        model, transformers.TrainingArguments(folder, **settings, **quiet), train_dataset=data
    )


def main() -> dict[str, float]:
    (train_set, _), (test_set, group) = make_reviews(0.95, seed=0), make_reviews(0.5, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        erm = make_trainer(train_set, folder)
        recorder = record_losses(erm)
        erm.train()
        parts = partition(recorder.history.losses, [item["labels"] for item in train_set])
        tab = make_trainer(Subset(train_set, rebalance(parts)), folder)
        tab.train()
    x, y = (torch.tensor([item[key] for item in test_set]) for key in ("input_ids", "labels"))
    models = {"erm": erm.model.eval(), "tab": tab.model.eval()}
    worst = {name: worst_group_accuracy(m(x).logits.argmax(1), y, group) for name, m in models.items()}
    print(f"worst-group accuracy: ERM {worst['erm']:.1%}, TAB {worst['tab']:.1%}")
    return worst


if __name__ == "__main__":
    main()
