"""The engine pool against scripted actors: order, balance, back-pressure, failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import ray

from mupo_ray.core.seeding import derive_seed
from mupo_ray.errors import RolloutError, WeightSyncError
from mupo_ray.rollout.pool import EnginePool, SamplingPlan
from mupo_ray.testing.actors import ScriptedEngine
from mupo_ray.types import Prompt, Response

pytestmark = pytest.mark.usefixtures("ray_local")

PLAN = SamplingPlan(num_generations=4, max_new_tokens=8, temperature=1.0, top_p=1.0, seed=11)
OK = ()


def prompts(count: int) -> list[Prompt]:
    return [
        Prompt(prompt_id=f"prompt-{i:04d}", position=i, token_ids=(1, 2), question="q", answer="a")
        for i in range(count)
    ]


def engines(*scripts: Sequence[str], delay_s: float = 0.0) -> list[Any]:
    actor = ray.remote(num_cpus=0)(ScriptedEngine)
    return [actor.remote(i, script, delay_s=delay_s) for i, script in enumerate(scripts)]


def pool(
    actors: Sequence[Any], *, rank: int = 0, resync: Callable[[int], None] | None = None,
    timeout_s: float = 60, max_num_seqs: int = 8,
) -> EnginePool:  # fmt: skip
    return EnginePool(
        actors,
        forbidden_ids=[7],
        max_num_seqs=max_num_seqs,
        request_timeout_s=timeout_s,
        max_restarts=2,
        rank=rank,
        resync=resync,
    )


def seen(actor: Any) -> tuple[list[str], list[str], int]:
    found: tuple[list[str], list[str], int] = ray.get(actor.seen.remote(), timeout=60)
    return found


def tokens(sampled: Sequence[tuple[Response, ...]]) -> list[list[list[int]]]:
    return [[r.completion_ids.tolist() for r in responses] for responses in sampled]


def test_results_stand_in_order_and_do_not_depend_on_the_engines() -> None:
    expected = [[[derive_seed(11, f"prompt-{p:04d}"), i] for i in range(4)] for p in range(10)]
    for scripts in ((OK,), (OK, OK), (["stale"], OK), (["lie", "ok", "lie"], OK)):
        sampled = pool(engines(*scripts)).generate(prompts(10), PLAN, version=3)
        assert tokens(sampled) == expected
        assert {r.policy_version for c in sampled for r in c} == {3}


def test_no_prompts_give_no_results() -> None:
    assert pool(engines(OK)).generate([], PLAN, version=0) == []


def aborted(actor: Any, count: int) -> list[str]:
    """Requests that the actor was told to abort; waits for `count`, since nobody else does."""
    deadline = time.monotonic() + 30
    while len(seen(actor)[1]) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return seen(actor)[1]


def test_engines_share_the_work_within_their_window() -> None:
    actors = engines(OK, OK, delay_s=0.05)
    for actor in actors:
        seen(actor)  # Both are up before the race begins.
    sampled = pool(actors).generate(prompts(24), PLAN, version=0)
    served = [len(seen(actor)[0]) for actor in actors]
    assert sum(served) == 24
    assert min(served) >= 8
    # Twice max_num_seqs / num_generations = 4 requests at a time, and no more.
    assert [seen(actor)[2] for actor in actors] == [4, 4]
    assert {r.engine for c in sampled for r in c} == {0, 1}


def test_ranks_begin_with_different_engines() -> None:
    for rank in (0, 1, 2):
        actors = engines(OK, OK, OK)
        pool(actors, rank=rank).generate(prompts(1), PLAN, version=0)
        assert [len(seen(actor)[0]) for actor in actors] == [int(i == rank) for i in range(3)]


def test_engines_without_the_version_get_no_requests() -> None:
    actors = engines(OK, OK)
    one = pool(actors)
    one.set_live([1])
    one.generate(prompts(6), PLAN, version=0)
    assert [len(seen(actor)[0]) for actor in actors] == [0, 6]
    one.set_live([0, 1])
    one.generate(prompts(6), PLAN, version=0)
    assert len(seen(actors[0])[0]) == 3


def test_a_dead_engine_is_left_out_and_its_requests_are_sampled_again() -> None:
    actors = engines(["die"] * 9, OK)
    one = pool(actors)
    sampled = one.generate(prompts(8), PLAN, version=0)
    assert len(sampled) == 8
    assert {r.engine for c in sampled for r in c} == {1}
    assert one.stats.engine_failures == 1
    assert one.stats.retried >= 1


@pytest.mark.parametrize("word", ["stale", "lie"])
def test_a_stale_engine_is_resynced_where_no_other_is_left(word: str) -> None:
    resynced: list[int] = []
    one = pool(engines([word]), resync=resynced.append)
    sampled = one.generate(prompts(1), PLAN, version=5)
    assert {r.policy_version for c in sampled for r in c} == {5}
    assert resynced == [0]
    assert (one.stats.stale_refused, one.stats.retried, one.stats.resynced) == (1, 1, 1)


def test_an_engine_that_stays_stale_is_given_up() -> None:
    resynced: list[int] = []
    one = pool(engines(["stale"] * 99), resync=resynced.append)
    with pytest.raises(RolloutError, match="no engine is left to sample from .engine 0: .*holds"):
        one.generate(prompts(1), PLAN, version=5)
    assert resynced == [0, 0]


def test_an_engine_that_cannot_be_resynced_ends_the_call() -> None:
    def resync(engine: int) -> None:
        raise WeightSyncError("nothing is published")

    with pytest.raises(RolloutError, match="engine 0: nothing is published"):
        pool(engines(["stale"] * 9), resync=resync).generate(prompts(1), PLAN, version=5)


def test_a_refused_prompt_ends_the_call_and_the_rest_is_aborted() -> None:
    actors = engines(["refuse"] + ["hang"] * 9)
    with pytest.raises(RolloutError, match=r"engine 0: vLLM refused prompt r0-1-\d-prompt"):
        pool(actors, max_num_seqs=6).generate(prompts(3), PLAN, version=0)
    assert len(aborted(actors[0], 2)) == 2


def test_a_late_request_names_itself_and_its_engine() -> None:
    actors = engines(["ok", "hang"])
    seen(actors[0])  # The actor is up: a start on a busy machine takes longer than the limit.
    with pytest.raises(
        RolloutError, match=r"= 5 s for 1 of 2 prompts .r0-1-\d-prompt-000\d on engine 0"
    ):
        pool(actors, timeout_s=5).generate(prompts(2), PLAN, version=0)
    assert len(aborted(actors[0], 1)) == 1
