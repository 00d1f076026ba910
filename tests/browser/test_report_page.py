"""The evaluation report in a real browser, from disk: safe, legible, and readable by keyboard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from eval_folders import write_data, write_evaluation, write_run
from page_checks import CONTRAST, DESKTOP, PHONE, REFUSED

from mupo_ray.report.run_page import write_report

HOSTILE = '<img src="http://127.0.0.1:9/x.png" onerror="document.title=1"><script>leak()</script>'

OPEN = "all => all.forEach(details => { details.open = true; })"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a report on a run and two models."""
    folder = tmp_path_factory.mktemp("report")
    write_data(folder / "data.parquet", 4)
    models = {
        "mupo": write_evaluation(
            folder / "mupo", [3, 9, 0, 5], text=HOSTILE, data=folder / "data.parquet"
        ),
        "grpo": write_evaluation(
            folder / "grpo", [0, 9, 0, 9], spread=0.0, data=folder / "data.parquet"
        ),
    }
    runs = {"run": write_run(folder / "run", {2: 0.75, 4: 0.25})}
    path = folder / "report.html"
    return write_report(runs, path, "Two models", evaluations=models).as_uri()


@pytest.fixture
def open_page(browser, report: str) -> Iterator:
    """Opens the report; afterwards no page may have complained or asked the network."""
    contexts, complaints = [], []

    def go(size: tuple[int, int] = DESKTOP, **settings):
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, offline=True, **settings
        )
        contexts.append(context)
        context.on("console", lambda message: complaints.append(message.text))
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        context.on(
            "request",
            lambda request: (
                None
                if request.url.split("#")[0] == report or request.url.startswith("data:image/")
                else complaints.append(request.url)
            ),
        )
        page = context.new_page()
        page.goto(report)
        return page

    yield go
    for context in contexts:
        context.close()
    assert complaints == []


def first_map(page):
    return page.locator("#problems .map").first


def tab_to_a_mark(page) -> None:
    """Press tab, from the heading of the problems on, until a mark has the focus."""
    page.locator("nav a[href='#problems']").click()
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.pt')"):
            return
    raise AssertionError("no mark was reached by 12 presses of the tab key")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_page_is_whole_and_fits(open_page, size: tuple[int, int]) -> None:
    page = open_page(size)
    assert page.title() == "Two models"
    page.locator("details").evaluate_all(OPEN)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    pictures = page.locator(".ask img")
    assert pictures.count() == 5
    assert pictures.evaluate_all("all => all.every(i => i.complete && i.naturalWidth === 24)")
    # Every mark lies inside its map, and none under another.
    assert page.evaluate(
        """() => [...document.querySelectorAll('.field')].every(field => {
          const box = field.getBoundingClientRect();
          const places = [...field.querySelectorAll('.pt')].map(p => p.getBoundingClientRect());
          const inside = p => p.left > box.left && p.right < box.right
            && p.top > box.top && p.bottom < box.bottom;
          const apart = (p, q) => Math.hypot(p.x - q.x, p.y - q.y) > 10;
          return places.every((p, i) => inside(p) && places.slice(i + 1).every(q => apart(p, q)));
        })"""
    )


def test_the_collapse_alarm_is_seen(open_page) -> None:
    page = open_page()
    words = page.get_by_text("collapse alarm at step 4: diversity at 0.25 of step 0's, below 0.5")
    assert words.is_visible()
    # The line of the limit crosses the plot, between the run's first point and its last.
    shown = page.locator("figure", has_text="Diversity left")
    line, limit = (
        shown.locator(f"path[style*='var(--{colour})'][style*='stroke-width: {width}']").last
        for colour, width in (("s0", "1.8"), ("muted", "1.2"))
    )
    run, across = line.bounding_box(), limit.bounding_box()
    assert across["width"] > run["width"]
    assert run["y"] + 5 < across["y"] < run["y"] + run["height"] - 5


def test_mouse_opens_a_mark_s_text(open_page) -> None:
    page = open_page()
    field = first_map(page)
    tip = field.locator(".tip").nth(4)
    assert tip.is_hidden() and field.locator(".rest").is_visible()
    field.locator(".pt").nth(4).hover()
    assert tip.is_visible() and HOSTILE[:40] in tip.inner_text()
    # What is seen in its place is the text itself, and the list shows which response it is.
    assert tip.evaluate(
        """tip => { const box = tip.getBoundingClientRect();
          return tip.contains(document.elementFromPoint(box.x + 20, box.y + 12)); }"""
    )
    target = field.locator(".pt").nth(4).get_attribute("href")
    assert "lit" in page.locator(target).get_attribute("class")
    # A tap keeps the text open and the page where it is.
    before = page.evaluate("scrollY")
    field.locator(".pt").nth(2).click()
    page.mouse.move(5, 5)
    assert field.locator(".tip").nth(2).is_visible() and tip.is_hidden()
    assert page.evaluate("scrollY") == before


def test_keyboard_reads_marks_and_goes_to_the_response(open_page) -> None:
    page = open_page()
    tab_to_a_mark(page)
    field = first_map(page)
    assert field.locator(".tip").nth(0).is_visible()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert field.locator(".tip").nth(2).is_visible() and field.locator(".tip").nth(0).is_hidden()
    # A map is one stop: the next is the second model's map.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('figure').innerText").startswith("grpo")
    page.keyboard.press("Shift+Tab")
    target = page.evaluate("document.activeElement.hash")
    page.keyboard.press("Enter")
    item = page.locator(target)
    item.wait_for(state="visible")
    top = item.evaluate("item => item.getBoundingClientRect().top")
    assert 0 < top < DESKTOP[1]


def test_works_without_scripts(open_page) -> None:
    page = open_page(java_script_enabled=False)
    tab_to_a_mark(page)
    field = first_map(page)
    assert field.locator(".tip").nth(0).is_visible()
    page.keyboard.press("Tab")
    assert field.locator(".tip").nth(1).is_visible() and field.locator(".tip").nth(0).is_hidden()
    target = field.locator(".pt").nth(1).get_attribute("href")
    assert page.locator(target).is_hidden()
    page.keyboard.press("Enter")
    page.locator(target).wait_for(state="visible")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_legible_in_both_schemes(open_page, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    is_dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 28)"
    assert is_dark == (scheme == "dark")
    page.locator("details").evaluate_all(OPEN)
    texts = ("h1", ".hint", "td", "td small", ".verdict", ".right .verdict", ".notes", ".tip b")
    texts = [*texts, "nav a", "summary", ".rest", "figcaption", ".why"]
    found = dict(zip(texts, page.evaluate(CONTRAST, [texts, "color"]), strict=True))
    assert {text: ratio for text, ratio in found.items() if ratio < 4.5} == {}
    marks = [f".pt.g{group}" for group in range(3)]
    assert min(page.evaluate(CONTRAST, [marks, "borderTopColor"])) >= 3.0


def test_policy_stops_what_text_would_load(open_page, browser, report: str) -> None:
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(report)
    stopped = page.evaluate(REFUSED, HOSTILE)
    assert stopped == ["connect-src", "img-src", "script-src-attr", "script-src-elem"]
    assert page.title() == "Two models"
    context.close()
