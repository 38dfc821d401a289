"""A timm model by name, then export and trackers; needs evenhand[timm,trackers].

Run it with `python examples/share_run.py`.
"""

from pathlib import Path

import evenhand
from evenhand import tasks
from evenhand.integrations.export import export
from evenhand.integrations.trackers import track


def main(folder: str | Path = "shared_run") -> Path:
    task = tasks.load("digits_even_odd", limit=200)
    recipe = evenhand.Recipe(model="timm:test_resnet", epochs=2, batch_size=32)
    record = evenhand.execute(task, "tab", recipe=recipe, runs=Path(folder) / "runs")
    out = export(record, Path(folder) / "export")
    for tracker in ("tensorboard", "mlflow"):
        track(record, tracker, place=Path(folder) / tracker)
    print((out / "README.md").read_text())
    return out


if __name__ == "__main__":
    main()
