"""A Qwen2.5-VL of 0.7 million parameters with its own tokenizer and processor.

The folder it writes is an ordinary Hugging Face one: `AutoModelForImageTextToText`, `AutoProcessor`
and vLLM load it without knowing that it is small.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from mupo_ray.demo.puzzle_text import all_words
from mupo_ray.demo.puzzles import CELL_PIXELS, CELLS, PROMPT

if TYPE_CHECKING:
    from transformers import PreTrainedModel

END_TOKEN = "<|im_end|>"
PAD_TOKEN = "<|endoftext|>"
IMAGE_TOKEN = "<|image_pad|>"
UNKNOWN_TOKEN = "<unk>"

# The pictures are nearly white: CLIP's mean and deviation learn more slowly.
PIXEL_MEAN = 0.85
PIXEL_STD = 0.25

# Qwen2.5-VL's special tokens, in its order.
_SPECIAL_TOKENS = (
    PAD_TOKEN,
    "<|im_start|>",
    END_TOKEN,
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    IMAGE_TOKEN,
    "<|video_pad|>",
    UNKNOWN_TOKEN,
)
_ROLES = ("system", "user", "assistant")
_MAX_NUMBER = 18

# Qwen2.5-VL's template without its default system message, which would double the prompt's length.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}"
    "<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def vocabulary() -> list[str]:
    """Every token in the order of its id."""
    numbers = [str(n) for n in range(_MAX_NUMBER + 1)]
    question = [word for word in PROMPT.split() if word != "<image>"]
    words = [*_SPECIAL_TOKENS, *_ROLES, *numbers, *CELLS, *question, *all_words()]
    return list(dict.fromkeys(words))


def build_tokenizer() -> PreTrainedTokenizerFast:
    r"""A word-level tokenizer without a decoder, so that decoding joins words by one blank.

    Words are split at blanks, and `\boxed{`, tags and punctuation stand alone even where no blank
    separates them, so that text written by hand tokenises like the model's own.
    """
    tokens = vocabulary()
    backend = Tokenizer(
        models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=UNKNOWN_TOKEN)
    )
    backend.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"\\boxed\{|</?think>|\w+|[^\w\s]"), behavior="removed", invert=True
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=UNKNOWN_TOKEN,
        pad_token=PAD_TOKEN,
        eos_token=END_TOKEN,
        additional_special_tokens=[
            t for t in _SPECIAL_TOKENS if t not in (PAD_TOKEN, END_TOKEN, UNKNOWN_TOKEN)
        ],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
        padding_side="left",
    )


def build_processor() -> Qwen2_5_VLProcessor:
    """Tokenizer, image processor and chat template; an 84x84 picture becomes 9 image tokens."""
    pixels = {
        # Pictures of up to 6x6 cells keep their size; larger ones are shrunk.
        "size": {"shortest_edge": (2 * CELL_PIXELS) ** 2, "longest_edge": (6 * CELL_PIXELS) ** 2},
        "patch_size": CELL_PIXELS // 2,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [PIXEL_MEAN] * 3,
        "image_std": [PIXEL_STD] * 3,
    }
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels),
        tokenizer=build_tokenizer(),
        video_processor=Qwen2VLVideoProcessor(**pixels),
        chat_template=CHAT_TEMPLATE,
    )


def build_config(*, tie: bool = True) -> Qwen2_5_VLConfig:
    """The model's shape; head size 32 is the smallest that vLLM's CPU build runs."""
    ids = {token: i for i, token in enumerate(vocabulary())}
    text: dict[str, Any] = {
        "vocab_size": len(ids),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "max_window_layers": 3,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [4, 6, 6],
        },
        "bos_token_id": None,
        "eos_token_id": ids[END_TOKEN],
        "pad_token_id": ids[PAD_TOKEN],
        "tie_word_embeddings": tie,
    }
    vision: dict[str, Any] = {
        "depth": 1,
        "hidden_size": 64,
        "num_heads": 4,
        "intermediate_size": 128,
        "out_hidden_size": text["hidden_size"],
        "patch_size": CELL_PIXELS // 2,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [0],
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids[IMAGE_TOKEN],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=tie,
        architectures=["Qwen2_5_VLForConditionalGeneration"],
    )


def build_model(seed: int, *, tie: bool = True) -> Qwen2_5_VLForConditionalGeneration:
    """The model with random float32 weights of a seed; torch's own generator is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(build_config(tie=tie))
    model.generation_config = GenerationConfig(
        eos_token_id=model.config.text_config.eos_token_id,
        pad_token_id=model.config.text_config.pad_token_id,
        do_sample=True,
        temperature=1.0,
    )
    return model.float().eval()


def save_model(folder: Path, model: PreTrainedModel) -> None:
    """Write weights, config, generation config, tokenizer, processor and chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    build_processor().save_pretrained(folder)


def build_tiny_model(folder: Path, seed: int, tie: bool = True) -> Path:
    """Write a random model that was never trained, in about a second.

    Args:
        folder: where to write; made if absent.
        seed: of the weights.
        tie: False gives the output layer its own matrix.

    Returns:
        The folder.
    """
    save_model(folder, build_model(seed, tie=tie))
    return folder
