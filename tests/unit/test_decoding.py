"""Texts of whole responses equal what a token-by-token decoder gives."""

from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mupo_ray.demo.tiny_model import build_tokenizer
from mupo_ray.rollout.decoding import continuations


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Of Qwen's kind: bytes, so one character may take several tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|end|>"]
    )
    backend.train_from_iterator(["the answer is the angle"] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


def streamed(tokenizer: Any, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """What vLLM's incremental decoder does."""
    stream = decoders.DecodeStream(ids=list(prompt), skip_special_tokens=True)
    return "".join(stream.step(tokenizer.backend_tokenizer, i) or "" for i in ids)


@pytest.mark.parametrize(
    "text",
    ["the angle is 7", " leads with a blank", "角度 ∠A 🙂 done", "\n\n<think>x</think>\n", ""],
)
@pytest.mark.parametrize("prompt", ["Question: what?\nAnswer:", "<|end|>assistant\n", "a"])
def test_bytes(prompt: str, text: str) -> None:
    tokenizer = byte_tokenizer()
    before, ids = tokenizer.encode(prompt), [*tokenizer.encode(text), tokenizer.eos_token_id]
    assert continuations(tokenizer, before, [ids, ids[:-1]]) == [text, text]
    assert streamed(tokenizer, before, ids) == text


def test_half_a_character_is_marked() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("是")
    assert continuations(tokenizer, tokenizer.encode("a"), [ids[:2], ids]) == ["\ufffd", "是"]


def test_words_keep_the_blank_between_prompt_and_response() -> None:
    tokenizer = build_tokenizer()
    before, ids = tokenizer.encode("what ?"), tokenizer.encode("<think> top 4 </think>")
    text = streamed(tokenizer, before, ids)
    assert text.startswith(" ")
    assert continuations(tokenizer, before, [ids, ids[:2]]) == [
        text,
        streamed(tokenizer, before, ids[:2]),
    ]
