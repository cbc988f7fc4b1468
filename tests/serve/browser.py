"""A real Chromium for tests of the page; they are skipped if there is none."""

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from live import Client


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
        "--hide-scrollbars",
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


class Page:
    """What a person does with the page, and sees on it."""

    def __init__(self, window, port):
        from selenium.webdriver.common.keys import Keys

        self.window, self.port, self.keys = window, port, Keys
        window.set_window_size(1000, 900)
        self.show_as()

    def show_as(self, *, scheme="light", phone=False):
        """Choose the colour scheme, and whether the screen is a phone's."""
        tell = self.window.execute_cdp_cmd
        feature = {"name": "prefers-color-scheme", "value": scheme}
        tell("Emulation.setEmulatedMedia", {"features": [feature]})
        size = {"width": 375, "height": 667, "deviceScaleFactor": 2, "mobile": True}
        if phone:
            tell("Emulation.setDeviceMetricsOverride", size)
        else:
            tell("Emulation.clearDeviceMetricsOverride", {})
        tell("Emulation.setTouchEmulationEnabled", {"enabled": phone})

    def open(self, view="label"):
        self.window.get("about:blank")  # the same address again would not load anything
        self.window.get(f"http://127.0.0.1:{self.port}/#/{view}")
        return self

    def script(self, code, *arguments):
        return self.window.execute_script(code, *arguments)

    def text(self, identity):
        return self.script("return document.getElementById(arguments[0]).innerText", identity)

    def data(self, identity, name):
        code = "return document.getElementById(arguments[0]).dataset[arguments[1]] ?? null"
        return self.script(code, identity, name)

    def element(self, identity):
        return self.window.find_element("id", identity)

    def press(self, *keys):
        """Press keys wherever the focus is."""
        from selenium.webdriver import ActionChains

        ActionChains(self.window).send_keys(*keys).perform()

    def until(self, is_so, what, seconds=60):
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.window, seconds, 0.02).until(lambda _: is_so(), what)

    def until_ready(self):
        code = """return document.getElementById("question").ariaBusy === "false"
            && !document.getElementById("question").hidden"""
        self.until(lambda: self.script(code), "a question")

    def question(self):
        """Its number, and the ids of anchor and candidates."""
        ids = tuple(self.data(place, "id") for place in ("anchor", "left", "right"))
        return int(self.data("question", "question")), ids

    def act(self, *keys):
        """Press a key and wait for the next question."""
        before = self.data("question", "question")
        self.press(*keys)
        self.until(lambda: self.data("question", "question") != before, "the next question")
        self.until_ready()

    def answer(self, closer):
        """Answer by keyboard according to a distance of ids; True unless it was skipped."""
        _, (anchor, left, right) = self.question()
        difference = closer(anchor, left) - closer(anchor, right)
        if difference == 0:
            self.act(self.keys.ARROW_DOWN)
        else:
            self.act(self.keys.ARROW_LEFT if difference < 0 else self.keys.ARROW_RIGHT)
        return difference != 0

    def api(self, method, path, body=None, key=None):
        client = Client(self.port, key)
        try:
            return client(method, path, body)[1]
        finally:
            client.close()

    def responses(self):
        client = Client(self.port)
        try:
            lines = client.raw("GET", "/v1/responses")[2].decode().splitlines()
        finally:
            client.close()
        return [json.loads(line) for line in lines]

    def ids(self, identity):
        code = "return [...document.getElementById(arguments[0]).children].map(li => li.dataset.id)"
        return self.script(code, identity)

    def has_no_sideways_scrolling(self):
        code = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return self.script(code) <= 0

    def picture(self, folder, name):
        """Save a screenshot in the folder PAGE_SCREENSHOTS, or else in a temporary one."""
        folder = Path(os.environ.get("PAGE_SCREENSHOTS") or folder)
        folder.mkdir(parents=True, exist_ok=True)
        assert self.window.save_screenshot(str(folder / f"{name}.png"))
