"""Sampling cost of an evaluation beside raw vLLM that generates the same tokens.

    python benchmarks/bench_evaluate.py [--demo runs/demo] [--rounds 5] [--samples 16] [--limit 96]

Both sides answer the prompts that the demo evaluates on, each once greedily and `--samples` times
at temperature 1 with the same seeds, in float32 on the CPU:

    raw    vllm.LLM.generate with all prompts rendered and decoded beforehand
    ours   evaluate_sets, from the call to the last response: opening the set, reading, rendering,
           Ray, and responses.jsonl

The engines have the same settings and stay up; caches are emptied before each turn, and sides take
turns. Responses are compared: they have to be the same texts. CPU time is that of all processes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

# Inherited by Ray's workers and vLLM's core, so set before either is imported.
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_worker_niceness": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "TQDM_DISABLE": "1",
}

import psutil
import ray

from mupo_ray.config import load_config
from mupo_ray.core.seeding import derive_seed
from mupo_ray.data.render import PromptRenderer
from mupo_ray.data.stream import Dropped, iter_prompts
from mupo_ray.data.table import open_table
from mupo_ray.evaluation.contestants import (
    Contestant,
    Sampler,
    checkpoint_contestant,
    services_for,
)
from mupo_ray.evaluation.evaluation import evaluate_sets, sampling_plans
from mupo_ray.evaluation.results import SamplingSettings
from mupo_ray.evaluation.samples import load_problems
from mupo_ray.evaluation.sets import parse_set
from mupo_ray.placement.plan import Role
from mupo_ray.rollout.pool import placeholder_ids
from mupo_ray.runs.export import find_model
from mupo_ray.train.launch import connect

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "tiny_cpu.yaml"


def cpu_s() -> float:
    """CPU seconds of this process and all below it, so far."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # It may end while it is looked at.
            times = process.cpu_times()
            total += times.user + times.system
    return total


class Raw:
    """vLLM's own loop over requests that are ready."""

    def __init__(self, config: Any, data: Path, sampling: SamplingSettings, limit: int) -> None:
        from transformers import AutoConfig
        from vllm import LLM, SamplingParams
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        renderer = PromptRenderer.from_config(config)
        prompts = [
            p for p in iter_prompts(open_table(data), renderer, limit) if not isinstance(p, Dropped)
        ]
        forbidden = placeholder_ids(AutoConfig.from_pretrained(config.model.path))
        self.inputs: list[Any] = []
        self.params: list[Any] = []
        for prompt in prompts:
            for plan in sampling_plans(sampling, has_greedy=True).values():
                self.inputs.append(
                    {
                        "prompt_token_ids": list(prompt.token_ids),
                        "multi_modal_data": {"image": [i.pil() for i in prompt.images]},
                        "multi_modal_uuids": {"image": [i.sha256 for i in prompt.images]},
                    }
                )
                self.params.append(
                    SamplingParams(
                        n=plan.num_generations,
                        max_tokens=plan.max_new_tokens,
                        temperature=plan.temperature,
                        top_p=plan.top_p,
                        seed=derive_seed(plan.seed, prompt.prompt_id),
                        logit_bias=dict.fromkeys(forbidden, -100.0),
                    )
                )
        rollout = config.rollout
        self.llm = LLM(
            model=config.model.path,
            dtype=config.model.dtype,
            seed=config.run.seed,
            max_model_len=rollout.max_model_len,
            max_num_seqs=rollout.max_num_seqs,
            distributed_executor_backend=UniProcExecutor,
            kv_cache_memory_bytes=int(rollout.kv_cache_gib * 2**30),
            enable_chunked_prefill=False,
            max_num_batched_tokens=max(8192, rollout.max_model_len),
            enforce_eager=True,
            limit_mm_per_prompt={"image": rollout.max_images, "video": 0},
            enable_prefix_caching=True,
            generation_config="vllm",
            disable_log_stats=True,
        )
        self.texts: list[str] = []
        self.tokens = 0

    def turn(self) -> tuple[float, float]:
        """Wall and CPU seconds."""
        self.llm.reset_prefix_cache()
        self.llm.reset_mm_cache()
        cpu_before, began = cpu_s(), time.perf_counter()
        outputs = self.llm.generate(self.inputs, self.params, use_tqdm=False)
        spent = time.perf_counter() - began, cpu_s() - cpu_before
        self.texts = [
            c.text for o in outputs for c in sorted(o.outputs, key=lambda choice: choice.index)
        ]
        self.tokens = sum(len(c.token_ids) for o in outputs for c in o.outputs)
        return spent


