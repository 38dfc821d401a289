"""Fine-tune a Hugging Face model from a local folder on texts, from token ids to logits."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as read_safetensors
from safetensors.torch import save as safetensors_bytes

from evenhand.audit.evidence import Evidence
from evenhand.audit.networks import finished
from evenhand.core.ranks import resolve_device
from evenhand.tasks.samples import Samples
from evenhand.training import hub
from evenhand.training.data import Task, checksum
from evenhand.training.hub import Texts
from evenhand.training.recipe import Recipe
from evenhand.training.store import json_bytes

LONGEST = 256  # tokens of a text; training time grows with them
CHUNK = 1000  # texts that are tokenized at a time
BATCH = 64  # texts per prediction batch of a trained model
# The best epoch of validation accuracy is kept, because a pretrained network soon memorizes small data.
TUNED = Recipe(
    model="transformers",
    lr=2e-5,
    epochs=6,
    batch_size=16,
    check_every=1,
    patience=3,
    keep="best",
    compile="off",
)
FRESH = TUNED.replace(lr=5e-4, epochs=20, batch_size=32, patience=5)


class TextModel:
    """A model folder that is read and checked before any training."""

    def __init__(self, folder: Path, class_names: tuple[str, ...]) -> None:
        self.folder, self.class_names = folder, class_names
        self.has_weights = _check(folder)
        self.library = hub.transformers()
        with self._reading("config"):
            names = dict(enumerate(class_names))
            self.config = self.library.AutoConfig.from_pretrained(
                folder, id2label=names, label2id={name: label for label, name in names.items()}, **hub.LOCAL
            )
        with self._reading("tokenizer"):
            self.tokenizer = self.library.AutoTokenizer.from_pretrained(folder, **hub.LOCAL)
        self._check_tokenizer()
        positions = getattr(self.config, "max_position_embeddings", None) or LONGEST
        self.tokenizer.model_max_length = min(self.tokenizer.model_max_length, positions, LONGEST)
        self.config.pad_token_id = self.tokenizer.pad_token_id
        self.config.problem_type = "single_label_classification"
        with tempfile.TemporaryDirectory() as place:  # saved now, because use changes its settings
            self.tokenizer.save_pretrained(place)
            self.tokenizer_files = {file.name: file.read_bytes() for file in Path(place).glob("*.*")}

    def _check_tokenizer(self) -> None:
        # Without these files, the library makes an empty tokenizer that knows no word.
        names = set(self.tokenizer.vocab_files_names.values()) or {"tokenizer_config.json"}
        if not any((self.folder / name).is_file() for name in names):
            raise ValueError(
                f"expected a tokenizer in {self.folder}, but it has none of {', '.join(sorted(names))}; "
                "save it there with tokenizer.save_pretrained"
            )
        if self.tokenizer.pad_token is None:
            if self.tokenizer.eos_token is None:
                raise ValueError(
                    f"the tokenizer in {self.folder} has neither a padding nor an end token; add one"
                )
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def _reading(self, what: str) -> contextlib.AbstractContextManager[None]:
        return hub.reading(self.library, self.folder, what)

    def make(self) -> Texts:
        """Return the model with the folder's weights; missing ones, such as the head, are initialized."""
        return self._made()[0]

    def _made(self) -> tuple[Texts, list[str]]:
        """Return the model, and the names of newly initialized weights where others came from the folder."""
        auto = self.library.AutoModelForSequenceClassification
        fresh: list[str] = []
        with self._reading("model"):
            if self.has_weights:
                model, fresh = hub.load_pretrained(auto, self.folder, self.config)
            else:
                model = auto.from_config(self.config, trust_remote_code=False)
        return Texts(model.float(), self.tokenizer.pad_token_id), fresh

    def task(self, data: Samples) -> tuple[Samples, Task]:
        """Return the texts as padded token ids, (samples, length) int32, and notes on them."""
        rows, cut = self._tokens(data.texts)
        ids = np.full((len(rows), max(max(map(len, rows)), 1)), self.tokenizer.pad_token_id, dtype=np.int32)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
        notes = [*data.notes, *self._try(ids)]
        if cut:
            notes.append(
                f"{cut:,} of {len(rows):,} texts were cut after {self.tokenizer.model_max_length} tokens"
            )
        group = [] if data.group is None else [data.group]
        recipe = TUNED if self.has_weights else FRESH
        task = data.task("text", torch.from_numpy(ids), recipe=recipe, make_model=self.make)
        digest = checksum(ids, *data.class_names, data.y, data.split, *group, hub.digest(self.folder))
        task = dataclasses.replace(task, checksum=digest)
        return dataclasses.replace(data, notes=tuple(notes)), task

    def probabilities(self, texts: list[str], device: str) -> np.ndarray:
        """Return the probabilities of new texts by the folder's model, (texts, classes) float32."""
        where, rows = resolve_device(device), self._tokens(texts)[0]
        model, results = self.make().to(where).eval(), []
        with torch.no_grad():
            for start in range(0, len(rows), BATCH):
                chunk = rows[start : start + BATCH]
                length = max(max(map(len, chunk)), 1)
                padded = [row + [self.tokenizer.pad_token_id] * (length - len(row)) for row in chunk]
                results.append(model(torch.tensor(padded, device=where)).softmax(1).cpu().numpy())
        return np.concatenate(results)

    def _tokens(self, texts: list[str]) -> tuple[list[list[int]], int]:
        """Return the token ids of every text, cut to the model's length, and the number of longer texts."""
        most = self.tokenizer.model_max_length

        def some(chunk: list[str], most: int) -> list[list[int]]:
            tokens = self.tokenizer(chunk, truncation=True, max_length=most, return_attention_mask=False)
            return [list(row) for row in tokens["input_ids"]]

        rows, cut = [], 0
        with self._reading("tokenizer"):
            for start in range(0, len(texts), CHUNK):
                chunk = texts[start : start + CHUNK]
                found = some(chunk, most)
                full = [text for text, row in zip(chunk, found, strict=True) if len(row) == most]
                cut += sum(len(row) > most for row in some(full, most + 1)) if full else 0
                rows += found
        return rows, cut

    @torch.no_grad()
    def _try(self, ids: np.ndarray) -> list[str]:
        """Run the model on its longest text before hours of training, and return notes on its weights."""
        model, fresh = self._made()
        inner: Any = model.model
        known = inner.get_input_embeddings().weight.shape[0]
        if ids.max() >= known:
            raise ValueError(
                f"the tokenizer and the model in {self.folder} do not belong together: "
                f"it gives ids up to {ids.max():,}, and the model knows {known:,}"
            )
        longest = int((ids != self.tokenizer.pad_token_id).sum(1).argmax())
        with self._reading("model"):
            shape = tuple(model.eval()(torch.from_numpy(ids[[longest]])).shape)
        if shape != (1, len(self.class_names)):
            raise ValueError(f"expected logits of {len(self.class_names)} classes, got shape {shape}")
        self.kind = type(inner).__name__
        if not self.has_weights:
            return [f"{self.folder.name} holds no weights, so the model was trained from fresh ones"]
        hub.check_body(inner, fresh, self.folder)
        return [f"fresh weights, not from {self.folder.name}: {', '.join(fresh)}"] if fresh else []

    def finished(self, found: Evidence) -> Evidence:
        """Return the evidence with both models as folders like the original one."""
        config = {**json.loads(self.config.to_json_string()), "architectures": [self.kind]}
        for name in ("dtype", "torch_dtype", "_name_or_path"):  # of the folder, not of these
            config.pop(name, None)
        files = dict[str, bytes]()
        for name, content in finished(found).files.items():
            folder = name.removesuffix(".safetensors")
            state = {key.removeprefix("model."): value for key, value in read_safetensors(content).items()}
            files[f"{folder}/model.safetensors"] = safetensors_bytes(state, metadata={"format": "pt"})
            files[f"{folder}/config.json"] = json_bytes(config)
            files.update({f"{folder}/{each}": content for each, content in self.tokenizer_files.items()})
        about = {**found.about, "model": f"{self.kind} of {self.folder.name}"}
        return dataclasses.replace(found, files=files, about=about)


def _check(folder: Path) -> bool:
    """Return whether the folder has weights. Raise ValueError if it has no model or needs foreign code."""
    if not folder.is_dir():
        raise ValueError(
            "--model of --text must be mlp, linear, module:function or a folder with a Hugging Face model, "
            f"but there is no folder {folder}; nothing is downloaded: download the model to a folder first"
        )
    return hub.check(folder)
