"""Real workers, really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import psutil
import pytest

from mupo_ray.errors import RewardError
from mupo_ray.rewards import algebra_pool as module
from mupo_ray.rewards.algebra_pool import AlgebraPool, Comparison, default_algebra_pool
from mupo_ray.rewards.verdicts import clean_gold, verdict_of, verdicts_of
from mupo_ray.types import Reason

_TOWERS = [f"{base}^{{9^{{9^{{9}}}}}}" for base in (8, 9)]


def _boxed(answer: str) -> str:
    return f"<think>work</think>\\boxed{{{answer}}}"


def _is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _wait_until_gone(pids: tuple[int, ...], limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while any(_is_running(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def pool() -> AlgebraPool:
    return default_algebra_pool()


def test_verdict_has_a_reason(pool: AlgebraPool) -> None:
    texts = [
        _boxed("(x+1)^2"),
        _boxed("(x+2)^2"),
        _boxed("5"),
        _boxed("6"),
        "no box",
        _boxed("))(("),
        _boxed("5"),
        _boxed("None"),
    ]
    golds = ["x^2+2x+1", "x^2+2x+1", "\\boxed{5}", "5", "5", "x+1", " ", None]
    verdicts = verdicts_of(texts, golds, algebra_pool=pool)
    assert [v.reason for v in verdicts] == [
        Reason.RIGHT,
        Reason.WRONG,
        Reason.RIGHT,
        Reason.WRONG,
        Reason.NO_ANSWER,
        Reason.UNPARSABLE,
        Reason.NO_GOLD,
        Reason.NO_GOLD,
    ]
    assert [v.accuracy for v in verdicts] == [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert [v.format for v in verdicts] == [1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]


def test_verdicts_want_a_gold_each() -> None:
    with pytest.raises(ValueError, match="got 2 texts, 1 golds"):
        verdicts_of(["a", "b"], ["1"])


@pytest.mark.parametrize(
    ("gold", "cleaned"),
    [
        ("5", "5"),
        (" $5$ ", "5"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("$12", "$12"),
        ("None", "None"),
        ("", None),
        ("  ", None),
        ("$$", None),
        ("\\boxed{}", None),
        ("\\text{}", None),
        (None, None),
    ],
)
def test_clean_gold(gold: str | None, cleaned: str | None) -> None:
    assert clean_gold(gold) == cleaned


def test_case_d19_hung_comparisons_take_only_themselves_down(pool: AlgebraPool) -> None:
    texts = [_boxed(tower) for tower in _TOWERS] * 4 + [_boxed("5")] * 8
    verdicts = verdicts_of(texts, ["5"] * 16, algebra_pool=pool)
    assert Counter(v.reason for v in verdicts[:8]) == {Reason.TIMEOUT: 8}
    assert [v.accuracy for v in verdicts] == [0.0] * 8 + [1.0] * 8
    workers = pool.pids
    assert len(workers) == 2
    clean = [_boxed(f"x^2 + {k}x - x^2 + 1") for k in range(2, 10)]
    again = verdicts_of(clean, [f"1 + {k}x" for k in range(2, 10)], algebra_pool=pool)
    assert Counter(v.reason for v in again) == {Reason.RIGHT: 8}
    assert pool.pids == workers, "a late comparison must not cost a fresh start"


def test_many_threads_share_the_workers(pool: AlgebraPool) -> None:
    reasons: dict[int, Reason] = {}

    def work(k: int) -> None:
        gold = f"x + {k}" if k % 2 else f"x + {k + 1}"
        reasons[k] = verdict_of(_boxed(f"{k} + x + y - y"), gold, algebra_pool=pool).reason

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reasons == {k: Reason.RIGHT if k % 2 else Reason.WRONG for k in range(8)}


def test_parts_of_one_answer_share_one_limit() -> None:
    limits: list[float] = []

    class Recorder(AlgebraPool):
        def compare(self, answer: str, gold: str, limit_s: float | None = None) -> Comparison:
            assert limit_s is not None
            limits.append(limit_s)
            return Comparison(Reason.WRONG, 2.0)

    with Recorder(num_workers=1, limit_s=5.0) as recorder:
        verdict = verdict_of(
            _boxed("x+1, x+2, x+3, x+4"), "a+x, b+x, c+x, d+x", algebra_pool=recorder
        )
    assert limits == [5.0, 3.0, 1.0]
    assert verdict.reason is Reason.TIMEOUT


def test_a_worker_whose_child_dies_forks_another(pool: AlgebraPool) -> None:
    assert pool.compare("2x", "x+x").reason is Reason.RIGHT
    workers = pool.pids
    children = [c for worker in workers for c in psutil.Process(worker).children()]
    for child in children:
        child.kill()
    assert _wait_until_gone(tuple(c.pid for c in children), 10)
    assert pool.compare("2x", "x+x").reason is Reason.RIGHT
    assert pool.pids == workers


def test_a_killed_worker_is_replaced_and_close_reaps_and_wakes() -> None:
    pool = AlgebraPool(num_workers=1, limit_s=60.0)
    assert pool.compare("2x", "x+x").reason is Reason.RIGHT
    (first,) = pool.pids
    os.kill(first, signal.SIGKILL)
    assert _wait_until_gone((first,), 10)
    assert pool.compare("2x", "x+x").reason is Reason.RIGHT
    (second,) = pool.pids
    caught: list[BaseException] = []

    def wait_for_ever() -> None:
        try:
            pool.compare(_TOWERS[0], "7")
        except RewardError as error:
            caught.append(error)

    thread = threading.Thread(target=wait_for_ever)
    thread.start()
    time.sleep(0.3)
    pool.close()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert "closed" in str(caught[0])
    assert not psutil.pid_exists(first), "a zombie is left"
    assert not psutil.pid_exists(second), "a zombie is left"
    with pytest.raises(RewardError, match="closed"):
        pool.compare("x", "x")
    pool.close()


_PARENT = """
import sys, threading, time
from mupo_ray.rewards.algebra_pool import AlgebraPool
pool = AlgebraPool(num_workers=1)
assert pool.compare("2x", "x+x").reason == "right"
threading.Thread(target=pool.compare, args=("9^{9^{9^{9}}}", "7", 600.0), daemon=True).start()
time.sleep(0.3)
print(*pool.pids, flush=True)
if sys.stdin.readline() == "leave\\n":
    sys.exit()
