"""LossHistory: what was recorded is what comes out, in memory and on disk."""

import copy
import itertools
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand import LossHistory
from evenhand.core import arrays
from evenhand.core.history import LossSummary
from evenhand.integrations.torch import Recorder


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 9), st.integers(0, 9))
@settings(max_examples=40)
def test_any_batches_in_any_order_give_the_losses_back(
    samples: int, epochs: int, batch: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    wanted = random.exponential(size=(samples, epochs)).astype(np.float32)
    history = LossHistory(samples)
    for epoch in range(epochs):
        order = random.permutation(samples)
        for start in range(0, samples, batch):
            chosen = order[start : start + batch]
            history.record(chosen, wanted[chosen, epoch])
        history.end_epoch()
    assert history.num_epochs == epochs and len(history) == samples
    np.testing.assert_array_equal(history.losses.numpy(), wanted)


def test_a_sample_seen_twice_has_its_mean_and_an_unseen_one_its_last_value() -> None:
    history = LossHistory(3)
    history.record([0, 0, 1], [1.0, 3.0, 4.0])
    history.end_epoch()
    assert history.losses.tolist() == [[2.0], [4.0], [3.0]]  # never seen: the mean of those seen
    history.record([1], [6.0])
    history.end_epoch()
    assert history.losses[:, 1].tolist() == [2.0, 6.0, 3.0]


def test_tensors_with_gradients_are_detached() -> None:
    losses = (torch.ones(2, requires_grad=True) * 2).abs()
    history = LossHistory(2)
    history.record(torch.tensor([0, 1]), losses)
    history.end_epoch()
    assert not history.losses.requires_grad and history.losses.tolist() == [[2.0], [2.0]]


@pytest.mark.parametrize(
    "index, losses, message",
    [
        ([0, 1], 0.5, r"losses must hold one value per sample, got shape \(\); .*reduction='none'"),
        ([0, 1], [[0.5], [0.5]], r"one value per sample, got shape \(2, 1\)"),
        ([0, 1], [0.5], r"index and losses must be equally long, got \(2,\) and \(1,\)"),
        ([0, 3], [0.5, 0.5], "index must be between 0 and 2, got 3"),
        ([0, -1], [0.5, 0.5], "index must be between 0 and 2, got -1"),
        ([0, 1], [0.5, float("nan")], "losses must be finite, got nan for sample 1"),
        ([0, 1], [0.5, float("inf")], "losses must be finite, got inf for sample 1"),
        ([0.0, 1.0], [0.5, 0.5], "index must hold whole numbers"),
    ],
)
def test_wrong_input_is_refused_and_leaves_no_trace(index, losses, message: str) -> None:
    history = LossHistory(3)
    history.record([0, 1, 2], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=message):
        history.record(index, losses)
    history.end_epoch()
    assert history.losses.tolist() == [[1.0], [2.0], [3.0]]


def test_an_epoch_without_losses_is_refused() -> None:
    with pytest.raises(ValueError, match="none was recorded"):
        LossHistory(3).end_epoch()
    with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
        LossHistory(0)


def record(history: LossHistory, epochs: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).exponential(size=(len(history), epochs)).astype(np.float32)
    for epoch in range(epochs):
        history.record(np.arange(len(history)), values[:, epoch])
        history.end_epoch()
    return values


def test_a_file_can_be_read_at_any_time_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "losses.npy"
    first = record(LossHistory(5, path=path), 2)
    np.testing.assert_array_equal(np.load(path, mmap_mode="r"), first)
    again = LossHistory(5, path=path)
    assert again.num_epochs == 2
    second = record(again, 3, seed=1)
    np.testing.assert_array_equal(np.load(path), np.hstack([first, second]))
    again.truncate(1)
    np.testing.assert_array_equal(LossHistory(5, path=path).losses, first[:, :1])
    record(again, 1, seed=2)
    assert np.load(path).shape == (5, 2)


def test_a_column_cut_short_by_a_crash_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "losses.npy"
    values = record(LossHistory(5, path=path), 3)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 3)
    history = LossHistory(5, path=path)
    assert history.num_epochs == 2
    record(history, 1, seed=1)
    np.testing.assert_array_equal(np.load(path)[:, :2], values[:, :2])


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "other.npy"
    np.save(path, np.arange(4))
    with pytest.raises(ValueError, match="should be a loss history"):
        LossHistory(4, path=path)
    path.write_text("hello")
    with pytest.raises(ValueError, match="should be a loss history"):
        LossHistory(4, path=path)
    record(LossHistory(5, path=tmp_path / "losses.npy"), 1)
    with pytest.raises(ValueError, match=r"should hold 4 samples as float32, but it holds 5"):
        LossHistory(4, path=tmp_path / "losses.npy")


