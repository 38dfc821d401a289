"""Audit real photos twice: with a border whose colour agrees with the class for 95% of them, and without.

    python benchmarks/audit_photos.py --data ROOT --out /tmp/photos [--size 96] [--epochs 10] [--frozen]

ROOT/bar holds BAR (`evenhand data fetch bar` says how to get it). Set $EVENHAND_WEIGHTS to the folder of
pretrained weights. Prints what was found against the plant; the group column is used for scoring only.
Few test photos break the shortcut, so both models also see every test photo with a border of every colour.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "audit"))

import planted

from evenhand.audit.audit import run
from evenhand.audit.predict import predict
from evenhand.integrations.files import csv_bytes
from evenhand.tasks import bar
from evenhand.tasks.samples import TEST
from evenhand.training.store import write_bytes


def listed(root: Path, folder: Path, p: float | None) -> Path:
    """A table of BAR's training photos, copied with a border if p is given, which also gives the groups."""
    table = folder / "photos.csv"
    if table.exists():
        return table
    listing = bar.listing(root)
    rows = [row for row in range(len(listing.files)) if listing.split[row] != TEST]
    files, names = [listing.files[row] for row in rows], [bar.CLASSES[listing.y[row]] for row in rows]
    if p is None:
        lines = [(str(file.resolve()), name) for file, name in zip(files, names, strict=True)]
        write_bytes(table, csv_bytes(("path", "action"), lines))
        return table
    follows = planted.bordered(files, names, p, folder)
    told = zip(files, names, follows, strict=True)
    lines3 = [(f"{name}/{file.stem}.png", name, "yes" if each else "no") for file, name, each in told]
    write_bytes(table, csv_bytes(("path", "action", "aligned"), lines3))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frozen", action="store_true")
    parser.add_argument("--size", type=int)
    parser.add_argument("--kinds", default="bordered,plain")
    arguments = parser.parse_args()
    for name, p in (("bordered", 0.95), ("plain", None)):
        if name not in arguments.kinds.split(","):
            continue
        out = arguments.out / f"audit-{name}"
        table = listed(arguments.data, arguments.out / name, p)
        done = run(
            str(table),
            label="action",
            image="path",
            group=None if p is None else "aligned",
            out=out,
            seed=arguments.seed,
            epochs=arguments.epochs,
            frozen=arguments.frozen or None,
            size=arguments.size,
        )
        print(name, done.judgement.advice, done.judgement.model, *done.judgement.reasons, sep="; ")
        for key in ("baseline", "balanced"):
            for part in ("val", "test"):
                scores = done.models[key][part]
                print(" ", key, part, {k: v["accuracy"] for k, v in scores.items() if isinstance(v, dict)})
        if p is not None:
            _against_the_plant(table, out)
            _in_every_colour(table, out)


def _against_the_plant(table: Path, out: Path) -> None:
    with table.open(newline="") as file:
        conflicting = {row["path"] for row in csv.DictReader(file) if row["aligned"] == "no"}
    with (out / "samples.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "train"]
    truth = {row["id"] for row in rows} & conflicting
    for kind in ("minority", "mislabelled"):
        found = {row["id"] for row in rows if row["triage"] == kind}
        both = len(found & truth)
        print(f"  {kind}: {len(found)} listed, {both} of the {len(truth)} that break the shortcut among them")


def _in_every_colour(table: Path, out: Path) -> None:
    """Both models on the test photos, each with a border of its own class and of every other one."""
    with (out / "samples.csv").open(newline="") as file:
        photos_of_test = [row["id"] for row in csv.DictReader(file) if row["split"] == "test"]
    shown = table.parent / "colours"
    for photo in photos_of_test:
        for colour in range(len(bar.CLASSES)):
            planted.with_border(table.parent / photo, colour, shown / str(colour) / f"{photo}.png")
    for model in ("baseline", "balanced"):
        found = predict(out, shown, model=model, device="auto")[1]
        right: dict[tuple[str, bool], list[bool]] = {}
        for name, guess in zip(found.ids, found.classes, strict=True):
            colour, action = Path(name).parts[:2]
            agrees = bar.CLASSES[int(colour)] == action
            right.setdefault((action, agrees), []).append(guess == action)
        for agrees in (True, False):
            share = {
                action: sum(hits) / len(hits) for (action, kind), hits in right.items() if kind == agrees
            }
            hits = [hit for (_, kind), each in right.items() if kind == agrees for hit in each]
            worst = min(share, key=lambda action: share[action])
            kind = "agrees" if agrees else "misleads"
            print(
                f"  {model}, the border {kind}: {100 * sum(hits) / len(hits):.1f}% of {len(hits)}; "
                f"worst {worst} {100 * share[worst]:.1f}%"
            )


if __name__ == "__main__":
    main()
