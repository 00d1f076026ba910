"""Weights round the loop: after each broadcast a real engine computes what the trainer does."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
import torch
from ray import cloudpickle
from ray.exceptions import RayTaskError
from sync_rig import START_LIMIT_S, Rig, Weights, engine_of, prompts_of

from mupo_ray.demo.tiny_model import build_tiny_model
from mupo_ray.errors import RolloutError, StaleEngineError, WeightSyncError
from mupo_ray.rollout.engine import SampleRequest, VllmEngine
from mupo_ray.rollout.pool import EnginePool
from mupo_ray.rollout.services import Services
from mupo_ray.sync.broadcast import ObjectStoreChannel, WeightPublisher
from mupo_ray.types import Prompt

# Functions of this file run inside actors, which cannot import it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

OnActor = Callable[[Any, Callable[[Any], Any]], Any]

FP32_LIMIT = 1e-4
BF16_LIMIT = 2e-2
STALE = 1e-2
"""Weights or caches of another version show at least this difference."""
CPU_BLOCK = 128
"""Tokens of a block of vLLM's KV cache on CPU; prefixes are cached by whole blocks."""


@pytest.fixture(scope="module")
def rig(services: Services, tiny_model: Path, puzzles: dict[str, Path]) -> Rig:
    """The engine that all tests share, tied embeddings in float32."""
    return Rig(
        folder=tiny_model,
        engine=services.engines[0],
        publisher=services.publisher,
        publisher_name=services.publisher_name,
        prompts=prompts_of(tiny_model, puzzles["eval"]),
    )


@pytest.fixture
def synced(rig: Rig) -> Rig:
    """The shared engine with the trainer's weights of now."""
    rig.send()
    return rig


@pytest.fixture(scope="module")
def long_prompts(rig: Rig) -> list[Prompt]:
    """Prompts over one block of the KV cache, so that prefixes of them are kept."""
    word = rig.prompts[0].token_ids[-5]
    return [
        replace(p, token_ids=(*p.token_ids[:-5], *[word] * CPU_BLOCK, *p.token_ids[-5:]))
        for p in rig.prompts
    ]


def scale_input_embedding(model: Any) -> None:
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.5)


def assert_agrees_over_versions(rig: Rig, limit: float) -> None:
    """Sampler and trainer agree after each broadcast, and would not with the weights before."""
    sampled = None
    for change in (Rig.perturb, Rig.perturb, lambda rig: scale_input_embedding(rig.model)):
        change(rig)
        if sampled is not None:
            assert rig.difference(sampled) > STALE
        stats = rig.send()
        assert (stats.policy_version, stats.engines, stats.failed) == (rig.version, (0,), {})
        sampled = rig.sample()
        assert rig.difference(sampled) <= limit
        assert {r.policy_version for c in sampled for r in c} == {rig.version}


def test_tied_float32_agrees_after_each_broadcast_d01(rig: Rig) -> None:
    assert rig.model.lm_head.weight is rig.model.get_input_embeddings().weight
    assert_agrees_over_versions(rig, FP32_LIMIT)


@pytest.mark.parametrize(
    ("tie", "dtype", "limit"),
    [(False, "float32", FP32_LIMIT), (True, "bfloat16", BF16_LIMIT)],
    ids=["untied-float32", "tied-bfloat16"],
)
def test_other_models_agree_after_each_broadcast(
    ray_local: None,
    puzzles: dict[str, Path],
    tmp_path: Path,
    tie: bool,
    dtype: str,
    limit: float,
) -> None:
    folder = build_tiny_model(tmp_path / "model", 0, tie=tie)
    with engine_of(folder, dtype) as (engine, publisher, name):
        rig = Rig(folder, engine, publisher, name, prompts_of(folder, puzzles["eval"]), dtype)
        assert_agrees_over_versions(rig, limit)


# -- versions ----------------------------------------------------------------------------------


