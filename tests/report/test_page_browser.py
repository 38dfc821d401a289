"""The page of runs in headless Chromium: nothing is cut off, no word is broken, only boxes scroll sideways."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_bench import curves, whole, write

from evenhand.report.page import build

selenium = pytest.importorskip(
    "selenium", reason="needs the Python package selenium, which drives the browser"
)
from selenium import webdriver  # noqa: E402

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
      for (const word of text.data.matchAll(/[^\\s-]+/g)) {
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
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


def opened(browser: Any, page: Path, width: int) -> Any:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    return browser.execute_script


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The six methods' bench, and a few runs of a user's own method that differ in three settings."""
    folder = tmp_path_factory.mktemp("pages")
    made = {"bench": whole(folder / "bench"), "own": []}
    settings = ({"blur": False}, {"turn": False}, {"whole": True})
    for seed in range(5):
        options = {"seed": seed, "pseudo": True, "dynamics": curves(6)}
        made["own"] += [
            write(folder / "own", "mine.long_method", {**PAIR, **each}, **options) for each in settings
        ]
        made["own"] += [write(folder / "own", m, PAIR, **options) for m in ("tab", "eta_tab")]
    return {
        name: build(runs, folder / f"{name}.html", load_task=lambda _: None) for name, runs in made.items()
    }


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
    axes = run("return [...document.querySelectorAll('.groups .axis svg')].map(each => each.clientWidth)")
    assert axes and len(set(filter(None, axes))) == 1  # the scale above is that of every row


def test_a_figure_on_a_phone_keeps_the_width_that_its_letters_need(
    browser: Any, pages: dict[str, Path]
) -> None:
    run = opened(browser, pages["bench"], 390)
    shown = run("return [...document.querySelectorAll('.picture img')].map(each => each.clientWidth)")
    assert shown and min(shown) >= 640
    boxes = run("return [...document.querySelectorAll('.picture .scroll')].map(each => each.clientWidth)")
    assert len(boxes) == len(shown) and max(boxes) < 390
