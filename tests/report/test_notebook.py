"""What notebooks show: HTML that escapes names, plots with the right numbers, bars of progress."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from shortcut import shortcut_task

import evenhand
from evenhand import partition
from evenhand.training import log


def parts():
    late = np.arange(10) >= 8
    losses = np.where(late, 2.0, 0.1)[:, None] + 0.01 * np.random.default_rng(0).random((10, 3))
    return partition(losses, np.array(["<a>"] * 9 + ["b"]))


def test_a_partition_shows_its_classes_and_escapes_their_names() -> None:
    html = parts()._repr_html_()
    assert "<td>&lt;a&gt;</td><td>8</td><td>1</td>" in html and "<a>" not in html
    assert "<td>b</td><td>1</td><td>0</td><td>one sample</td>" in html


def test_a_partition_is_drawn_with_its_sizes_and_margins() -> None:
    figure = parts().plot()
    left, right = figure.axes
    assert [patch.get_width() for patch in left.patches] == [8, 1, 1, 0]
    assert sum(patch.get_height() for patch in right.patches) == 10
    figure.canvas.draw()


def test_a_result_shows_the_worst_of_both_models_and_is_drawn() -> None:
    y = torch.arange(80) % 2
    data = torch.utils.data.TensorDataset(torch.randn(80, 4) + y[:, None], y)
    result = evenhand.fit("linear", data, recipe=evenhand.Recipe(epochs=3, batch_size=16))
    html = result._repr_html_()
    for text in (
        "erm: accuracy",
        "evenhand: accuracy",
        "worst class",
        "Partition of 80 samples, 16 held out",
    ):
        assert text in html, text
    figure = result.plot()
    assert isinstance(figure, Figure) and figure.axes[0].get_xlim()[1] > 1
    assert [text.get_text() for text in figure.axes[0].get_legend().texts] == ["erm", "evenhand"]


def test_progress_in_a_notebook_is_a_bar_that_is_updated(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)

    def display(html: str, display_id: bool) -> SimpleNamespace:
        shown.append(html)
        return handle

    shell = type("ZMQInteractiveShell", (), {})()
    module = SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=module))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    show = log.choose_progress()
    assert isinstance(show, log.Notebook)
    recipe = evenhand.Recipe(model="linear", epochs=2, batch_size=64)
    evenhand.execute(shortcut_task(), "erm", recipe=recipe, runs=tmp_path, show=show, device="cpu")
    assert '<progress max="2" value="0">' in shown[0] and '<progress max="2" value="1">' in shown[1]
    assert "<progress" not in shown[-1] and "epoch 2/2" in shown[-1]
