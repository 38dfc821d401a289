"""TAB inside Lightning, which evenhand[lightning] installs. Run: python examples/lightning_loop.py"""

import lightning
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from evenhand import indexed, partition, worst_group_accuracy
from evenhand.integrations.lightning import LossRecorder, balanced_loader


def make_data(aligned: float, seed: int, num_samples: int = 2000) -> tuple[TensorDataset, torch.Tensor]:
    """Two classes that feature 0 mostly gives away; five others hold the true, fainter cause."""
    random = torch.Generator().manual_seed(seed)
    y, x = torch.arange(num_samples) % 2, torch.randn(num_samples, 20, generator=random)
    shortcut = torch.where(torch.rand(num_samples, generator=random) < aligned, y, 1 - y)
    x[:, 0] = 4.0 * shortcut - 2 + 0.3 * x[:, 0]
    x[:, 1:6] += 0.5 * (2.0 * y - 1)[:, None]
    return TensorDataset(x, y), 2 * y + shortcut


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))

    def training_step(self, batch, _):
        x, y, _ = batch
        losses = F.cross_entropy(self.net(x), y, reduction="none")
        return {"loss": losses.mean(), "losses": losses}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def fit(loader: DataLoader, *callbacks: lightning.Callback) -> Classifier:
    lightning.seed_everything(0)
    model = Classifier()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    lightning.Trainer(max_epochs=6, accelerator="cpu", callbacks=list(callbacks), **quiet).fit(model, loader)
    return model


def main() -> dict[str, float]:
    (train_set, _), (test_set, group) = make_data(0.95, seed=0), make_data(0.5, seed=1)
    loader = DataLoader(indexed(train_set), batch_size=32, shuffle=True)
    recorder = LossRecorder(len(train_set))
    erm = fit(loader, recorder)
    tab = fit(balanced_loader(loader, partition(recorder.history.losses, train_set.tensors[1])))
    x, y = test_set.tensors
    worst = {n: worst_group_accuracy(m.net(x).argmax(1), y, group) for n, m in (("erm", erm), ("tab", tab))}
    print(f"worst-group accuracy: ERM {worst['erm']:.1%}, TAB {worst['tab']:.1%}")
    return worst


if __name__ == "__main__":
    main()
