"""Estimators: classifiers of scikit-learn and boosting as stages that leave the records of a network's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from evenhand.core import ranks
from evenhand.training import log
from evenhand.training.checkpoint import Histories, claim_together, load_for_all, save_checkpoint, write_curve
from evenhand.training.data import Split, checksum
from evenhand.training.estimator_histories import (
    check,
    fit,
    learns_by_steps,
    losses_of,
    probabilities,
    seeded,
    softmax,
    takes_weights,
    training_of,
)
from evenhand.training.forward import weighted_mean
from evenhand.training.keys import Description, is_named
from evenhand.training.stage import (
    Fit,
    Request,
    check_recorded,
    check_unused,
    is_array,
    other_samples,
    scored,
    stage_folder,
)

if TYPE_CHECKING:
    from evenhand.training.run import Run

SNAPSHOT = "estimator"
PREFIX = "estimator_"  # of the tensors of such a model
MOST_PROBED = 8192  # features of a pipeline that is asked for the weight of each
MOST_CHECKED = 2000  # rows of which arrays must say what the estimator says
NODES: dict[str, tuple[str, type]] = {
    "value": ("value", np.float64),
    "feature": ("feature_idx", np.int64),
    "threshold": ("num_threshold", np.float64),
    "missing_left": ("missing_go_to_left", np.int64),
    "left": ("left", np.int64),
    "right": ("right", np.int64),
    "leaf": ("is_leaf", np.int64),
    "categorical": ("is_categorical", np.int64),
    "set": ("bitset_idx", np.int64),
}  # of every node: what it is called here and in scikit-learn


class SparseRows:
    """A sparse matrix as the inputs of a split. One item is one row, (features,) float32."""

    def __init__(self, values: Any) -> None:
        self.matrix = values.tocsr()

    def __len__(self) -> int:
        return int(self.matrix.shape[0])

    def __getitem__(self, row: int) -> Tensor:
        return torch.from_numpy(self.matrix[row].toarray()[0]).float()

    def content(self) -> tuple[np.ndarray, ...]:
        """Return the whole content, for checksums."""
        return self.matrix.data, self.matrix.indices, self.matrix.indptr


def matrix(run: Run, split: Split) -> Any:
    """Return the rows as an estimator takes them: (samples, features) float64, or a sparse matrix."""
    if isinstance(split.x, SparseRows):
        return split.x.matrix[split.rows.numpy()]
    return np.concatenate([batch.x.flatten(1).double().cpu().numpy() for batch in run.batches(split)])


class EstimatorModel(nn.Module):
    """A fitted classifier as a module: rows in, log probabilities of all classes out.

    Trees and linear models are arrays, which are saved as any model's weights are. An `estimator` of another
    kind is only held: a record cannot give it back, because evenhand reads and writes no pickles.
    """

    def __init__(self, tensors: Mapping[str, Tensor], num_classes: int, estimator: Any = None) -> None:
        super().__init__()
        for name, values in tensors.items():
            self.register_buffer(name, values)
        self.num_classes, self.estimator = num_classes, estimator
        self.trees: Any = None  # boosting that says the same as the arrays, and sooner

    @property
    def unsaved(self) -> str:
        """The name of what cannot be saved; empty if everything can."""
        return "" if self.estimator is None else type(self.estimator).__name__

    def forward(self, x: Tensor) -> Tensor:
        return self.of_rows(x.detach().flatten(1).double().cpu().numpy()).to(x.device)

    def of_rows(self, rows: Any) -> Tensor:
        """Return log probabilities, (rows, classes) float32, of an array or a sparse matrix."""
        arrays = self._arrays()
        if self.estimator is not None:
            given = probabilities(self.estimator, rows)
        elif self.trees is not None:
            given = softmax(self.trees._raw_predict(rows))
        else:
            given = from_arrays(arrays, rows)
        every = np.zeros((rows.shape[0], self.num_classes))
        every[:, arrays["classes"]] = given
        return torch.from_numpy(np.log(every.clip(1e-7, 1))).float()

    def as_linear(self) -> nn.Linear:
        """Convert a linear model to a layer for `replace_head`."""
        arrays = self._arrays()
        if "weight" not in arrays or arrays["one_against_all"]:
            raise ValueError("only a linear model whose scores are logits is a linear layer; fit another one")
        if len(arrays["classes"]) != self.num_classes:
            raise ValueError(
                f"expected samples of all {self.num_classes} classes, got {len(arrays['classes'])}"
            )
        weight, bias = (torch.from_numpy(arrays[name]).float() for name in ("weight", "intercept"))
        if len(weight) == 1:  # log odds of the second class
            weight, bias = (torch.cat([torch.zeros_like(each), each]) for each in (weight, bias))
        layer = nn.Linear(weight.shape[1], len(weight))
        layer.weight.data, layer.bias.data = weight, bias
        return layer

    def _arrays(self) -> dict[str, np.ndarray]:
        return {name.removeprefix(PREFIX): each.cpu().numpy() for name, each in self.named_buffers()}


def empty(tensors: Mapping[str, Tensor], num_classes: int) -> EstimatorModel:
    """Return a model that has room for these tensors."""
    return EstimatorModel({name: torch.zeros_like(each) for name, each in tensors.items()}, num_classes)


def balances_by_weight(estimator: Any) -> bool:
    """Return whether a minority is given more weight; else its rows are repeated.

    With `partial_fit`, a weight of 20 would be a step 20 times as long.
    """
    return takes_weights(estimator) and not learns_by_steps(estimator)


# -- classifiers as arrays -------------------------------------------------------------------------------


def arrays_of(estimator: Any, x: Any) -> dict[str, np.ndarray] | None:
    """Convert a fitted classifier to arrays with the same probabilities, or None if unsupported."""
    x = x[np.unique(np.linspace(0, x.shape[0] - 1, MOST_CHECKED).astype(int))]
    expected = probabilities(estimator, x)
    for arrays in (*_trees(estimator), *_linear(estimator, x.shape[1])):
        found = from_arrays(arrays, x)
        if found.shape == expected.shape and np.allclose(found, expected, atol=1e-5):
            return arrays
    return None


def from_arrays(arrays: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Return probabilities of the classes that were trained on, (rows, classes)."""
    if "roots" in arrays:
        return softmax(tree_scores(arrays, x))
    scores = x @ arrays["weight"].T + arrays["intercept"]
    if scores.shape[1] == 1 or not arrays["one_against_all"]:
        return softmax(scores)
    odds = 1 / (1 + np.exp(-scores.clip(-500, 500)))
    shares: np.ndarray = odds / odds.sum(axis=1, keepdims=True)
    return shares