def test_an_engine_of_another_version_refuses_requests(synced: Rig) -> None:
    held, prompt = synced.version, synced.prompts[0]
    request = SampleRequest(
        request_id="r",
        token_ids=prompt.token_ids,
        images=prompt.images,
        image_keys=tuple(i.sha256 for i in prompt.images),
        num_generations=1,
        max_new_tokens=2,
        temperature=1.0,
        top_p=1.0,
        seed=0,
        expected_version=held + 1,
        forbidden_ids=(),
    )
    with pytest.raises(StaleEngineError, match=f"holds policy version {held}, version {held + 1}"):
        ray.get(synced.engine.generate.remote(request))
    assert len(ray.get(synced.engine.generate.remote(replace(request, expected_version=held)))) == 1


@pytest.mark.parametrize("lies", [False, True], ids=["refused-by-engine", "refused-by-pool"])
def test_the_pool_never_returns_another_version(synced: Rig, on_actor: OnActor, lies: bool) -> None:
    # No channel to resync by: the engine is out, and it was the only one.
    pool = synced.pool()
    held = synced.version
    if lies:
        on_actor(synced.engine, skip_version_check)
    try:
        synced.version += 1
        with pytest.raises(RolloutError, match=rf"no engine is left.*version \[?{held}"):
            synced.sample(pool=pool)
    finally:
        synced.version = held
        on_actor(synced.engine, restore)
    assert pool.stats.stale_refused >= 1
    assert synced.difference(synced.sample()) <= FP32_LIMIT


def test_a_stale_engine_is_brought_to_the_published_version(synced: Rig) -> None:
    pool = synced.pool(resync=synced.channel.resync)
    ray.get(synced.engine.end_update.remote(-1))  # as if a broadcast had passed it by
    sampled = synced.sample(pool=pool)
    assert {r.policy_version for c in sampled for r in c} == {synced.version}
    assert (pool.stats.stale_refused >= 1, pool.stats.resynced) == (True, 1)


def skip_version_check(engine: VllmEngine) -> None:
    engine._check_version = lambda request: None  # type: ignore[method-assign]


def restore(actor: Any) -> None:
    """Undo what tests set on an instance: the class's own methods show again."""
    for name in ("_check_version", "begin_update", "reset_caches"):
        actor.__dict__.pop(name, None)


# -- what must not be loaded -------------------------------------------------------------------


class FlippedOnTheWay(ObjectStoreChannel):
    """One byte of the second bucket changes between publishing and staging."""

    def _stage(self, *args: Any) -> Any:
        ray.get(self._publisher.__ray_call__.remote(flip_a_byte))
        return super()._stage(*args)


def flip_a_byte(publisher: WeightPublisher) -> None:
    arrays = [array.copy() for array in ray.get(publisher._refs[1])]
    arrays[0][7] ^= 1
    publisher._refs[1] = ray.put(arrays)


def test_a_flipped_byte_is_refused_and_the_old_version_serves_on(synced: Rig) -> None:
    before = synced.sample()
    held = synced.version
    synced.perturb()
    plain = synced.channel
    synced.channel = synced.make_channel(FlippedOnTheWay)
    try:
        with pytest.raises(WeightSyncError, match=r"checksum of version .* nothing was loaded"):
            synced.send()
    finally:
        synced.channel = plain
    synced.version = held
    assert synced.status() | {"pid": 0} == {
        "engine": 0, "policy_version": held, "fence": None, "active": 0, "pid": 0,
    }  # fmt: skip
    after = synced.sample()
    for mine, other in zip(before, after, strict=True):
        for a, b in zip(mine, other, strict=True):
            assert a.completion_ids.tolist() == b.completion_ids.tolist()
            assert a.sampler_logprobs == pytest.approx(b.sampler_logprobs, abs=1e-6)
    synced.version += 1
    synced.send()
    assert synced.difference(synced.sample()) <= FP32_LIMIT


def test_a_wrong_digest_is_refused(synced: Rig) -> None:
    manifest = ray.get(synced.publisher.manifest.remote())
    assert ray.get(synced.engine.stage.remote(manifest.to_dict())) == manifest.digest
    with pytest.raises(Exception, match="checksum of version"):
        ray.get(synced.engine.stage.remote({**manifest.to_dict(), "digest": "0" * 16}))
    with pytest.raises(Exception, match="is not published"):
        ray.get(synced.engine.stage.remote({**manifest.to_dict(), "version": 10**6}))
    assert synced.difference(synced.sample()) <= FP32_LIMIT


