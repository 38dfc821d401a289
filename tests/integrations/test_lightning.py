"""Lightning: what the callback records, how it resumes, and that two processes know the whole history."""

import logging
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from evenhand import BalancedSampler, LossHistory, indexed, partition, rebalance

lightning = pytest.importorskip("lightning", reason="needs evenhand[lightning]")
from evenhand.integrations import lightning as integration  # noqa: E402
from evenhand.integrations.lightning import LossRecorder, balanced_datamodule  # noqa: E402

warnings.filterwarnings("ignore", module="lightning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
SAMPLES, BATCH = 30, 8


def make_data() -> TensorDataset:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 4, generator=random)
    return TensorDataset(x, (x[:, 0] > 0).long())


class Module(lightning.LightningModule):
    """Keeps a list of its own of what it was trained on."""

    def __init__(
        self, returns: str = "losses", dropout: float = 0.2, steps_before_power_cut: int = 10**6
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 2)
        )
        self.returns, self.left = returns, steps_before_power_cut
        self.seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def training_step(self, batch, _):
        self.left -= 1
        if self.left < 0:
            raise KeyError("power cut")
        x, y, index = batch.values() if isinstance(batch, dict) else batch
        losses = F.cross_entropy(self.net(x), y, reduction="none")
        self.seen.append((self.current_epoch, index.clone(), losses.detach().clone()))
        return {"loss": losses.mean(), self.returns: losses} if self.returns else losses.mean()

    def validation_step(self, batch, _):
        return None

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(**settings) -> DataLoader:
    return DataLoader(indexed(make_data()), batch_size=BATCH, **settings)


def fit(module, *callbacks, epochs: int = 3, data=None, ckpt_path=None, val=None, folder=".", **settings):
    checkpoints = any(isinstance(callback, lightning.pytorch.callbacks.Checkpoint) for callback in callbacks)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=list(callbacks),
        enable_checkpointing=checkpoints,
        default_root_dir=folder,
        **{**quiet, **settings},
    )
    trainer.fit(module, loader() if data is None else data, val, ckpt_path=ckpt_path)
    return trainer


def history_of(seen) -> torch.Tensor:
    history = LossHistory(SAMPLES)
    for epoch in sorted({epoch for epoch, _, _ in seen}):
        for _, index, losses in (part for part in seen if part[0] == epoch):
            history.record(index, losses)
        history.end_epoch()
    return history.losses


def test_the_losses_are_those_of_a_loop_by_hand() -> None:
    recorder = LossRecorder(SAMPLES)
    fit(Module(dropout=0), recorder)
    model, history = Module(dropout=0), LossHistory(SAMPLES)
    optimizer = model.configure_optimizers()
    for _ in range(3):
        for x, y, index in loader():
            losses = F.cross_entropy(model.net(x), y, reduction="none")
            history.record(index, losses)
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
        history.end_epoch()
    assert recorder.history.losses.shape == (SAMPLES, 3)
    assert torch.equal(recorder.history.losses, history.losses)


def dict_loader() -> DataLoader:
    items = [{"x": x, "y": y} for x, y in make_data()]
    return DataLoader(indexed(items), batch_size=BATCH, shuffle=True)


@pytest.mark.parametrize(
    "data, index",
    [
        (lambda: loader(shuffle=True), None),
        (lambda: loader(shuffle=True), 2),
        (lambda: loader(shuffle=True), lambda batch: batch[2]),
        (dict_loader, None),
        (dict_loader, "index"),
    ],
)
def test_the_index_is_found_in_tuples_and_dicts(data, index) -> None:
    recorder, module = LossRecorder(SAMPLES, index=index), Module()
    fit(module, recorder, data=data(), epochs=2, accumulate_grad_batches=2)
    assert torch.equal(recorder.history.losses, history_of(module.seen))


