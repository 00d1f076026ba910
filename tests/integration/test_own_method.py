"""A method of one's own, as docs/methods.md builds it: trained, resumed and exported."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mupo_ray.config import Config
from mupo_ray.files import read_jsonl
from mupo_ray.testing.methods import check_method
from mupo_ray.train.launch import run_training
from mupo_ray.train.session import Session

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "methods.md").read_text()
SETTINGS = (
    "method={name: 'brevity:Brevity', weight: 0.3, calm: 0.01}",
    "train.num_steps=4",
    "reward.overlong={buffer_tokens: 15, penalty: 1.0}",
    "train.optimizer={lr: 1e-3, warmup_steps: 0}",
    "checkpoint.every_steps=2",
)


@pytest.fixture(scope="module", autouse=True)
def brevity(own_folder: Path) -> str:
    """The page's module, where every process of a run finds it."""
    (code,) = re.findall(r"<!-- brevity\.py -->\n```python\n(.*?)```", DOC, re.DOTALL)
    (own_folder / "brevity.py").write_text(code)
    return "brevity:Brevity"


def test_it_keeps_the_laws(brevity: str) -> None:
    check_method(brevity, weight=0.3, calm=0.01)


def test_the_pages_extension_keeps_the_laws(own_folder: Path) -> None:
    (code,) = (b for b in re.findall(r"```python\n(.*?)```", DOC, re.DOTALL) if "(Extension[" in b)
    (own_folder / "bonus.py").write_text(code)
    for base in ({"name": "grpo"}, {"name": "mupo"}):
        check_method("bonus:Bonus", bonus=0.2, base=base)


def test_its_faults_are_said_as_the_page_has_them() -> None:
    (block,) = re.findall(r"<!-- says -->\n```\n(.*?)```", DOC, re.DOTALL)
    cases = re.findall(r"\$ python (\S+) (.*)\n(error: .*)\n", block)
    assert len(cases) == 3
    for job, arguments, message in cases:
        done = subprocess.run(
            [sys.executable, job, *arguments.split()],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode != 0
        assert message in done.stderr.splitlines()


def test_it_trains_and_resumes_as_if_unbroken(
    session: Session, make_config: Callable[..., Config]
) -> None:
    whole, broken = (make_config(name, *SETTINGS) for name in ("own_whole", "own_broken"))
    run_training(whole, session=session)
    run_training(broken, session=session, stop_after_step=2)
    run_training(broken, session=session)
    rows, others = (read_jsonl(c.run_dir / "metrics.jsonl") for c in (whole, broken))
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    for row, other in zip(rows[1:], others[1:], strict=True):
        assert row["loss/calm"] > 0
        assert 0 <= row["method/brevity_share"] <= 1
        for key in ("loss/total", "loss/calm", "reward/brevity/mean", "optim/grad_norm"):
            assert other[key] == pytest.approx(row[key], rel=1e-5, abs=1e-7), key
    with np.load(broken.run_dir / "step_000004" / "method.npz") as state:
        assert set(state) == {"share"}


def test_its_term_is_part_of_the_loss(session: Session, make_config: Callable[..., Config]) -> None:
    one_step = (*SETTINGS[1:], "train.num_steps=1", "eval.path=null")
    with_term = make_config("own_term", SETTINGS[0], *one_step)
    without = make_config("own_no_term", "method={name: 'brevity:Brevity', weight: 0.3}", *one_step)
    rows = []
    for config in (with_term, without):
        run_training(config, session=session)
        rows += read_jsonl(config.run_dir / "metrics.jsonl")
    assert rows[1]["loss/calm"] == 0
    # 0.01 times the entropy, reduced as the entropy's own metric is.
    assert rows[0]["loss/calm"] == pytest.approx(0.01 * rows[0]["loss/entropy"], rel=1e-5)
    assert rows[0]["loss/total"] - rows[1]["loss/total"] == pytest.approx(rows[0]["loss/calm"])


def test_it_is_exported_under_its_title(
    session: Session, make_config: Callable[..., Config], tmp_path: Path
) -> None:
    config = make_config("own_whole", *SETTINGS)
    done = subprocess.run(
        [sys.executable, "jobs/export.py", str(config.run_dir), str(tmp_path / "model")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "model" / "README.md").read_text()
    assert "- Method: Brevity, GRPO with a reward for short right answers" in card
