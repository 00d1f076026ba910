"""What every method keeps, those of one's own included; and that broken ones are seen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mupo_ray.config import Config, load_config
from mupo_ray.errors import ConfigError
from mupo_ray.methods import METHODS, Extension, Method, make_method
from mupo_ray.runs.folder import load_resolved, save_resolved
from mupo_ray.settings.sections import MethodConfig
from mupo_ray.settings.text import to_yaml
from mupo_ray.testing.methods import check_method, random_cohort, random_embeddings
from mupo_ray.types import Metric

RAISING = {"collapse": {"action": "raise_diversity_weight"}}
BASES = (
    {"name": "grpo"},
    {"name": "mupo", "num_groups": 3, "min_group_size": 3},
    {"name": "pass_k", "k": 3},
)
BONUS = {"name": "own_methods:Bonus", "base": BASES[1]}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((f"{method.Config().name}", {}) for method in METHODS),
    ("grpo", {"advantage": "dr_grpo"}),
    ("grpo", {"advantage": "rloo"}),
    ("mupo", {"num_groups": 1, "reward_form": "release"}),
    ("mupo", {"sections": RAISING}),
    *(("own_methods:Doubt", {"base": base}) for base in BASES),
    ("own_methods:Doubt", {"base": BASES[1], "sections": RAISING}),
    ("own_methods:Bonus", {"base": BASES[0]}),
    ("own_methods:Bonus", {"base": BASES[1]}),
    ("own_methods:Doubt", {"base": BONUS}),
]


def fields(name: str, **more: Any) -> dict[str, Any]:
    groups = {"num_groups": 2, "min_group_size": 3} if name == "mupo" else {}
    return groups | more


@pytest.mark.parametrize(("name", "more"), CASES, ids=lambda x: str(x).replace("own_methods:", ""))
def test_every_method_keeps_the_laws(name: str, more: dict[str, Any]) -> None:
    check_method(name, **fields(name, **more))


class Broken(Method[MethodConfig]):
    """Keeps every law until a test takes one away."""

    class Config(MethodConfig):
        """Without fields."""


class FirstWins(Broken):
    def advantages(self, rewards: np.ndarray) -> Any:
        result = super().advantages(rewards)
        result.values[0] += 1.0
        return result


class OtherRanksCount(Broken):
    def score(self, cohorts: Any, embeddings: Any, step: int) -> Any:
        scored = super().score(cohorts, embeddings, step)
        for s in scored:
            s.advantages[:] *= len(cohorts)
        return scored


class SecretPart(Broken):
    def reward_parts(self, cohort: Any, step: int) -> Any:
        return {**super().reward_parts(cohort, step), "secret": np.zeros(len(cohort.responses))}


class ForgetsItsPart(Broken):
    declares = (Metric("reward/part/mean", "1", "declared and not part of the reward"),)


class ForgetsItsMetric(Broken):
    declares = (Metric("method/metric", "1", "declared and not returned"),)


class ForgetsItsTerm(Broken):
    declares = (Metric("loss/term", "1", "declared and not returned"),)


class ForgetsItsMemory(Broken):
    steps = 0

    def observe(self, stats: Any, step: int) -> None:
        self.steps += 1

    def metrics(self, step: int) -> dict[str, float]:
        return {"reward/total/mean": float(self.steps)}


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (FirstWins, "order of responses|equal rewards"),
        (OtherRanksCount, "two ranks differ"),
        (SecretPart, "'secret'.* are not declared"),
        (ForgetsItsPart, "'part'.* are declared and not part of the reward"),
        (ForgetsItsMetric, "'method/metric'.* are declared and not returned"),
        (ForgetsItsTerm, "loss_terms are not those declared"),
        (ForgetsItsMemory, "resumed method has other metrics"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_broken_law_is_named(
    broken: type[Broken], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mupo_ray.testing.methods.make_method", lambda c: broken(c.method, c))
    with pytest.raises(AssertionError, match=law):
        check_method("grpo")


def test_one_group_is_grpo() -> None:
    sections = {"rollout": {"num_generations": 12}}
    grpo = make_method(Config.model_validate({**sections, "method": {"name": "grpo"}}))
    mupo = make_method(
        Config.model_validate({**sections, "method": {"name": "mupo", "num_groups": 1}})
    )
    cohorts = [random_cohort(i, 12) for i in range(3)]
    rows = [random_embeddings(i, 12) for i in range(3)]
    for one, other in zip(mupo.score(cohorts, rows, 0), grpo.score(cohorts, None, 0), strict=True):
        assert one.advantages == pytest.approx(other.advantages)
        assert one.rewards == pytest.approx(other.rewards)


def test_an_extension_leaves_to_its_base_what_it_does_not_change() -> None:
    base = {"name": "mupo", "num_groups": 2, "min_group_size": 3}
    sections: dict[str, Any] = {"rollout": {"num_generations": 12}, **RAISING}
    plain = make_method(Config.model_validate({**sections, "method": base}))
    over = make_method(
        Config.model_validate({**sections, "method": {"name": "own_methods:Doubt", "base": base}})
    )
    assert over.needs_embeddings
    assert over.loss_names == ("doubt",)
    cohorts, rows = [random_cohort(0, 12)], [random_embeddings(0, 12)]
    for method in (plain, over):
        method.observe({"collapse/weight_factor": 2.0}, 0)
    (one,), (other,) = plain.score(cohorts, rows, 1), over.score(cohorts, rows, 1)
    assert np.array_equal(one.advantages, other.advantages)
    assert over.metrics(1) == {**plain.metrics(1), "method/doubt_steps": 1.0}
    assert over.state().keys() == {"base/diversity_factor", "steps"}


@pytest.mark.parametrize("name", ["Quiet", "SharesSection", "Bare"])
def test_the_class_that_is_named_is_the_one_that_is_built(name: str) -> None:
    config = Config.model_validate({"method": {"name": f"own_methods:{name}"}})
    assert type(make_method(config)).__name__ == name
    assert type(make_method(Config())).__name__ == "Mupo"


@pytest.mark.parametrize("base", BASES[:2], ids=["grpo", "mupo"])
def test_an_extensions_part_is_one_of_its_bases_reward(base: dict[str, Any]) -> None:
    sections: dict[str, Any] = {"rollout": {"num_generations": 12}}
    plain = make_method(Config.model_validate({**sections, "method": base}))
    chain = {"name": "own_methods:Doubt", "base": {"name": "own_methods:Bonus", "base": base}}
    over = make_method(Config.model_validate({**sections, "method": chain}))
    cohorts, rows = [random_cohort(0, 12)], [random_embeddings(0, 12)]
    (before,), (after,) = plain.score(cohorts, rows, 0), over.score(cohorts, rows, 0)
    right = np.array([v.accuracy for v in cohorts[0].verdicts])
    assert after.reward_parts["bonus"] == pytest.approx(0.1 * right)
    assert after.rewards == pytest.approx(before.rewards + 0.1 * right)
    assert np.array_equal(after.group_ids, before.group_ids)


@pytest.mark.parametrize("hook", ["reward_parts", "common_parts", "advantages"])
def test_a_hook_that_an_extension_would_override_in_vain_is_refused(hook: str) -> None:
    with pytest.raises(TypeError, match=f"Vain overrides {hook}, which only its base is asked for"):
        type("Vain", (Extension,), {hook: lambda self: None})


def test_a_method_of_ones_own_is_a_configuration_like_any_other(tmp_path: Path) -> None:
    own = ["method.name=own_methods:Doubt", "method.weight=2", "method.base.name=pass_k"]
    config = load_config([], [*own, "method.base.k=3"])
    assert config.method.model_dump() == {
        "name": "own_methods:Doubt",
        "weight": 2.0,
        "base": {"name": "pass_k", "k": 3},
    }
    save_resolved(config, tmp_path)
    assert load_resolved(tmp_path) == config
    (tmp_path / "again.yaml").write_text(to_yaml(config))
    assert load_config([tmp_path / "again.yaml"]) == config
    assert load_config([], ["method.name=grpo"], base=config).method == METHODS[0].Config()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["method.name=grop"],
            "method.name=grop: got 'grop', .*'pass_k', or module:Class of your own",
        ),
        (
            ["method.name=no_such:M"],
            "method.name=no_such:M: cannot import module no_such .*PYTHONPATH",
        ),
        (
            ["method.name=own_methods:M"],
            "method.name=own_methods:M: module own_methods has no such name for M",
        ),
        (["method.name=own_methods:NoMethod"], "should be a subclass of mupo_ray.methods.base.Me"),
        (
            ["method.name=own_methods:Doubt", "method.wieght=1"],
            "override method.wieght=1: unknown key; did you mean method.weight.",
        ),
        (
            ["method.name=own_methods:Doubt", "method.weight=-1"],
            "override method.weight=-1: got -1, should be greater than or equal",
        ),
        (
            ["method.name=own_methods:Doubt", "method.base.name=pass_k", "method.base.k=99"],
            "method.base.k = 99 exceeds rollout.num_generations = 12",
        ),
        (
            ["method={name: own_methods:Bonus, base: {name: pass_k}}"],
            "adds bonus to the reward, and method.base.name = pass_k rewards accuracy alone",
        ),
        (
            ["method={name: own_methods:Bonus, base: {name: own_methods:Bonus}}"],
            "and its base own_methods:Bonus both declare reward/bonus/mean",
        ),
        (["method.name=own_methods:Bouns"], "for Bouns; did you mean own_methods:Bonus."),
        (
            ['reward.extra=[{name: diversity, path: "m:f"}]'],
            "reward.extra has 'diversity', which is a part of the reward of method.name = mupo",
        ),
    ],
)
def test_faults_read_like_those_of_a_built_in(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config([], overrides)
    assert re.search(message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
