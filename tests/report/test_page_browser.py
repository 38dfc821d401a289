"""All pages in headless Chromium: charts are drawn, nothing is cut off, no word is broken, nothing complains."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_audit
import numpy as np
import pytest
import torch
from made_bench import curves, whole, write
from made_records import plant, scores, write_run

from evenhand import Split, Task
from evenhand.report.page import build

selenium = pytest.importorskip(
    "selenium", reason="needs the Python package selenium, which drives the browser"
)
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs the browser chromium and its chromedriver"
)
PAIR = {"lr": 1e-3, "weight_decay": 0.0}

WIDER_THAN_ITS_BOX = """
    return [...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth)
        .map(each => each.getAttribute('aria-label'))"""
CUT_OFF = """
    return [...document.querySelectorAll('th, td')]
        .filter(each => each.offsetParent && each.scrollWidth > each.clientWidth + 1)
        .map(each => each.textContent)"""
BROKEN = """
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
    while (texts.nextNode()) {
      const text = texts.currentNode;
      if (!text.parentElement.closest('th, td') || !text.parentElement.offsetParent) continue;
      for (const word of text.data.matchAll(/\\w+=\\S+|[^\\s-]+/g)) {
        const range = document.createRange();
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) found.push(word[0]);
      }
    }
    return found"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for word in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


def opened(browser: Any, page: Path, width: int, *, dark: bool = False) -> Any:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [
        {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.as_uri())
    return browser.execute_script


def planted(folder: Path) -> Path:
    """Two methods on a task of pictures, one of which found a minority."""
    y = torch.from_numpy(np.repeat([0, 1], 40))
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (80, 3, 8, 8), dtype=np.uint8))
    one = Split(pixels, y, group=y * 2 + torch.arange(80) % 2)
    groups = ("cat, in", "cat, out", "dog, in", "dog, out")
    task = Task("planted", one, one, one, ("cat", "dog"), group_names=groups, conflicting=frozenset([1, 2]), checksum="p")  # fmt: skip
    test = scores(dict(zip(groups, (0.9, 0.3, 0.5, 0.95), strict=True)), {"cat": 0.7, "dog": 0.8})
    parts, losses = plant(y.numpy())
    losses = np.where(parts.minority[:, None], 100 * losses, losses / 100).astype(np.float32)
    runs = [write_run(folder, "erm", test, task=task), write_run(folder, "evenhand", test, task=task, found=(parts, losses))]  # fmt: skip
    return build(runs, folder / "run.html", load_task=lambda _: task)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run, the bench of six methods, runs of a user's method that differ in three settings, and an audit."""
    folder = tmp_path_factory.mktemp("pages")
    made = {"bench": whole(folder / "bench"), "own": []}
    settings = ({"blur": False}, {"turn": False}, {"whole": True})
    for seed in range(5):
        options = {"seed": seed, "pseudo": True, "dynamics": curves(6)}
        made["own"] += [
            write(folder / "own", "my_package.methods.long_method", {**PAIR, **each}, **options)
            for each in settings
        ]
        made["own"] += [write(folder / "own", m, PAIR, **options) for m in ("tab", "eta_tab")]
    built = {
        name: build(runs, folder / f"{name}.html", load_task=lambda _: None) for name, runs in made.items()
    }
    return {
        **built,
        "run": planted(folder),
        "audit": made_audit.write(folder / "audit.html", made_audit.audit()),
    }