"""


def test_no_process_outlives_its_parent() -> None:
    parents = [
        subprocess.Popen(
            [sys.executable, "-c", _PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    family = []
    for parent in parents:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        (child,) = worker.children()
        family += [worker.pid, child.pid]
    os.kill(family[4], signal.SIGKILL)
    assert _wait_until_gone((family[5],), 30), "a child outlived its worker"
    parents[2].communicate("leave\n", timeout=60)
    parents[0].kill()
    parents[0].communicate(timeout=60)
    parents[1].communicate("leave\n", timeout=60)
    assert parents[1].returncode == 0
    assert _wait_until_gone(tuple(family), 30)


def test_a_forked_child_may_not_use_its_parents_pool(
    pool: AlgebraPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RewardError, match="fork"):
        pool.compare("x", "x")


def test_a_worker_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit(3)\n")
    monkeypatch.setattr(module, "_SCRIPT", script)
    with AlgebraPool(num_workers=1) as pool, pytest.raises(RewardError, match="cannot start"):
        pool.compare("x", "x")


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="got 0 and 5"):
        AlgebraPool(num_workers=0, limit_s=5)


def test_rewards_import_no_big_library() -> None:
    code = (
        "import sys, mupo_ray.rewards.verdicts\n"
        "big = set('ray torch vllm deepspeed transformers optuna sympy math_verify'.split())\n"
        "assert not big & set(sys.modules), big & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
