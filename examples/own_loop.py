"""TAB inside your own training loop: record losses, split them, train again on the balanced set.

Run it with `python examples/own_loop.py`; the data are made here, so nothing is downloaded.
"""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

from evenhand import LossHistory, partition, rebalance


def make_data(num_samples: int = 2000, aligned: float = 0.97) -> tuple[TensorDataset, torch.Tensor]:
    """Two classes with a clear but noisy shortcut in feature 0 and the true cause spread over the others."""
    random = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (num_samples,), generator=random)
    follows = torch.rand(num_samples, generator=random) < aligned
    x = torch.randn(num_samples, 20, generator=random)
    x[:, 0] = 4.0 * torch.where(follows, y, 1 - y) - 2 + 0.3 * x[:, 0]
    x[:, 1:6] += (2.0 * y - 1)[:, None]
    return TensorDataset(x, y, torch.arange(num_samples)), ~follows


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))


def train(dataset: torch.utils.data.Dataset, history: LossHistory | None = None, epochs: int = 15) -> torch.nn.Module:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(dataset, batch_size=32, shuffle=True)
    for _ in range(epochs):
        for x, y, index in loader:
            losses = F.cross_entropy(model(x), y, reduction="none")
            if history is not None:
                history.record(index, losses)
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if history is not None:
            history.end_epoch()
    return model


def accuracy(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return (model(x).argmax(1) == y).float().mean().item()


def main() -> dict[str, float]:
    dataset, breaks_shortcut = make_data()
    x, y, _ = dataset.tensors

    history = LossHistory(len(dataset))
    erm = train(dataset, history)
    parts = partition(history.losses, y)
    balanced = Subset(dataset, rebalance(parts, seed=0))
    tab = train(balanced)

    minority = torch.from_numpy(parts.minority)
    result = {
        "identified": (minority & breaks_shortcut).sum().item() / breaks_shortcut.sum().item(),
        "erm": accuracy(erm, x[breaks_shortcut], y[breaks_shortcut]),
        "tab": accuracy(tab, x[breaks_shortcut], y[breaks_shortcut]),
    }
    print(f"{parts.minority.sum()} samples look like a minority, {result['identified']:.0%} of those that are one")
    print(f"accuracy where the shortcut fails: ERM {result['erm']:.1%}, TAB {result['tab']:.1%}")
    return result


if __name__ == "__main__":
    main()
