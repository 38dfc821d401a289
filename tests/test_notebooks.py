"""The example notebooks run from top to bottom in a kernel, and are kept without outputs."""

import base64
import json
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_tables_and_plots(path: Path, tmp_path: Path, monkeypatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs evenhand[notebooks]")
    nbformat = pytest.importorskip("nbformat", reason="needs evenhand[notebooks]")
    pytest.importorskip("ipykernel", reason="needs evenhand[notebooks]")
    spec = tmp_path / "jupyter" / "kernels" / "python3"  # this Python, whatever kernels the machine has
    spec.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "", "language": "python"}))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    settings = {"timeout": 300, "resources": {"metadata": {"path": str(tmp_path)}}}
    nbclient.NotebookClient(notebook, **settings).execute()
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("<table>" in data.get("text/html", "") for data in shown)
    pictures = [base64.b64decode(data["image/png"]) for data in shown if "image/png" in data]
    assert pictures and all(picture.startswith(b"\x89PNG") for picture in pictures)
    if path.stem == "notebook_comparison":  # the audit of a table trains estimators, which have no epochs
        assert any("</progress>" not in data.get("text/html", "") and "epoch" in str(data) for data in shown)


def test_notebooks_are_kept_without_outputs_and_shown_in_the_docs() -> None:
    page = (Path(__file__).parents[1] / "docs" / "notebooks.md").read_text()
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), path.name
        assert f"<!-- notebook {path.stem} -->" in page
