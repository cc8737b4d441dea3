"""A real browser: Debian's chromium with its driver, steered by the extra ``browser``."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tests.support.serving import PATIENCE_S

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = next(
    (
        what
        for what, there in (
            ("chromium", CHROMIUM),
            ("chromium-driver", DRIVER),
            ("the extra browser", importlib.util.find_spec("selenium")),
        )
        if not there
    ),
    None,
)
"""What this machine lacks; None if nothing."""
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
T = TypeVar("T")


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A selenium driver. What the page's console says is kept."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        driver.set_script_timeout(PATIENCE_S)
        yield driver
    finally:
        driver.quit()


def until(wanted: Callable[[], T]) -> T:
    """What is wanted, once it is there. Raises AssertionError if it never is."""
    end = time.monotonic() + PATIENCE_S
    while not (got := wanted()):
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.05)
    return got


def look_like(driver: Any, width: int, dark: bool, height: int = 900) -> None:
    """A screen of so many CSS pixels, and what its owner prefers."""
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
