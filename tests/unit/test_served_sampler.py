"""A served model, against a server of the test's own that fails as servers do."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from mupo_ray.core.seeding import derive_seed
from mupo_ray.data.chat import ChatRenderer
from mupo_ray.errors import DataError, RolloutError
from mupo_ray.openai_client import ChatServer
from mupo_ray.rollout.pool import SamplingPlan
from mupo_ray.rollout.served_sampler import ServedSampler
from mupo_ray.types import Prompt, RgbImage, SampledResponse

GREEDY = SamplingPlan(num_generations=1, max_new_tokens=5, temperature=0.0, top_p=1.0, seed=0)
SAMPLES = SamplingPlan(num_generations=3, max_new_tokens=9, temperature=0.7, top_p=0.9, seed=4)


def prompt(name: str = "p0", images: tuple[RgbImage, ...] = ()) -> Prompt:
    return Prompt(
        prompt_id=name, position=0, token_ids=(), images=images, question=f"ask {name}", answer="1"
    )


class Server:
    """Answers the first requests by a script, a word each, and the rest well."""

    def __init__(self, script: Sequence[str], delay_s: float) -> None:
        self.script = list(script)
        self.delay_s = delay_s
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.active = self.peak = 0
        self.lock = threading.Lock()
        self.address = ""


@contextmanager
def serving(*script: str, delay_s: float = 0.0) -> Iterator[Server]:
    state = Server(script, delay_s)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with state.lock:
                state.seen.append(body)
                state.keys.append(self.headers["Authorization"])
                state.active += 1
                state.peak = max(state.peak, state.active)
                word = state.script.pop(0) if state.script else "ok"
            try:
                time.sleep(state.delay_s)
                self.reply(word, body)
            except ConnectionError:
                pass  # The client gave up, as it should.
            finally:
                with state.lock:
                    state.active -= 1

        def reply(self, word: str, body: dict[str, Any]) -> None:
            if word == "hang":
                time.sleep(1.0)
            if word == "cut":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            message = {"role": "assistant", "content": f"seed {body['seed']}"}
            if word == "reasoning":
                message["reasoning_content"] = "so"
            usage = {"prompt_tokens": 1, "completion_tokens": 7, "total_tokens": 8}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            if word == "length":
                choice["finish_reason"] = "length"
            answer: Any = {
                "id": "x", "object": "chat.completion", "created": 0, "model": body["model"],
                "choices": [] if word == "no choice" else [choice],
                "usage": None if word == "no usage" else usage,
            }  # fmt: skip
            text = "<html>busy</html>" if word == "garbage" else json.dumps(answer)
            data = text.encode()
            self.send_response(int(word) if word.isdigit() else 200)
            if word == "429":
                self.send_header("Retry-After", "0.2")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if word == "drip":
                for byte in data[:15]:
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.1)
            self.wfile.write(data[15:] if word == "drip" else data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.address = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


def sampler(address: str, **settings: Any) -> ServedSampler:
    settings = {"max_retries": 2, "first_pause_s": 0.01, "timeout_s": 20.0} | settings
    server = ChatServer(address=address, model="served", **settings)
    return ServedSampler(server, ChatRenderer(template="{problem}!", system_prompt=None))


def test_each_response_has_its_seed_and_stands_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    picture = RgbImage(sha256="0", width=1, height=1, rgb=b"abc")
    tasks = [(prompt("a", (picture,)), GREEDY), (prompt("a"), SAMPLES), (prompt("b"), SAMPLES)]
    with serving() as server:
        responses = dict(sampler(server.address, api_key_env="MY_KEY").stream(tasks))
    for number, (sent, plan) in enumerate(tasks):
        first = derive_seed(plan.seed, sent.prompt_id)
        assert responses[number] == tuple(
            SampledResponse(text=f"seed {first + i}", num_tokens=7, is_truncated=False)
            for i in range(plan.num_generations)
        )
    assert set(server.keys) == {"Bearer secret"}
    by_seed = {body["seed"]: body for body in server.seen}
    greedy = by_seed[derive_seed(0, "a")]
    assert [piece["type"] for piece in greedy["messages"][0]["content"]] == ["image_url", "text"]
    assert (greedy["temperature"], greedy["max_tokens"], greedy["model"]) == (0.0, 5, "served")
    sampled = by_seed[derive_seed(4, "b") + 2]
    assert (sampled["temperature"], sampled["top_p"], sampled["max_tokens"]) == (0.7, 0.9, 9)
    assert sampled["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "ask b!"}]}
    ]


@pytest.mark.parametrize(
    "script",
    [["429"], ["500", "503"], ["cut"], ["garbage"], ["no choice"], ["no usage"], ["408", "cut"]],
    ids="-".join,
)
def test_what_passes_is_tried_again(script: list[str]) -> None:
    began = time.monotonic()
    with serving(*script) as server:
        ((number, (response,)),) = sampler(server.address).stream([(prompt(), GREEDY)])
    assert (number, response.text) == (0, f"seed {derive_seed(0, 'p0')}")
    assert len(server.seen) == 1 + len(script)
    # The server said how long to wait.
    assert time.monotonic() - began > (0.2 if script == ["429"] else 0.0)


def test_a_late_reply_is_given_up_and_asked_for_again() -> None:
    with serving("hang") as server:
        ((_, (response,)),) = sampler(server.address, timeout_s=0.5).stream([(prompt(), GREEDY)])
        assert response.num_tokens == 7
        assert len(server.seen) == 2


@pytest.mark.parametrize(
    ("script", "settings", "requests", "said"),
    [
        (["400"], {}, 1, "after 1 try: BadRequestError"),
        (["401"], {}, 1, "after 1 try: AuthenticationError"),
        (["404"], {}, 1, "after 1 try: NotFoundError"),
        (["500"] * 9, {}, 3, "after 3 tries: InternalServerError"),
        (["429"] * 9, {}, 3, "after 3 tries: RateLimitError"),
        (["garbage"] * 9, {}, 3, "after 3 tries: a reply that is not JSON: "),
        (["no usage"] * 9, {}, 3, "expected a chat completion with its usage"),
        (["hang"] * 9, {"timeout_s": 0.5, "max_retries": 1}, 2, "2 tries: no reply within 0.5 s"),
        (["drip"] * 9, {"timeout_s": 0.5, "max_retries": 1}, 2, "2 tries: no reply within 0.5 s"),
    ],
    ids=["400", "401", "404", "500", "429", "garbage", "no-usage", "late", "dripping"],
)
def test_what_stays_wrong_ends_in_one_line(
    script: list[str],
    settings: dict[str, Any],
    requests: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with serving(*script) as server:
        with pytest.raises(RolloutError) as caught:
            list(sampler(server.address, **settings).stream([(prompt(), GREEDY)]))
        assert len(server.seen) == requests
    text = str(caught.value)
    assert text.startswith(f"no response to prompt p0 from served at {server.address} after ")
    assert said in text and "\n" not in text and "secret" not in text


def test_no_server_at_all() -> None:
    with serving() as server:
        pass
    with pytest.raises(RolloutError, match="after 3 tries: APIConnectionError"):
        list(sampler(server.address).stream([(prompt(), GREEDY)]))


def test_requests_at_a_time_are_bounded_and_prompts_taken_as_there_is_room() -> None:
    taken: list[int] = []

    def tasks() -> Iterator[tuple[Prompt, SamplingPlan]]:
        for i in range(12):
            taken.append(i)
            yield prompt(f"p{i}"), SAMPLES

    with serving(delay_s=0.03) as server:
        ahead = []
        for count, _ in enumerate(sampler(server.address, max_concurrent=4).stream(tasks()), 1):
            ahead.append(len(taken) - count)
    assert server.peak == 4 and len(server.seen) == 36
    assert len(ahead) == 12 and max(ahead) <= 6


def test_an_error_leaves_what_came_before_it() -> None:
    numbers: list[int] = []
    tasks = [(prompt(f"p{i}"), GREEDY) for i in range(3)]
    with serving("ok", "ok", "400") as server, pytest.raises(RolloutError):
        for number, _ in sampler(server.address, max_concurrent=1).stream(tasks):
            numbers.append(number)
    assert numbers == [0, 1]


def test_an_error_of_the_prompts_source_is_passed_on() -> None:
    def tasks() -> Iterator[tuple[Prompt, SamplingPlan]]:
        yield prompt(), GREEDY
        raise DataError("cannot read it any more")

    with serving() as server, pytest.raises(DataError, match="any more"):
        list(sampler(server.address).stream(tasks()))


def test_reasoning_beside_the_text_and_the_end_of_the_limit() -> None:
    with serving("reasoning", "length") as server:
        one = sampler(server.address, max_concurrent=1)
        responses = dict(one.stream([(prompt("a"), GREEDY), (prompt("b"), GREEDY)]))
    assert responses[0][0].text == f"<think>so</think>seed {derive_seed(0, 'a')}"
    assert [responses[i][0].is_truncated for i in (0, 1)] == [False, True]