class Ours:
    """The evaluation job's own function, with engines that are up."""

    def __init__(
        self, config: Any, data: Path, sampling: SamplingSettings, limit: int, services: Any
    ) -> None:
        self.data, self.sampling, self.limit, self.services = data, sampling, limit, services
        self.contestant = checkpoint_contestant(
            config, sampling.max_new_tokens, embeds=False, running=services
        )
        self.texts: list[str] = []

    def turn(self) -> tuple[float, float]:
        """Wall and CPU seconds."""
        ray.get([engine.reset_caches.remote() for engine in self.services.engines])
        ended = cpu_after = 0.0

        @contextlib.contextmanager
        def timed() -> Iterator[Sampler]:
            nonlocal ended, cpu_after
            with self.contestant.sampler() as sampler:
                yield sampler
                ended, cpu_after = time.perf_counter(), cpu_s()

        contestant: Contestant = replace(self.contestant, sampler=timed)
        with tempfile.TemporaryDirectory() as out, Path(os.devnull).open("w") as null:
            cpu_before, began = cpu_s(), time.perf_counter()
            evaluate_sets(
                contestant, [parse_set(f"set={self.data}")], Path(out),
                sampling=self.sampling, limit=self.limit, progress_to=null,
            )  # fmt: skip
            problems = load_problems(Path(out) / "set" / "samples.parquet")
        self.texts = [
            r.text for p in problems for r in (*([p.greedy] if p.greedy else []), *p.samples)
        ]
        return ended - began, cpu_after - cpu_before


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--limit", type=int, default=96, help="prompts")
    args = parser.parse_args()
    config = load_config([CONFIG])
    model = find_model(str(args.demo / "mupo"))[0]
    config = config.model_copy(update={"model": config.model.model_copy(update={"path": model})})
    sampling = SamplingSettings(
        num_samples=args.samples, temperature=1.0, top_p=1.0,
        max_new_tokens=config.rollout.max_new_tokens, seed=0,
    )  # fmt: skip
    data = args.demo / "data" / "eval.parquet"
    connect(config)
    with services_for(config, Role.ENGINE, None) as services:
        sides: dict[str, Any] = {
            "raw": Raw(config, data, sampling, args.limit),
            "ours": Ours(config, data, sampling, args.limit, services),
        }
        wall: dict[str, list[float]] = {name: [] for name in sides}
        cpu: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(1 + args.rounds):
            for name in list(sides) if number % 2 else list(sides)[::-1]:
                spent = sides[name].turn()
                if number:  # The first round warms both up.
                    wall[name].append(spent[0])
                    cpu[name].append(spent[1])
        same = sum(a == b for a, b in zip(sides["raw"].texts, sides["ours"].texts, strict=True))
        tokens, total = sides["raw"].tokens, len(sides["raw"].texts)
    print(f"{total} responses, {tokens} tokens, {same} of {total} texts the same on both sides")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(
        f"{'side':<6} {'wall s, median':>15} {'least':>7} {'most':>7} {'tokens/s':>9} {'CPU s':>7}"
    )
    for name in sides:
        median = statistics.median(wall[name])
        print(
            f"{name:<6} {median:>15.2f} {min(wall[name]):>7.2f} {max(wall[name]):>7.2f} "
            f"{tokens / median:>9.0f} {statistics.median(cpu[name]):>7.2f}"
        )
    ratios = [o / r for o, r in zip(wall["ours"], wall["raw"], strict=True)]
    by_median = statistics.median(wall["ours"]) / statistics.median(wall["raw"])
    print(
        f"ours / raw: {by_median:.3f} of the medians, {statistics.median(ratios):.3f} median of "
        f"rounds ({', '.join(f'{r:.2f}' for r in ratios)})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
