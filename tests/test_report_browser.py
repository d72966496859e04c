"""The report in a real browser: Debian's Chromium, headless, through its driver. ``TOPRUNG_SHOTS=folder`` keeps screenshots."""

from __future__ import annotations

import base64
import csv
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

import trial
from conftest import require
from records import climbed, stored
from test_report_page import HOSTILE
from toprung.oracle.gemm import Gemm
from toprung.report.html import compare, page
from toprung.report.html.gather import Gathered, gather
from toprung.report.html.limits import Limits

pytestmark = pytest.mark.slow

PHONE, DESK = (375, 800), (1280, 900)
FAR = "window.outside = []; addEventListener('securitypolicyviolation', e => window.outside.push(e.violatedDirective));"


class Browser:
    """One page after another, in a window of a chosen size and scheme."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": FAR})

    def open(self, path: Path, size: tuple[int, int] = DESK, dark: bool = False) -> None:
        """Show a page and wait until every chart is drawn."""
        from selenium.webdriver.support.ui import WebDriverWait

        self.driver.get("about:blank")
        self.driver.get_log("browser")
        width, height = size
        look = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", look)
        self.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": size == PHONE})
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get(path.as_uri())
        self.wait = WebDriverWait(self.driver, 600)
        self.until("document.documentElement.dataset.ready")

    def __call__(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def until(self, script: str) -> None:
        self.wait.until(lambda _: self(script), f"never came true: {script}")

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def colour(self, selector: str, what: str) -> str:
        return str(self.find(selector).value_of_css_property(what))

    def undrawn(self) -> list[str]:
        """Charts without anything to see."""
        script = """[...document.querySelectorAll('.plot')].filter(p => p.querySelectorAll(
            'svg .role-mark path, svg .role-mark line, svg .role-mark text').length < 2).map(p => p.id)"""
        return list(self(script))

    def problems(self) -> list[str]:
        """Return what the console says, and what the page was kept from."""
        return [e["message"] for e in self.driver.get_log("browser") if e["level"] == "SEVERE"] + self("window.outside")

    def shot(self, name: str) -> None:
        """A picture of the whole page, for whoever asked for them."""
        if folder := os.environ.get("TOPRUNG_SHOTS"):
            whole = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": whole["width"], "height": min(whole["height"], 9000), "scale": 1}
            taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
            (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(taken["data"]))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    require(shutil.which("chromium") and shutil.which("chromedriver"), "apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def limits() -> Limits:
    """The bounds of the H200's rungs, which are compiled."""
    with chdir(trial.ROOT):  # records are called as they are on the command line
        return Limits(gather([Path("results/nvidia-h200")]))


