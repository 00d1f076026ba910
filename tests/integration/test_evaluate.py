"""Evaluation through real engines: killed and gone on with, beside training, and its errors."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import yaml

from mupo_ray.config import Config
from mupo_ray.core.seeding import derive_seed
from mupo_ray.data.render import PromptRenderer
from mupo_ray.data.stream import load_prompts
from mupo_ray.errors import RolloutError
from mupo_ray.evaluation.contestants import EngineSampler, checkpoint_contestant, services_for
from mupo_ray.evaluation.evaluation import evaluate_sets
from mupo_ray.evaluation.results import EvalResults, SamplingSettings
from mupo_ray.evaluation.samples import load_problems
from mupo_ray.evaluation.sets import parse_set
from mupo_ray.placement.plan import Role
from mupo_ray.report.eval_page import write_eval_report
from mupo_ray.rollout.pool import EnginePool, SamplingPlan, placeholder_ids
from mupo_ray.rollout.services import Services
from mupo_ray.runs.export import find_model

MakeConfig = Callable[..., Config]

ROOT = Path(__file__).resolve().parents[2]
ROWS = 24
SAMPLING = SamplingSettings(num_samples=4, temperature=1.0, top_p=1.0, max_new_tokens=32, seed=5)


@pytest.fixture(scope="module")
def config(make_config: MakeConfig) -> Config:
    return make_config("evaluate")


@pytest.fixture(scope="module")
def fresh(ray_local: None, config: Config, services: Services) -> Iterator[Services]:
    """An engine that never received weights, as the shared one has, beside the shared embedder."""
    with services_for(config, Role.ENGINE, None) as started:
        yield replace(started, embedders=services.embedders)


def evaluated(config: Config, running: Services, data: Path, out: Path) -> EvalResults:
    contestant = checkpoint_contestant(
        config, SAMPLING.max_new_tokens, embeds=True, running=running
    )
    return evaluate_sets(
        contestant, [parse_set(f"set={data}")], out, sampling=SAMPLING, limit=ROWS,
        progress_to=io.StringIO(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(config: Config, fresh: Services, puzzles: dict[str, Path], tmp_path_factory: Any) -> Path:
    """The folder of an unbroken evaluation."""
    out: Path = tmp_path_factory.mktemp("evaluations") / "whole"
    evaluated(config, fresh, puzzles["train"], out)
    return out


def lines(out: Path) -> list[str]:
    path = out / "set" / "responses.jsonl"
    return path.read_text().splitlines(keepends=True) if path.exists() else []


def test_a_killed_evaluation_gone_on_with_equals_an_unbroken_one(
    whole: Path, config: Config, fresh: Services, puzzles: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(json.loads(config.model_dump_json())))
    process = subprocess.Popen(
        [
            sys.executable, str(ROOT / "jobs" / "evaluate.py"), "--config", str(file),
            "--model", config.model.path, "--set", f"set={puzzles['train']}", "--out", str(out),
            "--samples", "4", "--max-new-tokens", "32", "--seed", "5", "--limit", str(ROWS),
            # Few at a time, so that there is time to kill it in their midst.
            "rollout.max_num_seqs=4",
        ],
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": ray.get_runtime_context().gcs_address},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while len(lines(out)) < 8:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"exit code {process.poll()}: {process.communicate()[1][-2000:]}")
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    kept = lines(out)
    assert 8 <= len(kept) < 1 + 2 * ROWS
    assert not (out / "results.json").exists()

    # As if it had been killed in the middle of a line.
    path = out / "set" / "responses.jsonl"
    path.write_text("".join(kept) + kept[-1][:40])
    results = evaluated(config, fresh, puzzles["train"], out)

    assert lines(out)[: len(kept)] == kept
    assert sorted(lines(out)) == sorted(lines(whole))
    mine, theirs = (load_problems(folder / "set" / "samples.parquet") for folder in (out, whole))
    assert len(mine) == len(theirs) == ROWS
    for a, b in zip(mine, theirs, strict=True):
        assert np.array_equal(a.embeddings, b.embeddings)
        assert replace(a, embeddings=None) == replace(b, embeddings=None)
    assert results.sets["set"].micro.num_samples == 4 * ROWS
    assert write_eval_report({"killed": out}, out / "report.html", "killed").is_file()


def test_responses_are_those_of_trainings_requests(
    whole: Path, config: Config, fresh: Services, puzzles: dict[str, Path]
) -> None:
    renderer = PromptRenderer.from_config(config)
    from transformers import AutoConfig

    pool = EnginePool(
        fresh.engines,
        forbidden_ids=placeholder_ids(AutoConfig.from_pretrained(config.model.path)),
        max_num_seqs=config.rollout.max_num_seqs,
        request_timeout_s=60,
    )
    EngineSampler(config, fresh)
    plan = SamplingPlan(
        num_generations=4, max_new_tokens=32, temperature=1.0, top_p=1.0,
        seed=derive_seed(SAMPLING.seed, "eval"),
    )  # fmt: skip
    prompts = load_prompts(puzzles["train"], renderer, 6)
    sampled = pool.generate(prompts, plan, version=0)
    stored = load_problems(whole / "set" / "samples.parquet")[:6]
    assert [p.prompt_id for p in prompts] == [p.prompt_id for p in stored]
    for responses, problem in zip(sampled, stored, strict=True):
        assert [r.text for r in responses] == [r.text for r in problem.samples]
        assert [r.num_tokens for r in responses] == [r.num_tokens for r in problem.samples]
        assert all(len(r.sampler_logprobs) == r.num_tokens for r in responses)


def test_an_engine_that_received_weights_does_not_pass_for_the_model(
    config: Config, services: Services, on_actor: Callable[..., Any]
) -> None:
    before = on_actor(services.engines[0], lambda engine: engine._has_received)
    on_actor(services.engines[0], lambda engine: setattr(engine, "_has_received", True))
    try:
        with pytest.raises(RolloutError, match="engine 0 .*holds weights of version"):
            EngineSampler(config, services)
    finally:
        on_actor(services.engines[0], lambda engine: setattr(engine, "_has_received", before))


# -- errors ------------------------------------------------------------------------------------


def job() -> Any:
    """`jobs/evaluate.py` as a module."""
    spec = importlib.util.spec_from_file_location("evaluate_job", ROOT / "jobs" / "evaluate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        ("{tmp}/none", "{data}", "model folder {tmp}/none does not exist"),
        ("{tmp}", "{data}", "{tmp} holds no whole checkpoint: it has no step_... folder"),
        ("{model}", "{tmp}/empty.tsv", "has no rows; at least one is needed"),
        ("{model}", "mathvista={data}", "mapping mathvista expects columns for problem, answer"),
        ("{model}", "a:nope={data}", "mapping 'nope' is unknown; should be one of generic"),
    ],
    ids=["no-model", "no-checkpoint", "no-rows", "wrong-preset", "no-preset"],
)
def test_a_wrong_input_ends_in_one_message(
    ray_local: None, config: Config, puzzles: dict[str, Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], model: str, given: str, message: str,
) -> None:  # fmt: skip
    (tmp_path / "empty.tsv").write_text("index\tquestion\tanswer\n")
    names = {"tmp": tmp_path, "data": puzzles["eval"], "model": config.model.path}
    out = tmp_path / "out"
    code = job().main(
        ["--model", model.format(**names), "--set", given.format(**names), "--out", str(out)]
    )
    said = capsys.readouterr().err
    assert code == 1
    assert said.count("error: ") == 1 and message.format(**names) in said
    assert "Traceback" not in said
    assert not (out / "results.json").exists()


def test_a_longest_response_that_does_not_fit_is_refused(
    ray_local: None, config: Config, puzzles: dict[str, Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    code = job().main(
        ["--model", config.model.path, "--set", str(puzzles["eval"]), "--out", str(tmp_path / "o"),
         "--max-new-tokens", "100"]
    )  # fmt: skip
    assert code == 1
    assert "= 164 exceeds rollout.max_model_len = 128" in capsys.readouterr().err


def test_a_model_folder_is_found_as_people_name_it(config: Config, tmp_path: Path) -> None:
    assert find_model(config.model.path) == (config.model.path, None)
    assert find_model("Qwen/Qwen2.5-VL-3B-Instruct") == ("Qwen/Qwen2.5-VL-3B-Instruct", None)
    hf = tmp_path / "run" / "step_000004" / "hf"
    hf.mkdir(parents=True)
    (hf / "config.json").write_text("{}")
    assert find_model(str(hf)) == (str(hf), None)
    (tmp_path / "run" / "run.json").write_text("{}")
    assert find_model(str(hf)) == (str(hf), tmp_path / "run")