# Every plot that is in view, with how many of its pixels are not empty, and their mean lightness.
DRAWN = """
    for (const each of document.querySelectorAll('details')) each.open = true;
    return new Promise(resolve => setTimeout(() => resolve([...document.querySelectorAll('.plot')]
      .filter(box => box.offsetParent && box.clientWidth).map(box => {
        const base = box.querySelector('canvas');
        const all = base.getContext('2d').getImageData(0, 0, base.width, base.height).data;
        return all.filter((value, i) => i % 4 === 3 && value).length;
      })), 300))"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("name", ["run", "bench", "audit"])
def test_every_page_is_whole_on_a_phone_and_a_wide_screen_in_light_and_dark(
    browser: Any, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    browser.get("about:blank")
    browser.get_log("browser")
    run = opened(browser, pages[name], width, dark=dark)
    plots = run(DRAWN)
    assert len(plots) > 5 and min(plots) > 20, plots
    assert run("const root = document.documentElement; return root.scrollWidth <= root.clientWidth")
    ground = run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(json.loads(f"[{ground[4:-1]}]")) < 150) == dark
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def test_the_losses_of_both_parts_are_seen_however_far_apart_they_are(
    browser: Any, pages: dict[str, Path]
) -> None:
    """The minority's are ten thousand times the majority's: a linear axis would draw one of them at zero."""
    run = opened(browser, pages["run"], 1400)
    heights = run("""
        const canvas = document.querySelector('.tall canvas'), style = getComputedStyle(document.documentElement);
        const {data, width, height} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        const wanted = name => style.getPropertyValue(name).trim().match(/\\w\\w/g).map(part => parseInt(part, 16));
        return ['--majority', '--minority'].map(name => {
          const [r, g, b] = wanted(name), rows = new Set();
          for (let i = 0; i < data.length; i += 4)
            if (data[i] === r && data[i + 1] === g && data[i + 2] === b && data[i + 3] === 255) rows.add(Math.floor(i / 4 / width));
          return [Math.min(...rows) / height, Math.max(...rows) / height, rows.size];
        })""")
    (top, bottom, majority), (upper, _, minority) = heights
    assert majority > 20 and minority > 5, heights  # both fall by a visible amount
    assert upper < 0.4 and bottom > 0.5 and top > upper, heights


def test_a_chart_is_read_out_by_keys_and_a_sample_draws_its_own_losses(
    browser: Any, pages: dict[str, Path]
) -> None:
    run = opened(browser, pages["run"], 1400)
    chart = browser.find_element("css selector", ".chart.tall .plot")
    said = chart.get_attribute("aria-label")
    assert (
        said.startswith("Loss of the class cat, epochs 1 to 8. majority: from 0.02")
        and chart.get_attribute("role") == "img"
    )
    run("arguments[0].focus()", chart)
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    legend = browser.find_element("css selector", ".chart.tall .legend").text.split()
    assert legend[0] == "majority" and float(legend[1]) == pytest.approx(0.02, rel=0.1)
    assert (
        legend[2] == "minority"
        and float(legend[3]) == pytest.approx(200, rel=0.1)
        and legend[-2:] == ["epoch", "1"]
    )
    marked = "const over = document.querySelector('.chart.tall .over'); return over.getContext('2d').getImageData(0, 0, over.width, over.height).data.filter((v, i) => i % 4 === 3 && v).length"
    assert run(marked) > 20
    run("arguments[0].blur()", chart)
    assert run(marked) == 0
    sample = browser.find_element("css selector", ".panel .samples button")
    run("arguments[0].focus()", sample)
    assert run(marked) > 100 and browser.find_element("css selector", ".traced").text == sample.get_attribute(
        "data-label"
    )
    sample.send_keys(Keys.ARROW_RIGHT)
    assert run("return document.activeElement.dataset.sample") == "1"


@pytest.mark.parametrize("name", ["bench", "own"])
def test_a_wide_screen_shows_every_table_whole(browser: Any, pages: dict[str, Path], name: str) -> None:
    run = opened(browser, pages[name], 1300)
    assert run(WIDER_THAN_ITS_BOX) == [] and run(CUT_OFF) == [] and run(BROKEN) == []


@pytest.mark.parametrize("width", [360, 390, 768, 1024])
@pytest.mark.parametrize("name", ["bench", "own"])
def test_on_a_narrow_screen_only_boxes_scroll_sideways(
    browser: Any, pages: dict[str, Path], name: str, width: int
) -> None:
    run = opened(browser, pages[name], width)
    assert run("const root = document.documentElement; return root.scrollWidth <= root.clientWidth")
    assert run(CUT_OFF) == []
    axes = run("return [...document.querySelectorAll('.groups .axis .plot')].map(each => each.clientWidth)")
    assert axes and len(set(filter(None, axes))) == 1  # the scale above is that of every row
