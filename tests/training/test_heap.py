"""The heap of trainings on the CPU."""

import ctypes
import platform
from collections.abc import Iterator

import pytest

from evenhand.training import heap
from evenhand.training.heap import keep_freed_memory


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in heap.OWN:
        monkeypatch.delenv(name, raising=False)
    keep_freed_memory.cache_clear()
    yield
    keep_freed_memory.cache_clear()


class Library:
    """A C library that notes what it is told."""

    def __init__(self, _: object) -> None:
        self.mallopt = lambda *numbers: told.append(numbers) or 1


told: list[tuple[int, int]] = []


def test_it_is_told_once_to_keep_256_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    told.clear()
    monkeypatch.setattr(ctypes, "CDLL", Library)
    assert keep_freed_memory() and keep_freed_memory()
    assert told == [(-1, 256 * 2**20), (-3, 32 * 2**20)]


@pytest.mark.parametrize("name", sorted(heap.OWN))
def test_what_the_environment_says_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told.clear()
    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.setenv(name, "131072")
    assert not keep_freed_memory() and not told


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert not keep_freed_memory()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's heap is set up")
def test_glibc_takes_it() -> None:
    assert keep_freed_memory()
