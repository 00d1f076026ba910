"""The model judge, against a small server that speaks OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from mupo_ray.rewards.model_judge import ModelJudge, OpenQuestion
from mupo_ray.settings.sections import ModelJudgeConfig
from mupo_ray.types import Reason, Verdict

WRONG = Verdict(accuracy=0.0, format=1.0, extracted="a crimson bus", reason=Reason.WRONG)


class Server:
    """Answers with what `reply` makes of a prompt: text, a status code, or seconds to be late."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.keys: list[str | None] = []
        self.reply: Callable[[str], str | int | float] = lambda prompt: "1.0"
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                prompt = body["messages"][0]["content"]
                server.prompts.append(prompt)
                server.keys.append(self.headers["Authorization"])
                answer = server.reply(prompt)
                if isinstance(answer, float):
                    time.sleep(answer)
                    answer = "1.0"
                status, text = (answer, "") if isinstance(answer, int) else (200, answer)
                message = {"role": "assistant", "content": text}
                choice = {"index": 0, "finish_reason": "stop", "message": message}
                head = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
                data = json.dumps(head | {"choices": [choice]}).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # The client did not wait.

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def judge_with(server: Server, **options: Any) -> ModelJudge:
    return ModelJudge(ModelJudgeConfig(base_url=server.url, **{"timeout_s": 10.0, **options}))


def ask(judge: ModelJudge, *answers: str) -> list[Verdict]:
    questions = [OpenQuestion(question="What is it?", gold="red bus", answer=a) for a in answers]
    return judge.judge([WRONG] * len(answers), questions)


def test_scores_become_verdicts_and_equal_questions_are_asked_once(server: Server) -> None:
    server.reply = lambda prompt: "Much alike.\nScore: 0.5" if "crimson" in prompt else "0"
    judge = judge_with(server)
    verdicts = ask(judge, "a crimson bus", "a cat", "a crimson bus")
    assert [v.accuracy for v in verdicts] == [0.5, 0.0, 0.5]
    assert {v.reason for v in verdicts} == {Reason.JUDGED}
    assert [v.extracted for v in verdicts] == ["a crimson bus"] * 3, "the rest of a verdict stays"
    assert len(server.prompts) == 2
    assert ask(judge, "a cat")[0].accuracy == 0.0
    assert len(server.prompts) == 2, "the cache was not used"
    assert ask(judge_with(server), "a cat")[0].accuracy == 0.0
    assert len(server.prompts) == 3


def test_the_cache_drops_what_was_not_used_for_longest(server: Server) -> None:
    judge = judge_with(server, cache_answers=2)
    ask(judge, "one", "two")
    ask(judge, "one")
    ask(judge, "three")
    assert len(server.prompts) == 3
    ask(judge, "one")
    assert len(server.prompts) == 3
    ask(judge, "two")
    assert len(server.prompts) == 4


def test_the_prompt_holds_all_three_texts_as_they_are(server: Server) -> None:
    judge = judge_with(server, prompt="{question}|{gold}|{answer}")
    question = OpenQuestion(question="{gold}?", gold="\\frac{1}{2}", answer="{question}")
    judge.judge([WRONG], [question])
    assert server.prompts == ["{gold}?|\\frac{1}{2}|{question}"]


def test_a_busy_server_is_asked_again(server: Server) -> None:
    server.reply = lambda prompt: 503 if len(server.prompts) < 3 else "1"
    (verdict,) = ask(judge_with(server, max_retries=2), "a")
    assert (verdict.reason, verdict.accuracy) == (Reason.JUDGED, 1.0)
    assert len(server.prompts) == 3


@pytest.mark.parametrize(
    ("reply", "tries"),
    [
        (503, 3),
        (401, 1),
        (404, 1),
        ("I cannot say.", 1),
        ("", 1),
        ("0.8/1.0", 1),
        ("7", 1),
        ("-0.5", 1),
        ("10", 1),
    ],
)
def test_a_failure_is_a_reason_of_its_own_and_is_not_kept(
    server: Server, caplog: pytest.LogCaptureFixture, reply: str | int, tries: int
) -> None:
    server.reply = lambda prompt: reply
    judge = judge_with(server, max_retries=2)
    (verdict,) = ask(judge, "a")
    assert (verdict.reason, verdict.accuracy) == (Reason.JUDGE_FAILED, 0.0)
    assert len(server.prompts) == tries
    assert "no score from judge at http://127.0.0.1" in caplog.text
    server.reply = lambda prompt: "1.0"
    assert ask(judge, "a")[0].reason is Reason.JUDGED


