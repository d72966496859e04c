"""The page that climbs in a browser: what is on it, and that it keeps its promises in Chromium on SwiftShader, a GPU in software.

``TOPRUNG_SHOTS=folder`` keeps screenshots.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command import Typed
from conftest import require
from toprung.backends.unrolled import MARK, UNROLL, NotUnrolled, unrolled
from toprung.backends.webgpu import composed
from toprung.errors import Unsupported
from toprung.kernels.record import kernel_source
from toprung.lab.harness import results
from toprung.lab.rung import ladder
from toprung.report.web import page

PHONE, DESK = (375, 800), (1280, 900)
SOFTWARE = (
    "--enable-unsafe-webgpu", "--enable-features=Vulkan", "--use-vulkan=swiftshader", "--use-webgpu-adapter=swiftshader",
    "--enable-unsafe-swiftshader",
)  # fmt: skip


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


# the file


def test_it_holds_the_ladder_and_nothing_from_outside(typed: Typed, tmp_path: Path) -> None:
    status, said = typed("web", "--out", tmp_path / "page")
    assert status == 0 and "open it in a browser" in said
    text = (tmp_path / "page" / "index.html").read_text()
    assert set(re.findall(r"https?://[^\s\"'`)]+", text)) == {"http://www.w3.org/2000/svg"}, "a namespace is no address"
    assert not re.search(r"<!--(?:CSS|DATA|SCRIPT)-->|\b(?:fetch|XMLHttpRequest|importScripts)\(", text)
    rungs = data_of(text)["rungs"]
    assert [r["text"] for r in rungs] == [r.source.read_text() for r in ladder("webgpu").rungs]
    for rung, described in zip(ladder("webgpu").rungs, rungs, strict=True):
        assert len(described["tiles"]) > 1, f"{rung} leaves nothing to change"
        own = [described["tiles"][i]["given"] for i in described["own"]["gpu"]]
        assert own == [t.given() for t in rung.tiles["gpu"]]
        assert re.search(r"For each multiply-add: .* bytes of buffers, .* bytes of workgroup memory", described["text"]), rung


def test_tiles_need_subgroups_only_where_lanes_meet() -> None:
    rungs = data_of(page.render())["rungs"]
    for rung in rungs:
        needed = {t["subgroup"] for t in rung["tiles"]}
        assert (0 not in needed) == (rung["number"] == 8)
    assert {t["subgroup"] for t in rungs[7]["tiles"]} > {4, 16}


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(Unsupported, match="kepler is not written in WGSL"):
        page.render("kepler")


# the browser


class Browser:
    """Chromium with the page."""

    def __init__(self, driver: Any, path: Path) -> None:
        self.driver, self.path = driver, path
        self.scripts: list[str] = []

    def open(self, fragment: str = "", size: tuple[int, int] = DESK, dark: bool = False, before: str = "") -> None:
        """Open the page; ``before`` is a script that runs in front of its own."""
        send = self.driver.execute_cdp_cmd
        for script in self.scripts:
            send("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script})
        self.scripts = [send("Page.addScriptToEvaluateOnNewDocument", {"source": before})["identifier"]] if before else []
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        look = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        send("Emulation.setDeviceMetricsOverride", look)
        send("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        self.driver.get(self.path.as_uri() + fragment)

    def __call__(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def until(self, script: str, seconds: float = 120) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, seconds, 0.1).until(lambda _: self(script), f"never came true: {script}")

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return " ".join(self.find(selector).text.split())

    def press(self, selector: str) -> None:
        self.driver.execute_script("document.querySelector(arguments[0]).click()", selector)  # at once: tables are drawn anew

    def settled(self) -> str:
        """Wait until nothing is measured any more; return the state that was reached."""
        self.until("!['climbing', 'paused', undefined].includes(document.documentElement.dataset.state)")
        return str(self("document.documentElement.dataset.state"))

    def climb(self, size: int = 100) -> str:
        """Stop what is measured, and climb at a size."""
        self.until("document.documentElement.dataset.first || document.documentElement.dataset.state === 'lost'")
        self.driver.execute_script("if (!document.getElementById('stop').disabled) document.getElementById('stop').click()")
        self.driver.execute_script(f"document.getElementById('size').value = '{size}'")
        self.press("#climb")
        return self.settled()

    def row(self, number: int) -> list[str]:
        """Rung, figure, share of its estimate, ratio and result of a row."""
        return list(self(f"[...document.querySelectorAll('#rungs tbody tr')[{number - 1}].cells].map(c => c.innerText.trim())"))

    def select(self, number: int) -> None:
        self.press(f"#rungs tbody tr:nth-child({number}) button")

    def edit(self, text: str) -> None:
        """Put a text into the editor, as typing does."""
        if self("document.getElementById('editor').hidden"):
            self.press("#edit")
        self.driver.execute_script(
            "const e = document.getElementById('editor'); e.value = arguments[0]; e.dispatchEvent(new Event('input'))", text
        )

    def shot(self, name: str) -> None:
        if folder := os.environ.get("TOPRUNG_SHOTS"):
            whole = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": whole["width"], "height": min(whole["height"], 9000), "scale": 1}
            taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
            (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(taken["data"]))


def chromium(path: Path, *words: str) -> Iterator[Browser]:
    require(shutil.which("chromium") and shutil.which("chromedriver"), "apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", *words):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(600)
    try:
        yield Browser(driver, path)
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("web") / "index.html"
    path.write_text(page.render(), "utf-8")
    return path


@pytest.fixture(scope="module")
def browser(path: Path) -> Iterator[Browser]:
    yield from chromium(path, *SOFTWARE)


def test_the_first_bar_comes_and_is_right(browser: Browser) -> None:
    browser.open()
    browser.until("document.documentElement.dataset.first", 60)
    assert browser("document.getElementById('size').value") == "256"
    _, figure, _, _, result = browser.row(1)
    assert float(figure) > 0 and result == "✓ right"
    assert browser("document.querySelector('#rungs .fill').getBoundingClientRect().width") > 1
    browser.press("#stop")
    assert [e for e in browser.driver.get_log("browser") if e["level"] == "SEVERE"] == []


def test_the_page_composes_texts_as_the_backend_does(browser: Browser) -> None:
    """Unrolled or not, with each tile of the rungs' own; only ``enable subgroups`` is for browsers alone."""
    browser.open()
    browser.until("window.toprung")
    composing = "const {whole, lines} = toprung.composed(arguments[0], Object.fromEntries(arguments[1])); return [whole, lines]"
    for rung in ladder("webgpu").rungs:
        for tile in {t for tiles in rung.tiles.values() for t in tiles}:
            for loops in (0, 1):
                source = kernel_source(rung, tile, {s.name: s.default for s in rung.switches} | {UNROLL: loops})
                whole, lines = browser.driver.execute_script(composing, source.text, list(source.defines.items()))
                assert whole.replace("enable subgroups;", "") == composed(source), rung
                assert lines == unrolled(source.text, source.defines)[1], rung
    refusing = "try { toprung.composed(arguments[0], arguments[1]); } catch (refused) { return refused.messages[0]; }"
    for rest in (
        "1u; i < 2u; i++) { }", "0u; i < n; i++) { }", "0u; i < 2u; i++) { break; }", "0u; i < 2u; i++) {",
        "0u; i < 9999 * 9999; i++) { }",
    ):  # fmt: skip
        text = f"for (var i = {rest}"
        with pytest.raises(NotUnrolled) as caught:
            unrolled(f"\n{MARK} {text}", {})
        said = browser.driver.execute_script(refusing, f"\n{MARK} {text}", {})
        assert said == {"line": caught.value.line, "text": str(caught.value)}


