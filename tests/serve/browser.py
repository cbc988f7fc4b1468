"""A real Chromium for tests of the page; they are skipped where there is none."""

import os
import shutil
from contextlib import contextmanager

import pytest


@contextmanager
def chromium(profile):
    """A driver of Chromium with a profile of its own."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.common.exceptions import WebDriverException

    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no browser: install Debian's chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--lang=en",
        "--window-size=1000,900",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(flag)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's sandbox does not start for root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        window = webdriver.Chrome(options, webdriver.ChromeService(driver))
    except WebDriverException as error:
        pytest.skip(f"no browser: Chromium does not start here ({error.msg})")
    try:
        yield window
    finally:
        window.quit()


def show_as(window, *, scheme="light", phone=False):
    """Choose the colour scheme, and whether the screen is a phone's."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    if phone:
        size = {"width": 375, "height": 667, "deviceScaleFactor": 2, "mobile": True}
        window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    else:
        window.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    window.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": phone})