def test_a_loss_function_is_called_before_each_step_and_changes_nothing() -> None:
    said = []

    def losses(module, batch):
        assert not module.net.training and not torch.is_grad_enabled()
        said.append(
            (
                module.current_epoch,
                batch[2],
                F.cross_entropy(module.net(batch[0]), batch[1], reduction="none"),
            )
        )
        return said[-1][2]

    alone, watched, recorder = Module(returns=""), Module(returns=""), LossRecorder(SAMPLES, losses=losses)
    for module, callbacks in ((alone, ()), (watched, (recorder,))):
        lightning.seed_everything(0)
        fit(module, *callbacks)
    assert torch.equal(recorder.history.losses, history_of(said))
    assert watched.net.training
    for name, value in alone.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name]), name


# -- resuming --------------------------------------------------------------------------------------------


def checkpoints(folder: Path, **when) -> lightning.pytorch.callbacks.ModelCheckpoint:
    return lightning.pytorch.callbacks.ModelCheckpoint(folder, save_top_k=-1, filename="{step}", **when)


@pytest.mark.parametrize("filed", [False, True])
@pytest.mark.parametrize(
    "when, val, cut, kept",
    [
        ({"every_n_epochs": 1}, False, 10, 8),  # at the end of the second epoch, of four steps each
        ({"every_n_train_steps": 3}, False, 7, 6),  # in the middle of the second
        ({"every_n_train_steps": 4}, False, 10, 8),  # after the last step of the second
        ({"every_n_epochs": 1, "save_on_train_epoch_end": False}, True, 10, 8),  # after the validation there
    ],
)
def test_a_resumed_fit_continues_the_history(filed, when, val, cut, kept, tmp_path: Path) -> None:
    path = tmp_path / "losses.npy" if filed else None
    validation = DataLoader(make_data(), batch_size=30) if val else None
    broken = Module(steps_before_power_cut=cut)
    with pytest.raises(KeyError, match="power cut"):
        fit(broken, LossRecorder(SAMPLES, path=path), checkpoints(tmp_path, **when), val=validation)
    resumed, recorder = Module(), LossRecorder(SAMPLES, path=path)
    last = tmp_path / f"step={kept}.ckpt"
    fit(resumed, recorder, data=loader(shuffle=True), ckpt_path=last, val=validation, folder=tmp_path)
    # Lightning starts the resumed epoch's loader from its beginning; whatever it trained on is recorded.
    assert torch.equal(recorder.history.losses, history_of(broken.seen[:kept] + resumed.seen))
    assert recorder.history.num_epochs == 3


def test_a_fit_resumed_at_an_epochs_end_records_what_an_unbroken_one_does(tmp_path: Path) -> None:
    whole, first, second = (LossRecorder(SAMPLES) for _ in range(3))
    fit(Module(dropout=0), whole, epochs=4)
    fit(Module(dropout=0), first, checkpoints(tmp_path, every_n_epochs=1), epochs=2)
    fit(Module(dropout=0), second, epochs=4, ckpt_path=tmp_path / "step=8.ckpt")
    assert torch.equal(second.history.losses, whole.history.losses)
    assert torch.equal(second.history.losses[:, :2], first.history.losses)


def test_looking_at_an_old_checkpoint_leaves_the_file_alone_and_a_new_fit_starts_it_anew(
    tmp_path: Path,
) -> None:
    recorder = LossRecorder(SAMPLES, path=tmp_path / "losses.npy")
    module = Module()
    trainer = fit(module, recorder, checkpoints(tmp_path, every_n_epochs=1))
    trainer.validate(module, DataLoader(make_data()), ckpt_path=tmp_path / "step=4.ckpt", verbose=False)
    assert recorder.history.num_epochs == 3
    fit(Module(), recorder, epochs=1)
    assert recorder.history.num_epochs == 1


def test_a_checkpoint_without_a_history_is_refused(tmp_path: Path) -> None:
    fit(Module(), checkpoints(tmp_path, every_n_epochs=1), epochs=1)
    with pytest.raises(
        ValueError, match="must be there from the first epoch, but the training is at epoch 1"
    ):
        fit(Module(), LossRecorder(SAMPLES), ckpt_path=tmp_path / "step=4.ckpt")