@pytest.mark.slow
def test_all_rungs_are_right_and_explained(browser: Browser, tmp_path: Path, typed: Typed) -> None:
    browser.open()
    assert browser.climb(100) == "done", browser.text("#status")
    rows = [browser.row(n) for n in range(1, 11)]
    assert [r[4] for r in rows] == ["✓ right"] * 10, rows
    assert all(r[3].startswith("×") for r in rows[1:]) and "GFLOP/s" in browser.text("#figures")
    assert all(re.fullmatch(r"\d+ %", r[2]) for r in rows), "each rung stands beside its own estimate"
    for number in (1, 6, 8):
        browser.select(number)
        said = browser.text("#why")
        assert f"Rung {number}" in browser.text("#detail-title") and "Written before anything was timed" in said
        assert "For each multiply-add it asks for" in said and re.search(r"Measured: [\d.]+ GFLOP/s, \d+ % of that estimate", said)
        assert number == 1 or ("Why it" in said and f"times rung {number - 1}" in browser.text("#verdict"))
        assert browser("document.querySelectorAll('#code .lit').length > 0") == (number > 1)
    browser.select(6)
    assert "rung 5 reads 1.5 bytes of workgroup memory" in browser.text("#held")
    assert "it asks for 1 byte of workgroup memory" in browser.text("#predicted")
    assert re.search(r"Padding and transposing take \d+ % of its time; without them", browser.text("#happened"))
    assert "16 numbers read, 8 × 8 = 64 multiply-adds" in browser.text("#blocks")

    record = tmp_path / "web.json"
    record.write_text(json.dumps(browser("window.toprung.record()")))
    found = results.read(record)
    assert len(found["measurements"]) == 10 and all(m.verdict["right"] and len(m.seconds) >= 4 for m in found["measurements"])
    status, said = typed("results", "show", record)
    assert status == 0 and "webgpu/r06" in said and "finite data only" in said


