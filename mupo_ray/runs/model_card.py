"""The README.md of an exported model: what it is, how it was made, how to load it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mupo_ray.data.render import TEMPLATES
from mupo_ray.methods import title_of
from mupo_ray.runs.summary import figures_at
from mupo_ray.settings.load import leaves
from mupo_ray.text import markdown_table, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mupo_ray.runs.folder import RunState
    from mupo_ray.runs.summary import RunFiles

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Settings that shape the result; the whole config is in the run's record.
_SETTINGS = (
    *("method", "reward", "loss", "filter", "train.num_steps", "train.updates_per_step"),
    *("train.optimizer", "data.prompts_per_step", "rollout.num_generations"),
    *("rollout.max_new_tokens", "rollout.temperature", "rollout.top_p", "model.dtype"),
    *("model.freeze_vision", "embedder.model"),
)


def model_card(run: RunFiles | None, state: RunState, folder: str) -> str:
    """Text of the card.

    Args:
        run: the run that trained the model; None where it is not known.
        state: of the checkpoint.
        folder: name of the folder that the card lies in.
    """
    record = run.record if run is not None else {}
    config = record.get("config", {})
    base = str(config.get("model", {}).get("path", "")) or None
    method = config.get("method", {}).get("name")
    parts = [
        _front_matter(base, method),
        f"# {folder}",
        _origin(base, method, config, state),
        _results(run, config, state) if run is not None else "",
        _prompt(config),
        _loading(config, folder),
        _settings(config),
        _versions(record, state),
        _licence(base),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(base: str | None, method: str | None) -> str:
    lines = [
        "library_name: transformers",
        "pipeline_tag: image-text-to-text",
        "license: unknown",
        "tags:",
        "- mupo_ray",
        "- reinforcement-learning",
    ]
    if method:
        lines.append(f"- {method}")
    if base and _HUB_ID.fullmatch(base) and not Path(base).exists():
        lines.append(f"base_model: {base}")
    return "\n".join(["---", *lines, "---"])


def _origin(
    base: str | None, method: str | None, config: Mapping[str, Any], state: RunState
) -> str:
    if not config:
        return (
            f"A vision-language model after {state.step} training steps with mupo_ray. The record "
            "of its run was not at hand when it was exported, so base model, method, data and "
            "results are not known here."
        )
    data, rollout = config["data"], config["rollout"]
    num_responses = state.step * data["prompts_per_step"] * rollout["num_generations"]
    return (
        f"A vision-language model trained by reinforcement learning with mupo_ray.\n\n"
        f"- Base model: `{base}`\n"
        f"- Method: {_method_line(config)}\n"
        f"- Steps: {state.step} of {config['train']['num_steps']}, each "
        f"{data['prompts_per_step']} prompts with {rollout['num_generations']} responses, "
        f"{num_responses} responses at most in all\n"
        f"- Training data: `{data['train']}`"
    )


def _method_line(config: Mapping[str, Any]) -> str:
    """The method's title, and those of the methods that it extends."""
    section = config["method"]
    title = title_of(str(section["name"]))
    return (
        f"{title}; over {_method_line({'method': section['base']})}" if "base" in section else title
    )


def _results(run: RunFiles, config: Mapping[str, Any], state: RunState) -> str:
    base, trained = figures_at(run, 0), figures_at(run, state.step)
    if trained.step in (None, 0):
        return "## Results\n\nThis model was not evaluated in its run."
    head = ["", "base model", f"after {trained.step} steps"]
    rows = [
        [name, number(base.by_name().get(name)), number(value)]
        for name, value in trained.by_name().items()
        if value is not None
    ]
    about = config.get("eval", {})
    late = (
        ""
        if trained.step == state.step
        else f" The last evaluation was {state.step - trained.step} steps before this checkpoint."
    )
    return (
        f"## Results\n\nOn at most {about.get('num_prompts')} questions of `{about.get('path')}`: "
        f"acc@1 is greedy, the other figures are from {about.get('num_samples')} samples a "
        f"question at temperature 1.{late}\n\n{markdown_table(head, rows)}"
    )


