"""TAB with Lightning Fabric, which evenhand[lightning] installs. Run: python examples/fabric_loop.py"""

import torch
from lightning.fabric import Fabric, seed_everything
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from evenhand import BalancedSampler, indexed, partition, worst_group_accuracy
from evenhand.integrations.torch import Recorder, balanced_loader


def make_data(aligned: float, seed: int, num_samples: int = 2000) -> tuple[TensorDataset, torch.Tensor]:
    """Two classes that feature 0 mostly predicts; five others hold the true, fainter cause."""
    random = torch.Generator().manual_seed(seed)
    y, x = torch.arange(num_samples) % 2, torch.randn(num_samples, 20, generator=random)
    shortcut = torch.where(torch.rand(num_samples, generator=random) < aligned, y, 1 - y)
    x[:, 0] = 4.0 * shortcut - 2 + 0.3 * x[:, 0]
    x[:, 1:6] += 0.5 * (2.0 * y - 1)[:, None]
    return TensorDataset(x, y), 2 * y + shortcut


def train(loader: DataLoader, recorder: Recorder | None = None) -> torch.nn.Module:
    seed_everything(0, verbose=False)
    fabric = Fabric(accelerator="cpu", devices=1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    loader = fabric.setup_dataloaders(loader)
    for epoch in range(6):
        if isinstance(loader.sampler, BalancedSampler):
            loader.sampler.set_epoch(epoch)
        for x, y, index in loader:
            losses = F.cross_entropy(model(x), y, reduction="none")
            if recorder is not None:
                recorder.record(index, losses)
            fabric.backward(losses.mean())
            optimizer.step()
            optimizer.zero_grad()
        if recorder is not None:
            recorder.end_epoch()  # gathers the losses of all processes
    return model


def main() -> dict[str, float]:
    (train_set, _), (test_set, group) = make_data(0.95, seed=0), make_data(0.5, seed=1)
    loader = DataLoader(indexed(train_set), batch_size=32, shuffle=True)
    recorder = Recorder(len(train_set))
    erm = train(loader, recorder)
    parts = partition(recorder.history.losses, train_set.tensors[1])
    tab = train(balanced_loader(loader, parts))
    x, y = test_set.tensors
    worst = {n: worst_group_accuracy(m(x).argmax(1), y, group) for n, m in (("erm", erm), ("tab", tab))}
    print(f"worst-group accuracy: ERM {worst['erm']:.1%}, TAB {worst['tab']:.1%}")
    return worst


if __name__ == "__main__":
    main()