@pytest.mark.slow
def test_the_models_arithmetic(browser: Browser) -> None:
    browser.open()
    browser.until("window.toprung")
    assert browser("window.toprung.value('4/BM + 4 * (BN - 2)/8 - 1', {BM: 8, BN: 10})") == 3.5
    difference = browser("window.toprung.lines('a\\nb\\nc', 'a\\nc\\nd')")
    assert difference == [[" ", "a"], ["+", "b"], [" ", "c"], ["-", "d"]]


@pytest.mark.slow
def test_code_that_does_not_compile_and_code_that_is_wrong(browser: Browser) -> None:
    browser.open()
    assert browser.climb() == "done"
    browser.select(2)
    text = browser("window.toprung.data.rungs[1].text")
    line = text[: text.index("acc = fma(As[tm][k]")].count("\n") + 1
    browser.edit(text.replace("acc = fma(As[tm][k]", "acc = nonsense(As[tm][k]"))
    browser.press("#run")
    assert browser.settled() == "failed"
    assert f"line {line}" in browser.text("#errors") and "nonsense" in browser.text("#errors")
    assert browser.row(2)[4] == "✗ fails" and browser.row(3)[4] == "✓ right"
    browser.press("#errors button")
    start = browser("document.getElementById('editor').selectionStart")
    assert text[:start].count("\n") + 1 == line, "the button leads to the line"

    browser.select(7)  # an index that is too large in one copy of an unrolled loop alone
    unrolled_text = browser("window.toprung.data.rungs[6].text")
    line = unrolled_text[: unrolled_text.index("acc[4u * i + 3u][j] =")].count("\n") + 1
    browser.edit(unrolled_text.replace("acc[4u * i + 3u][j] =", "acc[4u * i + 9u][j] ="))
    browser.press("#run")
    assert browser.settled() == "failed" and f"line {line}" in browser.text("#errors")
    browser.press("#reset")
    browser.select(2)

    # 7 rows of 112, which is 100 in whole tiles, and 1: in a row that is not compared with float64
    browser.edit(text.replace("C[c] = result;", "if (c != 785u) { C[c] = result; }"))
    browser.press("#run")
    assert browser.settled() == "failed" and browser.row(2)[4] == "✗ wrong"
    assert "C[7, 1] was not written" in browser.text("#status")

    browser.edit(text.replace("acc = fma(As[tm][k], Bs[k][tn], acc);", "acc += As[tm][k] * Bs[k][tn];"))
    browser.press("#run")
    assert browser.settled() == "done" and browser.row(2)[4] == "✓ right" and "yours" in browser.row(2)[1]
    browser.press("#reset")
    assert browser("document.getElementById('editor').value") == text


