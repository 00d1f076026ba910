"""The page of a served model in a real browser, with real clicks and keys."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator

import numpy as np
import pytest
from answers_server import Script, answers_server
from page_checks import CONTRAST, DESKTOP, PHONE, REFUSED
from PIL import Image

# Groups of 3, 2 and 1 by their first word: 5 is said by most, 7 by two groups of three.
TEXTS = [
    "<think>row one\nthen two</think> \\boxed{5}",
    "<think>diagonal of $\\frac{1}{2}$</think> So \\boxed{7}.",
    "<think>row three</think> \\boxed{5}",
    "<think>column</think> \\boxed{7}",
    "<think>row four</think> \\boxed{5}",
    "<think>diagonal again</think> \\boxed{7}",
]
HOSTILE = '<img src="http://127.0.0.1:9/x.png" onerror="document.title=1"><script>leak()</script>'


def png(side: int = 24, *, noise: bool = False) -> bytes:
    """A picture."""
    image = Image.new("RGB", (side, side), "orange")
    if noise:
        image = Image.effect_noise((side, side), 200).convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def script() -> Script:
    """What the server does; a test changes it."""
    return Script(texts=TEXTS)


@pytest.fixture
def open_page(browser, script: Script) -> Iterator:
    """Opens the page; afterwards none may have complained or asked another host."""
    with answers_server(script) as address:
        contexts, complaints = [], []

        def go(size: tuple[int, int] = DESKTOP, **settings):
            context = browser.new_context(
                viewport={"width": size[0], "height": size[1]}, **settings
            )
            contexts.append(context)
            context.set_default_timeout(10_000)
            context.on("weberror", lambda error: complaints.append(str(error.error)))
            context.on(
                "console",
                # A refusal by the server is a refusal, not a fault of the page.
                lambda message: (
                    None if "Failed to load resource" in message.text
                    else complaints.append(message.text)
                ),
            )  # fmt: skip
            context.on(
                "request",
                lambda request: (
                    None if request.url.startswith((address, "data:image/"))
                    else complaints.append(request.url)
                ),
            )  # fmt: skip
            page = context.new_page()
            page.goto(address)
            return page

        yield go
        for context in contexts:
            context.close()
        assert complaints == []


def ask(page, question: str = "How many?", *, n: int = 6, k: int = 3) -> None:
    """Fill in the form and press its button."""
    page.locator("#question").fill(question)
    page.locator("#n").fill(str(n))
    page.locator("#k").fill(str(k))
    page.get_by_role("button", name="Ask", exact=True).click()


def wait_for_status(page, text: str) -> None:
    page.locator("#status", has_text=text).wait_for()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_asks_about_an_image_and_shows_groups_and_votes(open_page, script, size) -> None:
    page = open_page(size)
    assert page.locator("#model").inner_text() == "puzzles, policy version 60"
    assert page.get_by_text("One question, several lines of thought").is_visible()
    picture = png()
    with page.expect_file_chooser() as chooser:
        page.get_by_text("Choose an image").click()
    chooser.value.set_files({"name": "a.png", "mimeType": "image/png", "buffer": picture})
    page.locator("#picture").wait_for(state="visible")
    ask(page)
    wait_for_status(page, "6 answers in 3 groups")

    sent = script.asked[0]
    address = "data:image/png;base64," + base64.b64encode(picture).decode()
    assert sent == {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": address}},
                    {"type": "text", "text": "How many?"},
                ],
            }
        ],
        "n": 6, "k": 3, "temperature": 1, "stream": True,
    }  # fmt: skip
    tiles = page.locator(".verdicts > div").all_inner_texts()
    assert [[line for line in tile.split("\n") if line] for tile in tiles] == [
        ["Majority over groups", "7", "2 of 3 groups"],
        ["Majority of answers", "5", "3 of 6 answers"],
    ]
    assert page.get_by_text("The two votes differ.").is_visible()
    assert page.locator(".group h3").all_inner_texts() == ["Group 1", "Group 2", "Group 3"]
    assert page.locator(".says").all_inner_texts() == [
        "votes for 5 (3 of 3)", "votes for 7 (2 of 2)", "votes for 7 (1 of 1)",
    ]  # fmt: skip
    # The discs of an answer, by the number of their group.
    discs = [row.locator(".dot").all_inner_texts() for row in page.locator(".tally tr").all()]
    assert discs == [["1", "1", "1"], ["2", "2", "3"]]
    page.get_by_role("button", name="Open all").click()
    assert page.locator(".response[open]").count() == 6
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_chains_open_by_click_and_by_disc(open_page) -> None:
    page = open_page()
    ask(page)
    first = page.locator("#answer-1")
    first.wait_for()
    line, rest = first.get_by_text("row one"), first.get_by_text("then two")
    assert line.is_visible() and rest.is_hidden()
    first.locator("summary").click()
    rest.wait_for(state="visible")
    # The box says what stands beside it already, unless there are words around it.
    assert first.locator(".final").count() == 0
    page.get_by_role("link", name="Answer 2, group 2").click()
    second = page.locator("#answer-2")
    assert second.locator(".final").inner_text().startswith("So")
    assert second.locator(".thought mfrac").text_content() == "12"
    assert page.evaluate("document.activeElement.parentElement.id") == "answer-2"
    assert second.evaluate("e => { const b = e.getBoundingClientRect(); return b.top >= 0 && "
                           "b.bottom <= innerHeight; }")  # fmt: skip
    page.keyboard.press("Enter")
    assert second.get_attribute("open") is None


def test_answers_are_seen_as_they_arrive_and_stop_stops(open_page, script) -> None:
    script.waits_after = 2
    page = open_page()
    ask(page)
    wait_for_status(page, "2 of 6 answers")
    cards = page.locator(".live li")
    assert cards.count() == 6
    assert cards.nth(0).locator(".answer").inner_text() == "5"
    # The third has not begun but for what keeps the line open.
    cards.nth(2).get_by_text("..").wait_for()
    assert page.locator("progress").evaluate("bar => [bar.value, bar.max]") == [2, 6]
    assert page.locator("#out").get_attribute("aria-busy") == "true"
    page.get_by_role("button", name="Asking").click(force=True)
    assert len(script.asked) == 1
    page.get_by_role("button", name="Stop").click()
    wait_for_status(page, "Stopped after 2 of 6 answers.")
    assert script.client_went.wait(10), "the request was not ended"
    assert page.locator("#error").is_hidden()
    assert page.locator(".response").count() == 3
    assert page.locator(".response .tag").all_inner_texts() == ["unfinished"]
    page.locator("#answer-2 summary").click()
    page.locator("#answer-2 .final").wait_for(state="visible")
    # The next question is not held up by the last one.
    script.waits_after = None
    ask(page)
    wait_for_status(page, "6 answers in 3 groups")


def test_keyboard_alone(open_page, script) -> None:
    page = open_page()
    reached = []
    for _ in range(6):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        outlined = "e => getComputedStyle(e.id === 'file' ? e.nextElementSibling : e).outlineStyle"
        assert page.evaluate(f"({outlined})(document.activeElement)") == "solid", reached
    assert reached == ["file", "question", "n", "k", "SUMMARY", "go"]
    page.locator("#question").focus()
    page.keyboard.type("first line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second")
    script.waits_after = 1
    page.keyboard.press("Enter")
    wait_for_status(page, "1 of 8 answers")
    assert script.asked[0]["messages"][0]["content"][0]["text"] == "first line\nsecond"
    page.keyboard.press("Escape")
    wait_for_status(page, "Stopped")
    script.waits_after = None
    page.locator("#k").focus()
    page.keyboard.press("Control+Enter")
    wait_for_status(page, "in 3 groups")
    assert page.evaluate("document.activeElement.id") == "k"
    # Stopped by its button, the page puts the focus where one asks again.
    script.waits_after = 1
    page.keyboard.press("Enter")
    wait_for_status(page, "1 of 8 answers")
    page.locator("#stop").focus()
    page.keyboard.press("Space")
    wait_for_status(page, "Stopped")
    assert page.evaluate("document.activeElement.id") == "go"


DROP = """
([name, base64]) => {
  const bytes = Uint8Array.from(atob(base64), char => char.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], 'a.png', {type: 'image/png'}));
  const options = {bubbles: true, cancelable: true};
  const event = name === 'paste'
    ? new ClipboardEvent('paste', {...options, clipboardData: data})
    : new DragEvent(name, {...options, dataTransfer: data});
  document.getElementById('question').dispatchEvent(event);
  return event.defaultPrevented;
}
"""


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_an_image_is_dropped_or_pasted_anywhere(open_page, script, way: str) -> None:
    page = open_page()
    data = base64.b64encode(png()).decode()
    if way == "drop":
        assert page.evaluate(DROP, ["dragover", data])
        assert "over" in page.locator("#drop").get_attribute("class")
    assert page.evaluate(DROP, [way, data])
    page.locator("#picture").wait_for(state="visible")
    assert page.locator("#drop").get_attribute("class") == "drop full"
    page.get_by_role("button", name="Remove image").click()
    assert page.locator("#picture").is_hidden()
    assert page.evaluate(DROP, [way, data])
    page.locator("#picture").wait_for(state="visible")
    ask(page)
    wait_for_status(page, "6 answers")
    assert script.asked[0]["messages"][0]["content"][0]["image_url"]["url"].endswith(data)


def test_a_large_image_is_made_smaller_and_no_image_is_refused(open_page, script) -> None:
    page = open_page()
    file = page.locator("#file")
    file.set_input_files({"name": "a.txt", "mimeType": "image/png", "buffer": b"no picture"})
    page.get_by_text("a.txt is not an image that this browser can read").wait_for()
    assert page.locator("#picture").is_hidden()
    large = png(2300, noise=True)
    assert len(large) > 4 * 2**20
    file.set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": large})
    page.get_by_text("Sent as JPEG, 2048 x 2048 pixels.").wait_for(timeout=30_000)
    ask(page)
    wait_for_status(page, "6 answers")
    kind, data = script.asked[0]["messages"][0]["content"][0]["image_url"]["url"].split(",")
    assert kind == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (2048, 2048)


def test_an_image_is_made_to_fit_the_servers_limit(open_page, script) -> None:
    script.limits = {"max_image_pixels": 20_000}
    page = open_page()
    file = {"name": "a.png", "mimeType": "image/png", "buffer": png(300)}
    page.locator("#file").set_input_files(file)
    page.get_by_text("Sent as JPEG, 141 x 141 pixels.").wait_for()


def test_settings_are_sent_where_they_are_filled_in(open_page, script) -> None:
    page = open_page()
    page.get_by_text("More settings").click()
    for name, value in {"temperature": "0.7", "max_tokens": "64", "seed": "3",
                        "min_group_size": "2"}.items():  # fmt: skip
        page.locator(f"#{name}").fill(value)
    ask(page, n=3, k=2)
    wait_for_status(page, "3 answers in 1 group,")
    assert page.get_by_text("3 responses make 1 of 2 groups").is_visible()
    sent = script.asked[0]
    assert {name: sent[name] for name in ("temperature", "max_tokens", "seed")} == {
        "temperature": 0.7, "max_tokens": 64, "seed": 3,
    }  # fmt: skip
    assert sent["min_group_size"] == 2
    # What no server could make anything of is not sent, though its field is out of sight.
    page.locator("#temperature").fill("9")
    page.get_by_text("More settings").click()
    page.get_by_role("button", name="Ask", exact=True).click()
    assert page.locator("#temperature").is_visible()
    page.locator("#temperature").fill("1")
    page.locator("#question").fill("")
    page.get_by_role("button", name="Ask", exact=True).click()
    assert page.evaluate("document.activeElement.id") == "question"
    assert len(script.asked) == 1


def test_asks_for_a_key_only_where_the_server_does(open_page, script) -> None:
    page = open_page()
    assert page.locator("#key").is_hidden()
    script.key = "secret"
    ask(page)
    page.get_by_text("This server asks for an API key").wait_for()
    assert page.evaluate("document.activeElement.id") == "key"
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("The server does not know this API key.").wait_for()
    page.locator("#key").fill("secret")
    page.keyboard.press("Enter")
    wait_for_status(page, "6 answers in 3 groups")
    assert page.locator("#error").is_hidden()
    # A server known to ask for one says so before anybody asks.
    again = open_page()
    again.locator("#key").wait_for(state="visible")


@pytest.mark.parametrize(
    ("change", "message", "num_left"),
    [
        ({"refusal": (400, {"error": {"message": f"n is 99; {HOSTILE}"}})}, "n is 99; <img", 0),
        ({"refusal": (502, b"<html>")}, "The server answered with status 502.", 0),
        ({"fails_after": 2}, "the engine is gone", 2),
        ({"ends_after": 1}, "The connection broke off", 1),
    ],
    ids=["refused", "no-json", "fails", "ends"],
)
def test_faults_are_said_and_what_arrived_is_kept(
    open_page, script, change: dict, message: str, num_left: int
) -> None:
    for name, value in change.items():
        setattr(script, name, value)
    page = open_page()
    ask(page)
    box = page.get_by_role("alert")
    box.get_by_text(message).wait_for()
    assert page.locator(".response").count() == num_left
    assert page.locator("#stop").is_hidden() and page.locator("progress").is_hidden()
    for name in change:
        setattr(script, name, None)
    ask(page)
    wait_for_status(page, "in 3 groups")
    assert box.is_hidden()


def test_a_server_that_is_gone(open_page) -> None:
    page = open_page()
    page.context.set_offline(True)
    ask(page)
    page.get_by_text("The server cannot be reached.").wait_for()


def test_text_of_the_model_is_never_markup(open_page, script) -> None:
    script.texts = [
        f"<think>{HOSTILE}\n$\\text{{{HOSTILE}}}$ \\frac{{{HOSTILE}}}{{2}}</think>{HOSTILE} "
        f"\\boxed{{{HOSTILE}}}"
    ] * 3
    page = open_page()
    ask(page, HOSTILE, n=3, k=1)
    wait_for_status(page, "3 answers in 1 group,")
    page.get_by_role("button", name="Open all").click()
    assert page.locator("#out img, #out script").count() == 0
    assert page.locator("#answer-1 .text").first.inner_text().startswith("<img src=")
    assert page.title() == "Several ways to an answer"


def test_policy_stops_what_text_would_load(open_page, browser, script) -> None:
    with answers_server(script) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        stopped = page.evaluate(REFUSED, HOSTILE)
        context.close()
    assert sorted(set(stopped)) == ["connect-src", "img-src", "script-src-attr", "script-src-elem"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_legible_in_both_schemes(open_page, script, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    is_dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 28)"
    assert is_dark == (scheme == "dark")
    before = (".empty p", ".note", ".choose b", "form summary", "#go", "#model")
    found = dict(zip(before, page.evaluate(CONTRAST, [before, "color"]), strict=True))
    ask(page)
    wait_for_status(page, "6 answers")
    page.get_by_role("button", name="Open all").click()
    after = (
        *("#status", ".verdicts h3", ".answer", ".tally td:last-child", ".hint", ".tag", ".num"),
        *(".g0.dot", ".g1.dot", ".g2.dot", ".g0 h3", ".g1 h3", ".g2 h3", ".facts", ".plain"),
    )
    found |= dict(zip(after, page.evaluate(CONTRAST, [after, "color"]), strict=True))
    script.refusal = (400, {"error": {"message": "no"}})
    ask(page)
    page.locator("#error").wait_for(state="visible")
    found |= {".error b": page.evaluate(CONTRAST, [[".error b"], "color"])[0]}
    assert {text: ratio for text, ratio in found.items() if ratio < 4.5} == {}


def test_says_so_without_scripts(open_page) -> None:
    page = open_page(java_script_enabled=False)
    assert page.locator("noscript p").is_visible()


def test_colours_repeat_but_names_do_not(open_page, script) -> None:
    script.texts = [f"<think>w{i}</think> \\boxed{{{i}}}" for i in range(8)]
    script.embeddings = np.eye(8).tolist()
    page = open_page()
    ask(page, n=8, k=8)
    wait_for_status(page, "8 answers in 8 groups")
    assert page.locator(".group h3").all_inner_texts() == [f"Group {i}" for i in range(1, 9)]