def test_float16_keeps_its_error_bound_and_bool_the_majority() -> None:
    half = LossHistory(4, dtype=torch.float16)
    half.record(range(4), [0.1, 1.2345678, 60000.0, 1e9])
    half.end_epoch()
    kept = half.losses.double().numpy()[:, 0]
    np.testing.assert_allclose(kept[:3], [0.1, 1.2345678, 60000.0], rtol=2**-11)
    assert kept[3] == 65504
    small = torch.rand(500) * 6e-5  # where float16 has fewer digits
    half = LossHistory(500, dtype=torch.float16)
    half.record(range(500), small)
    half.end_epoch()
    np.testing.assert_allclose(half.losses[:, 0].double(), small.double(), rtol=0, atol=2**-25)
    hits = LossHistory(2, dtype=torch.bool)
    hits.record(torch.tensor([0, 1]), torch.tensor([True, False]))
    hits.end_epoch()
    assert hits.losses.tolist() == [[True], [False]]
    with pytest.raises(ValueError, match="dtype must be"):
        LossHistory(2, dtype=torch.int64)


def test_an_empty_batch_is_not_an_epoch() -> None:
    history = LossHistory(2)
    for nothing in (np.zeros(0, int), [], torch.empty(0)):
        history.record(nothing, nothing)
    with pytest.raises(ValueError, match="none was recorded"):
        history.end_epoch()


def test_what_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="losses must be real numbers, got <U"):
        LossHistory(2).record([0], ["a"])


def test_any_layout_of_an_array_is_taken() -> None:
    values = np.arange(6.0, dtype=np.float64)[::-2]
    values.flags.writeable = False
    history = LossHistory(3)
    history.record(np.arange(3, dtype=np.uint8)[::-1], values)
    history.end_epoch()
    assert history.losses.tolist() == [[1.0], [3.0], [5.0]]


def test_files_are_synced_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr("os.fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink()))
    path = tmp_path / "losses.npy"
    history = LossHistory(2, path=path)
    for epoch in range(3):
        history.record([0, 1], [1.0, epoch])
        history.end_epoch()
        assert np.load(path).shape == (2, epoch + 1)
    assert len(synced) == 1, "the new file"
    history.sync()
    assert synced[1:] == [path]


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("full", [0, 1, 2])
def test_an_epoch_that_could_not_be_written_is_not_mixed_with_the_next(
    full: int, wait: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, refused = LossHistory(2, path=tmp_path / "losses.npy"), 0
    for epoch in range(5):
        history.record([0, 1], [1.0 + epoch, 2.0])
        with monkeypatch.context() as broken:
            if epoch == full:
                broken.setattr(arrays, "_write", _full)
            try:  # as a loop may that would rather go on
                history.end_epoch(wait=wait)
                history.fetch()
            except OSError:
                refused += 1
    assert refused == 1
    assert history.losses.tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0], [2.0] * 5]