def _trees(estimator: Any) -> Iterator[dict[str, np.ndarray]]:
    if type(estimator).__name__ == "HistGradientBoostingClassifier" and _plain_codes(estimator):
        yield tree_arrays(estimator)


def _plain_codes(estimator: Any) -> bool:
    """Return whether its categories are the numbers 0, 1, … in the first columns."""
    categorical = estimator.is_categorical_
    if categorical is None or not categorical.any():
        return True
    known = estimator._preprocessor.named_transformers_["encoder"].categories_
    first = bool(categorical[: len(known)].all())
    return first and all(
        np.array_equal(each[~np.isnan(each)], np.arange(np.sum(~np.isnan(each)))) for each in known
    )


def _linear(estimator: Any, num_features: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield candidates for the weights of a linear model, from its attributes or decision values."""
    if hasattr(estimator, "coef_") and hasattr(estimator, "intercept_"):
        weight, intercept = np.asarray(estimator.coef_), np.asarray(estimator.intercept_)
        weight = weight.reshape(-1, num_features)
    elif hasattr(estimator, "decision_function") and num_features <= MOST_PROBED:
        intercept = np.reshape(estimator.decision_function(np.zeros((1, num_features))), -1)
        rows = [np.eye(1024, num_features, k) for k in range(0, num_features, 1024)]
        scores = np.concatenate([estimator.decision_function(each) for each in rows])[:num_features]
        weight = scores.reshape(num_features, -1).T - intercept[:, None]
    else:
        return
    for one_against_all in (False, True):
        yield {
            "weight": weight.astype(np.float64),
            "intercept": np.broadcast_to(intercept, len(weight)).astype(np.float64),
            "one_against_all": np.array(one_against_all),
        }


def tree_arrays(model: Any) -> dict[str, np.ndarray]:
    """Return the trees of a HistGradientBoostingClassifier, whose nodes are numbered through all of them."""
    trees = [tree for stage in model._predictors for tree in stage]
    sets = [tree.raw_left_cat_bitsets.reshape(-1, 8).astype(np.int64) for tree in trees]
    firsts = np.cumsum([0, *(len(each) for each in sets)])
    nodes = np.concatenate([tree.nodes for tree in trees])
    sizes = np.array([len(tree.nodes) for tree in trees], dtype=np.int64)
    starts = np.cumsum([0, *sizes[:-1]])
    arrays: dict[str, np.ndarray] = {name: nodes[old].astype(kind) for name, (old, kind) in NODES.items()}
    for name in ("left", "right"):
        arrays[name] += np.repeat(starts, sizes)
    arrays["set"] += np.repeat(firsts[:-1], sizes)
    arrays |= {"roots": starts, "sets": np.concatenate(sets)}  # of categories that go left, a bit each
    arrays["start"] = np.asarray(model._baseline_prediction, dtype=np.float64).reshape(-1)
    return arrays


def tree_scores(arrays: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Return log odds, (rows, classes): the sum of the leaves that each row reaches in all trees."""
    scores = np.tile(arrays["start"], (len(x), 1))
    for number, root in enumerate(arrays["roots"].tolist()):
        scores[:, number % scores.shape[1]] += _leaves(arrays, root, x)
    return scores


def _leaves(arrays: Mapping[str, np.ndarray], root: int, x: np.ndarray) -> np.ndarray:
    """Return one tree's value for every row, (rows,)."""
    at = np.full(len(x), root)
    for _ in range(len(arrays["left"])):  # a damaged tree may run in circles
        inner = np.flatnonzero(arrays["leaf"][at] == 0)
        if not len(inner):
            break
        node = at[inner]
        value = x[inner, arrays["feature"][node]]
        gone = np.isnan(value)
        left = value <= arrays["threshold"][node]
        categorical = (arrays["categorical"][node] != 0) & ~gone
        code = value[categorical].astype(np.int64)
        bits = arrays["sets"][arrays["set"][node[categorical]], code // 32]
        left[categorical] = (bits >> (code % 32)) & 1 != 0
        left[gone] = arrays["missing_left"][node[gone]] != 0
        at[inner] = np.where(left, arrays["left"][node], arrays["right"][node])
    values: np.ndarray = arrays["value"][at]
    return values


# -- the stage -------------------------------------------------------------------------------------------


class EstimatorFit(Fit):
    """A classifier as its training left it."""

    def predict_logits(self, x: np.ndarray) -> np.ndarray:
        """Return log probabilities, (rows, classes) float32, of rows such as it was trained on."""
        outputs: np.ndarray = self.model(torch.from_numpy(np.asarray(x, dtype=np.float32))).numpy()
        return outputs


class EstimatorStage:
    """A request for a classifier instead of a network, and the folder of its training."""

    def __init__(
        self, run: Run, request: Request, estimator: Any, sample_weight: Any, epochs: int | None
    ) -> None:
        check(estimator, record=request.record)
        self.run, self.name, self.estimator, self.epochs = run, request.stage, estimator, epochs
        split = other_samples(run, request)
        self.split, self.val = (run.train if split is None else split), request.val or run.val
        self.weight = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        if self.weight is not None and self.weight.shape != (len(self.split),):
            raise ValueError(
                f"sample_weight must hold one number for each of the {len(self.split)} rows, got "
                f"{self.weight.shape}"
            )
        check_recorded(run, request.record, self.val)
        plain = split is None and request.val is None and sample_weight is None
        self.recorded = request.record or plain
        if ranks.count() > 1:
            raise ValueError(
                f"stage {self.name!r} trains an estimator, which one process does; run it without torchrun"
            )
        named = is_named(estimator) and is_array(self.split) and is_array(self.val)
        self.folder = stage_folder(run, self._content(), named=named)
        if not Description(estimator).complete:
            check_unused(run, self.name, self.folder, (estimator,), "estimator")

    def _content(self) -> dict[str, Any]:
        """Return the content that the key of the stage hashes."""
        run, preparation = self.run, self.run.preparation
        return {
            **({"inputs": preparation} if preparation else {}),
            "task": run.task.name,
            "data": run.task.checksum,
            "stage": self.name,
            "estimator": Description(self.estimator).content,
            "x": [run.inputs.name(split) for split in (self.split, self.val)],
            "rows": checksum(self.split.index, self.split.rows, self.split.y),
            "val": scored(self.val),
            "weight": "" if self.weight is None else checksum(self.weight),
            "epochs": self.epochs,
            "recorded": self.recorded,
        }

    def fit(self) -> EstimatorFit:
        """Train the classifier, or return what an earlier call has left."""
        folder, model = self.folder, None
        with claim_together(folder):
            state = load_for_all(folder / f"{SNAPSHOT}.ckpt")
            if state is not None and not _is_whole(folder, state):
                state = None
            if state is None:
                log.note("%s: begins in %s", self.name, folder.name)
                model, state = self._train()
                log.note("%s: %d epochs, %.1f s in all", self.name, state["epoch"], state["seconds"])
            else:
                write_curve(folder, state["log"], complete=True)
                log.note("%s: reused, %d epochs in %s", self.name, state["epoch"], folder.name)
        make, epochs, seconds = partial(self._model, model, state), state["epoch"], state["seconds"]
        return EstimatorFit(folder, epochs, seconds, SNAPSHOT, state["log"], make, lambda: state)

    def _model(self, model: EstimatorModel | None, state: dict[str, Any]) -> EstimatorModel:
        if model is None and state["tensors"] is None:
            log.note("%s: trains again, because it cannot be saved", self.name)
            return self._trained(lambda _: None)
        return model or EstimatorModel(state["tensors"], self.run.num_classes)

    def _trained(self, look: Callable[[list[np.ndarray]], None]) -> EstimatorModel:
        """Train it; `look` gets the probabilities of training and validation samples at every step."""
        run, split = self.run, self.split
        estimator, y = seeded(self.estimator, run.seed), split.y.numpy()
        inputs = [matrix(run, each) for each in (split, self.val)]
        training = training_of(estimator) if self.recorded else None
        if training is not None:
            for scores in training(estimator, inputs, y, self.weight, self.epochs, run.seed):
                look(scores)
        else:
            fit(estimator, inputs[0], y, self.weight)
            look([probabilities(estimator, x) for x in inputs])
        arrays = arrays_of(estimator, inputs[0])
        tensors = {PREFIX + name: torch.from_numpy(each) for name, each in (arrays or {}).items()}
        tensors[PREFIX + "classes"] = torch.from_numpy(np.asarray(estimator.classes_).astype(np.int64))
        model = EstimatorModel(tensors, run.num_classes, estimator if arrays is None else None)
        model.trees = estimator if arrays is not None and "roots" in arrays else None
        return model

    def _train(self) -> tuple[EstimatorModel, dict[str, Any]]:
        begun, curve, run = time.monotonic(), list[dict[str, Any]](), self.run
        histories = None
        if self.recorded and training_of(self.estimator) is not None:
            histories = Histories(self.folder, len(run.train), len(run.val))
            histories.truncate(0)
        labels = [self.split.y.numpy(), self.val.y.numpy()]
        positions = [self.split.index, torch.arange(len(self.val))]
        classes = np.unique(labels[0])

        def look(scores: list[np.ndarray]) -> None:
            losses, hits = [], []
            for given, y in zip(scores, labels, strict=True):
                every = np.zeros((len(y), run.num_classes))
                every[:, classes] = given
                losses.append(torch.from_numpy(losses_of(every, y)))
                hits.append(torch.from_numpy(every.argmax(1) == y))
            curve.append(
                {
                    "epoch": len(curve) + 1,
                    "loss": losses[0].double().mean().item(),
                    "accuracy": hits[0].double().mean().item(),
                    "val_accuracy": weighted_mean(hits[1], self.val.weight),
                }
            )
            if histories is not None:
                for prefix, position, loss, hit in zip(("", "val_"), positions, losses, hits, strict=True):
                    getattr(histories, f"{prefix}losses").record(position, loss)
                    getattr(histories, f"{prefix}hits").record(position, hit)
                histories.end_epoch()

        model = self._trained(look)
        state = {
            "epoch": len(curve),
            "log": curve,
            "seconds": time.monotonic() - begun,
            "tensors": None if model.unsaved else model.state_dict(),
            "histories": None if histories is None else histories.sums,
            "objective": {},
        }
        write_curve(self.folder, curve, complete=True)
        save_checkpoint(self.folder / f"{SNAPSHOT}.ckpt", state)
        return model, state


def _is_whole(folder: Path, state: dict[str, Any]) -> bool:
    return state["histories"] is None or Histories.whole(folder, state["epoch"], state["histories"])
