"""Messages and help texts before and after a change, side by side as Markdown.

PYTHONPATH=BEFORE/src python docs/lab/messages.py collect > before.json
python docs/lab/messages.py collect > after.json
python docs/lab/messages.py compare before.json after.json > docs/lab/2026-11-messages.md
"""

import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

COMMANDS = """
run digits tabb
run digit tab
run digits tab speed=1
run digits tab epochs=2 --epochs 3
run digits tab --model cmn
run digits tab --device gpu
run digits tab --weights weights.pt
run digits:p=2 tab
run digits:q=1 tab
run even_odd tab
bench
bench digits --seeds 0,x
bench digits --methods tab:summary=loss
bench digits --methods erm:lr=7
bench digits --set lr=0.1
bench digits --set speed=1
bench digits --epochs 3 --set epochs=5
bench digits --figure cost --no-search
bench digits --figure eta --methods tab
bench digits --address localhost:1
bench bar --figure correlation --dry-run
table 1 --runs nowhere
table 1 --against erm
table 1 -o table.xlsx
figure
figure cost -o cost.gif
figure cost --runs nowhere
report nowhere
report -o page.pdf
report
pack --runs nowhere
pack -o records.tar
unpack records.txt
data fetch bar
data verify celeba
partition losses.npy labels.npy
partition flat.npy labels3.npy
partition losses2.npy labels3.npy
predict nowhere image.png
audit nowhere
audit table.csv
audit table.csv --label colour
evaluate predictions.csv
""".strip().splitlines()


def collect() -> dict[str, dict[str, str]]:
    """What commands print when they fail, and every help text."""
    import numpy as np
    import typer.main

    from evenhand import cli

    errors, helps = {}, {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ |= {"EVENHAND_DATA": folder, "EVENHAND_CACHE": folder, "COLUMNS": "400"}
        np.save("flat.npy", np.zeros(3))
        np.save("labels3.npy", np.arange(3))
        np.save("losses2.npy", np.zeros((2, 4)))
        Path("table.csv").write_text("age,color,y\n" + "1,red,0\n2,blue,1\n" * 40)
        for command in COMMANDS:
            out = io.StringIO()
            with (
                mock.patch.object(sys, "argv", ["evenhand", *command.split()]),
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(out),
                contextlib.suppress(SystemExit),
            ):
                cli.main()
            printed = re.sub("[─-╿]", " ", out.getvalue().replace(folder, "FOLDER"))
            errors[command] = " ".join(printed.split())

    def visit(name: str, command: object) -> None:
        helps[name] = " ".join((command.help or "").split())
        for parameter in command.params:
            if text := getattr(parameter, "help", None):
                helps[f"{name} {max(parameter.opts, key=len)}"] = text
        for each, below in getattr(command, "commands", {}).items():
            visit(f"{name} {each}", below)

    visit("evenhand", typer.main.get_command(cli.app))
    return {"errors": errors, "helps": helps}


def compare(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> str:
    """Tables of the texts that differ, and the number of those that are equal."""
    lines = [f"# Messages and help texts, before and after\n\n{__doc__.splitlines()[0]}\n"]
    for kind, title in (("errors", "What commands print when they fail"), ("helps", "Help texts")):
        old, new = before[kind], after[kind]
        changed = [name for name in new if old.get(name) != new[name]]
        lines.append(f"## {title}\n\nOf {len(new)}, {len(changed)} changed; the others follow below.\n")
        lines += ["| command | before | after |", "| --- | --- | --- |"]
        lines += [_row(name, old.get(name, ""), new[name]) for name in changed]
        lines += ["", "| command | unchanged |", "| --- | --- |"]
        lines += [_row(name, new[name]) for name in new if name not in changed]
        lines.append("")
    return "\n".join(lines)


def _row(*cells: str) -> str:
    short = (each if len(each) < 400 else f"{each[:250]} … {each[-140:]}" for each in cells)
    texts = (re.sub(r"([|<*_`])", r"\\\1", each).replace("evenhand: ", "") for each in short)
    return f"| {' | '.join(texts)} |"


if sys.argv[1] == "collect":
    json.dump(collect(), sys.stdout)
else:
    print(compare(*(json.loads(Path(name).read_text()) for name in sys.argv[2:])), end="")
