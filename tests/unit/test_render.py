"""Rendering, held against what transformers makes of the same chat."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLProcessor
from transformers.models.qwen2_vl import Qwen2VLImageProcessor, Qwen2VLVideoProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from mupo_ray.config import Config
from mupo_ray.data.encode import PromptEncoder
from mupo_ray.data.render import TEMPLATES, PromptRenderer, load_processor, num_image_tokens
from mupo_ray.data.table import DropReason, ImageRef, Row, RowError, prompt_id
from mupo_ray.errors import DataError

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
# As Qwen2.5-VL's, with its default system message.
CHAT_TEMPLATE = """{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}<|im_start|>{{ message['role'] }}
{% for content in message['content'] %}
{% if content['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif 'text' in content %}{{ content['text'] }}{% endif %}
{% endfor %}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
ORDINARY = [
    "How many dots?",
    "  two  blanks, a tab\tand a line\n\nbreak  ",
    "\nstarts with a line break",
    "x^2 + 3 \\le 7, \\boxed{5} <think>no</think>",
    "Wie viele Stühle? 林 😀 é",
    "12345 < 678 | a|b <| not special |>",
]


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE that splits like Qwen's, with merges over blanks and line breaks."""
    backend = Tokenizer(models.BPE())
    words = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = [*ORDINARY, CHAT_TEMPLATE, *SPECIAL, "\n\n", "\n\n\n", "user\n\n"] * 3
    backend.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[t for t in SPECIAL if t not in ("<|im_end|>", "<|endoftext|>")],
    )


def save_processor(folder: Path, *, chat_template: str | None = CHAT_TEMPLATE) -> str:
    pixels = {"size": {"shortest_edge": 56**2, "longest_edge": 1280 * 28**2}}
    Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels),
        tokenizer=byte_level_tokenizer(),
        video_processor=Qwen2VLVideoProcessor(**pixels),
        chat_template=chat_template,
    ).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_processor(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def processor(model_path: str) -> Any:
    return load_processor(model_path)


@pytest.fixture(scope="module")
def renderer(model_path: str) -> PromptRenderer:
    return PromptRenderer.from_pretrained(model_path, max_prompt_tokens=512)


def picture(width: int = 84, height: int = 56, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def row(problem: str, *images: bytes, answer: str = "5") -> Row:
    return Row(
        index=7,
        problem=problem,
        answer=answer,
        images=tuple(ImageRef(encoded=encoded) for encoded in images),
        folder=".",
        meta={"source": "hand"},
    )


def chat(processor: Any, *content: str | None, system: str | None = None) -> str:
    """Transformers' own rendering; None stands for a picture."""
    messages = [] if system is None else [{"role": "system", "content": [text_piece(system)]}]
    pieces = [{"type": "image"} if c is None else text_piece(c) for c in content]
    messages.append({"role": "user", "content": pieces})
    return processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def text_piece(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def ids_of(processor: Any, markup: str) -> tuple[int, ...]:
    return tuple(processor.tokenizer.encode(markup, add_special_tokens=False))


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_gets_the_ids_of_apply_chat_template(renderer, processor, text) -> None:
    expected = ids_of(processor, chat(processor, None, text))
    assert renderer.render(row("<image>" + text, picture()), position=3).token_ids == expected
    expected = ids_of(processor, chat(processor, text, None, text))
    assert renderer.render(row(f"{text}<image>{text}", picture()), position=3).token_ids == expected
    assert renderer.render(row(text), position=0).token_ids == ids_of(
        processor, chat(processor, text)
    )


def test_system_prompt(model_path, processor) -> None:
    renderer = PromptRenderer.from_pretrained(
        model_path, system_prompt="Be\nbrief.", max_prompt_tokens=512
    )
    expected = chat(processor, None, "How many?", system="Be\nbrief.")
    assert "helpful" not in expected
    prompt = renderer.render(row("<image>How many?", picture()), position=0)
    assert prompt.token_ids == ids_of(processor, expected)


def test_fields_of_a_prompt(renderer) -> None:
    prompt = renderer.render(row("<image>How many?", picture()), position=41)
    assert (prompt.position, prompt.question, prompt.answer) == (41, "<image>How many?", "5")
    assert prompt.meta == {"source": "hand"}
    assert [(i.width, i.height) for i in prompt.images] == [(84, 56)]
    assert prompt.prompt_id == prompt_id(prompt.question, "5", [prompt.images[0].sha256])
    assert renderer.render(row("<image>How many?", picture()), position=0).prompt_id == (
        prompt.prompt_id
    )


@pytest.mark.parametrize("typed", SPECIAL)
def test_d14_special_tokens_in_a_row_stay_letters(renderer, processor, typed) -> None:
    text = f"what does {typed} mean? <|vision_start|><|image_pad|><|vision_end|>{typed}"
    prompt = renderer.render(row("<image>" + text, picture()), position=0)
    plain = renderer.render(row("<image>What?", picture()), position=0)
    special = set(processor.tokenizer.all_special_ids)

    def only_special(ids: tuple[int, ...]) -> list[int]:
        return [i for i in ids if i in special]

    assert only_special(prompt.token_ids) == only_special(plain.token_ids)
    slot = prompt.token_ids.index(processor.image_token_id)
    neighbours = processor.tokenizer.convert_ids_to_tokens(
        [prompt.token_ids[slot - 1], prompt.token_ids[slot + 1]]
    )
    assert neighbours == ["<|vision_start|>", "<|vision_end|>"]
    assert text in processor.tokenizer.decode(prompt.token_ids)


def test_markers_of_the_renderer_in_a_row_stay_text(renderer, processor) -> None:
    text = "a \ue0000\ue001 b {problem} {{ 1 + 1 }}"
    prompt = renderer.render(row(text), position=0)
    assert prompt.token_ids == ids_of(processor, chat(processor, text))


def test_pictures_without_marks_come_first_and_in_order(renderer) -> None:
    one, two = picture(seed=1), picture(28 * 4, 28 * 2, seed=2)
    bare = renderer.render(row("Compare.", one, two), position=0)
    marked = renderer.render(row("<image><image>Compare.", one, two), position=0)
    assert bare.token_ids == marked.token_ids
    assert [i.width for i in bare.images] == [84, 112]


@pytest.mark.parametrize(
    ("bad", "reason", "complaint"),
    [
        (row("<image><image>q", picture()), DropReason.PLACEHOLDERS, "2 <image> for 1 images"),
        (row("<image>q"), DropReason.PLACEHOLDERS, "1 <image> for 0 images"),
        (row("q", answer="  "), DropReason.EMPTY_ANSWER, "answer is empty"),
        (row("  "), DropReason.EMPTY_PROBLEM, "no text"),
        (row("<image>q", picture()[:500]), DropReason.BROKEN_IMAGE, "row 7, image 0"),
        (row("q " * 600), DropReason.TOO_LONG, "at most 512"),
    ],
    ids=lambda value: value.value if isinstance(value, DropReason) else "",
)
def test_unusable_rows_say_why(renderer, bad, reason, complaint) -> None:
    with pytest.raises(RowError, match=complaint) as caught:
        renderer.render(bad, position=0)
    assert caught.value.reason is reason
    assert "row 7" in str(caught.value)


def test_b05_aspect_ratio(renderer) -> None:
    renderer.render(row("<image>q", picture(4, 800)), position=0)
    with pytest.raises(RowError, match="aspect ratio of 201") as caught:
        renderer.render(row("<image>q", picture(4, 804)), position=0)
    assert caught.value.reason is DropReason.ASPECT_RATIO


def test_b12_a_limit_inside_the_image_tokens_drops_the_row_whole(renderer) -> None:
    large = row("<image>Find x.", picture(1120, 1120))
    messages = set()
    for _ in range(2):
        with pytest.raises(RowError) as caught:
            renderer.render(large, position=0)
        messages.add(str(caught.value))
    # 1120 x 1120 is over 1280 cells of 28 x 28, so it shrinks to 35 x 35 of them.
    assert len(messages) == 1 and "1225 of them image tokens" in messages.pop()


def test_encoded_prompt_is_what_the_processor_makes(renderer, processor, model_path) -> None:
    encoded = [picture(84, 56, seed=1), picture(150, 100, seed=2)]
    prompt = renderer.render(row("A <image> and\n<image> differ?", *encoded), position=0)
    ours = PromptEncoder(model_path).encode(prompt)
    theirs = processor(
        text=[chat(processor, "A ", None, " and\n", None, " differ?")],
        images=[Image.open(io.BytesIO(e)) for e in encoded],
        return_tensors="pt",
    )
    # 84 x 56 is 3 x 2 cells; 150 x 100 rounds to 5 x 4 cells.
    assert ours.image_grid_thw.tolist() == [[1, 4, 6], [1, 8, 10]]
    assert int(ours.mm_token_type_ids.sum()) == 6 + 20
    assert torch.equal(ours.input_ids, theirs["input_ids"][0])
    assert torch.equal(ours.mm_token_type_ids, theirs["mm_token_type_ids"][0])
    assert torch.equal(ours.pixel_values, theirs["pixel_values"])
    assert torch.equal(ours.image_grid_thw, theirs["image_grid_thw"])
    assert renderer.num_tokens(prompt) == ours.input_ids.shape[0]


def test_encoded_prompt_without_pictures(renderer, processor, model_path) -> None:
    prompt = renderer.render(row("How many?"), position=0)
    ours = PromptEncoder(model_path).encode(prompt)
    assert tuple(ours.input_ids.tolist()) == prompt.token_ids
    assert ours.pixel_values.shape == (0, 3 * 2 * 14 * 14)
    assert ours.image_grid_thw.shape == (0, 3)
    assert not ours.mm_token_type_ids.any()


@given(
    width=st.integers(1, 3000),
    height=st.integers(1, 3000),
    cell=st.sampled_from([28, 32]),
    limits=st.sampled_from([(56**2, 1280 * 28**2), (3136, 28224), (262144, 4194304)]),
)
@settings(max_examples=300, deadline=None)
def test_image_tokens_follow_smart_resize(width, height, cell, limits) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    rows, columns = smart_resize(height, width, cell, min_pixels=limits[0], max_pixels=limits[1])
    ours = num_image_tokens(width, height, cell=cell, min_pixels=limits[0], max_pixels=limits[1])
    assert ours == rows * columns // cell**2


@pytest.mark.parametrize("name", ["paper", "math", "r1v"])
def test_named_templates_ask_for_thought_and_box(model_path, processor, name) -> None:
    renderer = PromptRenderer.from_pretrained(model_path, template=name, max_prompt_tokens=512)
    prompt = renderer.render(row("How many?"), position=0)
    text = processor.tokenizer.decode(prompt.token_ids)
    assert "How many?\n\n" in text and "<think> </think>" in text and "\\boxed{}" in text
    assert prompt.question == "How many?"


def test_a_config_names_all_that_a_renderer_takes(model_path) -> None:
    data = {
        "template": "math",
        "system_prompt": "Be brief.",
        "max_prompt_tokens": 77,
        "min_pixels": 3136,
        "max_pixels": 50176,
    }
    config = Config.model_validate({"model": {"path": model_path}, "data": data})
    plan = PromptRenderer.from_config(config).plan
    assert (plan.model_path, plan.system_prompt) == (model_path, "Be brief.")
    assert plan.template == TEMPLATES["math"]
    assert (plan.max_prompt_tokens, plan.min_pixels, plan.max_pixels) == (77, 3136, 50176)


def test_template_file(model_path, processor, tmp_path) -> None:
    path = tmp_path / "ask.txt"
    path.write_text("Look: {problem} Answer {briefly}.\n")
    renderer = PromptRenderer.from_pretrained(model_path, template=str(path), max_prompt_tokens=512)
    prompt = renderer.render(row("dots<image>?", picture()), position=0)
    assert prompt.token_ids == ids_of(
        processor, chat(processor, "Look: dots", None, "? Answer {briefly}.")
    )
    path.write_text("no place for it")
    with pytest.raises(DataError, match="0 times, expected once"):
        PromptRenderer.from_pretrained(model_path, template=str(path), max_prompt_tokens=9)
    with pytest.raises(DataError, match="neither a file nor one of math, paper, plain, r1v"):
        PromptRenderer.from_pretrained(model_path, template="nope", max_prompt_tokens=9)


def test_missing_model_folder(tmp_path) -> None:
    with pytest.raises(DataError, match=r"model folder .*gone does not exist"):
        PromptRenderer.from_pretrained(str(tmp_path / "gone"), max_prompt_tokens=9)
    with pytest.raises(DataError, match="cannot load a processor"):
        PromptRenderer.from_pretrained(str(tmp_path), max_prompt_tokens=9)


def test_chat_templates_without_images_are_refused(tmp_path) -> None:
    text_only = CHAT_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "")
    with pytest.raises(DataError, match="no image support: it writes 0"):
        PromptRenderer.from_pretrained(
            save_processor(tmp_path / "text", chat_template=text_only), max_prompt_tokens=99
        )
    with pytest.raises(DataError, match="no chat template"):
        PromptRenderer.from_pretrained(
            save_processor(tmp_path / "none", chat_template=None), max_prompt_tokens=99
        )
    refusing = "{{ raise_exception('text only, please') }}"
    with pytest.raises(DataError, match="text only, please"):
        PromptRenderer.from_pretrained(
            save_processor(tmp_path / "refusing", chat_template=refusing), max_prompt_tokens=99
        )


def test_a_plan_makes_the_same_renderer_elsewhere(renderer) -> None:
    again = PromptRenderer(pickle.loads(pickle.dumps(renderer.plan)))
    example = row("<image>How many? <|im_end|>", picture())
    assert again.render(example, position=1) == renderer.render(example, position=1)


def test_rendering_processes_need_no_transformers() -> None:
    code = (
        "import sys, mupo_ray.data.stream; "
        "print([m for m in ('torch', 'transformers', 'vllm') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
