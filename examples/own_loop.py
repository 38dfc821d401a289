"""TAB inside your own training loop: record losses, split them, train again on the balanced set.

Run it with `python examples/own_loop.py`; the data are made here, so nothing is downloaded.
"""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

from evenhand import LossHistory, partition, rebalance


def make_data(num_samples: int, aligned: float, seed: int) -> tuple[TensorDataset, torch.Tensor]:
    """Two classes; feature 0 gives most samples away, the true cause is faint in five others."""
    random = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (num_samples,), generator=random)
    follows = torch.rand(num_samples, generator=random) < aligned
    x = torch.randn(num_samples, 20, generator=random)
    x[:, 0] = 4.0 * torch.where(follows, y, 1 - y) - 2 + 0.3 * x[:, 0]
    x[:, 1:6] += 0.5 * (2.0 * y - 1)[:, None]
    return TensorDataset(x, y, torch.arange(num_samples)), ~follows


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))


def train(
    dataset: torch.utils.data.Dataset, history: LossHistory | None = None, epochs: int = 6
) -> torch.nn.Module:
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


def main() -> dict[str, float]:
    train_set, breaks_shortcut = make_data(2000, aligned=0.95, seed=0)
    test_set, test_breaks = make_data(2000, aligned=0.5, seed=1)
    _, y, _ = train_set.tensors

    history = LossHistory(len(train_set))
    erm = train(train_set, history)
    parts = partition(history.losses, y)
    tab = train(Subset(train_set, rebalance(parts, seed=0)))

    minority = torch.from_numpy(parts.minority)
    test_x, test_y, _ = test_set.tensors
    correct = {name: model(test_x).argmax(1) == test_y for name, model in (("erm", erm), ("tab", tab))}
    result = {
        "identified": (minority & breaks_shortcut).sum().item() / breaks_shortcut.sum().item(),
        "purity": (minority & breaks_shortcut).sum().item() / minority.sum().item(),
        **{name: hits[test_breaks].float().mean().item() for name, hits in correct.items()},
    }
    print(f"{minority.sum()} of {len(minority)} are learned late; {result['purity']:.0%} break the shortcut")
    print(f"test accuracy where the shortcut fails: ERM {result['erm']:.1%}, TAB {result['tab']:.1%}")
    return result


if __name__ == "__main__":
    main()