def test_a_file_that_somebody_cut_costs_no_epoch_but_those_it_lost(tmp_path: Path) -> None:
    history = LossHistory(2, path=tmp_path / "losses.npy")
    for epoch in range(3):
        history.record([0, 1], [1.0 + epoch, 2.0])
        history.end_epoch(wait=False)
    LossHistory(2, path=tmp_path / "losses.npy").truncate(1)
    for _ in range(2):
        with pytest.raises(ValueError, match="somebody has cut it"):
            history.flush()
    history.truncate(1)
    for epoch in range(2):
        history.record([0, 1], [10.0 + epoch, 2.0])
        history.end_epoch(wait=False)
    assert history.losses.tolist() == [[1.0, 10.0, 11.0], [2.0] * 3]


@pytest.mark.parametrize("wait", [True, False])
def test_wrong_values_of_later_epochs_are_named_when_the_epoch_ends(wait: bool, tmp_path: Path) -> None:
    history = LossHistory(3, path=tmp_path / "losses.npy")
    for index, loss, said in (
        (0, 1.0, ""),
        (1, np.nan, r"sample 1 had nan \(and 0 others\); the epoch is dropped"),
        (3, 1.0, "1 indices were not; the epoch is dropped"),
        (-1, 1.0, "1 indices were not; the epoch is dropped"),
        (0, 2.0, ""),
    ):
        history.record(range(3), [1.0, 1.0, 1.0])
        history.record(torch.tensor([index]), torch.tensor([loss]))
        if said:
            with pytest.raises(ValueError, match=said):
                history.end_epoch(wait=wait)
                history.flush()
        else:
            history.end_epoch(wait=wait)
    assert history.losses[0].tolist() == [1.0, 1.5] and history.num_epochs == 2


def test_indices_of_every_whole_type_are_taken_and_checked() -> None:
    history = LossHistory(3)
    for dtype in (np.int64, np.int32, np.int8, np.uint8, np.uint16, np.uint32, np.uint64):
        history.record(np.arange(3, dtype=dtype), np.ones(3))
        with pytest.raises(ValueError, match="index must be between 0 and 2, got 7"):
            history.record(np.array([0, 7], dtype=dtype), np.ones(2))
    history.end_epoch()
    assert history.losses.tolist() == [[1.0]] * 3


WHOLE = (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.uint64)
REAL = (*WHOLE, torch.bool, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn)


WAYS = [(LossHistory, {}), (LossHistory, {"later": True}), (LossSummary, {}), (Recorder, {})]


@pytest.mark.parametrize("kind, how", WAYS)
def test_batches_of_different_types_make_one_epoch(kind, how: dict[str, bool]) -> None:
    for indices, values in ((WHOLE, [torch.float32]), ([torch.int64], REAL)):
        for first, second in itertools.product(indices, values):
            history = kind(2, of="loss") if kind is LossSummary else kind(2)
            for _ in range(2):  # the second epoch shows that the first has left nothing behind
                history.record(torch.tensor([0]).to(first), torch.tensor([1.0]).to(second), **how)
                history.record(torch.tensor([1]), torch.tensor([0.5]), **how)
                history.record(torch.tensor([1]).to(first), torch.tensor([1]).to(second), **how)
                if kind is not LossSummary:
                    history.end_epoch()
            if kind is LossSummary:
                assert history.values.tolist() == [1.0, 0.75]
            else:
                losses = (history if kind is LossHistory else history.history).losses
                assert losses.tolist() == [[1.0, 1.0], [0.75, 0.75]], (first, second)


def test_losses_keep_their_size_beside_half_precision() -> None:
    history = LossHistory(2)
    history.record([0], torch.ones(1, dtype=torch.float16))
    history.record([1], torch.tensor([100_000]))  # float16 has no such number
    history.end_epoch()
    assert history.losses.tolist() == [[1.0], [100_000.0]]


