"""What ranks do in test_update.py: `python update_worker.py WORLD_SIZE FOLDER` with RANK set.

Each scenario trains a tiny random model with real DeepSpeed and leaves what came of it in
FOLDER/world_N.pt, for the tests to compare.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tiny_models import random_item

from mupo_ray.config import Config
from mupo_ray.core.loss import entropy as entropy_of
from mupo_ray.core.loss import token_logprobs
from mupo_ray.errors import CheckpointError, TrainingError
from mupo_ray.runs.folder import RunState
from mupo_ray.train import checkpoint
from mupo_ray.train.batch import TrainItem, micro_batches
from mupo_ray.train.policy import DeepSpeedPolicy, init_distributed, make_reference
from mupo_ray.train.sharing import make_policy
from mupo_ray.train.update import by_response, logprobs, plan_updates, train_step
from mupo_ray.train.weights import iter_weights

BIG = 4096
LORA = {"lora": {"rank": 4, "alpha": 8, "targets": ("q_proj", "v_proj", "down_proj")}}
STATE = RunState(step=1, stream_position=3, config_hash="abc")


def config(folder: Path, name: str = "tied", **changes: Any) -> Config:
    """Settings to train the named model; `changes` name sections and their fields."""
    sections: dict[str, dict[str, Any]] = {
        "model": {"path": str(folder / name)},
        "data": {"max_prompt_tokens": 8},
        "rollout": {"max_new_tokens": 12},
        "loss": {"kl_coef": 0.1, "entropy_coef": 0.01},
        "train": {
            "num_steps": 10,
            "micro_batch_tokens": BIG,
            "optimizer": {"lr": 2e-4, "warmup_steps": 2, "schedule": "cosine"},
        },
    }
    for section, values in changes.items():
        sections.setdefault(section, {}).update(values)
    return Config.model_validate(sections)


def cohorts(model_config: Any) -> list[TrainItem]:
    """Unlike in all that may differ; the last one, alone on the second of two ranks, is text."""
    return [
        random_item(model_config, 0, [3, 9, 5]),
        random_item(model_config, 1, [12, 1], sides=(6, 4)),
        random_item(model_config, 2, [7, 7, 2, 4], sides=()),
    ]


def weights(policy: DeepSpeedPolicy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in iter_weights(policy)}


def mine(policy: DeepSpeedPolicy, *, only_rank_0: bool = False) -> list[TrainItem]:
    """This rank's cohorts: all on one rank; two and one, or three and none, on two."""
    items = cohorts(policy.model.config)
    if policy.world_size == 1:
        return items
    first = items if only_rank_0 else items[:2]
    return first if policy.rank == 0 else items[len(first) :]


def trained(settings: Config, *, only_rank_0: bool = False) -> dict[str, Any]:
    """Two steps."""
    policy = make_policy(settings)
    reference = make_reference(policy)
    before = weights(policy)
    items = mine(policy, only_rank_0=only_rank_0)
    stats = [train_step(policy, reference, items) for _ in range(2)]
    return {
        "before": before,
        "weights": weights(policy),
        "stats": stats,
        "sharing": str(policy.layout.sharing),
    }


def resumed(settings: Config, folder: Path) -> dict[str, Any]:
    """A step, a checkpoint, a step; and the second step again from the checkpoint."""
    policy = make_policy(settings)
    reference = make_reference(policy)
    items = mine(policy)
    train_step(policy, reference, items)
    # Ranks write into folders of their own, as under Ray Train, which then merges them.
    part = folder.with_name(f"{folder.name}_rank{policy.rank}")
    checkpoint.save(policy, part, STATE)
    drawn = torch.rand(3)
    stats = train_step(policy, reference, items)
    straight = weights(policy)
    for path in sorted(part.rglob("*")):
        if path.is_file():
            target = folder / path.relative_to(part)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    dist.barrier()

    again = make_policy(settings)
    state = checkpoint.load(again, folder)
    return {
        "state_is_kept": state == STATE,
        "rng_is_kept": torch.equal(torch.rand(3), drawn),
        "straight": straight,
        "straight_stats": stats,
        "resumed_stats": train_step(again, reference, items),
        "resumed": weights(again),
    }


