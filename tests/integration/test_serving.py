"""The served model through HTTP: OpenAI's client, limits, abuse, swaps of the weights."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from fuzzed_requests import malformed_requests
from page_checks import DESKTOP, chromium
from PIL import Image
from serving_app import KEY, ROOT, App, running_app

from mupo_ray.data.tiny_model import build_tiny_model

MAX_LEN = 640
LIMIT_S = 900

pytestmark = pytest.mark.timeout(LIMIT_S)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "other", 1)


@pytest.fixture(scope="module")
def app(tiny_model: Path) -> Iterator[App]:
    args = {
        "model": str(tiny_model),
        "policy_version": 3,
        "engine": {
            "dtype": "float32",
            "max_model_len": MAX_LEN,
            "max_num_seqs": 32,
            "kv_cache_gib": 0.25,
            "cpus": 0.5,
        },
        "limits": {"max_body_bytes": 2**20, "max_images": 2, "max_image_pixels": 10_000},
        "image_urls": {"timeout_s": 2.0},
        "api_key_env": "MUPO_TEST_KEY",
        "cors_origins": ["https://page.example"],
    }
    with running_app(args, env={"MUPO_TEST_KEY": KEY}) as running:
        yield running


@pytest.fixture
def client(app: App) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{app.url}/v1", api_key=KEY, max_retries=0, timeout=120)


@pytest.fixture
def http(app: App) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=app.url, headers=app.headers, timeout=120) as found:
        yield found


def data_url(size: tuple[int, int] = (56, 56), colour: str = "red") -> str:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def ask(text: str = "what is it?", url: str | None = None) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if url is not None:
        content.insert(0, {"type": "image_url", "image_url": {"url": url}})
    return [{"role": "user", "content": content}]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "mupo", "messages": ask(), "max_tokens": 4, **fields}


def assert_refused(answer: httpx.Response, status: int = 400) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)


def assert_well(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json=body(messages=ask(url=data_url())))
    assert answer.status_code == 200, answer.text
    assert http.get("/health").json()["status"] == "ok"


# -- OpenAI's client -------------------------------------------------------------------------------


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


# -- strategies ------------------------------------------------------------------------------------


def test_strategies_are_those_of_the_training_code(http: httpx.Client) -> None:
    from mupo_ray.config_sections import EmbedderConfig
    from mupo_ray.core.grouping import partition
    from mupo_ray.rewards.extract import reasoning_span
    from mupo_ray.rollout.embedder import TextEmbedder

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


# -- abuse -----------------------------------------------------------------------------------------


def test_d11_bad_images(http: httpx.Client) -> None:
    whole = data_url((100, 100))
    for url in (
        whole[: len(whole) // 8 * 4],
        "data:image/png;base64,AAAA",
        "data:image/png;base64,@@@",
        data_url((101, 100)),
        data_url((300, 1)),
        "file:///etc/passwd",
    ):
        assert_refused(http.post("/v1/chat/completions", json=body(messages=ask(url=url))))
    three = [{"type": "image_url", "image_url": {"url": data_url()}}] * 3
    many = [{"role": "user", "content": three}]
    assert_refused(http.post("/v1/chat/completions", json=body(messages=many)))
    assert_well(http)


def test_d12_no_internal_address_is_contacted(http: httpx.Client) -> None:
    hits = 0

    async def main() -> None:
        async def canary(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal hits
            hits += 1
            writer.close()

        server = await asyncio.start_server(canary, "0.0.0.0", 0)
        port = server.sockets[0].getsockname()[1]
        urls = [
            *(
                f"http://{host}:{port}/x.png"
                for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433", "127.1")
            ),
            "http://169.254.169.254/",
            "http://10.0.0.1/x.png",
            f"http://user@127.0.0.1:{port}/",
        ]
        async with server:
            for url in urls:
                began = time.monotonic()
                answer = await asyncio.to_thread(
                    http.post, "/v1/chat/completions", json=body(messages=ask(url=url))
                )
                assert_refused(answer)
                assert time.monotonic() - began < 5

    asyncio.run(main())
    assert hits == 0


def test_d14_special_tokens_in_text_are_letters(http: httpx.Client) -> None:
    def prompt_ids(messages: list[dict[str, Any]]) -> list[int]:
        answer = http.post(
            "/v1/chat/completions", json=body(messages=messages, return_token_ids=True)
        )
        assert answer.status_code == 200, answer.text
        ids: list[int] = answer.json()["prompt_token_ids"]
        return ids

    from mupo_ray.data.render import PromptRenderer

    config = json.loads((Path(http_model(http)) / "config.json").read_text())
    pad, start = config["image_token_id"], config["vision_start_token_id"]
    typed = "see <|vision_start|><|image_pad|><|vision_end|> and <|im_end|>"
    ids = prompt_ids(ask(typed, data_url()))
    plain = prompt_ids(ask("see it", data_url()))
    assert ids.count(pad) == plain.count(pad) == 4
    assert ids.count(start) == 1
    assert ids[ids.index(pad) - 1] == start
    # Text first, then the picture: the slot is still the template's.
    first = ask(typed)[0]["content"] + ask("", data_url())[0]["content"][:1]
    ids = prompt_ids([{"role": "user", "content": first}])
    assert ids.count(pad) == 4
    # In a completion, too; the placeholder's own id is refused.
    answer = http.post(
        "/v1/completions",
        json={"prompt": "<|image_pad|>", "max_tokens": 1, "return_token_ids": True},
    )
    renderer = PromptRenderer.from_pretrained(http_model(http), max_prompt_tokens=100)
    ids = answer.json()["choices"][0]["prompt_token_ids"]
    assert ids == renderer.text_ids("<|image_pad|>")
    assert pad not in ids
    assert_refused(http.post("/v1/completions", json={"prompt": [5, pad], "max_tokens": 1}))


def http_model(http: httpx.Client) -> str:
    return str(http.model_folder)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _model_folder(http: httpx.Client, tiny_model: Path) -> None:
    http.model_folder = tiny_model  # type: ignore[attr-defined]


def test_d23_requests_for_too_much(http: httpx.Client) -> None:
    for wrong in (
        {"n": 100_000},
        {"n": 0},
        {"max_tokens": 10**9},
        {"max_tokens": MAX_LEN},
        {"top_p": -1.0},
        {"temperature": 999999.0},
        {"messages": ask("x" * 500_000)},
        {"messages": ask("x " * MAX_LEN)},
        {"messages": ask("x " * MAX_LEN), "stream": True},
    ):
        began = time.monotonic()
        assert_refused(http.post("/v1/chat/completions", json=body(**wrong)))
        assert time.monotonic() - began < 5
    assert_refused(
        http.post("/v1/chat/completions", json=body(messages=ask("x" * 2**20))), status=413
    )

    def endless() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 2**16

    answer = http.post(
        "/v1/chat/completions", content=endless(), headers={"content-type": "application/json"}
    )
    assert_refused(answer, 413)
    assert_well(http)


def num_running(http: httpx.Client) -> float:
    text = http.get("/metrics").text
    return sum(
        float(m[1])
        for m in re.finditer(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", text, re.M)
    )


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/strategies"])
def test_d25_a_client_that_goes_away_frees_its_work(http: httpx.Client, route: str) -> None:
    fields = {
        "messages": ask("count to 10000"), "max_tokens": MAX_LEN - 100, "n": 16, "stream": True,
    }  # fmt: skip
    events = 0
    with http.stream("POST", route, json=fields) as answer:
        for line in answer.iter_lines():
            events += line.startswith("data: ")
            if events == 40:
                break
    deadline = time.monotonic() + 5
    while num_running(http) > 0:
        assert time.monotonic() < deadline, "still running 5 s after the client went away"
        time.sleep(0.1)
    assert http.get("/health").json()["status"] == "ok"


def test_a_client_that_goes_away_without_a_stream_frees_its_work(http: httpx.Client) -> None:
    fields = body(messages=ask("count"), max_tokens=MAX_LEN - 100, n=32)
    with pytest.raises(httpx.TimeoutException):
        http.post("/v1/chat/completions", json=fields, timeout=0.5)
    deadline = time.monotonic() + 5
    while num_running(http) > 0:
        assert time.monotonic() < deadline, "still running 5 s after the client went away"
        time.sleep(0.1)


def test_malformed_requests_break_nothing(app: App, http: httpx.Client) -> None:
    statuses: dict[int, int] = {}
    for route, headers, content in malformed_requests(300, seed=0):
        answer = http.post(route, content=content, headers=headers)
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        if answer.status_code != 200:
            assert 400 <= answer.status_code < 500, (route, content[:500], answer.text)
            assert_refused(answer, answer.status_code)
    assert sum(n for status, n in statuses.items() if status != 200) > 200, statuses
    assert_well(http)


def test_paths_stay_in_their_folder(app: App) -> None:
    for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2f..%2fapp.py", "/nothing",
                 "/page//etc/passwd", "/page/%00", "/v1", "/v1/models/../../etc"):  # fmt: skip
        answer = httpx.get(app.url + path)
        assert answer.status_code in (400, 401, 404), (path, answer.status_code)
        assert "serve" not in answer.text
    assert_refused(httpx.get(f"{app.url}/v1/chat/completions"), 405)


# -- weights ---------------------------------------------------------------------------------------


def test_a_swap_under_load_drops_no_request(
    app: App, http: httpx.Client, tiny_model: Path, other_model: Path
) -> None:
    greedy = body(temperature=0, max_tokens=24, messages=ask("swap", data_url()))
    before = assert_greedy_of(http, tiny_model)
    stop = False

    def load(number: int) -> list[tuple[int, str, bool]]:
        seen = []
        with httpx.Client(base_url=app.url, headers=app.headers, timeout=120) as mine:
            while not stop:
                answer = mine.post("/v1/chat/completions", json={**greedy, "stream": number % 2})
                text = answer.text
                is_whole = text.endswith("data: [DONE]\n\n") if number % 2 else text.endswith("}")
                seen.append((answer.status_code, answer.headers["x-policy-version"], is_whole))
        return seen

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(load, number) for number in range(8)]
        try:
            for version, model in ((4, other_model), (5, tiny_model), (6, other_model)):
                app.deploy({"model": str(model), "policy_version": version})
                wait_for_version(app, version)
        finally:
            stop = True
        seen = [entry for future in futures for entry in future.result()]
    assert {(status, is_whole) for status, _, is_whole in seen} == {(200, True)}
    assert {"3", "4", "5", "6"} >= {version for _, version, _ in seen} > {"3", "6"}
    after = http.post("/v1/chat/completions", json=greedy)
    assert after.headers["x-policy-version"] == "6"
    assert after.json()["policy_version"] == 6
    assert assert_greedy_of(http, other_model) != pytest.approx(before, abs=1e-2)


def assert_greedy_of(http: httpx.Client, folder: Path) -> list[float]:
    """The log-probs served, which are those that transformers computes from the folder."""
    import torch
    from transformers import AutoModelForImageTextToText

    fields = body(temperature=0, max_tokens=8, logprobs=True, return_token_ids=True)
    answer = http.post("/v1/chat/completions", json=fields).json()
    prompt, choice = answer["prompt_token_ids"], answer["choices"][0]
    ids = torch.tensor([[*prompt, *choice["token_ids"]]])
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logprobs = model(input_ids=ids).logits[0].log_softmax(-1)
    expected = logprobs[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0]
    served: list[float] = [token["logprob"] for token in choice["logprobs"]["content"]]
    assert served == pytest.approx(expected.tolist(), abs=1e-4)
    return served


def wait_for_version(app: App, version: int) -> None:
    deadline = time.monotonic() + 180
    while (said := app.health()) is None or said["policy_version"] != version:
        assert time.monotonic() < deadline, (said, app.status())
        time.sleep(0.2)


def test_weights_that_cannot_be_used_change_nothing(
    app: App, http: httpx.Client, tiny_model: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    version = http.get("/health").json()["policy_version"]
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = load_file(tiny_model / "model.safetensors")
    name = next(name for name in weights if weights[name].ndim == 2)
    save_file(weights | {name: weights[name][:, :-1].contiguous()}, broken / "model.safetensors")
    app.deploy({"model": str(broken), "policy_version": 9})
    deadline = time.monotonic() + 120
    while (said := http.get("/health").json())["swap_fault"] is None:
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    assert name in said["swap_fault"]
    assert said["policy_version"] == version
    assert_well(http)


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
