"""Fuzz the readers: `python tests/reliability/fuzz/fuzz.py --cases 3000 --seed 0 [TARGET …]`.

With `--atheris TARGET` the coverage-guided fuzzer drives one target instead (needs the package atheris):
`python tests/reliability/fuzz/fuzz.py --atheris idx --cases 20000`.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
SEEDS = HERE / "seeds"
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))


class Defect(Exception):
    """A reader did something else than to read, or to say which file is wrong."""


class Place:
    """A folder with one target's files, in memory where the system has such a place."""

    def __init__(self, target: object) -> None:
        self.target = target
        shared = Path("/dev/shm")
        self._kept = tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None)
        self.folder = Path(self._kept.name) / "now" / "t"
        self.sound = Path(self._kept.name) / "sound" / "t"  # of the same name, which caches know a file by
        self.sound.mkdir(parents=True)
        with relaxed():
            target.prepare(self.sound)
        self.original = (self.sound / target.file).read_bytes()
        self.renew()

    def renew(self) -> None:
        """The sound files again, whatever a reader may have set aside or moved."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.sound, self.folder, symlinks=True)
        for link in self.folder.rglob("*"):  # links lead into the copy
            if link.is_symlink():
                inside = os.path.relpath(link.readlink(), self.sound)
                link.unlink()
                link.symlink_to(self.folder / inside)

    def seeds(self) -> list[bytes]:
        kept = sorted((SEEDS / self.target.name).glob("*"))
        return [self.original, *(file.read_bytes() for file in kept)]

    def try_(self, data: bytes) -> str:
        """Read these bytes; gives "read" or "refused", and raises Defect for anything else."""
        try:
            if self.target.parse is not None:
                self.target.parse(data)
                return "read"
            self._read(data)
        except ValueError as error:
            text = str(error)
            if type(error).__module__ in ("builtins", "json.decoder") and type(error) is not ValueError:
                raise Defect(f"{type(error).__name__} came out: {text[:200]}") from error
            if not text or (self.target.named and Path(self.target.file).name.split(".")[0] not in text):
                raise Defect(f"the error does not name the file: {text[:200]}") from error
            self.tidy()
            return "refused"
        except OSError as error:
            if error.filename is None:
                raise Defect(f"{type(error).__name__} without a file: {str(error)[:200]}") from error
            self.tidy()
            return "refused"
        except Exception as error:
            raise Defect(f"{type(error).__name__}: {str(error)[:200]}") from error
        self.tidy()
        return "read"

    def _read(self, data: bytes) -> None:
        file = self.folder / self.target.file
        if not file.parent.is_dir():
            self.renew()
        file.write_bytes(data)
        with relaxed():
            self.target.read(self.folder)

    def tidy(self) -> None:
        """Files that a reader has set aside would add up."""
        if self.target.parse is None and any(self.folder.rglob("*.damaged-*")):
            self.renew()

    def close(self) -> None:
        self._kept.cleanup()


@contextmanager
def relaxed() -> Iterator[None]:
    """No waiting for the disk, and no warnings: a fuzzer makes thousands of files."""
    real = os.fsync
    os.fsync = lambda descriptor: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.fsync = real


def fuzz(
    target: object, cases: int, seed: int = 0, seconds: float = float("inf")
) -> collections.Counter[str]:
    """So many mutated files, or as many as fit into so many CPU seconds, through one reader.

    Counts what became of them, defects by their text.
    """
    from mutate import mutated

    rng = random.Random(f"{seed}/{target.name}")
    place = Place(target)
    results: collections.Counter[str] = collections.Counter()
    try:
        seeds = place.seeds()
        end = time.process_time() + seconds
        for number in range(cases):
            if time.process_time() > end:
                break
            data = seeds[number] if number < len(seeds) else mutated(rng.choice(seeds), seeds, rng)
            try:
                results[place.try_(data)] += 1
            except Defect as defect:
                results[f"DEFECT {target.name}: {re.sub(r'[0-9]+', '#', str(defect))}"] += 1
                if os.environ.get("FUZZ_TRACE"):
                    traceback.print_exc()
                place.renew()
    finally:
        place.close()
    return results


def coverage_guided(name: str, cases: int) -> None:
    """Let atheris choose the bytes by what they reach in evenhand; it stops at the first defect."""
    import atheris

    with atheris.instrument_imports(include=["evenhand"]):
        from targets import TARGETS
    target = next(target for target in TARGETS if target.name == name)
    place = Place(target)
    corpus = Path(place._kept.name) / "corpus"
    corpus.mkdir()
    for number, data in enumerate(place.seeds()):
        (corpus / str(number)).write_bytes(data)
    atheris.Setup(
        [
            sys.argv[0],
            str(corpus),
            f"-runs={cases}",
            "-max_len=65536",
            "-verbosity=0",
            "-print_final_stats=1",
            f"-artifact_prefix={HERE}/found-{name}-",
        ],
        place.try_,
    )
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="CPU seconds of one target, at most"
    )
    parser.add_argument("--atheris", metavar="TARGET")
    given = parser.parse_args()
    if given.atheris:
        coverage_guided(given.atheris, given.cases)
        return 0
    from targets import TARGETS

    total = defects = 0
    for target in TARGETS:
        if given.targets and target.name not in given.targets:
            continue
        begun = time.monotonic()
        results = fuzz(target, given.cases, given.seed, given.seconds)
        wrong = {text: count for text, count in results.items() if text.startswith("DEFECT")}
        total, defects = total + results.total(), defects + sum(wrong.values())
        print(
            f"{target.name:16} {results.total():7,} cases: {results['read']:6,} read, {results['refused']:6,} refused, "
            f"{sum(wrong.values()):4} defects, {time.monotonic() - begun:.0f} s",
            flush=True,
        )
        for text, count in collections.Counter(wrong).most_common(8):
            print(f"    {count} x {text[:230]}")
    print(f"{'all':16} {total:7,} cases, {defects} defects")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