# -- several processes -----------------------------------------------------------------------------------

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from test_lightning import *
from evenhand.integrations.lightning import balanced_loader
data, distributed = loader(shuffle=True), {"strategy": "ddp", "devices": 2}
for path in (None, "losses.npy"):
    module, recorder = Module(), LossRecorder(SAMPLES, path=path)
    rank = fit(module, recorder, data=data, **distributed).global_rank
    np.save(f"history-{path}-{rank}.npy", recorder.history.losses)
    torch.save(module.seen, f"seen-{path}-{rank}.pt")
balanced = balanced_loader(data, partition(recorder.history.losses, make_data().tensors[1]))
fit(second := Module(), data=balanced, epochs=2, **distributed)
torch.save(second.seen, f"balanced-{rank}.pt")
"""


def test_two_processes_both_have_the_whole_history_and_share_the_balanced_set(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, "script.py", str(Path(__file__).parent)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for path in (None, "losses.npy"):
        seen = [torch.load(tmp_path / f"seen-{path}-{rank}.pt", weights_only=True) for rank in (0, 1)]
        assert all(len(part) < 3 * SAMPLES / BATCH for part in seen), "each sees a part"
        wanted = history_of(seen[0] + seen[1])
        for rank in (0, 1):
            history = np.load(tmp_path / f"history-{path}-{rank}.npy")
            assert history.shape == (SAMPLES, 3) and np.array_equal(history, wanted)
    found = partition(wanted, make_data().tensors[1])
    parts = [torch.load(tmp_path / f"balanced-{rank}.pt", weights_only=True) for rank in (0, 1)]
    for epoch in range(2):
        visited = [torch.cat([index for e, index, _ in part if e == epoch]).tolist() for part in parts]
        assert len(visited[0]) == len(visited[1]) == len(BalancedSampler(found, num_replicas=2, rank=0))
        assert not Counter(rebalance(found)) - Counter(visited[0] + visited[1]), "nothing is left out"
        assert len(visited[0] + visited[1]) - len(rebalance(found)) <= 1, "one row makes the parts equal"


# -- the second training, and what can go wrong ----------------------------------------------------------


class Data(lightning.LightningDataModule):
    def setup(self, stage: str) -> None:
        self.ready = stage

    def train_dataloader(self) -> DataLoader:
        assert self.ready == "fit"
        return loader(shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(make_data(), batch_size=BATCH)


def test_a_balanced_datamodule_differs_in_its_training_loader_alone() -> None:
    found = partition(np.random.default_rng(0).random((SAMPLES, 3)), make_data().tensors[1])
    plain, module = Data(), Module()
    data = balanced_datamodule(plain, found, seed=2)
    assert isinstance(data, Data) and type(plain) is Data
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    trainer.fit(module, datamodule=data)
    visited = torch.cat([index for _, index, _ in module.seen])
    assert Counter(visited.tolist()) == Counter(rebalance(found, seed=2))


def test_mistakes_are_named() -> None:
    with pytest.raises(
        ValueError, match="must return a dict with one loss per sample as 'losses', got loss; return"
    ):
        fit(Module(returns=""), LossRecorder(SAMPLES))
    with pytest.raises(ValueError, match="one loss per sample as 'mine', got loss, losses"):
        fit(Module(), LossRecorder(SAMPLES, losses="mine"))
    with pytest.raises(ValueError, match=r"one value per sample, got shape \(\); .*reduction='none'"):
        fit(Module(), LossRecorder(SAMPLES, losses="loss"))
    with pytest.raises(
        ValueError, match="positions as whole numbers at 0, got list without; wrap the dataset"
    ):
        fit(Module(), LossRecorder(SAMPLES, index=0))
    with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
        LossRecorder(0)


def test_without_lightning_the_error_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    assert integration._lightning().__name__ == "pytorch_lightning", "its other name will do"
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    monkeypatch.delitem(sys.modules, "evenhand.integrations.lightning")
    with pytest.raises(ImportError, match=r"needs lightning: pip install 'evenhand\[lightning\]'"):
        import evenhand.integrations.lightning  # noqa: F401
