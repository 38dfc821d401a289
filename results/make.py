"""Tables and every number of the documents that comes from records; trains nothing.

    python results/make.py            writes them, in half a minute
    python results/make.py --check    says which documents differ; part of `make test`

A document holds what is made here between two comments:

    <!-- made by results/make.py: NAME -->
    <!-- end -->

NAME is one of BLOCKS in documents.py beside this file. How the records were made is in results/README.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import documents

from evenhand.report import render, tables

HERE = Path(__file__).parent
ROOT = HERE.parent
DOCUMENTS = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    HERE / "README.md",
    HERE / "comparisons.md",
)
MADE = re.compile(r"<!-- made by results/make.py: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
TABLES = ("1", "2", "selected", "cost")
PACKED = ("even_odd.zip", "cmnist.zip", "bar.zip", "celeba.zip")
# The photographs' runs had two to fourteen others beside them, so that their seconds say little.
UNTIMED = ("bar", "celeba:size=96")


def main() -> int:
    """Write or compare everything; the exit code is the number of documents that differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, and say what differs")
    check = parser.parse_args().check
    made = {path: filled(path.read_text(encoding="utf-8")) for path in DOCUMENTS}
    made[HERE / "tables.md"] = all_tables()
    differing = [path for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in differing:
        print(f"{path.relative_to(ROOT)} " + ("differs: run python results/make.py" if check else "written"))
        if not check:
            path.write_text(made[path], encoding="utf-8")
    return len(differing) if check else 0


def filled(text: str) -> str:
    """A document with the blocks as the records have them."""

    def block(match: re.Match[str]) -> str:
        made = documents.BLOCKS[match[1]]()
        return f"<!-- made by results/make.py: {match[1]} -->\n{made.rstrip()}\n<!-- end -->"

    return MADE.sub(block, text)


def all_tables() -> str:
    """The paper's tables, with every method's own search, of the tasks that have one."""
    runs = documents.runs(*PACKED)
    timed = runs[~runs.spec.isin(UNTIMED)]
    parts = ["# Tables\n\nMade by `python results/make.py` from the records beside it.\n"]
    for name in TABLES:
        table = render.markdown(tables.make(name, timed if name == "cost" else runs))
        lines = (f"#{line}" if line.startswith("#") else line for line in table.splitlines())
        parts.append("\n".join(lines) + "\n")
    parts.append(f"## Our method with one ingredient less\n\n{documents.ablation()}")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
