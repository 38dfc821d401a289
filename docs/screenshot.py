"""Make docs/report.png: the demo's page as chromium draws it. `python docs/screenshot.py` takes a minute."""

import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

with tempfile.TemporaryDirectory() as folder:
    subprocess.run(["evenhand", "demo", "--out", folder, "--quiet"], check=True)
    subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={folder}/browser", "--window-size=1280,1900"),
            f"--screenshot={HERE / 'report.png'}",
            (Path(folder) / "report.html").resolve().as_uri(),
        ],
        check=True,
    )
