"""What the start-up check makes of a model that packs well, badly, and not at all."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mupo_ray.config import Config, load_config
from mupo_ray.errors import ConfigError
from mupo_ray.train import prefix
from mupo_ray.train.batch import Sharing
from mupo_ray.train.policy import init_distributed
from mupo_ray.train.sharing import make_policy

GRPO = Path(__file__).resolve().parents[2] / "configs" / "grpo.yaml"


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    init_distributed("cpu", 60.0)
    yield
    dist.destroy_process_group()


def config(model: Path, sharing: str) -> Config:
    return load_config(
        [GRPO], [f"model.path={model}", f"train.prefix_sharing={sharing}", "run.name=check"]
    )


def off_by_one(*args: Any, **options: Any) -> Any:
    """Attention that misses the last key of everything."""
    query, key, value = args[1:4]
    out, weights = prefix.prefix_shared_attention(
        args[0], query, key.roll(1, dims=2), value, *args[4:], **options
    )
    return out, weights


def no_kernel(*args: Any, **options: Any) -> Any:
    raise RuntimeError("no kernel for this device")


def broken(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(prefix.AttentionInterface._global_mapping, prefix.NAME, kind)


def test_a_model_that_packs_is_packed(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    policy = make_policy(config(tiny_model, "auto"))
    assert policy.layout.sharing is Sharing.PACKED
    assert policy.model.config.text_config._attn_implementation == prefix.NAME
    assert policy.model.config.vision_config._attn_implementation == "sdpa"
    assert "prompts are shared (packed rows): log-probs differ by" in caplog.text
    assert "times as fast on 12 responses of up to 32 tokens to a prompt of 67" in caplog.text
    # The check leaves no gradient behind.
    assert all(p.grad is None or not p.grad.any() for p in policy.model.parameters())


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(off_by_one, "gradients by .* from padded ones, allowed are"), (no_kernel, "no kernel for")],
)
def test_what_does_not_pack_falls_back_and_says_why(
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: Any,
    reason: str,
) -> None:
    broken(kind, monkeypatch)
    policy = make_policy(config(tiny_model, "auto"))
    assert policy.layout.sharing is Sharing.VISION_ONLY
    assert policy.model.config.text_config._attn_implementation == "sdpa"
    assert "only their images" in caplog.text
    with pytest.raises(ConfigError, match=f"packed rows are not exact .*{reason}"):
        make_policy(config(tiny_model, "packed"))


@pytest.mark.parametrize("name", ["vision_only", "off"])
def test_what_is_asked_for_is_taken_without_a_check(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    broken(no_kernel, monkeypatch)
    assert make_policy(config(tiny_model, name)).layout.sharing == name


def test_a_nan_does_not_pass(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nan(*args: Any, **options: Any) -> Any:
        out, weights = prefix.prefix_shared_attention(*args, **options)
        return out * torch.nan, weights

    broken(nan, monkeypatch)
    assert make_policy(config(tiny_model, "auto")).layout.sharing is Sharing.VISION_ONLY