@pytest.mark.slow
def test_another_tile(browser: Browser) -> None:
    browser.open()
    browser.until("document.documentElement.dataset.first")
    browser.press("#stop")
    browser.select(6)
    before = browser("document.getElementById('tile-TM').value")
    other = browser(f"[...document.getElementById('tile-TM').options].map(o => o.value).find(v => v !== '{before}')")
    browser.driver.execute_script(
        f"const s = document.getElementById('tile-TM'); s.value = '{other}'; s.dispatchEvent(new Event('change'))"
    )
    assert f"{other} × " in browser.text("#blocks")
    browser.driver.execute_script("document.getElementById('size').value = '100'")
    browser.press("#run")
    assert browser.settled() == "done" and browser.row(6)[4] == "✓ right"
    assert browser("window.toprung.rows.r06_register_tiles.tile.given.TM") == int(other)


@pytest.mark.slow
def test_other_blocks_test_the_explanation(browser: Browser) -> None:
    browser.open()
    browser.until("document.documentElement.dataset.first")
    browser.press("#stop")
    browser.select(1)
    assert browser("document.getElementById('trial').hidden"), "an invocation of rung 1 has one element, and no block to change"
    browser.select(6)
    browser.driver.execute_script("document.getElementById('size').value = '100'")
    browser.press("#vary")
    assert browser.settled() == "done", browser.text("#status")
    cells = "[...document.querySelectorAll('#trials tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
    old, *rows = browser(cells)
    assert old[0] == "rung 5: 8 × 4" and float(old[3]) > 0, "the rung before takes its turns with them"
    asked = [float(bytes_read) for _, _, bytes_read, _ in rows]
    assert len(rows) >= 4 and asked == sorted(asked, reverse=True) and {1.5, 1.0} <= set(asked)
    assert all(float(figure) > 0 for *_, figure in rows), "every block is right and timed"
    assert any("reads as rung 5" in block for block, *_ in rows)
    assert re.search(r"the bytes fall [\d.]+ times, and the kernel runs|the speed does not rise", browser.text("#trial-said"))
    browser.select(7)
    assert browser("document.getElementById('trials').hidden"), "another rung has its own"


@pytest.mark.slow
def test_reasons_follow_what_was_measured(browser: Browser) -> None:
    browser.open()
    browser.until("window.toprung?.figures")
    less = "{workgroup: 1.5, buffers: 0.125, seconds: 1.5, filled: 1, limiter: 'workgroup'}"
    usual = "{workgroup: 1, buffers: 0.125, seconds: 1, filled: 1, limiter: 'workgroup'}"
    idle = "{workgroup: 1, buffers: 0.125, seconds: 1.2, filled: 0.5, groups: 64, limiter: 'workgroup'}"
    same = "{workgroup: 1.5, buffers: 0.125, seconds: 1.5, filled: 1, limiter: 'workgroup'}"

    def reason(gain: float, now: str) -> str:
        return str(browser(f"window.toprung.reason({gain}, {less}, {now}, 0.5, {{defines: {{TM: 8, TN: 8}}}})"))

    assert "That is about what the kernel gains" in reason(1.5, usual) and "8 × 8 sums in registers" in reason(1.5, usual)
    assert "less than that" in reason(1.1, usual) and "more than that" in reason(2.0, usual)
    assert "loses here although its estimate is higher" in reason(0.8, usual)
    assert reason(0.6, idle).startswith("Why it loses here: Its larger blocks leave 64 workgroups")
    assert "the same level limits both" in reason(1.0, same)


@pytest.mark.slow
def test_a_large_gpu_climbs_at_a_larger_size_unasked(browser: Browser) -> None:
    browser.open()
    browser.until("window.toprung")
    assert browser("[[1024, 0.001], [2048, 0.002], [4096, 0.001], [1024, 0.02], [256, 0.001]].map(a => toprung.grown(...a))") == [
        2048, 4096, 4096, 1024, 256,
    ]  # fmt: skip