def refused(settings: Config, breakage: str) -> dict[str, Any]:
    """A step that must not be applied: broken on the last rank alone."""
    policy = make_policy(settings)
    items = mine(policy)
    before = weights(policy)
    if policy.rank == policy.world_size - 1:
        if breakage == "loss":
            first, *others = items[0].advantages
            items[0] = replace(items[0], advantages=(first * np.nan, *others))
        else:
            policy.model.model.language_model.norm.register_full_backward_hook(
                lambda _module, grads, _out: (grads[0] * torch.inf,)
            )
    message = ""
    try:
        train_step(policy, None, items)
    except TrainingError as err:
        message = str(err)
    messages: list[Any] = [None] * policy.world_size
    dist.all_gather_object(messages, message)
    return {"messages": messages, "before": before, "weights": weights(policy)}


def scored(folder: Path, model: str, temperature: float) -> dict[str, float]:
    """Largest difference between micro-batched scores and one naive forward a response."""
    policy = make_policy(config(folder, model))
    items = cohorts(policy.model.config)
    batches = micro_batches(items, max_tokens=64, layout=policy.layout)
    ours = by_response(batches, logprobs(policy, batches, temperature))
    with torch.no_grad():
        entropies = by_response(
            batches, [policy.score(b, temperature, with_entropy=True)[1] for b in batches]
        )
    other = replace(policy.layout, pad_token_id=33)
    padded = logprobs(policy, micro_batches(items, max_tokens=64, layout=other), temperature)
    naive_model = type(policy.model).from_pretrained(folder / model).eval()
    worst = worst_entropy = 0.0
    for (index, row), values in ours.items():
        prompt, ids = items[index].prompt, torch.from_numpy(items[index].completion_ids[row])
        full = torch.cat([prompt.input_ids, ids])
        images = {"pixel_values": prompt.pixel_values, "image_grid_thw": prompt.image_grid_thw}
        with torch.no_grad():
            logits = naive_model(
                input_ids=full[None],
                attention_mask=torch.ones_like(full)[None],
                mm_token_type_ids=torch.cat([prompt.mm_token_type_ids, torch.zeros_like(ids)])[
                    None
                ],
                **(images if len(prompt.image_grid_thw) else {}),
            ).logits[0, len(prompt.input_ids) - 1 : -1]
        want = token_logprobs(logits, ids, temperature=temperature).numpy()
        worst = max(worst, float(np.abs(values - want).max()))
        want = entropy_of(logits, temperature=temperature).numpy()
        worst_entropy = max(worst_entropy, float(np.abs(entropies[index, row] - want).max()))
    return {
        "logprobs": worst,
        "entropy": worst_entropy,
        "num_batches": len(batches),
        "padding": max(
            float((a - b).abs().max())
            for a, b in zip(padded, logprobs(policy, batches, temperature), strict=True)
        ),
    }


def adapted(settings: Config, folder: Path) -> dict[str, Any]:
    """Two steps of adapters alone; a stock model with the merged weights, and the reference."""
    policy = make_policy(settings)
    reference = make_reference(policy)
    assert reference is not None
    items = mine(policy)
    before = weights(policy)
    batches = plan_updates(policy, items)[0].batches
    first = logprobs(policy, batches, 1.0)
    stats = [train_step(policy, reference, items) for _ in range(2)]
    after = weights(policy)
    own, base = (logprobs(model, batches, 1.0) for model in (policy, reference))
    checkpoint.save(policy, folder, STATE)
    merged = make_policy(config(folder, "hf"))
    again = logprobs(merged, batches, 1.0)
    return {
        "before": before,
        "weights": after,
        "stats": stats,
        "trained": [n for n, p in policy.model.named_parameters() if p.requires_grad],
        "merged": max(float((a - b).abs().max()) for a, b in zip(own, again, strict=True)),
        "reference": max(float((a - b).abs().max()) for a, b in zip(first, base, strict=True)),
    }


def small_steps(folder: Path) -> dict[str, Any]:
    """bfloat16 steps too small for a bfloat16 weight of 1 to show one alone."""
    policy = make_policy(
        config(
            folder,
            model={"dtype": "bfloat16"},
            loss={"kl_coef": 0.0},
            train={"optimizer": {"lr": 1e-3, "warmup_steps": 0, "weight_decay": 0.0}},
        )
    )
    item = random_item(policy.model.config, 0, [3, 4])
    mine = [item] if policy.rank == 0 else []
    norms = []
    for _ in range(6):
        train_step(policy, None, mine)
        norms.append(policy.model.model.language_model.norm.weight.detach().clone())
    return {"norms": norms, "dtypes": {str(t.dtype) for t in weights(policy).values()}}