@pytest.mark.filterwarnings("ignore")  # torch warns of its own prototypes
@pytest.mark.parametrize("kind, how", WAYS)
@pytest.mark.parametrize(
    "odd, message",
    [
        (lambda x: x.to("meta"), "must have values, got a tensor on the meta device"),
        (lambda x: x.to_sparse(), "must be a dense tensor, got a torch.sparse_coo one; use to_dense"),
        (lambda x: torch.nested.nested_tensor([x]), "must be a dense tensor, got a nested one"),
        (
            lambda x: torch.quantize_per_tensor(x.float(), 1.0, 0, torch.quint8),
            "must be a dense tensor, got a quantized one; use .* dequantize",
        ),
        (lambda x: x.to(torch.complex64), "must (be real|hold whole) numbers, got torch.complex64"),
    ],
)
def test_tensors_without_plain_values_are_refused_and_leave_no_trace(kind, how, odd, message: str) -> None:
    history, index, losses = kind(2), torch.tensor([0, 1]), torch.ones(2)
    for batch, name in (((odd(index), losses), "index"), ((index, odd(losses)), "losses")):
        with pytest.raises(ValueError, match=f"{name} {message}"):
            history.record(*batch, **how)
    history.record(index, losses)
    if kind is not LossSummary:
        history.end_epoch()


@pytest.mark.parametrize("kind", [LossHistory, LossSummary, Recorder])
def test_the_number_of_samples_is_a_whole_number(kind) -> None:
    for number in (3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3)):
        made = kind(number)
        assert made.num_samples == 3 and type(made.num_samples) is int
    for wrong in (True, np.True_, torch.tensor(True), 3.0, np.float32(3), "3", None, np.array([3])):
        with pytest.raises(ValueError, match="num_samples must be a whole number, got "):
            kind(wrong)


def test_epochs_are_a_whole_number() -> None:
    history = LossHistory(2)
    record(history, 2)
    for wrong in (True, 1.0):
        with pytest.raises(ValueError, match=f"num_epochs must be a whole number, got {wrong}"):
            history.truncate(wrong)
    with pytest.raises(ValueError, match="num_epochs must be at least 0, got -1"):
        history.truncate(-1)
    history.truncate(np.int64(1))
    assert history.num_epochs == 1


def test_a_device_without_values_is_refused() -> None:
    for kind in (LossHistory, LossSummary):
        with pytest.raises(ValueError, match="device must hold values, got meta; use cpu or cuda"):
            kind(2, device="meta")


def test_a_write_that_fails_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "losses.npy"
    history = LossHistory(2, path=path)
    for epoch in range(2):
        history.record([0, 1], [1.0 + epoch, 2.0])
        with monkeypatch.context() as broken, pytest.raises(OSError, match="disk is full"):
            broken.setattr(arrays, "_write", _full)
            history.end_epoch()
        assert history.num_epochs == epoch + 1 and path.exists() == (epoch > 0)
        assert LossHistory(2, path=path).num_epochs == epoch
        history.end_epoch()
        with pytest.raises(ValueError, match="none was recorded"):
            history.end_epoch()
    np.testing.assert_array_equal(np.load(path, mmap_mode="r"), [[1, 2], [2, 2]])


def test_an_ended_epoch_is_written_at_the_next_fetch_or_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, values = tmp_path / "losses.npy", np.arange(15.0).reshape(3, 5)
    history = LossHistory(3, path=path)
    for epoch in range(4):
        history.record(range(3), values[:, epoch])
        if epoch == 2:
            assert np.load(path).shape == (3, 1), "not before there is other work"
            history.fetch()
            assert np.load(path).shape == (3, 2)
        history.end_epoch(wait=False)
        assert history.num_epochs == epoch + 1
    np.testing.assert_array_equal(np.load(path), values[:, :3])
    np.testing.assert_array_equal(history.losses, values[:, :4])
    history.record(range(3), values[:, 4])
    history.end_epoch(wait=False)
    with monkeypatch.context() as patched:
        patched.setattr(arrays, "_write", _full)
        for need in (history.flush, history.fetch, history.sync, lambda: history.losses):
            with pytest.raises(OSError, match="disk is full"):
                need()
        assert LossHistory(3, path=path).num_epochs == 4
    np.testing.assert_array_equal(history.losses, values)  # it did not get lost
    history.record([1], [7.0])
    history.end_epoch(wait=False)
    np.testing.assert_array_equal(history.losses[:, 5], [4, 7, 14])
    history.truncate(1)
    np.testing.assert_array_equal(np.load(path), values[:, :1])


