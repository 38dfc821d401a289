"""Tables and figures from the committed records, without training anything.

    python results/make.py            writes results/tables.md and results/figures/*.svg, in a minute

How the records were made is in results/README.md.
"""

from __future__ import annotations

from pathlib import Path

from evenhand.bench.grid import FIGURES, SWEPT
from evenhand.bench.results import Frame, load
from evenhand.report import figures, render, tables

HERE = Path(__file__).parent
TABLES = ("1", "2", "selected", "cost")
# The photographs' runs had two to fourteen others beside them, so that their seconds say little.
UNTIMED = ("bar", "celeba:size=96")
SWEEPS = {"even_odd_sweep.zip": "even_odd"}


def main() -> None:
    """Write every table, and every figure of every task for which there are records."""
    runs = load(*sorted(HERE.glob("*.zip")))
    timed = runs[~runs.spec.isin(UNTIMED)]
    text = ["# Tables\n\nMade by `python results/make.py` from the records beside it.\n"]
    for name in TABLES:
        table = render.markdown(tables.make(name, timed if name == "cost" else runs))
        text.append(
            "\n".join(f"#{line}" if line.startswith("#") else line for line in table.splitlines()) + "\n"
        )
    (HERE / "tables.md").write_text("\n".join(text), encoding="utf-8")
    (HERE / "figures").mkdir(exist_ok=True)
    for name in FIGURES:
        if name in SWEPT:
            for archive, task in SWEEPS.items():
                draw(name, load(HERE / "studies" / archive), task)
        else:
            for task in sorted(set(timed.spec if name == "cost" else runs.spec)):
                draw(name, runs, task)


def draw(name: str, runs: Frame, *tasks: str) -> None:
    """One figure, where there are runs for it."""
    try:
        drawn = figures.draw(name, runs, tasks)
    except ValueError as error:
        print(f"not drawn: {error}")
        return
    words = "-".join([name, *tasks]).replace(":", "-").replace("=", "").replace(",", "-")
    figures.save(drawn, HERE / "figures" / f"{words}.svg")


if __name__ == "__main__":
    main()
