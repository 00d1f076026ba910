"""Forward and backward of an update: nothing shared, images shared, prompts shared.

Run: python benchmarks/bench_prefix.py [--hidden 256] [--layers 4] [--repeats 3]

One cohort of N responses of T tokens to a prompt of P tokens, an eighth of them an image's, on a
random Qwen2.5-VL in float32 on one core. Times are CPU seconds, the least of `repeats` after one
pass that does not count; memory is the process's peak over what it held before. `theory` is
N (P + T) / (P + N T), the ratio of the tokens that the decoder computes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from mupo_ray.data.encode import EncodedPrompt
from mupo_ray.demo.tiny_model import build_config
from mupo_ray.train.batch import Sharing, TrainItem, micro_batches
from mupo_ray.train.policy import row_layout
from mupo_ray.train.prefix import set_attention
from mupo_ray.train.scorer import Scorer

SHAPES = [(32, 64), (32, 256), (32, 1024), (128, 256), (128, 1024), (512, 1024)]
"""(T, P)"""
COUNTS = [4, 8, 12]
HEAD_SIZE = 32


def build_model(hidden: int, layers: int) -> Any:
    config = build_config()
    config.text_config.update(
        {
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // HEAD_SIZE,
            "num_key_value_heads": max(1, hidden // HEAD_SIZE // 4),
            "layer_types": ["full_attention"] * layers,
        }
    )
    config.vision_config.out_hidden_size = hidden
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration(config).train()


def cohort(config: Any, count: int, prompt: int, response: int) -> TrainItem:
    rng = np.random.default_rng(0)
    tokens = prompt // 8
    grid = [1, 2, 2 * tokens]
    ids = np.concatenate(
        [
            [config.vision_start_token_id],
            [config.image_token_id] * tokens,
            [config.vision_end_token_id],
            rng.integers(12, 80, prompt - tokens - 2),
        ]
    )
    vision = config.vision_config
    width = 3 * vision.temporal_patch_size * vision.patch_size**2
    return TrainItem(
        prompt=EncodedPrompt(
            input_ids=torch.from_numpy(ids),
            mm_token_type_ids=torch.from_numpy((ids == config.image_token_id).astype(np.int64)),
            pixel_values=torch.from_numpy(rng.normal(size=(4 * tokens, width))).float(),
            image_grid_thw=torch.tensor([grid]),
        ),
        completion_ids=tuple(rng.integers(12, 80, response) for _ in range(count)),
        sampler_logprobs=tuple(np.zeros(response, np.float32) for _ in range(count)),
        advantages=(np.zeros(response),) * count,
        is_given=(None,) * count,
    )


def measure(sharing: Sharing, shape: tuple[int, int, int], args: Any, results: Any) -> None:
    """In a process of its own, so that the peak of memory is this form's alone."""
    count, prompt, response = shape
    torch.set_num_threads(1)
    model = build_model(args.hidden, args.layers)
    set_attention(model, is_packed=sharing is Sharing.PACKED)
    layout = replace(row_layout(model), sharing=sharing)
    item = cohort(model.config, count, prompt, response)
    (batch,) = micro_batches([item], max_tokens=10**9, layout=layout)
    scorer = Scorer(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for _ in range(args.repeats + 1):
        began = time.process_time()
        scorer(batch, 1.0, False)[0].sum().backward()
        times.append(time.process_time() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    results.put((min(times[1:]), peak / 1024))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    context = multiprocessing.get_context("fork")
    print(
        "| T | P | N | off, s | vision_only, s | packed, s | off / packed | theory | of theory "
        "| off, MiB | packed, MiB |\n|" + "---|" * 11
    )
    for response, prompt in SHAPES:
        for count in COUNTS:
            found = {}
            for sharing in (Sharing.OFF, Sharing.VISION_ONLY, Sharing.PACKED):
                results = context.Queue()
                shape = (count, prompt, response)
                process = context.Process(target=measure, args=(sharing, shape, args, results))
                process.start()
                found[sharing] = results.get(timeout=600)
                process.join()
            (off, off_mib), (vision, _), (packed, mib) = found.values()
            theory = count * (prompt + response) / (prompt + count * response)
            print(
                f"| {response} | {prompt} | {count} | {off:.3f} | {vision:.3f} | {packed:.3f} "
                f"| {off / packed:.2f} | {theory:.2f} | {off / packed / theory:.0%} "
                f"| {off_mib:.0f} | {mib:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