def one_rank(folder: Path) -> dict[str, Any]:
    out: dict[str, Any] = {"big": trained(config(folder))}
    out["many"] = trained(config(folder, train={"micro_batch_tokens": 20}))
    for form in ("vision_only", "off"):
        out[form] = trained(config(folder, train={"prefix_sharing": form}))
    out["checkpointing"] = trained(config(folder, model={"gradient_checkpointing": True}))
    out["frozen"] = trained(config(folder, model={"freeze_vision": True}))
    out["scored"] = {
        f"{model}@{t}": scored(folder, model, t)
        for model, t in [("tied", 1.0), ("untied", 0.6), ("qwen3", 1.0)]
    }
    out["lora"] = adapted(config(folder, model=LORA), folder / "lora_one")
    out["resume"] = resumed(config(folder), folder / "one")
    out["refused"] = {kind: refused(config(folder), kind) for kind in ("loss", "gradient")}

    # Without any data nothing moves, momentum included; the schedule goes on.
    policy = make_policy(config(folder, loss={"kl_coef": 0.0}))
    train_step(policy, None, cohorts(policy.model.config))
    before = weights(policy)
    stats = train_step(policy, None, [])
    out["no_data"] = {
        "before": before,
        "weights": weights(policy),
        "stats": stats,
        "steps_done": policy.steps_done,
    }

    # Old log-probs recomputed before two updates are those of the first weights.
    settings = config(
        folder,
        loss={"kl_coef": 0.0, "old_logprobs": "recompute"},
        train={"updates_per_step": 2},
    )
    policy = make_policy(settings)
    items = cohorts(policy.model.config)
    batches = micro_batches(items, max_tokens=BIG, layout=policy.layout)
    exact = by_response(batches, logprobs(policy, batches, 1.0))
    items = [
        replace(item, sampler_logprobs=tuple(exact[i, r] for r in range(len(item.advantages))))
        for i, item in enumerate(items)
    ]
    out["recompute"] = {"stats": train_step(policy, None, items), "steps": policy.steps_done}
    out["recompute"]["weights"] = weights(policy)
    policy = make_policy(config(folder, loss={"kl_coef": 0.0}, train={"updates_per_step": 2}))
    train_step(policy, None, items)
    out["recompute"]["as_sampler"] = weights(policy)
    return out


def two_ranks(folder: Path) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for stage in (0, 2, 3):
        out[f"zero{stage}"] = trained(config(folder, train={"zero_stage": stage}))
        settings = config(folder, model=LORA, train={"zero_stage": stage})
        out[f"lora{stage}"] = adapted(settings, folder / f"lora{stage}")
    out["untied3"] = weights(make_policy(config(folder, "untied", train={"zero_stage": 3})))
    for stage in (0, 3):
        # Rank 0 has many micro-batches, rank 1 has no cohort.
        settings = config(folder, train={"zero_stage": stage, "micro_batch_tokens": 20})
        out[f"no_data{stage}"] = trained(settings, only_rank_0=True)
    for stage in (2, 3):
        settings = config(folder, train={"zero_stage": stage})
        out[f"resume{stage}"] = resumed(settings, folder / f"two{stage}")
    for stage, kind in [(0, "loss"), (3, "loss"), (2, "gradient"), (3, "gradient")]:
        settings = config(folder, train={"zero_stage": stage})
        out[f"refused_{kind}{stage}"] = refused(settings, kind)
    try:
        checkpoint.load(make_policy(config(folder)), folder / "two3")
    except CheckpointError as err:
        out["other_stage"] = str(err)
    out["small_steps"] = small_steps(folder)
    return out


def main() -> None:
    world, folder = int(sys.argv[1]), Path(sys.argv[2])
    init_distributed("cpu", 120.0)
    assert dist.get_world_size() == world
    result = one_rank(folder) if world == 1 else two_ranks(folder)
    if dist.get_rank() == 0:
        torch.save(result, folder / f"world_{world}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
