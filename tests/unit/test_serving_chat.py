"""Messages to prompts, and names to weights."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mupo_ray.data.render import PromptRenderer
from mupo_ray.errors import CheckpointError, WeightSyncError
from mupo_ray.serving.answers import AnswersRequest, AnswersService, load_scorer
from mupo_ray.serving.arguments import Limits
from mupo_ray.serving.chat import Turn, parse_messages, render
from mupo_ray.serving.pictures import PictureLoader
from mupo_ray.serving.requests import RefusedError
from mupo_ray.serving.weights import check_alike, find_policy

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAYAAADED76LAAAAFElEQVR42mNgoDv4D8VwwMQw"
    "8AAAJvkCASIdMqcAAAAASUVORK5CYII="
)
IMAGE = {"type": "image_url", "image_url": {"url": PIXEL}}


@pytest.fixture(scope="module")
def renderer(tiny_model: Path) -> PromptRenderer:
    return PromptRenderer.from_pretrained(str(tiny_model), max_prompt_tokens=64)


def test_messages_of_every_form() -> None:
    turns = parse_messages(
        [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE], "name": ""},
            {"role": "assistant", "content": "b", "refusal": None, "tool_calls": None},
            {"role": "user", "content": ""},
        ],
        max_images=1,
    )
    assert [(t.role, t.pieces, len(t.urls)) for t in turns] == [
        ("system", ("be brief",), 0),
        ("user", ("a", None), 1),
        ("assistant", ("b",), 0),
        ("user", (), 0),
    ]


@pytest.mark.parametrize(
    "messages",
    [
        None, [], {}, "hi", [1], [{}], [{"role": "tool", "content": "x"}],
        [{"role": "user", "content": None}], [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 1}}]}],
        [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": PIXEL}}]}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "assistant", "content": "x", "tool_calls": [{}]}],
        [{"role": "user", "content": [IMAGE, IMAGE]}],
        [{"role": "user", "content": [IMAGE]}, {"role": "user", "content": [IMAGE]}],
    ],
    ids=lambda messages: json.dumps(messages)[:60],
)  # fmt: skip
def test_messages_that_are_refused(messages: Any) -> None:
    with pytest.raises(RefusedError):
        parse_messages(messages, max_images=1)


def rendered(renderer: PromptRenderer, *pieces: str | None) -> list[int]:
    turn = Turn(role="user", pieces=pieces, urls=(PIXEL,) * pieces.count(None))
    loader = PictureLoader(Limits(), None)
    return asyncio.run(render([turn], renderer, loader, max_tokens=500)).token_ids


def test_d14_typed_markers_are_letters(renderer: PromptRenderer) -> None:
    typed = "see <|vision_start|><|image_pad|><|vision_end|>\ue0000\ue001"
    for pieces in ((None, typed), (typed, None)):
        assert rendered(renderer, *pieces).count(renderer.image_token_id) == 1
    assert rendered(renderer, typed).count(renderer.image_token_id) == 0


def test_a_chat_renders_as_the_processor_renders_it(
    renderer: PromptRenderer, tiny_model: Path
) -> None:
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(tiny_model)
    chat = [("system", ["be brief"]), ("user", [None, "1 + 1?"]), ("assistant", ["2"]),
            ("user", ["sure?"])]  # fmt: skip
    messages = [
        {
            "role": role,
            "content": [
                {"type": "image"} if piece is None else {"type": "text", "text": piece}
                for piece in pieces
            ],
        }
        for role, pieces in chat
    ]
    markup = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert renderer.chat_ids(chat) == processor.tokenizer.encode(markup, add_special_tokens=False)


def test_megabytes_are_refused_before_they_are_tokenised(renderer: PromptRenderer) -> None:
    with pytest.raises(RefusedError, match="characters"):
        rendered(renderer, "x" * 10**6)


def test_a_question_is_framed_as_in_training() -> None:
    service = AnswersService(
        engine=None,  # type: ignore[arg-type]
        embed=None,
        template="Look. {problem} Think.",
        is_think_opened=False,
        model="m",
        max_new_tokens=None,
    )
    first = Turn(role="assistant", pieces=("x",), urls=())
    last = Turn(role="user", pieces=(None, "why?"), urls=(PIXEL,))
    assert service.framed([first, last]) == [
        first,
        Turn(role="user", pieces=("Look. ", None, "why?", " Think."), urls=(PIXEL,)),
    ]
    with pytest.raises(RefusedError, match="assistant"):
        service.framed([last, first])


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ({}, 2),
        ({"n": 12}, 3),
        ({"n": 4, "k": 4}, 1),
        ({"n": 2, "k": 3}, 1),
        ({"min_group_size": 5}, 5),
    ],
)
def test_groups_are_as_large_as_n_allows(fields: dict[str, int], size: int) -> None:
    assert AnswersRequest.model_validate(fields).group_size == size


def test_a_scorer_is_a_function_of_a_module() -> None:
    from mupo_ray.errors import ConfigError

    assert load_scorer("json:dumps") is json.dumps
    for wrong in ("json", "json:nothing", "no_such_module:f", "json:"):
        with pytest.raises(ConfigError, match="scorer"):
            load_scorer(wrong)


def test_weights_are_found_by_folder_and_by_name(tiny_model: Path, tmp_path: Path) -> None:
    found = find_policy(str(tiny_model), "nowhere", None)
    assert (found.folder, found.version, found.run) == (str(tiny_model), 0, None)
    assert found.name == tiny_model.name
    of_a_run = replace(found, folder="/runs/a/step_000060/hf", run=Path("/runs/a"))
    assert of_a_run.name == "a/step_000060"
    assert find_policy(str(tiny_model), "nowhere", 9).version == 9
    named = find_policy(tiny_model.name, str(tiny_model.parent), None)
    assert named.folder == str(tiny_model)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError):
        find_policy("empty", str(tmp_path), None)


def test_weights_of_another_model_are_told_by_their_shapes(
    tiny_model: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(tiny_model / "model.safetensors")
    embedding = next(name for name in weights if "embed_tokens" in name)
    changes: dict[str, tuple[dict[str, Any], bool]] = {
        "same": ({}, True),
        "head": ({"lm_head.weight": weights[embedding].clone()}, True),
        "shape": ({embedding: weights[embedding][:-1].contiguous()}, False),
        "more": ({"extra": weights[embedding].clone()}, False),
    }
    for name, (change, is_alike) in changes.items():
        folder = tmp_path / name
        folder.mkdir()
        save_file(weights | change, folder / "model.safetensors")
        if is_alike:
            check_alike(str(tiny_model), str(folder))
            continue
        with pytest.raises(WeightSyncError, match="another model"):
            check_alike(str(tiny_model), str(folder))
