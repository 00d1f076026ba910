from __future__ import annotations

import pytest

from mupo_ray.observability.metrics import METRICS, check


@pytest.mark.parametrize(
    ("key", "declared"),
    [
        ("reward/accuracy/mean", "reward/accuracy/mean"),
        ("verdict/no_answer/frac", "verdict/<reason>/frac"),
        ("eval/geometry3k/pass@4", "eval/<set>/pass@<k>"),
        ("eval/held-out_v1.2/acc@1", "eval/<set>/acc@1"),
    ],
)
def test_declared(key: str, declared: str) -> None:
    assert check(key).key == declared


@pytest.mark.parametrize(
    "key",
    [
        "reward/acuracy/mean",
        "verdict/bored/frac",
        "eval/set/pass@0",
        "eval/set/pass@k",
        "eval//acc@1",
        "eval/a/b/acc@1",
        "eval/<set>/acc@1",
        "",
    ],
)
def test_undeclared(key: str) -> None:
    with pytest.raises(ValueError, match="not declared"):
        check(key)


def test_message_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'loss/clip_frac'"):
        check("loss/clip_fract")


def test_declared_once_each_with_unit_and_meaning() -> None:
    keys = [metric.key for metric in METRICS]
    assert len(keys) == len(set(keys))
    assert all(metric.unit and metric.text for metric in METRICS)
