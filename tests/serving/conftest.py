"""One served model for all tests here; those of the weights, which change it, come last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from serving_app import KEY, MAX_LEN, App, running_app

from mupo_ray.demo.tiny_model import build_tiny_model

_LIMIT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first waits for the server."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(_LIMIT_S))


@pytest.fixture(scope="package")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "other", 1)


@pytest.fixture(scope="package")
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