@pytest.mark.slow
def test_blocks_of_a_large_gpu_reach_what_the_rung_before_reads(browser: Browser) -> None:
    """Its own tile has no smaller block with whole shares: those of another depth take its place, and it stands beside them."""
    browser.open()
    browser.until("document.documentElement.dataset.first")
    browser.press("#stop")
    browser.driver.execute_script(
        "toprung.gpu.kind = 'gpu'; toprung.gpu.limits = {maxComputeWorkgroupStorageSize: 32768,"
        "maxComputeInvocationsPerWorkgroup: 1024, maxComputeWorkgroupSizeX: 1024, maxComputeWorkgroupSizeY: 1024}"
    )
    blocks = browser("toprung.variations(toprung.data.rungs[5]).map(t => [t.given.BM, t.given.BK, t.given.TM, t.given.TN])")
    assert [128, 8, 8, 8] in blocks and {(16, 4, 8), (16, 8, 4), (16, 8, 8)} <= {tuple(b[1:]) for b in blocks}
    assert {b[0] for b in blocks} == {128}


@pytest.mark.slow
def test_a_lost_device_can_be_opened_again(browser: Browser) -> None:
    browser.open()
    browser.until("document.documentElement.dataset.first")
    browser.driver.execute_script("window.toprung.gpu.device.destroy()")
    browser.until("document.documentElement.dataset.state === 'lost'")
    assert "The GPU was lost" in browser.text("#status") and browser("document.getElementById('climb').disabled") is False
    at_once = "document.getElementById('climb').click(); return document.documentElement.dataset.state"
    assert browser.driver.execute_script(at_once) == "climbing", "while a GPU is opened, too"
    assert browser.climb() == "done" and browser.row(10)[4] == "✓ right"


