"""OpenAI's client, strategies and the page, against a real server."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from page_checks import DESKTOP, chromium
from serving_app import KEY, ROOT, App
from serving_requests import ask, assert_refused, body, data_url


def test_chat_with_an_image_four_times(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="mupo", messages=ask(url=data_url()), n=4, max_tokens=6, seed=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in answer.choices}) > 1
    # 2 x 2 merged cells of 28 pixels: four tokens for the picture, whatever the text.
    bare = client.chat.completions.create(model="mupo", messages=ask(), max_tokens=6)
    assert answer.usage is not None
    assert bare.usage is not None
    markers = 2  # vision_start and vision_end
    assert answer.usage.prompt_tokens == bare.usage.prompt_tokens + 4 + markers
    assert answer.model_extra == {**(answer.model_extra or {}), "policy_version": 3}


def test_chat_with_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="mupo", messages=ask(), temperature=0, max_tokens=5, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    for token in logprobs.content:
        assert token.logprob == pytest.approx(max(t.logprob for t in token.top_logprobs))


def test_a_stream_says_what_the_whole_says(client: openai.OpenAI) -> None:
    given: dict[str, Any] = {
        "model": "mupo", "messages": ask(url=data_url()), "temperature": 0, "max_tokens": 12,
    }  # fmt: skip
    whole = client.chat.completions.create(**given)
    with client.chat.completions.with_streaming_response.create(**given, stream=True) as raw:
        assert raw.headers["x-policy-version"] == "3"
        chunks = list(raw.parse())
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert {(c.model_extra or {})["policy_version"] for c in chunks} == {3}
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_a_seed_repeats_a_sample(client: openai.OpenAI) -> None:
    texts = [
        client.chat.completions.create(model="mupo", messages=ask(), max_tokens=12, seed=seed)
        .choices[0]
        .message.content
        for seed in (5, 5, 6)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_completions(client: openai.OpenAI) -> None:
    text = client.completions.create(
        model="mupo", prompt="1 minus 1", temperature=0, max_tokens=4, logprobs=1, echo=True
    )
    assert text.choices[0].text.startswith("1 minus 1")
    many = client.completions.create(model="mupo", prompt=["a", "b"], n=2, max_tokens=2)
    assert len(many.choices) == 4
    chunks = client.completions.create(model="mupo", prompt="1", max_tokens=3, stream=True)
    assert sum(len(chunk.choices) for chunk in chunks) >= 1


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["mupo"]
    assert client.models.retrieve("mupo").id == "mupo"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=ask())


def test_the_key_is_asked_for(app: App) -> None:
    for key in ("", "wrong", KEY + "x", KEY[:-1]):
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{app.url}/v1", api_key=key or "none").models.list()
    for path in ("/v1/models", "/v1/models/mupo", "/metrics"):
        assert_refused(httpx.get(app.url + path), 401)
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/strategies"):
        assert_refused(httpx.post(app.url + path, json=body()), 401)
    assert httpx.get(f"{app.url}/health").status_code == 200


def test_metrics_are_prometheus(http: httpx.Client) -> None:
    http.post("/v1/chat/completions", json=body())
    text = http.get("/metrics").text
    assert 'mupo_requests_total{route="/v1/chat/completions",status="200"}' in text
    assert "mupo_policy_version 3.0" in text
    assert "vllm:num_requests_running" in text
    assert "vllm:generation_tokens_total" in text


def test_cross_origin_pages_are_those_that_are_named(http: httpx.Client) -> None:
    named = http.get("/v1/models", headers={"origin": "https://page.example"})
    assert named.headers["access-control-allow-origin"] == "https://page.example"
    other = http.get("/v1/models", headers={"origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers


def test_the_readme_s_example(
    app: App, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, serving = (ROOT / "README.md").read_text().partition("## Serving\n")
    example = serving.partition("```python\n")[2].partition("```")[0]
    example = example.replace("http://127.0.0.1:8000", app.url).replace('"none"', repr(KEY))
    (tmp_path / "puzzle.png").write_bytes(base64.b64decode(data_url().partition(",")[2]))
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert re.search(r"\[\d(, \d)*\] \{'answer': .*'share': [\d.]+\}\n$", said), said


def test_the_client_of_the_docs(app: App, puzzles: dict[str, Path]) -> None:
    done = subprocess.run(
        [sys.executable, "serve/client.py", f"{app.url}/v1", str(puzzles["eval"])],
        cwd=ROOT,
        env={**os.environ, "MUPO_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^greedy: ", done.stdout, re.M)
    assert re.search(r"^group 0 of \d: ", done.stdout, re.M)
    assert re.search(r"^group_majority: ", done.stdout, re.M)


def test_strategies_are_those_of_the_training_code(http: httpx.Client) -> None:
    from mupo_ray.core.grouping import partition
    from mupo_ray.rewards.extract import reasoning_span
    from mupo_ray.rollout.embedder import TextEmbedder
    from mupo_ray.settings.sections import EmbedderConfig

    fields = {"messages": ask(url=data_url()), "n": 8, "k": 2, "max_tokens": 16, "seed": 11}
    found = http.post("/v1/strategies", json=fields).json()
    texts = [response["text"] for response in found["responses"]]
    rows, _ = TextEmbedder(EmbedderConfig(), "cpu").embed([reasoning_span(t) for t in texts])
    expected = partition(np.asarray(rows, np.float64), 2, 3, 11)
    assert [response["group"] for response in found["responses"]] == expected.tolist()
    assert [group["size"] for group in found["groups"]] == np.bincount(expected).tolist()
    assert found["policy_version"] == 3
    assert found["votes"]["best_of_n"] is None
    assert found["usage"]["completion_tokens"] <= 8 * 16
    again = http.post("/v1/strategies", json=fields).json()
    assert [response["text"] for response in again["responses"]] == texts


def test_strategies_stream_their_progress(http: httpx.Client) -> None:
    fields = {"messages": ask(), "n": 4, "k": 2, "max_tokens": 8, "stream": True}
    lines = [
        line.removeprefix("data: ")
        for line in http.post("/v1/strategies", json=fields).text.split("\n\n")
        if line
    ]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    final = events[-1]
    assert final["type"] == "strategies"
    responses = {e["index"]: e["text"] for e in events if e["type"] == "response"}
    grown = dict.fromkeys(range(4), "")
    for event in events:
        if event["type"] == "delta":
            grown[event["index"]] += event["text"]
    assert responses == grown
    assert responses == {r["index"]: r["text"] for r in final["responses"]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 0}, {"n": 33}, {"k": 0}, {"n": 2, "k": 3}, {"n": "8"}, {"temperature": 3},
        {"max_tokens": 10**9}, {"unknown": 1}, {"messages": []}, {"model": "another"},
        {"messages": [{"role": "assistant", "content": "x"}]}, {"options": {"A": 1}},
        {"seed": -1}, {"seed": 2**63},
    ],
    ids=str,
)  # fmt: skip
def test_strategies_that_cannot_be(http: httpx.Client, wrong: dict[str, Any]) -> None:
    answer = http.post("/v1/strategies", json={"messages": ask(), **wrong})
    assert_refused(answer, 404 if "model" in wrong else 400)


def test_the_page_asks_this_server(app: App) -> None:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": DESKTOP[0], "height": DESKTOP[1]})
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(app.url)
        page.locator("#key").wait_for(state="visible")
        page.locator("#key").fill(KEY)
        picture = base64.b64decode(data_url().split(",")[1])
        page.locator("#file").set_input_files(
            {"name": "a.png", "mimeType": "image/png", "buffer": picture}
        )
        page.get_by_text("More settings").click()
        page.locator("#max_tokens").fill("12")
        page.locator("#question").fill("what is it?")
        page.locator("#n").fill("6")
        page.locator("#k").fill("2")
        page.keyboard.press("Enter")
        page.locator("#status", has_text="6 answers in 2 groups").wait_for(timeout=120_000)
        shown = page.locator("#model").inner_text()
        assert re.fullmatch(r"mupo, policy version \d+", shown), shown
        assert page.locator(".response").count() == 6
        assert page.locator(".dot").count() == 6
        page.locator("#n").fill("33")
        page.keyboard.press("Enter")
        page.get_by_role("alert").get_by_text("n is 33; should be 1 to 32").wait_for()
        assert complaints == []