def without(ending: str) -> Callable[[Weights], Weights]:
    def change(weights: Weights) -> Weights:
        kept = [(name, tensor) for name, tensor in weights if not name.endswith(ending)]
        assert len(kept) == len(weights) - 1
        return kept

    return change


def with_a_row_less(weights: Weights) -> Weights:
    middle = len(weights) // 2
    name, tensor = weights[middle]
    return [*weights[:middle], (name, tensor[:-1].contiguous()), *weights[middle + 1 :]]


def with_a_stranger(weights: Weights) -> Weights:
    return [*weights, ("model.layers.99.mlp.up_proj.weight", torch.zeros(4, 4))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("layers.1.self_attn.q_proj.weight"), "lacks weights of 1 layers .*qkv_proj"),
        (without("layers.2.mlp.gate_proj.weight"), "lacks weights of 1 layers .*gate_up_proj"),
        (without("blocks.0.norm1.weight"), "lacks weights of 1 layers .*norm1"),
        (without("embed_tokens.weight"), "lacks weights of 1 layers .*embed_tokens"),
        (with_a_row_less, "failed to load"),
        (with_a_stranger, "failed to load"),
    ],
    ids=["no-query", "no-gate", "no-vision-norm", "no-embedding", "wrong-shape", "unknown-name"],
)
def test_weights_that_are_not_the_models_fence_the_engine_until_the_next_version(
    synced: Rig, change: Callable[[Weights], Weights], message: str
) -> None:
    held = synced.version
    synced.perturb()
    with pytest.raises(WeightSyncError, match=message):
        synced.send(change(synced.weights()))
    assert synced.status()["fence"] == "weights are being swapped"
    for version in (held, synced.version):
        with pytest.raises(RolloutError, match="no engine is left"):
            synced.version = version
            synced.sample()
    synced.send()
    assert synced.difference(synced.sample()) <= FP32_LIMIT


# -- caches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["prefix", "encoder", "none"])
def test_caches_of_the_old_weights_are_cleared(
    synced: Rig, on_actor: OnActor, long_prompts: list[Prompt], kept: str
) -> None:
    synced.sample(long_prompts)  # fills all caches
    synced.perturb()
    on_actor(synced.engine, lambda engine: keep_cache(engine, kept))
    try:
        synced.send()
        sampled = synced.sample(long_prompts)
    finally:
        on_actor(synced.engine, restore)
    difference = synced.difference(sampled, long_prompts)
    if kept == "none":
        assert difference <= FP32_LIMIT
    else:
        assert difference > STALE
        synced.send()
        assert synced.difference(synced.sample(long_prompts), long_prompts) <= FP32_LIMIT


def keep_cache(engine: VllmEngine, kept: str) -> None:
    """Leave out what clears one of the caches; pausing would clear all of them too."""

    async def begin_update(pause: str) -> None:
        engine._fence = "weights are being swapped"
        await engine._llm.pause_generation(mode=pause, clear_cache=False)

    async def reset_caches() -> None:
        for name in ("prefix", "mm", "encoder"):
            if name != kept:
                await getattr(engine._llm, f"reset_{name}_cache")()

    engine.begin_update = begin_update  # type: ignore[method-assign]
    engine.reset_caches = reset_caches  # type: ignore[method-assign]


def test_nothing_is_cached_after_an_update_d02(
    synced: Rig, on_actor: OnActor, long_prompts: list[Prompt]
) -> None:
    on_actor(synced.engine, count_cached_tokens)
    try:
        counts = []
        for update in (True, False, True):
            if update:
                synced.send()
            synced.sample(long_prompts[:1], num_generations=1)
            counts.append(on_actor(synced.engine, lambda engine: engine.cached_tokens.pop()))
    finally:
        on_actor(synced.engine, lambda engine: setattr(engine, "_llm", engine.plain_llm))
    assert counts == [0, CPU_BLOCK, 0]


def count_cached_tokens(engine: Any) -> None:
    """Note how many prompt tokens of each request came from the prefix cache."""

    class Noting:
        def __getattr__(self, name: str) -> Any:
            return getattr(engine.plain_llm, name)

        async def generate(self, *args: Any) -> Any:
            async for output in engine.plain_llm.generate(*args):
                if output.finished:
                    engine.cached_tokens.append(output.num_cached_tokens)
                yield output

    engine.cached_tokens = []
    engine.plain_llm = engine._llm
    engine._llm = Noting()


