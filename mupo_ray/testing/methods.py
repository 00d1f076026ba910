"""The laws that every method keeps, for tests of the package's and of your own."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mupo_ray.config import Config
from mupo_ray.methods import make_method
from mupo_ray.observability.metrics import check as check_key
from mupo_ray.settings.load import check
from mupo_ray.settings.sections import COMMON_PARTS
from mupo_ray.types import (
    Cohort,
    FinishReason,
    Prompt,
    Reason,
    Response,
    Tokens,
    Verdict,
    own_parts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.methods import Method

# Enough for three groups of three.
NUM_RESPONSES = 12
WIDTH = 5
# What a step and an evaluation after it may tell a method.
STATS = {
    "loss/policy": 0.01,
    "reward/accuracy/mean": 0.5,
    "reward/total/mean": 0.6,
    "collapse/alarm": 1.0,
    "collapse/weight_factor": 2.0,
}


def check_method(name: str, *, sections: dict[str, Any] | None = None, **fields: Any) -> None:
    """Hold a method against the laws that the loop relies on; returns once all hold.

    Order of responses, cohorts of none and of one response, equal rewards, cohorts shared out over
    two ranks, memory through a checkpoint's file, names of parts, terms and metrics.

    Args:
        name: as `method.name`, `module:Class` for one of your own.
        sections: other sections of the configuration, by name.
        fields: of the method's section.

    Raises:
        AssertionError: a law is broken; says which.
        ConfigError: there is no such method, or a field does not fit.
    """
    rollout = {"num_generations": NUM_RESPONSES, "max_new_tokens": 16}
    other = dict(sections or {})
    rollout |= other.pop("rollout", {})
    tree = {"rollout": rollout, **other, "method": {"name": name, **fields}}
    config = check(Config, tree, {})
    count = config.rollout.num_generations
    cohorts = [
        random_cohort(0, count),
        random_cohort(1, count, right=0),
        random_cohort(2, count, right=count),
        random_cohort(3, 1),
        random_cohort(4, count, longest=1),
    ]
    embeddings = [random_embeddings(i, len(c.responses)) for i, c in enumerate(cohorts)]
    for vectors in (embeddings, None):
        _values_are_whole(config, cohorts, vectors)
        _order_does_not_matter(config, cohorts, vectors)
        _ranks_do_not_show(config, cohorts, vectors)
    _nothing_is_fine(config)
    _memory_is_kept(config, cohorts, embeddings)
    _names_are_declared(config, cohorts, embeddings)
    _terms_fit(config)


def random_cohort(
    seed: int, num_responses: int, *, right: int | None = None, longest: int = 9
) -> Cohort:
    """Responses of random lengths, the first `right` of them right (half of them where None)."""
    rng = np.random.default_rng(seed)
    right = (num_responses + 1) // 2 if right is None else right
    return Cohort(
        prompt=Prompt(
            prompt_id=f"p{seed}", position=seed, token_ids=(1,), question="q", answer="a"
        ),
        responses=tuple(
            Response(
                text=f"response {i}",
                completion_ids=np.arange(length, dtype=np.int64),
                sampler_logprobs=rng.normal(-1.0, 0.3, length).astype(np.float32),
                finish_reason=FinishReason.STOP,
                policy_version=0,
                seed=i,
                engine=0,
            )
            for i, length in enumerate(rng.integers(1, longest + 1, num_responses))
        ),
        verdicts=tuple(
            Verdict(
                accuracy=float(i < right),
                format=float(i % 3 > 0),
                extracted="a",
                reason=Reason.RIGHT if i < right else Reason.WRONG,
            )
            for i in range(num_responses)
        ),
    )


def random_embeddings(seed: int, num_responses: int) -> np.ndarray:
    """[N, D] float32 unit rows."""
    rows = np.random.default_rng(seed).normal(size=(num_responses, WIDTH))
    unit: np.ndarray = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def _values_are_whole(
    config: Config, cohorts: Sequence[Cohort], embeddings: Sequence[np.ndarray] | None
) -> None:
    scored = make_method(config).score(cohorts, embeddings, 0)
    assert [s.cohort for s in scored] == list(cohorts), "score: not one for each cohort, in order"
    for s in scored:
        count = len(s.cohort.responses)
        for what, values in (("rewards", s.rewards), ("advantages", s.advantages)):
            assert values.shape == (count,), f"{what}: shape {values.shape}, should be ({count},)"
            assert np.isfinite(values).all(), f"{what} are not finite: {values}"
        total = sum(s.reward_parts.values(), np.zeros(count))
        assert np.allclose(total, s.rewards), "rewards are not the sum of their parts"
        for group in np.unique(s.group_ids):
            inside = s.group_ids == group
            if np.ptp(s.rewards[inside]) == 0.0:
                assert not s.advantages[inside].any(), "equal rewards have advantages"


def _order_does_not_matter(
    config: Config, cohorts: Sequence[Cohort], embeddings: Sequence[np.ndarray] | None
) -> None:
    for index, cohort in enumerate(cohorts):
        order = np.random.default_rng(index).permutation(len(cohort.responses))
        turned = Cohort(
            prompt=cohort.prompt,
            responses=tuple(cohort.responses[i] for i in order),
            verdicts=tuple(cohort.verdicts[i] for i in order),
        )
        rows = None if embeddings is None else embeddings[index]
        (plain,) = make_method(config).score([cohort], None if rows is None else [rows], 0)
        (other,) = make_method(config).score([turned], None if rows is None else [rows[order]], 0)
        assert np.allclose(other.advantages, plain.advantages[order], atol=1e-6), (
            "the order of responses decides their advantages"
        )


def _ranks_do_not_show(
    config: Config, cohorts: Sequence[Cohort], embeddings: Sequence[np.ndarray] | None
) -> None:
    whole = make_method(config).score(cohorts, embeddings, 0)
    for first in range(2):
        part = slice(first, None, 2)
        rows = None if embeddings is None else embeddings[part]
        for mine, one in zip(
            make_method(config).score(cohorts[part], rows, 0), whole[part], strict=True
        ):
            assert np.array_equal(mine.advantages, one.advantages), "two ranks differ from one"


def _nothing_is_fine(config: Config) -> None:
    method = make_method(config)
    assert method.score([], [], 0) == [], "score of no cohort"
    assert method.score([], None, 0) == [], "score of no cohort without embeddings"


def _memory_is_kept(
    config: Config, cohorts: Sequence[Cohort], embeddings: Sequence[np.ndarray]
) -> None:
    method, fresh = make_method(config), make_method(config)
    for step in range(3):
        method.observe(STATS, step)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **method.state())
    file.seek(0)
    with np.load(file, allow_pickle=False) as state:
        assert set(state) == set(fresh.state()), "state has other names later than at the start"
        if state.files:
            fresh.restore(dict(state))
    for mine, other in zip(
        method.score(cohorts, embeddings, 3), fresh.score(cohorts, embeddings, 3), strict=True
    ):
        assert np.array_equal(mine.rewards, other.rewards), "a resumed method rewards otherwise"
        assert np.array_equal(mine.advantages, other.advantages), "a resumed method differs"
    assert method.metrics(3) == fresh.metrics(3), "a resumed method has other metrics"


def _names_are_declared(
    config: Config, cohorts: Sequence[Cohort], embeddings: Sequence[np.ndarray]
) -> None:
    method: Method[Any] = make_method(config)
    keys = {metric.key for metric in method.metrics_declared}
    assert len(keys) == len(method.metrics_declared), "a metric is declared twice"
    metrics = method.metrics(0)
    for key in metrics:
        check_key(key, method.metrics_declared)
    silent = {key for key in keys if key.startswith("method/")} - set(metrics)
    assert not silent, f"metrics {sorted(silent)} are declared and not returned"
    own = set(own_parts(method.metrics_declared))
    for s in method.score(cohorts, embeddings, 0):
        extra = set(s.reward_parts) - own - set(COMMON_PARTS)
        assert not extra, f"reward parts {sorted(extra)} are not declared as reward/<part>/mean"
        lost = own - set(s.reward_parts)
        assert not lost, f"reward parts {sorted(lost)} are declared and not part of the reward"


def _terms_fit(config: Config) -> None:
    method = make_method(config)
    for count in (0, 7):
        columns = torch.linspace(-2.0, -0.1, count, requires_grad=True)
        constant = columns.detach()
        terms = method.loss_terms(
            Tokens(
                logprobs=columns,
                entropy=-columns,
                old_logprobs=constant,
                ref_logprobs=constant,
                advantages=torch.ones(count),
                mask=torch.ones(count, dtype=torch.bool),
                response=torch.zeros(count, dtype=torch.int64),
            )
        )
        assert set(terms) == set(method.loss_names), "loss_terms are not those declared"
        for name, term in terms.items():
            assert term.shape == (count,), f"loss/{name}: {tuple(term.shape)}, should be ({count},)"
            assert bool(term.isfinite().all()), f"loss/{name} is not finite"