def _prompt(config: Mapping[str, Any]) -> str:
    template = _template(config)
    if template == "{problem}" or not config:
        return ""
    return f"## Prompt\n\nQuestions were put in this form:\n\n{_fenced(template)}"


def _loading(config: Mapping[str, Any], folder: str) -> str:
    rollout = config.get("rollout", {})
    max_tokens = int(rollout.get("max_new_tokens", 512))
    template = _template(config)
    # vLLM's own choice turns float32 into bfloat16, which samples from another policy.
    dtype = config.get("model", {}).get("dtype", "auto")
    system = config.get("data", {}).get("system_prompt")
    first = (
        f'messages = [{{"role": "system", "content": {json.dumps(system)}}}]\n'
        if system is not None
        else "messages = []\n"
    )
    ask = f'{json.dumps(template)}.replace("{{problem}}", question)'
    if template == "{problem}":
        ask = "question"
    common = (
        "from PIL import Image\n\n"
        f"folder = {json.dumps(folder)}  # this folder\n"
        'question = "How many apples are there?"\n'
        'picture = Image.open("picture.png").convert("RGB")\n'
        f"text = {ask}\n"
    )
    transformers = (
        f"from transformers import AutoModelForImageTextToText, AutoProcessor\n{common}{first}"
        'content = [{"type": "image"}, {"type": "text", "text": text}]\n'
        'messages.append({"role": "user", "content": content})\n\n'
        'model = AutoModelForImageTextToText.from_pretrained(folder, dtype="auto")\n'
        "processor = AutoProcessor.from_pretrained(folder)\n"
        "chat = processor.apply_chat_template(messages, add_generation_prompt=True)\n"
        'inputs = processor(text=[chat], images=[picture], return_tensors="pt")\n'
        f"output = model.generate(**inputs, max_new_tokens={max_tokens})\n"
        'new = output[:, inputs["input_ids"].shape[1] :]\n'
        "print(processor.batch_decode(new, skip_special_tokens=True)[0])"
    )
    vllm = (
        f"from vllm import LLM, SamplingParams\n{common}{first}"
        'content = [{"type": "image_pil", "image_pil": picture}, {"type": "text", "text": text}]\n'
        'messages.append({"role": "user", "content": content})\n\n'
        f'llm = LLM(model=folder, dtype="{dtype}", limit_mm_per_prompt={{"image": 1}})\n'
        f"plan = SamplingParams(temperature=1.0, max_tokens={max_tokens})\n"
        "print(llm.chat(messages, plan)[0].outputs[0].text)"
    )
    return (
        f"## Loading\n\nWith transformers:\n\n{_fenced(transformers, 'python')}\n\n"
        f"With vLLM:\n\n{_fenced(vllm, 'python')}"
    )


def _settings(config: Mapping[str, Any]) -> str:
    flat = leaves(config)
    rows = [
        [f"`{key}`", f"`{json.dumps(value)}`"]
        for wanted in _SETTINGS
        for key, value in flat.items()
        if key == wanted or key.startswith(f"{wanted}.")
    ]
    return f"## Settings\n\n{markdown_table(['setting', 'value'], rows)}" if rows else ""


def _versions(record: Mapping[str, Any], state: RunState) -> str:
    if not record:
        return ""
    rows = [[f"seed ({name})", str(seed)] for name, seed in record.get("seeds", {}).items()]
    rows.append(["config hash", state.config_hash])
    rows += [[name, str(record[name])] for name in ("commit", "python") if record.get(name)]
    rows += [[name, str(version)] for name, version in record.get("packages", {}).items()]
    return f"## Seeds and versions\n\n{markdown_table(['', ''], rows)}"


def _licence(base: str | None) -> str:
    of_base = f"`{base}`" if base else "the base model"
    return (
        "## Licence\n\nNot stated yet. These weights derive from "
        f"{of_base} and were trained on the data named above, so the terms of both apply; check "
        "them and fill in `license` at the top before passing the model on."
    )


def _template(config: Mapping[str, Any]) -> str:
    name = str(config.get("data", {}).get("template", "plain"))
    if name in TEMPLATES:
        return TEMPLATES[name]
    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except OSError:
        return "{problem}"


def _fenced(text: str, language: str = "") -> str:
    """A code block; its fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