# -- sampling ----------------------------------------------------------------------------------


def test_forbidden_tokens_are_never_sampled_d26(synced: Rig) -> None:
    before = {name: p.detach().clone() for name, p in synced.model.named_parameters()}
    image = synced.model.config.image_token_id
    prefer_token(synced.model, image)
    synced.send()
    try:
        free = [r for c in synced.sample() for r in c]
        assert np.mean(np.concatenate([r.completion_ids for r in free]) == image) > 0.9
        pool = EnginePool(
            [synced.engine], forbidden_ids=[image], max_num_seqs=64, request_timeout_s=120
        )
        bound = [r for c in synced.sample(pool=pool) for r in c]
        tokens = np.concatenate([r.completion_ids for r in bound])
        assert image not in tokens
        assert len(tokens) > 50
        # The log-probabilities reported are the policy's own all the same.
        assert synced.difference(synced.sample(pool=pool)) <= 1e-3
    finally:
        with torch.no_grad():
            for name, parameter in synced.model.named_parameters():
                parameter.copy_(before[name])


def prefer_token(model: Any, token: int) -> None:
    """Weights under which one token is the likeliest next one after anything.

    Every token's embedding is large along the first axis, which alone passes the last norm, and the
    wanted token's row of the tied head is larger there than any other's.
    """
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        embedding[:, 0] = 100.0
        embedding[token, 0] = 280.0
        norm = model.model.language_model.norm.weight
        norm.zero_()
        norm[0] = 0.01


# -- processes that hang or die ----------------------------------------------------------------


@contextlib.contextmanager
def stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Processes that hang; those still there go on afterwards."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so within {timeout_s} s"
        time.sleep(0.1)


def test_a_late_request_is_named_and_aborted(synced: Rig) -> None:
    _, below = synced.processes()
    with stopped(below):
        prompt = synced.prompts[0].prompt_id[:12]
        with pytest.raises(RolloutError, match=rf"within .* = 1 s .*-{prompt} on engine 0"):
            synced.sample(pool=synced.pool(request_timeout_s=1))
    wait_until(lambda: synced.status()["active"] == 0)
    assert synced.difference(synced.sample()) <= FP32_LIMIT


@pytest.mark.timeout(START_LIMIT_S + 120)
@pytest.mark.parametrize("victim", ["actor", "core"])
def test_a_killed_engine_comes_back_with_the_right_weights(synced: Rig, victim: str) -> None:
    synced.perturb()
    synced.send()
    pool = synced.pool(resync=synced.channel.resync)
    pid, below = synced.processes()
    assert below
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.extend(synced.sample(pool=pool)))
    with stopped(below):  # so that the requests are still there when the engine dies
        thread.start()
        wait_until(lambda: synced.status()["active"] == len(synced.prompts))
        # By its size: a process title set by vLLM is not readable on every machine.
        core = max(below, key=lambda p: p.memory_info().rss)
        os.kill(pid if victim == "actor" else core.pid, signal.SIGKILL)
        if victim == "actor":
            # Not one of vLLM's processes outlives its engine, a hanging one neither.
            _, alive = psutil.wait_procs(below, timeout=20)
            assert alive == []
    thread.join(timeout=START_LIMIT_S + 60)
    assert len(outcome) == len(synced.prompts), "no responses"
    assert {r.policy_version for c in outcome for r in c} == {synced.version}
    assert synced.difference(outcome) <= FP32_LIMIT
    assert pool.stats.engine_failures >= 1
    assert pool.stats.resynced == 1
    assert synced.status()["pid"] != pid


def test_without_restarts_left_a_dead_engine_ends_the_call(
    ray_local: None, synced: Rig, tmp_path: Path
) -> None:
    gone = ray.remote(VllmEngine).options(num_cpus=0.1, max_restarts=0).remote(0, None)
    pool = EnginePool(
        [gone], forbidden_ids=(), max_num_seqs=8, request_timeout_s=60, resync=lambda e: None
    )
    with pytest.raises((RolloutError, RayTaskError), match="engine 0"):
        synced.sample(pool=pool)