def test_a_late_reply_costs_its_limit_and_no_other_answer(server: Server) -> None:
    server.reply = lambda prompt: 30.0 if "slow" in prompt else "1.0"
    judge = judge_with(server, timeout_s=0.5, max_retries=1)
    began = time.monotonic()
    late, good = ask(judge, "slow", "quick")
    # Two tries of 0.5 s and a pause of 0.25 s between; the rest is the machine's.
    assert time.monotonic() - began < 8.0
    assert late.reason is Reason.JUDGE_FAILED
    assert good.reason is Reason.JUDGED
    assert len(server.prompts) == 3


def test_half_a_surrogate_pair_cannot_be_sent_and_costs_no_pause(server: Server) -> None:
    began = time.monotonic()
    bad, good = ask(judge_with(server, max_retries=9), "\ud800", "a")
    assert (bad.reason, good.reason) == (Reason.JUDGE_FAILED, Reason.JUDGED)
    assert time.monotonic() - began < 20.0
    assert len(server.prompts) == 1


def test_a_cache_of_no_size_keeps_nothing(server: Server) -> None:
    judge = judge_with(server, cache_answers=0)
    assert [ask(judge, "a")[0].reason for _ in range(2)] == [Reason.JUDGED] * 2
    assert len(server.prompts) == 2


def test_no_server_at_all() -> None:
    config = ModelJudgeConfig(base_url="http://127.0.0.1:9/v1", max_retries=0, timeout_s=5.0)
    assert ask(ModelJudge(config), "a")[0].reason is Reason.JUDGE_FAILED


def test_a_key_comes_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    ask(judge_with(server, api_key_env="JUDGE_KEY"), "a")
    monkeypatch.delenv("JUDGE_KEY")
    ask(judge_with(server, api_key_env="JUDGE_KEY"), "a")
    assert server.keys == ["Bearer secret", "Bearer none"]


def test_it_may_be_asked_inside_a_running_loop(server: Server) -> None:
    async def inside() -> Verdict:
        return ask(judge_with(server), "a")[0]

    assert asyncio.run(inside()).reason is Reason.JUDGED


@pytest.mark.parametrize(
    ("gold", "reason", "options", "is_asked"),
    [
        ("a red bus", Reason.WRONG, False, True),
        ("stop sign", Reason.UNPARSABLE, False, True),
        ("pepper and salt", Reason.WRONG, False, True),
        ("\u7ea2\u8272\u7684\u8f66", Reason.WRONG, False, True),
        ("a red bus", Reason.RIGHT, False, False),
        ("a red bus", Reason.NO_ANSWER, False, False),
        ("a red bus", Reason.NO_GOLD, False, False),
        ("a red bus", Reason.WRONG, True, False),
        ("12", Reason.WRONG, False, False),
        ("12 cm", Reason.WRONG, False, False),
        ("B", Reason.WRONG, False, False),
        ("ABC", Reason.WRONG, False, False),
        ("yes", Reason.WRONG, False, False),
        ("x^2 + 1", Reason.WRONG, False, False),
        ("\\angle ABC", Reason.WRONG, False, False),
    ],
)
def test_only_open_answers_are_asked_for(
    gold: str, reason: Reason, options: bool, is_asked: bool
) -> None:
    verdict = Verdict(accuracy=0.0, format=1.0, extracted="a", reason=reason)
    judge = ModelJudge(ModelJudgeConfig())
    assert judge.wants(verdict, gold, has_options=options) is is_asked
    everything = ModelJudge(ModelJudgeConfig(asked_for="not_right"))
    decided = reason in (Reason.RIGHT, Reason.NO_ANSWER, Reason.NO_GOLD)
    assert everything.wants(verdict, gold, has_options=options) is not decided
