"""Plain PyTorch: indices, the balanced sampler, and a recorder that several processes share."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as multiprocessing
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from evenhand import BalancedSampler, LossHistory, indexed, partition, rebalance, sample_weights
from evenhand.integrations.torch import Recorder, balanced_loader


class Dicts(Dataset):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, position: int) -> dict[str, float]:
        return {"x": 10.0 * position}


def parts(seed: int = 0, num_samples: int = 60):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, num_samples)
    late = random.random(num_samples) < 0.2
    return partition(np.where(late, 2.0, 0.1)[:, None] + 0.01 * random.random((num_samples, 4)), labels)


# -- indexed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_of_an_indexed_dataset_yields_each_sample_with_its_position(num_workers: int) -> None:
    x, y = torch.arange(7.0) * 10, torch.arange(7) % 2
    loader = DataLoader(indexed(TensorDataset(x, y)), batch_size=3, shuffle=True, num_workers=num_workers)
    seen = []
    for inputs, labels, index in loader:
        assert index.dtype == torch.int64
        assert torch.equal(inputs, x[index]) and torch.equal(labels, y[index])
        seen += index.tolist()
    assert sorted(seen) == list(range(7))


def test_dicts_get_a_key_and_single_values_become_pairs() -> None:
    batch = next(iter(DataLoader(indexed(Dicts()), batch_size=5)))
    assert batch["x"].tolist() == [0, 10, 20, 30, 40] and batch["index"].tolist() == [0, 1, 2, 3, 4]
    assert indexed([7.0, 8.0])[-1] == (8.0, 1)
    with pytest.raises(IndexError):
        indexed([7.0])[1]


def test_a_subset_of_an_indexed_dataset_keeps_the_positions_of_the_whole() -> None:
    data = indexed(TensorDataset(torch.arange(6.0)))
    for dataset, wanted in (
        (Subset(data, [4, 4, 1]), [4, 4, 1]),
        (indexed(Subset(data.dataset, [4, 1])), [0, 1]),
    ):
        (_, index), *_ = DataLoader(dataset, batch_size=3)
        assert index.tolist() == wanted
    assert indexed(data) is data


def test_what_has_no_positions_or_has_an_index_already_is_refused() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([1])

    with pytest.raises(ValueError, match="must be map-style.* got Stream; read a stream into a list"):
        indexed(Stream())
    with pytest.raises(ValueError, match='have an "index" already; rename it'):
        indexed([{"index": 3}])[0]


# -- the sampler -----------------------------------------------------------------------------------------


def test_an_epoch_is_the_balanced_multiset_in_an_order_of_its_own() -> None:
    found = parts()
    sampler, again = BalancedSampler(found, seed=3), BalancedSampler(found, seed=3)
    first = list(sampler)
    assert len(first) == len(sampler) == len(rebalance(found, seed=3))
    assert Counter(first) == Counter(rebalance(found, seed=3))
    assert first == list(sampler) == list(again)
    sampler.set_epoch(1)
    assert list(sampler) != first and Counter(sampler) == Counter(first)


def test_fresh_draws_make_both_clusters_of_a_class_equally_likely() -> None:
    found = parts()
    sampler = BalancedSampler(found, num_samples=40_000)
    drawn = np.bincount(list(sampler), minlength=60) / 40_000
    wanted = sample_weights(found) / sample_weights(found).sum()
    assert np.abs(drawn - wanted).max() < 6 * np.sqrt(wanted.max() / 40_000)
    for label in found.classes:
        own = found.labels == label
        large, small = drawn[own & ~found.minority].sum(), drawn[own & found.minority].sum()
        assert large == pytest.approx(small, abs=0.02)
    before = list(sampler)
    sampler.set_epoch(1)
    assert Counter(sampler) != Counter(before), "every epoch draws anew"


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(0, 5), st.none() | st.integers(1, 70), st.integers(0, 3))
def test_processes_share_an_epoch_completely_and_equally(num_replicas, seed, num_samples, epoch) -> None:
    def sampler(num_replicas: int, rank: int) -> BalancedSampler:
        made = BalancedSampler(
            parts(), num_samples=num_samples, seed=seed, num_replicas=num_replicas, rank=rank
        )
        made.set_epoch(epoch)
        return made

    whole = list(sampler(1, 0))
    shares = [list(sampler(num_replicas, rank)) for rank in range(num_replicas)]
    length = len(sampler(num_replicas, 0))
    assert {len(share) for share in shares} == {length}
    merged = [row for step in zip(*shares, strict=True) for row in step]
    assert merged[: len(whole)] == whole, "together they visit every row once"
    assert len(merged) - len(whole) < num_replicas, "no process pads with more than one row"
    repeats = -(-len(merged) // len(whole))
    assert merged[len(whole) :] == (whole * repeats)[: len(merged) - len(whole)]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_samples": 0}, "num_samples must be at least 1, or None for the multiset, got 0"),
        ({"rank": 1}, "give num_replicas and rank, or neither, got None and 1"),
        ({"rank": 2, "num_replicas": 2}, "rank must be between 0 and 1, got 2"),
    ],
)
def test_impossible_samplers_are_refused(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        BalancedSampler(parts(), **arguments)


def test_a_balanced_loader_is_the_loader_with_another_sampler() -> None:
    data, found = TensorDataset(torch.arange(60)), parts()
    loader = DataLoader(data, batch_size=8, shuffle=True, drop_last=True, collate_fn=lambda items: len(items))
    balanced = balanced_loader(loader, found, seed=1)
    assert set(balanced) == {8} and len(balanced) == len(rebalance(found)) // 8 and len(loader) == 7
    seen = torch.cat([x for (x,) in balanced_loader(DataLoader(data, batch_size=8), found, seed=1)])
    assert Counter(seen.tolist()) == Counter(rebalance(found, seed=1))
    with pytest.raises(ValueError, match="partition must be of the loader's 5 samples, got one of 60"):
        balanced_loader(DataLoader(Dicts()), found)
    with pytest.raises(ValueError, match="loader must have a batch_size"):
        balanced_loader(DataLoader(data, batch_size=None), found)


# -- the recorder ----------------------------------------------------------------------------------------


def batches(seed: int, num_samples: int = 20):
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(num_samples, generator=random)
    return [(index, torch.rand(len(index), generator=random)) for index in order.split(6)]


@pytest.mark.parametrize("filed", [False, True])
@pytest.mark.parametrize("stop", [0, 2, 4])
def test_a_recorder_continues_from_its_state_as_if_nothing_had_happened(filed, stop, tmp_path: Path) -> None:
    path = tmp_path / "losses.npy" if filed else None
    reference, recorder = LossHistory(20), Recorder(20, path=path)
    for epoch in range(3):
        for step, (index, losses) in enumerate(batches(epoch)):
            if epoch == 1 and step == stop:
                state = {name: tensor.clone() for name, tensor in recorder.state_dict().items()}
                recorder.record(index, losses + 1)  # lost with the process
                if stop == 4:
                    recorder.end_epoch()
                recorder = Recorder(20, path=path)
                recorder.load_state_dict(state)
            recorder.record(index, losses)
            reference.record(index, losses)
        recorder.end_epoch()
        reference.end_epoch()
    assert torch.equal(recorder.history.losses, reference.losses)
    recorder.end_epoch()
    assert recorder.history.num_epochs == 3, "an epoch without losses is none"


def test_a_recorder_keeps_copies_since_buffers_are_used_again() -> None:
    recorder, index, losses = Recorder(2), torch.tensor([0]), torch.tensor([[0.25, 9.0]])
    recorder.record(index, losses[:, 0])
    index.fill_(1)
    losses.fill_(0.5)
    recorder.record(index, losses[:, 0])
    recorder.end_epoch()
    assert recorder.history.losses.tolist() == [[0.25], [0.5]]


def test_a_recorder_says_what_is_wrong(tmp_path: Path) -> None:
    recorder = Recorder(3)
    with pytest.raises(ValueError, match="one value per sample, got shape \\(\\); .*reduction='none'"):
        recorder.record([0], 0.5)
    with pytest.raises(ValueError, match="equally long, got \\(1,\\) and \\(2,\\)"):
        recorder.record([0], [0.5, 0.5])
    recorder.record([3], [0.5])
    with pytest.raises(ValueError, match="index must be between 0 and 2, got 3"):
        recorder.end_epoch()
    with pytest.raises(ValueError, match="should be of 3 samples, but it is of 4; continue with the dataset"):
        recorder.load_state_dict(Recorder(4).state_dict())
    filed = Recorder(3, path=tmp_path / "a.npy")
    filed.record([0], [1.0])
    filed.end_epoch()
    with pytest.raises(ValueError, match="b.npy should hold the checkpoint's 1 epochs, but it holds 0"):
        Recorder(3, path=tmp_path / "b.npy").load_state_dict(filed.state_dict())


def in_two_processes(rank: int, folder: Path) -> None:
    """Each process sees its half; what each ends with is written for the test to compare."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    seen = []
    sampler = BalancedSampler(parts())
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen.append(list(sampler))
    np.save(folder / f"seen-{rank}.npy", np.array(seen))
    for name, path in (("memory", None), ("file", folder / "losses.npy")):
        recorder = Recorder(20, path=path)
        for epoch in range(3):
            for step, (index, losses) in enumerate(batches(epoch)):
                if epoch == 1 and step == 2:  # a checkpoint in the middle of an epoch, and back
                    state = recorder.state_dict()
                    recorder = Recorder(20, path=path)
                    recorder.load_state_dict(state)
                if step % 2 == rank:
                    recorder.record(index, losses)
            recorder.end_epoch()
        np.save(folder / f"{name}-{rank}.npy", recorder.history.losses.numpy())
    torch.distributed.destroy_process_group()


def test_two_processes_see_everything_once_and_both_know_the_whole_history(tmp_path: Path) -> None:
    multiprocessing.spawn(in_two_processes, (tmp_path,), nprocs=2)
    reference = LossHistory(20)
    for epoch in range(3):
        for index, losses in batches(epoch):
            reference.record(index, losses)
        reference.end_epoch()
    for name in ("memory-0", "memory-1", "file-0", "file-1", "losses"):
        assert np.array_equal(np.load(tmp_path / f"{name}.npy"), reference.losses), name
    first, second = (np.load(tmp_path / f"seen-{rank}.npy") for rank in (0, 1))
    for epoch in range(2):
        alone = BalancedSampler(parts())
        alone.set_epoch(epoch)
        assert np.stack([first[epoch], second[epoch]], axis=1).ravel()[: len(alone)].tolist() == list(alone)
