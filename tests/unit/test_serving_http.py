"""Routes without a model behind them: keys, origins, paths, errors, streams that break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from mupo_ray.data.render import PromptRenderer
from mupo_ray.errors import ConfigError
from mupo_ray.serving.api import Answer, HttpApi
from mupo_ray.serving.arguments import Limits, ServingArgs
from mupo_ray.serving.gate import VersionGate
from mupo_ray.serving.http import PAGE_FOLDER, build_http_app


class Engine(SimpleNamespace):
    """Stands where an engine would; nothing here reaches it."""

    is_dead: bool


@pytest.fixture(scope="module")
def renderer(tiny_model: Path) -> PromptRenderer:
    return PromptRenderer.from_pretrained(str(tiny_model), max_prompt_tokens=64)


def make_api(renderer: PromptRenderer, **args: Any) -> HttpApi:
    engine: Any = Engine(is_dead=False)
    return HttpApi(
        args=ServingArgs.model_validate({"model": "m", **args}),
        engine=engine,
        gate=VersionGate(7),
        renderer=renderer,
        embed=None,
        checkpoint="run/step_000007",
    )


def test_without_a_key_none_is_asked_for_and_no_origin_is_let_in(renderer: PromptRenderer) -> None:
    with TestClient(build_http_app(make_api(renderer))) as client:
        answer = client.get("/v1/models", headers={"origin": "https://other.example"})
        assert answer.status_code == 200
        assert answer.headers["x-policy-version"] == "7"
        assert not any(name.startswith("access-control") for name in answer.headers)
        preflight = client.options(
            "/v1/chat/completions",
            headers={"origin": "https://a.example", "access-control-request-method": "POST"},
        )
        assert preflight.status_code == 405


def test_an_empty_key_is_no_key(renderer: PromptRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "")
    with pytest.raises(ConfigError, match="SOME_KEY"):
        make_api(renderer, api_key_env="SOME_KEY")


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer x", "Bearer s3cr\u00e9t ", "s3cr\u00e9"])
def test_a_wrong_key(renderer: PromptRenderer, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cr\u00e9t")
    with TestClient(build_http_app(make_api(renderer, api_key_env="SOME_KEY"))) as client:
        answer = client.get("/v1/models", headers={"authorization": given.encode("latin-1")})
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == 401


def test_unknown_paths_and_methods_answer_in_openai_shape(renderer: PromptRenderer) -> None:
    with TestClient(build_http_app(make_api(renderer))) as client:
        for method, path, status in (
            ("GET", "/nothing", 404),
            ("GET", "/v1/chat/completions", 405),
            ("POST", "/v1/models", 405),
            ("GET", "/page/nothing.js", 404),
        ):
            answer = client.request(method, path)
            assert answer.status_code == status
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_pages_are_the_files_of_their_folder_alone(renderer: PromptRenderer) -> None:
    with TestClient(build_http_app(make_api(renderer))) as client:
        for path in ("/page/../api.py", "/page/%2e%2e/api.py", "/page/..%2fapi.py", "/page//etc",
                     "/page/.", "/page/%00", "/page/%2fetc%2fpasswd"):  # fmt: skip
            assert client.get(path).status_code == 404, path
        for file in sorted(path for path in PAGE_FOLDER.rglob("*") if path.is_file()):
            name = file.relative_to(PAGE_FOLDER).as_posix()
            answer = client.get("/" if name == "index.html" else f"/page/{name}")
            assert answer.content == file.read_bytes()
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_too_many_requests_at_a_time_are_turned_away(renderer: PromptRenderer) -> None:
    api = make_api(renderer, limits={"max_concurrent": 1})

    async def main() -> None:
        with TestClient(build_http_app(api)) as client:
            async with api.gate.lease():
                answer = await asyncio.to_thread(client.post, "/v1/completions", json={})
                assert answer.status_code == 429
                assert answer.headers["retry-after"] == "1"
            answer = await asyncio.to_thread(client.post, "/v1/strategies", json={})
            assert answer.status_code == 400

    asyncio.run(main())


class Broken(HttpApi):
    """An API whose handlers fail in the way asked for."""

    async def complete(self, fields: dict[str, Any]) -> Answer:
        async def events() -> AsyncGenerator[bytes, None]:
            yield b'data: {"a": 1}\n\n'
            if fields.get("waits"):
                await asyncio.sleep(10)
            raise RuntimeError("a secret of the server")

        async def answer(version: int) -> Any:
            if fields.get("stream"):
                return events()
            if fields.get("waits"):
                await asyncio.sleep(10)
            raise RuntimeError("a secret of the server")

        return answer


@pytest.mark.parametrize(("waits", "status"), [(False, 500), (True, 408)])
def test_what_fails_says_so_in_openai_shape(
    renderer: PromptRenderer, waits: bool, status: int
) -> None:
    engine: Any = Engine(is_dead=False)
    api = Broken(
        args=ServingArgs(model="m", limits=Limits(timeout_s=0.2)),
        engine=engine,
        gate=VersionGate(0),
        renderer=renderer,
        embed=None,
        checkpoint="m",
    )
    with TestClient(build_http_app(api)) as client:
        whole = client.post("/v1/completions", json={"waits": waits})
        assert whole.status_code == whole.json()["error"]["code"] == status
        stream = client.post("/v1/completions", json={"waits": waits, "stream": True})
        assert stream.status_code == 200
        last = stream.text.split("\n\n")[1].removeprefix("data: ")
        assert json.loads(last)["error"]["code"] == status
        assert "secret" not in whole.text + stream.text
    assert api.gate.num_leases == 0


def test_a_dead_engine_is_not_healthy(renderer: PromptRenderer) -> None:
    api = make_api(renderer)
    api._engine.is_dead = True  # type: ignore[misc]
    with TestClient(build_http_app(api)) as client:
        assert client.get("/health").status_code == 503