@pytest.mark.slow
def test_a_tab_in_the_background_waits(browser: Browser) -> None:
    browser.open()
    browser.until("document.documentElement.dataset.first")
    first = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    second = browser.driver.current_window_handle
    browser.driver.switch_to.window(first)  # the driver's eye, not the tab in front
    hidden = browser("document.hidden")
    if not hidden:  # this driver brings to the front what it looks at
        browser.driver.execute_script(
            "window.behind = true; Object.defineProperty(document, 'hidden', {get: () => window.behind, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
    browser.until("document.documentElement.dataset.state === 'paused'")
    assert "in the background" in browser.text("#status")
    samples = "Object.values(window.toprung.rows).reduce((n, r) => n + r.seconds.length, 0)"
    held = browser(samples)
    browser.driver.execute_async_script("setTimeout(arguments[0], 1500)")
    assert browser(samples) == held, "nothing is timed behind another tab"
    browser.driver.switch_to.window(second)
    browser.driver.close()
    browser.driver.switch_to.window(first)
    if not hidden:
        browser.driver.execute_script("window.behind = false; document.dispatchEvent(new Event('visibilitychange'))")
    browser.until("document.documentElement.dataset.state === 'climbing'")
    browser.until(f"{samples} > {held}")
    browser.press("#stop")


@pytest.mark.slow
def test_two_rungs_in_turns(browser: Browser) -> None:
    browser.open()
    browser.until("document.documentElement.dataset.first")
    browser.press("#stop")
    browser.driver.execute_script("document.getElementById('size').value = '100'")
    browser.select(4)
    browser.press("#versus")
    assert browser.settled() == "done"
    said = browser.text("#ratio")
    assert re.search(r"At 100: rung 4 runs at [\d.]+ times the speed of rung 3 \([\d.]+ to [\d.]+, 96 %\)", said)
    assert browser("document.querySelectorAll('#diff .added').length") > 3


@pytest.mark.slow
def test_an_outcome_travels_in_a_link(browser: Browser) -> None:
    browser.open()
    assert browser.climb() == "done"
    browser.press("#link")
    browser.until("location.hash.startsWith('#o=')")
    fragment = browser("location.hash")
    browser.open(fragment)
    browser.until("window.toprung")
    assert "swiftshader" in browser.text("#shared-title").lower() and "at 100" in browser.text("#shared-title")
    assert browser("document.querySelectorAll('#shared-table tbody tr').length") == 10
    assert browser("document.getElementById('size').value") == "100", "what is measured can be compared with what the link brought"
    assert browser.climb() == "done"
    yours = "[...document.querySelectorAll('#shared-table tbody tr')].map(r => r.cells[3].innerText)"
    assert all(float(figure) > 0 for figure in browser(yours))
    browser.open("#o=bm9uc2Vuc2U")
    browser.until("window.toprung")
    assert "damaged" in browser.text("#shared-said")
    hostile = browser("window.toprung.pack({v: 1, gpu: '<img src=x onerror=window.bad=1>', n: 1, rows: [[1, 1, 0, '<b>x']]})")
    browser.open(f"#o={hostile}")
    browser.until("window.toprung")
    assert "<img" in browser.text("#shared-title") and browser("window.bad") is None


@pytest.mark.slow
@pytest.mark.parametrize("size, dark", [(DESK, False), (PHONE, True)], ids=["desk-light", "phone-dark"])
def test_it_fits_and_every_control_has_a_name(browser: Browser, size: tuple[int, int], dark: bool) -> None:
    browser.open(size=size, dark=dark)
    assert browser.climb() == "done"
    browser.shot(f"web-{size[0]}-{'dark' if dark else 'light'}")
    assert browser("document.documentElement.scrollWidth") <= size[0], "it scrolls sideways"
    browser.press("#vary")
    assert browser.settled() == "done"
    browser.shot(f"web-tested-{size[0]}-{'dark' if dark else 'light'}")
    assert browser("document.querySelector('#trials .track').getBoundingClientRect().right") <= size[0], "bars are cut off"
    assert browser("document.documentElement.scrollWidth") <= size[0], "it scrolls sideways"
    nameless = """[...document.querySelectorAll('button, select, textarea, a')].filter(e => !e.hidden && !(e.innerText?.trim()
        || e.closest('label')?.innerText.trim() || e.getAttribute('aria-label'))).map(e => e.outerHTML.slice(0, 80))"""
    assert browser(nameless) == []
    colours = "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    foreground, background = (sum(map(int, re.findall(r"\d+", c)[:3])) for c in browser(colours))
    assert (foreground > background) == dark


@pytest.mark.slow
def test_the_keyboard_is_enough(browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open()
    browser.until("document.documentElement.dataset.first")
    browser.press("#stop")
    body, reached = browser.find("body"), []
    for _ in range(60):
        body = browser.driver.switch_to.active_element
        body.send_keys(Keys.TAB)
        reached.append(browser("document.activeElement.id || document.activeElement.innerText"))
    assert {"size", "climb", "edit", "run", "code", "a", "b", "versus", "link", "save"} <= set(reached)
    browser.driver.execute_script("document.querySelector('#row-r04_vec4 button').focus()")
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert "Rung 4" in browser.text("#detail-title")
    assert browser("document.activeElement.closest('tr')?.id") == "row-r04_vec4", "the focus stays where it was"
    browser.driver.execute_script(
        "document.getElementById('size').value = '100'; document.getElementById('controls').requestSubmit()"
    )
    browser.until("Object.values(window.toprung.rows).length > 3 || document.documentElement.dataset.state === 'done'")
    assert browser("document.activeElement.closest('tr')?.id") == "row-r04_vec4", "also while rows are drawn anew"
    browser.settled()
    assert browser("document.querySelectorAll('#rungs [aria-current=true]').length") == 1


NOTHING = "Object.defineProperty(Navigator.prototype, 'gpu', {get: () => undefined})"


@pytest.mark.slow
def test_without_webgpu_it_says_what_to_do(browser: Browser) -> None:
    browser.open(before=NOTHING)
    browser.until("document.documentElement.dataset.state === 'missing'")
    said = browser.text("#missing")
    assert "no navigator.gpu" in said and "Chrome or Edge 113" in said and "chrome://flags" in said and "Safari" in said
    assert browser("['climb', 'stop', 'run', 'versus'].every(id => document.getElementById(id).disabled)")
    browser.select(3)
    assert "Rung 3" in browser.text("#detail-title") and browser("document.querySelectorAll('#code .lit').length") > 0
    assert "Written before" in browser.text("#why"), "the lesson is there all the same"


@pytest.mark.slow
def test_without_an_adapter_it_says_what_to_do(path: Path) -> None:
    for plain in chromium(path, "--disable-gpu"):
        plain.open()
        plain.until("document.documentElement.dataset.state === 'missing'")
        assert re.search("found no adapter|no navigator.gpu", plain.text("#missing-why"))
        plain.shot("web-missing")
