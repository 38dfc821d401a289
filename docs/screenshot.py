"""Make docs/report.png and docs/audit.png: pages as chromium draws them. It takes minutes."""

import subprocess
import tempfile
from pathlib import Path

from selenium import webdriver

HERE = Path(__file__).resolve().parent


def browser() -> webdriver.Chrome:
    """Debian's chromium, without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for word in ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars"):
        options.add_argument(f"--{word}")
    return webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))


def show(driver: webdriver.Chrome, page: Path, height: int) -> None:
    size = {"width": 1280, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.resolve().as_uri())


with tempfile.TemporaryDirectory() as folder:
    subprocess.run(["evenhand", "demo", "--out", folder, "--quiet"], check=True)
    subprocess.run(
        ["evenhand", "audit", "digits_even_odd", "--out", f"{folder}/audit", "--quiet"], check=True
    )
    driver = browser()
    try:
        show(driver, Path(folder) / "report.html", 1900)
        driver.save_screenshot(str(HERE / "report.png"))
        show(driver, Path(folder) / "audit" / "report.html", 1500)
        driver.execute_script("document.querySelectorAll('.item')[2].click()")
        driver.execute_script("document.querySelector('#explore').scrollIntoView({behavior: 'instant'})")
        driver.save_screenshot(str(HERE / "audit.png"))
    finally:
        driver.quit()