def test_tensors_may_change_once_the_epoch_has_ended() -> None:
    history, losses = LossHistory(2), torch.tensor([1.0, 2.0])
    for epoch in range(3):
        losses.fill_(1.0 + epoch)
        history.record(torch.arange(2), losses, later=True)
        if epoch == 1:
            history.fetch()
            losses.fill_(9.0)
        history.end_epoch(wait=False)
        losses.fill_(9.0)
    assert history.losses.tolist() == [[1.0, 2.0, 3.0]] * 2


def test_what_is_looked_at_later_is_still_refused() -> None:
    history = LossHistory(2)
    for index, losses in (([0, 2], [1.0, 1.0]), ([0, 1], [1.0, float("nan")])):
        history.record(torch.tensor(index), torch.tensor(losses), later=True)
        with pytest.raises(ValueError, match="the epoch is dropped"):
            history.end_epoch()
    history.record(torch.tensor([1, 0]), torch.tensor([True, False]), later=True)
    history.fetch()
    history.record([1], [0.0])
    history.end_epoch()
    assert history.losses.tolist() == [[0.0], [0.5]]


def test_an_epoch_that_is_found_broken_later_is_dropped(tmp_path: Path) -> None:
    history = LossHistory(2, path=tmp_path / "losses.npy")
    for number in range(4):
        history.record([0, 1], [1.0, number])
        if number == 2:
            history._log.sums[1] = torch.inf  # as a GPU's losses may be, which are not looked at before
        if number < 3:
            history.end_epoch(wait=False)
        else:
            with pytest.raises(ValueError, match="the epoch is dropped"):
                history.end_epoch(wait=False)
            assert history.num_epochs == 2
            history.end_epoch(wait=False)  # this epoch is still there
    np.testing.assert_array_equal(history.losses, [[1, 1, 1], [0, 1, 3]])
    with pytest.raises(ValueError, match="none was recorded"):
        history.end_epoch(wait=False)


def test_more_losses_than_are_noted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenhand.core.history._MOST_LOGGED", 7)
    history, index = LossHistory(20), torch.arange(60) % 20
    values = torch.rand(60)
    for part in (slice(0, 5), slice(5, 9), slice(9, 40), slice(40, 46), slice(46, 60)):
        history.record(index[part], values[part])
    values_before = values.clone()
    values.zero_()  # what was recorded is a copy
    history.end_epoch()
    torch.testing.assert_close(history.losses[:, 0], values_before.view(3, 20).mean(0))


def _full(*_: object) -> None:
    raise OSError("disk is full")


def test_a_file_that_lost_its_end_can_be_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "losses.npy"
    values = record(LossHistory(5, path=path), 3)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 25)
    np.testing.assert_array_equal(LossHistory(5, path=path).losses, values[:, :1])


def test_float16_keeps_negative_values_in_range() -> None:
    history = LossHistory(1, dtype=torch.float16)
    history.record([0], [-1e9])
    history.end_epoch()
    assert history.losses.tolist() == [[-65504.0]]