@pytest.fixture(scope="module")
def h200(limits: Limits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page that ``make site`` makes."""
    path = tmp_path_factory.mktemp("h200") / "index.html"
    path.write_text(page.render(limits.gathered, limits), "utf-8")
    return path


def test_the_page_of_the_site_has_every_record_and_every_rung(limits: Limits, h200: Path) -> None:
    text, records = h200.read_text(), limits.gathered.records
    missing = [r.name for r in records if not re.search(rf"/{re.escape(Path(r.name).name)}: [^<]*commit {r.commit}", text)]
    assert len(records) > 50 and not missing and not limits.gathered.complaints and "was not compiled" not in text


def test_the_picture_in_the_documentation_is_up_to_date(limits: Limits) -> None:
    """Texts are compared, those for who listens among them: where they stand depends on the machine's fonts."""
    said = re.compile(r'aria-label="([^"]*)"|>([^<>]+)<')
    kept, made = (trial.ROOT / "docs" / "report" / "ladders.svg").read_text(), page.picture(limits.gathered, limits)
    assert made and "% of bound: " in kept and said.findall(made) == said.findall(kept), "out of date: make report"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A page from records that were made up."""

    def make(*paths: Path, comparison: page.Comparison | None = None) -> Path:
        found = gather(list(paths)) if paths else Gathered()
        path = tmp_path_factory.mktemp("page") / "index.html"
        path.write_text(page.render(found, Limits(found, False), comparison), "utf-8")
        return path

    return make


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_it_opens_and_every_chart_is_drawn(browser: Browser, h200: Path, size: tuple[int, int], dark: bool) -> None:
    browser.open(h200, size, dark)
    assert browser("document.querySelectorAll('.plot').length") >= 8 and browser.undrawn() == []
    assert browser("document.documentElement.scrollWidth") <= size[0], "it scrolls sideways"
    wide = """[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, details:not([open]), .vega-bindings')
        && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + e.className)"""
    assert browser(wide) == []
    light = sum(int(v) for v in browser.colour("body", "background-color").strip("rgba()").split(",")[:3]) > 400
    assert light != dark
    tint = browser("getComputedStyle(document.querySelector('#stairs-turing svg .role-axis-label text')).fill")
    assert tint == ("rgb(163, 174, 187)" if dark else "rgb(89, 99, 110)")
    assert browser.problems() == []
    browser.shot(f"{'phone' if size == PHONE else 'desk'}-{'dark' if dark else 'light'}")


def test_every_view_of_every_chart_is_drawn(browser: Browser, h200: Path) -> None:
    browser.open(h200)
    seen = 0
    for chart in browser("[...document.querySelectorAll('select[id^=view-]')].map(s => s.id.slice(5))"):
        for i in range(browser(f"document.getElementById('view-{chart}').options.length")):
            browser(f"""(s => {{ s.selectedIndex = {i}; document.getElementById('plot-{chart}').dataset.drawn = '';
                s.dispatchEvent(new Event('change')) }})(document.getElementById('view-{chart}'))""")
            browser.until(f"document.getElementById('plot-{chart}').dataset.drawn")
            assert browser.undrawn() == [], (chart, i)
            assert browser(f"document.getElementById('source-{chart}').textContent.includes('results/nvidia-h200/')")
            seen += 1
    assert seen > 40 and browser.problems() == []


def test_a_step_opens_its_rung_and_so_does_its_address(browser: Browser, h200: Path) -> None:
    browser.open(h200)
    step = """[...document.querySelectorAll('#stairs-kepler svg .mark-rect.role-mark path')].filter(
        p => p.__data__?.datum?.open === 'rung-kepler-r07')[1]"""
    assert not browser("document.getElementById('rung-kepler-r07').open")
    browser(f"{step}.scrollIntoView({{block: 'center'}})")
    browser(f"(window.step = {step}).id")
    browser.driver.execute_script("return window.step").click()
    browser.until("document.getElementById('rung-kepler-r07').open")
    text = browser.find("#rung-kepler-r07").text
    for part in ("wide loads", "Predicted", "Measured", "What limits it", "Instructions of its main loop", "FFMA", "kepler/r06"):
        assert part in text, part
    assert browser("document.querySelectorAll('#rung-kepler-r07 pre .add').length") > 5
    assert browser("document.querySelectorAll('#rung-kepler-r07 pre .kt, #rung-kepler-r07 pre .k').length") > 20
    top = browser("document.getElementById('rung-kepler-r07').getBoundingClientRect().top")
    assert 0 <= top < 200 and browser("location.hash") == "#rung-kepler-r07"
    browser.shot("rung")
    browser.driver.get("about:blank")
    browser.driver.get(h200.as_uri() + "#rung-turing-r15")
    browser.until("document.getElementById('rung-turing-r15').open")
    assert browser.problems() == []


def test_values_are_shown_on_hover_and_on_touch(browser: Browser, h200: Path) -> None:
    from selenium.webdriver.common.actions.action_builder import ActionBuilder
    from selenium.webdriver.common.actions.pointer_input import PointerInput

    def point(kind: str) -> None:
        browser("document.querySelector('#stairs-turing').scrollIntoView()")
        box = browser.driver.execute_script("return arguments[0].getBoundingClientRect().toJSON()", target)
        actions = ActionBuilder(browser.driver, mouse=PointerInput(kind, kind))
        at = actions.pointer_action.move_to_location(int(box["x"] + box["width"] / 2), int(box["bottom"] - 30))
        if kind == "touch":
            at.pointer_down().pause(0.05).pointer_up()
        actions.perform()

    for size, kind in ((DESK, "mouse"), (PHONE, "touch")):
        browser.open(h200, size)
        bars = browser.driver.find_elements("css selector", "#stairs-turing svg .mark-rect.role-mark path")
        target = next(
            b for b in bars if browser.driver.execute_script("return arguments[0].__data__.datum.name", b) == "turing/r08"
        )
        point(kind)
        browser.until("document.querySelector('#vg-tooltip-element.visible')")
        shown = browser.find("#vg-tooltip-element").text
        assert "turing/r08" in shown and "% of bound" in shown
        inside = browser("document.querySelector('#vg-tooltip-element').getBoundingClientRect().toJSON()")
        assert inside["left"] >= 0 and inside["right"] <= size[0]
        browser.shot(f"values-{kind}")
    assert not browser("document.getElementById('rung-turing-r08').open"), "the first tap shows the values"
    point("touch")
    browser.until("document.getElementById('rung-turing-r08').open")


def test_the_scheme_can_be_changed(browser: Browser, h200: Path) -> None:
    browser.open(h200)
    before = browser.colour("body", "background-color")
    browser.find("#theme").click()
    browser.until("document.documentElement.dataset.ready === 'dark'")
    assert browser.colour("body", "background-color") != before and browser.undrawn() == []
    browser.find("#theme").click()
    browser.until("document.documentElement.dataset.ready === 'light'")
    assert browser.problems() == []


def test_the_data_of_a_chart_can_be_downloaded(browser: Browser, small: Callable[..., Path], tmp_path: Path) -> None:
    climbed(tmp_path / "in/a.json", commit="=1+1", device={"short_name": "=HYPERLINK(1)"})
    browser.open(small(tmp_path / "in"))
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    browser("document.querySelector('#stairs-kepler details.table').open = true")
    for kind in ("csv", "json"):
        browser.find(f"#{kind}-stairs-kepler").click()
        browser.wait.until(lambda _, k=kind: (tmp_path / f"stairs-kepler.{k}").exists())
    rows = json.loads((tmp_path / "stairs-kepler.json").read_text())
    with (tmp_path / "stairs-kepler.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    kept = [r for r in rows if not r.get("guide")]
    assert len(lines) == len(kept) == 10 and [float(line["GFLOP/s"]) for line in lines] == [r["speed"] for r in kept]
    assert lines[0]["rung"] == "cuBLAS" and browser.problems() == []


def test_hostile_texts_run_nothing(browser: Browser, small: Callable[..., Path], tmp_path: Path) -> None:
    from selenium.common.exceptions import NoAlertPresentException

    climbed(tmp_path / "a.json", commit=HOSTILE, what=HOSTILE, device=dict.fromkeys(("name", "short_name", "driver"), HOSTILE))
    (tmp_path / "b.json").write_text(f"{{{HOSTILE}")
    browser.open(small(tmp_path))
    with pytest.raises(NoAlertPresentException):
        _ = browser.driver.switch_to.alert
    assert browser("document.images.length") == 0 and browser.undrawn() == [] and browser.problems() == []
    assert HOSTILE.replace("\u2028", "") in browser("document.getElementById('source-stairs-kepler').textContent").replace(
        "\u2028", ""
    )


def test_comparison_tuning_and_the_empty_page_are_drawn(browser: Browser, small: Callable[..., Path], tmp_path: Path) -> None:
    a, b = gather([climbed(tmp_path / "a.json")]), gather([climbed(tmp_path / "b.json", 1.3, commit="def456")])
    trace = [[i / 10, 1e-3 / (1 + i)] for i in range(20)]
    shapes = [{"problem": Gemm(512, 512, 512).describe(), "best": None, "trace": trace}]
    tuned = stored(tmp_path / "t.json", kind="tune", shapes=shapes)
    changes, alone = compare.compare(a.records, b.records, 0.03)
    counts = {v: sum(c.verdict == v for c in changes) for v in ("slower", "faster", "same", "undecided")}
    drawn = compare.chart(("A", "B"), a.records, b.records, changes, 0.03)
    for size in (DESK, PHONE):
        browser.open(small(tmp_path / "b.json", tuned, comparison=page.Comparison(drawn, counts, alone)), size)
        assert {"plot-compare", "plot-tuning"} <= set(browser("[...document.querySelectorAll('.plot')].map(p => p.id)"))
        assert browser.undrawn() == [] and browser("document.documentElement.scrollWidth") <= size[0]
        assert "2 slower beyond noise" in browser.find("main").text
        browser.shot(f"compare-{size[0]}")
    browser.open(small())
    assert "toprung ladder kepler" in browser.find("main").text and browser.problems() == []
    browser.shot("empty")
