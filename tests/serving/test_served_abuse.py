"""What a server refuses, and that it is well afterwards."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fuzzed_requests import malformed_requests
from serving_app import MAX_LEN, App
from serving_requests import ask, assert_refused, assert_well, body, data_url


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


def test_d14_special_tokens_in_text_are_letters(http: httpx.Client, tiny_model: Path) -> None:
    def prompt_ids(messages: list[dict[str, Any]]) -> list[int]:
        answer = http.post(
            "/v1/chat/completions", json=body(messages=messages, return_token_ids=True)
        )
        assert answer.status_code == 200, answer.text
        ids: list[int] = answer.json()["prompt_token_ids"]
        return ids

    from mupo_ray.data.render import PromptRenderer

    config = json.loads((tiny_model / "config.json").read_text())
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
    renderer = PromptRenderer.from_pretrained(str(tiny_model), max_prompt_tokens=100)
    ids = answer.json()["choices"][0]["prompt_token_ids"]
    assert ids == renderer.text_ids("<|image_pad|>")
    assert pad not in ids
    assert_refused(http.post("/v1/completions", json={"prompt": [5, pad], "max_tokens": 1}))


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
