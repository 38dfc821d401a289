"""Record the golden numbers and texts anew: python tests/golden/make.py [METHOD … | texts].

Numbers of a method may change only if VERSION in its file has risen since they were recorded. With
--numerics, all numbers may change if NUMERICS of evenhand.training has risen. The names of run folders may
change if one of the two has risen, or with --keys: records of the old names are then no longer found.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import golden_runs as golden
import golden_texts as texts
import torch

from evenhand.training.run import Run


def refusal(method: str, old: dict[str, Any], new: dict[str, Any], numerics: bool) -> str:
    """Why the new numbers of a method must not replace the old ones; empty if they may.

    >>> old = {"version": 1, "numerics": 1, "runs": {"digits": {"norm": 1.0}}}
    >>> new = {"version": 1, "numerics": 1, "runs": {"digits": {"norm": 2.0}}}
    >>> refusal("tab", old, new, False)
    'numbers of tab changed: raise VERSION in methods/tab.py (now 1)'
    >>> refusal("tab", old, {**new, "version": 2}, False)
    ''
    >>> refusal("tab", old, new, True)
    'numbers of tab changed: raise NUMERICS in evenhand.training (now 1)'
    >>> refusal("tab", old, {**new, "numerics": 2}, True)
    ''
    """
    changed = [name for name in old.get("runs", {}) if moved(old, new, name)]
    if not changed or new["version"] > old["version"]:
        return ""
    if (numerics and new["numerics"] > old["numerics"]) or new.get("libraries") != old.get("libraries"):
        return ""
    what = "NUMERICS in evenhand.training" if numerics else f"VERSION in methods/{method}.py"
    return f"numbers of {method} changed: raise {what} (now {new['numerics' if numerics else 'version']})"


def moved(old: dict[str, Any], new: dict[str, Any], name: str) -> list[str]:
    """Where the numbers of one run, which both have, differ."""
    return list(golden.differences(old["runs"][name], new["runs"][name])) if name in new["runs"] else []


def record(method: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A method's numbers as they are now, and its keys."""
    runs, keys = {}, {}
    for case in golden.cases(method):
        with tempfile.TemporaryDirectory() as folder:
            runs[case.name] = case.numbers(Path(folder))
            keys[f"{method} {case.name}"] = golden.keys(case.execute(Path(folder)))
    versions = {"version": golden.version_of(method), "numerics": golden.numerics_version()}
    return {**versions, "libraries": golden.libraries_of(method), "runs": runs}, keys


def update(method: str, *, numerics: bool, new_keys: bool) -> list[str]:
    """Write a method's numbers and keys, or say why not."""
    old, (new, keys) = golden.read(method), record(method)
    pinned = golden.read("keys")
    risen = any(new[name] > old.get(name, 0) for name in ("version", "numerics"))
    known = {name: pinned[name] for name in keys if name in pinned}
    refused = [refusal(method, old, new, numerics)]
    if any(keys[name] != value for name, value in known.items()) and not (new_keys or risen):
        refused.append(f"keys of {method} changed, so older records are no longer found: if so, add --keys")
    if refused := [reason for reason in refused if reason]:
        return refused
    for name in old.get("runs", {}):  # rounding alone changes no file
        if name in new["runs"] and not moved(old, new, name):
            new["runs"][name] = old["runs"][name]
    golden.write(method, new)
    others = {name: value for name, value in pinned.items() if name.split()[0] in golden.METHODS}
    others = {name: value for name, value in others.items() if name.split()[0] != method}
    golden.write("keys", dict(sorted({**others, **keys}.items())))
    return []


def write_texts() -> None:
    """Write all texts; version control shows what changed."""
    texts.HERE.joinpath("texts").mkdir(exist_ok=True)
    for file in texts.HERE.joinpath("texts").iterdir():
        if file.stem not in texts.TEXTS:
            file.unlink()
    for name in texts.TEXTS:
        path, found = texts.path_of(name), texts.make(name)
        if not path.exists() or texts.difference(name, path.read_text(), found):
            path.write_text(found)


def sensitivity(method: str) -> None:
    """Print how far every kind of number moves when the initial weights do by 1e-6."""
    make_model, most = Run.make_model, dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        for case in golden.cases(method):
            if case.world_size > 1:
                continue
            expected = case.numbers(Path(folder) / "exact")
            for seed in range(3):
                generator = torch.Generator().manual_seed(seed)

                def perturbed(
                    run: Run, salt: int = 0, generator: torch.Generator = generator
                ) -> torch.nn.Module:
                    model = make_model(run, salt)
                    for parameter in model.parameters():
                        parameter.data *= 1 + 1e-6 * torch.randn(parameter.shape, generator=generator)
                    return model

                Run.make_model = perturbed  # type: ignore[method-assign]
                found = case.numbers(Path(folder) / f"{case.name} {seed}")
                Run.make_model = make_model  # type: ignore[method-assign]
                for line in golden.differences(expected, found):
                    print(f"{method} {case.name} {line}")
                for stage, curves in expected["stages"].items():
                    for first, second in zip(curves["loss"], found["stages"][stage]["loss"], strict=False):
                        most[stage] = max(most.get(stage, 0.0), abs(first - second) / first)
    print(method, "losses, relative:", {stage: f"{value:.1g}" for stage, value in most.items()})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    known = [*golden.METHODS, "texts"]
    parser.add_argument(
        "what", nargs="*", metavar="METHOD", choices=[*known, []], help="or texts; all if none"
    )
    parser.add_argument("--numerics", action="store_true", help="the engine's numerics have changed")
    parser.add_argument("--keys", action="store_true", help="the names of run folders have changed")
    parser.add_argument("--sensitivity", action="store_true", help="only measure the effect of rounding")
    given = parser.parse_args()
    torch.set_num_threads(1)
    refused = []
    for what in given.what or known[: -1 if given.sensitivity else None]:
        if given.sensitivity:
            sensitivity(what)
        elif what == "texts":
            write_texts()
        else:
            refused += update(what, numerics=given.numerics, new_keys=given.keys)
    if not given.what and not given.sensitivity:
        for file in (golden.HERE / "metrics").glob("*.json"):
            if file.stem not in golden.METHODS:
                file.unlink()
    print(*refused, sep="\n", end="\n" if refused else "")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
