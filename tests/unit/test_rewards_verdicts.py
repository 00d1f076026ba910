"""Verdicts in training: options, opened reasoning, own rewards, and how parts add up."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mupo_ray.config import Config
from mupo_ray.errors import ConfigError, DataError, RewardError
from mupo_ray.methods import make_method
from mupo_ray.observability.metrics import check
from mupo_ray.rewards.algebra_pool import default_algebra_pool
from mupo_ray.rewards.extra import RewardContext, load_extra_rewards
from mupo_ray.rewards.extract import opens_think
from mupo_ray.rewards.verdicts import Verifier
from mupo_ray.settings.sections import ExtraRewardConfig, RewardConfig
from mupo_ray.train.stages import Embedded, SampledStep, judge_cohorts
from mupo_ray.train.summary import record_step
from mupo_ray.types import FinishReason, Prompt, Reason, Response


def prompt(answer: str, **meta: str) -> Prompt:
    return Prompt(
        prompt_id="p1", position=0, token_ids=(1,), question="Which?", answer=answer, meta=meta
    )


def response(text: str, num_tokens: int = 4) -> Response:
    return Response(
        text=text,
        completion_ids=np.zeros(num_tokens, dtype=np.int64),
        sampler_logprobs=np.zeros(num_tokens, dtype=np.float32),
        finish_reason=FinishReason.STOP,
        policy_version=0,
        seed=0,
        engine=0,
    )


@pytest.fixture
def my_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of functions as a user would write them."""
    (tmp_path / "my_rewards.py").write_text(
        "NUMBER = 3\n"
        "def tokens(parts, context):\n"
        "    return context.num_tokens / 10\n"
        "def both(parts, context):\n"
        "    assert context.prompt.meta == {'kind': 'easy'} and context.verdict.extracted == '5'\n"
        "    return parts['accuracy'] + parts['format'] + parts['tokens']\n"
        "def broken(parts, context):\n"
        "    return 1 / 0\n"
        "def text(parts, context):\n"
        "    return 'high'\n"
        "def nothing(parts, context):\n"
        "    return None\n"
        "def infinite(parts, context):\n"
        "    return float('inf')\n"
        "def greedy(parts, context):\n"
        "    parts['accuracy'] = 9.0\n"
        "    return 0\n"
        "def seen(parts, context):\n"
        "    return parts['accuracy']\n"
    )
    (tmp_path / "my_broken.py").write_text("raise OSError('no disk')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("my_rewards", "my_broken"):
        sys.modules.pop(name, None)


def verifier(*names: str, **options: Any) -> Verifier:
    extra = [ExtraRewardConfig(name=name, path=f"my_rewards:{name}") for name in names]
    return Verifier(algebra_pool=default_algebra_pool(), extra=load_extra_rewards(extra), **options)


def test_options_come_from_the_data_set() -> None:
    options = '{"A": "10 cm", "B": "12 cm"}'
    with_options, without = verifier().verdicts_of(
        [prompt("B", options=options), prompt("B")],
        [[response("\\boxed{12 cm}"), response("\\boxed{10 cm}")], [response("\\boxed{12 cm}")]],
    )
    assert [v.reason for v in with_options] == [Reason.RIGHT, Reason.WRONG]
    assert [v.reason for v in without] == [Reason.WRONG]


@pytest.mark.parametrize("text", ["A. 10 cm", "[1]", '{"AB": "x"}', '{"A": 5}'])
def test_options_that_are_none_are_an_error_with_the_prompt(text: str) -> None:
    with pytest.raises(DataError, match="prompt p1: options: got"):
        Verifier(algebra_pool=default_algebra_pool()).verdicts_of(
            [prompt("B", options=text)], [[response("x")]]
        )


def test_own_rewards_see_the_parts_before_them(my_rewards: None) -> None:
    text = "<think>a</think>\\boxed{5}"
    ((verdict,),) = verifier("tokens", "both").verdicts_of(
        [prompt("5", kind="easy")], [[response(text)]]
    )
    assert verdict.extra == {"tokens": 0.4, "both": 2.4}
    assert (verdict.accuracy, verdict.format) == (1.0, 1.0)
    ((bare,),) = verifier("tokens").verdicts_of_texts([prompt("5")], [[text]])
    assert bare.extra == {}


def test_own_rewards_cannot_change_the_others(my_rewards: None) -> None:
    ((verdict,),) = verifier("greedy", "seen").verdicts_of(
        [prompt("5")], [[response("\\boxed{6}")]]
    )
    assert verdict.extra == {"greedy": 0.0, "seen": 0.0}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "raised ZeroDivisionError: division by zero"),
        ("text", "got 'high', should return a number"),
        ("nothing", "got None, should return a number"),
        ("infinite", "got inf, should return a finite number"),
    ],
)
def test_an_own_reward_that_fails_is_named_with_its_prompt(
    my_rewards: None, name: str, message: str
) -> None:
    with pytest.raises(RewardError) as caught:
        verifier(name).verdicts_of([prompt("5")], [[response("\\boxed{5}")]])
    assert str(caught.value) == f"reward.extra '{name}' (my_rewards:{name}) on prompt p1: {message}"
    assert getattr(caught.value, "is_fatal", False), "a restart would fail the same way"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:f", "cannot import module no_such_module (ModuleNotFoundError"),
        ("my_broken:f", "cannot import module my_broken (OSError: no disk)"),
        ("my_rewards:missing", "module my_rewards has no such name for missing"),
        ("my_rewards:NUMBER", "module my_rewards has a int for NUMBER"),
    ],
)
def test_an_own_reward_that_cannot_be_loaded(my_rewards: None, path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_extra_rewards([ExtraRewardConfig(name="mine", path=path)])
    assert str(caught.value).startswith(f"reward.extra 'mine': path '{path}': ")
    assert message in str(caught.value)


def extra(**fields: Any) -> dict[str, Any]:
    return {"name": "mine", "path": "m:f"} | fields


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"extra": [extra(path="m.f")]}, "pattern"),
        ({"extra": [extra(name="a b")]}, "pattern"),
        ({"extra": [extra(name="accuracy")]}, "'accuracy' twice"),
        ({"extra": [extra(), extra()]}, "'mine' twice"),
        ({"extra": [extra(weight=math.nan)]}, "finite"),
        ({"model_judge": {"prompt": "{gold}?"}}, "prompt lacks {answer}"),
        ({"model_judge": {"base_url": "localhost"}}, "pattern"),
    ],
)
def test_rules_of_the_reward_section(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RewardConfig.model_validate(section, strict=False)


@pytest.mark.parametrize("name", ["grpo", "mupo"])
def test_parts_add_up_with_their_weights(my_rewards: None, name: str) -> None:
    section = {
        "accuracy_weight": 0.5,
        "format_weight": 0.25,
        "overlong": {"buffer_tokens": 8, "penalty": 1.0},
        "extra": [{"name": "tokens", "path": "my_rewards:tokens", "weight": -2.0}],
    }
    groups = {"num_groups": 1, "min_group_size": 2} if name == "mupo" else {}
    config = Config.model_validate(
        {
            "reward": section,
            "rollout": {"num_generations": 2, "max_new_tokens": 16},
            "method": {"name": name, **groups},
        },
        strict=False,
    )
    texts = [("<think>a</think>\\boxed{5}", 4), ("\\boxed{5}", 12)]
    cohorts = judge_cohorts(
        [prompt("5")], [[response(text, n) for text, n in texts]], verifier("tokens")
    )
    (scored,) = make_method(config).score(cohorts, None, 0)
    assert scored.reward_parts["tokens"].tolist() == pytest.approx([-0.8, -2.4])
    assert scored.reward_parts["overlong"].tolist() == [0.0, -0.5]
    assert scored.rewards.tolist() == pytest.approx([0.5 + 0.25 - 0.8, 0.5 - 0.5 - 2.4])
    record = record_step([scored], SampledStep(cohorts=cohorts), Embedded(embeddings=None))
    metrics = record.metrics()
    assert metrics["reward/extra/tokens/mean"] == pytest.approx(-1.6)
    assert metrics["reward/overlong/mean"] == pytest.approx(-0.25)
    for key in metrics:
        check(key)


# -- the chat template opens the reasoning --------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "opens"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<think>", True),
        ("< think >  \n\n", True),
        ("<|im_start|>assistant\n", False),
        ("<think>\n\n</think>\n\n", False),
        ("inside <think> </think> first.<|im_end|>\n<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_end_of_a_rendered_prompt(end: str, opens: bool) -> None:
    assert opens_think("<|im_start|>user\nHow many?" + end) is opens


def test_training_takes_it_from_the_chat_template_a81(tiny_model: Path, tmp_path: Path) -> None:
    import shutil

    from mupo_ray.data.render import PromptRenderer

    template = (tiny_model / "chat_template.jinja").read_text()
    thinking = tmp_path / "thinking"
    shutil.copytree(tiny_model, thinking)
    (thinking / "chat_template.jinja").write_text(template + "{{ '<think>\\n' }}")
    formats = []
    for folder in (tiny_model, thinking):
        config = Config.model_validate({"model": {"path": str(folder)}})
        judge = Verifier.from_config(
            config.reward, is_think_opened=PromptRenderer.from_config(config).opens_think
        )
        ((verdict,),) = judge.verdicts_of([prompt("5")], [[response("a</think>\\boxed{5}")]])
        judge.close()
        formats.append(verdict.format)
    assert formats == [0.0, 1.0]


def test_context_shows_the_response() -> None:
    def function(parts: Mapping[str, float], context: RewardContext) -> float:
        return len(context.text) + parts["format"]

    from mupo_ray.rewards.extra import ExtraReward

    judge = Verifier(
        algebra_pool=default_algebra_pool(), extra=(ExtraReward("length", "here:f", function),)
    )
    ((verdict,),) = judge.verdicts_of([prompt("5")], [[response("abc")]])
    assert verdict.extra == {"length": 3.0}