def test_truncating_to_more_than_there_is_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot truncate to 2 epochs, the history has 0"):
        LossHistory(3).truncate(2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_is_not_waited_for_before_the_epoch_ends() -> None:
    history = LossHistory(1000)
    losses = torch.rand(1000, device="cuda")
    history.record(torch.arange(1000), losses)
    torch.cuda.set_sync_debug_mode("error")
    try:
        history.record(torch.arange(1000), losses)
        history.record(torch.arange(1000, device="cuda"), losses)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    history.end_epoch()
    torch.testing.assert_close(history.losses[:, 0], losses.cpu())
    history.record(torch.arange(1000, device="cuda"), losses > 0.5, later=True)
    history.fetch()
    history.end_epoch()
    torch.testing.assert_close(history.losses[:, 1], (losses > 0.5).cpu().float())
    history.truncate(1)
    for index, value in ((1000, 1.0), (-1, 1.0), (0, float("nan"))):
        history.record(torch.tensor([index]), torch.tensor([value], device="cuda"))
        with pytest.raises(ValueError, match="the epoch is dropped"):
            history.end_epoch()
    assert history.num_epochs == 1


def test_labels_taken_for_positions_are_noticed() -> None:
    history = LossHistory(300)
    for _ in range(3):
        history.record(torch.arange(100) % 3, torch.ones(100))
    with pytest.raises(
        ValueError, match="300 losses went to only 3 of 300 samples; are the positions those of"
    ):
        history.end_epoch()
    assert history.num_epochs == 0


def test_samples_without_a_loss_are_counted_once() -> None:
    history = LossHistory(10)
    with pytest.warns(UserWarning, match="4 of 10 samples had no loss in the first epoch"):
        history.record(range(6), torch.ones(6))
        history.end_epoch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history.record(range(6), torch.ones(6))
        history.end_epoch()


# -- processes and modes ------- ------------------------------------------------------------------------


def two_epochs(path: Path | None, wait: bool = False) -> LossHistory:
    """A history whose second epoch is still to be written."""
    history = LossHistory(3, path=path)
    for epoch in range(2):
        history.record(range(3), [epoch + 1.0] * 3)
        history.end_epoch(wait=wait)
    return history


def test_a_forked_process_knows_what_was_written_and_never_writes_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "losses.npy"
    history, (reader, writer) = two_epochs(path), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # until the other process has written more
        os._exit(0 if history.losses.shape == (3, 4) and history.num_epochs == 1 else 1)
    for epoch in range(2):
        history.record(range(3), [epoch + 3.0] * 3)
        history.end_epoch()
    os.close(reader)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    assert np.load(path).tolist() == history.losses.tolist() == [[1.0, 2.0, 3.0, 4.0]] * 3


@pytest.mark.parametrize("in_file", [False, True])
def test_copies_and_pickles_know_every_ended_epoch(in_file: bool, tmp_path: Path) -> None:
    history = two_epochs(tmp_path / "losses.npy" if in_file else None)
    for other in (copy.deepcopy(history), pickle.loads(pickle.dumps(history))):
        assert history._ended is None and other._ended is None, "written before"
        assert torch.equal(other.losses, history.losses) and other.losses.shape == (3, 2)
        other.flush()


def test_two_histories_cannot_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "losses.npy"
    first, second = LossHistory(3, path=path), LossHistory(3, path=path)
    for _ in range(2):
        first.record(range(3), [1.0] * 3)
        first.end_epoch()
    second.record(range(3), [1.0] * 3)
    second.end_epoch()  # it does not know that there is one
    first.record(range(3), [1.0] * 3)
    with pytest.raises(ValueError, match="should hold 2 epochs, but somebody has cut it; only one"):
        first.end_epoch()


def test_another_folder_default_or_mode_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    history, summary = LossHistory(3, path="losses.npy"), LossSummary(3)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            for epoch in range(3):
                monkeypatch.chdir(tmp_path.parent if epoch else tmp_path)
                history.record(torch.arange(3), torch.full((3,), epoch + 1.0))
                history.end_epoch(wait=False)
                LossSummary(3).record(torch.arange(3), torch.ones(3))
        history.record(torch.arange(3), torch.ones(3))
        history.end_epoch()
        summary.record(torch.arange(3), torch.ones(3))
    finally:
        torch.set_default_dtype(torch.float32)
    assert history.losses.tolist() == [[1.0, 2.0, 3.0, 1.0]] * 3 and history.losses.dtype == torch.float32
