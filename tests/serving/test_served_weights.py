"""Other weights while requests are served."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serving_app import App
from serving_requests import ask, assert_well, body, data_url


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
    assert http.get("/health").json()["checkpoint"] == other_model.name
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
