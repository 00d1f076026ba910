"""Rows to chat prompts: template, chat markup, token ids, and how many tokens the engine will see.

    Row --template--> text and picture pieces --chat template--> markup --tokenizer--> Prompt

The chat template only ever sees markers in place of the row's text. What stands between markers is
the template's own and may hold special tokens; what they stand for is a person's text, in which
`<|image_pad|>` or `<|im_end|>` are letters like any others. The two are joined again before they
are tokenised, so that ordinary text gets the very ids that `apply_chat_template` gives.

A renderer is built where transformers is loaded, and sent to other processes as a `RenderPlan`:
importing transformers takes seconds and half a gigabyte, and rendering needs none of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from mupo_ray.data.images import check_aspect_ratio, load_image
from mupo_ray.data.table import DropReason, Row, RowError, naming, prompt_id
from mupo_ray.errors import DataError
from mupo_ray.files import sha256_of
from mupo_ray.rewards.extract import opens_think
from mupo_ray.text import first_line
from mupo_ray.types import Prompt, RgbImage

if TYPE_CHECKING:
    from mupo_ray.config import Config

PLACEHOLDER = "<image>"
"""Marks in a row's problem where a picture goes."""

TEMPLATES = {
    "plain": "{problem}",
    # The question, a blank line, and what to do: the shape that the paper's repository shows.
    "paper": (
        "{problem}\n\nThink step by step inside <think> </think> first, then put the final answer "
        "in \\boxed{}."
    ),
    "math": (
        "{problem}\n\nFirst reason as an internal monologue, then give the final answer. The "
        "reasoning must be enclosed in <think> </think>, and the final answer must be put in "
        "\\boxed{}."
    ),
    "r1v": (
        "{problem}\n\nFirst think about the problem in <think> </think>, then answer in "
        "<answer> </answer>, with the final answer in \\boxed{}."
    ),
}
"""Prompt templates by name."""

_GENERATE = {"add_generation_prompt": True}

ChatMessage = tuple[str, Sequence[str | None]]
"""A role and its content: text, or None for a picture."""

# Private-use characters around a number; rows never pass through the chat template, so nothing that
# a row holds can be taken for a marker.
_MARKER = re.compile("\ue000(\\d+)\ue001")


@dataclass(frozen=True, kw_only=True)
class RenderPlan:
    """All that rendering depends on, as plain values."""

    model_path: str
    tokenizer_json: str
    special_tokens: tuple[str, ...]
    chat_template: str
    image_token: str
    patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int
    template: str
    """Text with `{problem}` in it."""
    system_prompt: str | None
    max_prompt_tokens: int

    @cached_property
    def key(self) -> str:
        """Hash of the content."""
        return sha256_of(repr(self))


class PromptRenderer:
    """Turns rows into prompts; the same row always gives the same prompt."""

    def __init__(self, plan: RenderPlan) -> None:
        self.plan = plan
        self._tokenizer = Tokenizer.from_str(plan.tokenizer_json)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        # Special tokens in what it is given are letters; those of the template are set by id.
        self._tokenizer.encode_special_tokens = True
        vocabulary = self._tokenizer.get_vocab()
        self._special = {token: vocabulary[token] for token in plan.special_tokens}
        longest_first = sorted(self._special, key=len, reverse=True)
        self._special_pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self.image_token_id = self._special[plan.image_token]
        self._chat = _compile_chat_template(plan.chat_template)

    @classmethod
    def from_pretrained(
        cls,
        model_path: str,
        *,
        template: str = "plain",
        system_prompt: str | None = None,
        max_prompt_tokens: int,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
    ) -> PromptRenderer:
        """Build a renderer for a model.

        Args:
            model_path: Hugging Face folder or id of a Qwen2.5-VL or Qwen3-VL model.
            template: `plain`, `paper`, `math`, `r1v`, or a text file that holds `{problem}`.
            system_prompt: system message; None leaves it to the chat template.
            max_prompt_tokens: longest prompt, image tokens included.
            min_pixels: smaller pictures are scaled up to it; the processor's own limit where None.
            max_pixels: larger pictures are scaled down to it; likewise.

        Raises:
            DataError: no such model, no processor for images, a chat template without image
                support, or a bad prompt template.
        """
        processor = load_processor(model_path, min_pixels, max_pixels)
        images = processor.image_processor
        renderer = cls(
            RenderPlan(
                model_path=model_path,
                tokenizer_json=processor.tokenizer.backend_tokenizer.to_str(),
                special_tokens=tuple(
                    sorted(
                        token.content
                        for token in processor.tokenizer.added_tokens_decoder.values()
                        if token.special
                    )
                ),
                chat_template=processor.chat_template,
                image_token=processor.image_token,
                patch_size=images.patch_size,
                merge_size=images.merge_size,
                min_pixels=images.size["shortest_edge"],
                max_pixels=images.size["longest_edge"],
                template=load_template(template),
                system_prompt=system_prompt,
                max_prompt_tokens=max_prompt_tokens,
            )
        )
        renderer._check_against(processor)
        return renderer

    @classmethod
    def from_config(cls, config: Config) -> PromptRenderer:
        """The renderer of a run.

        Raises:
            DataError: as `from_pretrained`.
        """
        return cls.from_pretrained(
            config.model.path,
            template=config.data.template,
            system_prompt=config.data.system_prompt,
            max_prompt_tokens=config.data.max_prompt_tokens,
            min_pixels=config.data.min_pixels,
            max_pixels=config.data.max_pixels,
        )

    @cached_property
    def opens_think(self) -> bool:
        """Whether the chat template ends every prompt with `<think>`."""
        return opens_think(self._markup(self._messages([""]))[0])

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: N tokens hold at most N times that."""
        return max(map(len, self._tokenizer.get_vocab()))

    @cached_property
    def vocab_size(self) -> int:
        """Tokens that the tokenizer knows; their ids are below it."""
        return int(self._tokenizer.get_vocab_size())

    def render(self, row: Row, *, position: int) -> Prompt:
        """The prompt of one row.

        Args:
            row: from `PromptTable.read`.
            position: place in the sequence of prompts, carried along.

        Raises:
            RowError: the row cannot be used; `reason` says why.
        """
        images = load_images(row)
        with naming(f"row {row.index}"):
            num_image_tokens = sum(map(self._num_image_tokens, images))
        content = user_content(self.plan.template, row.problem, len(images))
        token_ids = self.chat_ids(self._messages(content))
        num_tokens = len(token_ids) - len(images) + num_image_tokens
        if num_tokens > self.plan.max_prompt_tokens:
            raise RowError(
                DropReason.TOO_LONG,
                f"row {row.index}: prompt has {num_tokens} tokens, {num_image_tokens} of them "
                f"image tokens; at most {self.plan.max_prompt_tokens} are allowed",
            )
        return make_prompt(row, images, token_ids, position=position)

    def num_tokens(self, prompt: Prompt) -> int:
        """Tokens of a prompt with every picture expanded, as engine and trainer count them."""
        expanded = sum(map(self._num_image_tokens, prompt.images))
        return len(prompt.token_ids) - len(prompt.images) + expanded

    def _num_image_tokens(self, image: RgbImage) -> int:
        check_aspect_ratio(image.width, image.height)
        plan = self.plan
        return num_image_tokens(
            image.width,
            image.height,
            cell=plan.patch_size * plan.merge_size,
            min_pixels=plan.min_pixels,
            max_pixels=plan.max_pixels,
        )

    def chat_ids(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Ids of a whole chat, up to where the model answers.

        Args:
            messages: from the first one on.

        Returns:
            One image token a picture.

        Raises:
            jinja2.TemplateError: the chat template refuses these messages.
        """
        return self._join(*self._markup(messages))

    def text_ids(self, text: str) -> list[int]:
        """Ids of text alone; special tokens in it are letters."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids if text else []
        return ids

    def _messages(self, content: Sequence[str | None]) -> list[ChatMessage]:
        system = self.plan.system_prompt
        first: list[ChatMessage] = [] if system is None else [("system", [system])]
        return [*first, ("user", content)]

    def _markup(self, messages: Sequence[ChatMessage]) -> tuple[str, list[str]]:
        """The chat template's output, with a marker for each text, and the texts."""
        texts: list[str] = []
        marked = []
        for role, content in messages:
            pieces = []
            for piece in content:
                if piece is None:
                    pieces.append({"type": "image"})
                else:
                    pieces.append({"type": "text", "text": f"\ue000{len(texts)}\ue001"})
                    texts.append(piece)
            marked.append({"role": role, "content": pieces})
        return self._chat.render(messages=marked, **_GENERATE), texts

    def _join(self, markup: str, texts: list[str]) -> list[int]:
        """Ids of the chat template's output with each marker replaced by its text."""
        ids: list[int] = []
        chunk = ""  # Text between two special tokens, which the tokenizer must see in one piece.
        for number, piece in enumerate(_MARKER.split(markup)):
            if number % 2 == 1:
                chunk += texts[int(piece)]
                continue
            for other, part in enumerate(self._special_pattern.split(piece)):
                if other % 2 == 0:
                    chunk += part
                    continue
                ids += self.text_ids(chunk)
                ids.append(self._special[part])
                chunk = ""
        return ids + self.text_ids(chunk)

    def _check_against(self, processor: Any) -> None:
        """Prove at start that renderer and processor agree on a message with a picture."""
        name = self.plan.model_path
        text = "How many, 2 + 3?\n"
        plain = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
        try:
            markup = processor.apply_chat_template(plain, tokenize=False, **_GENERATE)
            ours = self.chat_ids([("user", [None, text])])
        except jinja2.TemplateError as err:
            raise DataError(f"the chat template of {name} cannot be rendered: {err}") from err
        num_images = markup.count(self.plan.image_token)
        if num_images != 1:
            raise DataError(
                f"the chat template of {name} has no image support: it writes {num_images} "
                f"{self.plan.image_token} for a message with 1 image, expected 1"
            )
        expected = processor.tokenizer.encode(markup, add_special_tokens=False)
        if ours != expected:
            raise DataError(
                f"the tokenizer of {name} gives {ours} for pieces of a prompt and {expected} for "
                "the whole; a Qwen2.5-VL or Qwen3-VL tokenizer is expected"
            )


def load_images(row: Row) -> list[RgbImage]:
    """The decoded pictures of a row that can be asked.

    Raises:
        RowError: it has no answer, no question, other marks than pictures, or a bad picture.
    """
    with naming(f"row {row.index}"):
        check_texts(row.problem, row.problem, row.answer, len(row.images))
    images = []
    for number, ref in enumerate(row.images):
        with naming(f"row {row.index}, image {number}"):
            images.append(load_image(ref, row.folder))
    return images


def check_texts(problem: str, question: str, answer: str, num_images: int) -> None:
    """Refuse what no model could be asked, or no answer could be checked against.

    Args:
        problem: what the model is asked.
        question: the part of it that must not be blank where there is no picture.
        answer: the gold one.
        num_images: pictures of the row.

    Raises:
        RowError: the answer is empty, the question is, or the problem's marks do not fit.
    """
    if not answer.strip():
        raise RowError(DropReason.EMPTY_ANSWER, "answer is empty, nothing can be right")
    num_marks = problem.count(PLACEHOLDER)
    if num_marks not in (0, num_images):
        raise RowError(
            DropReason.PLACEHOLDERS,
            f"problem has {num_marks} {PLACEHOLDER} for {num_images} images; expected as many, or "
            "none to put the images first",
        )
    if not num_images and not question.strip():
        raise RowError(DropReason.EMPTY_PROBLEM, "no text and no image")


def make_prompt(
    row: Row, images: Sequence[RgbImage], token_ids: Sequence[int], *, position: int
) -> Prompt:
    """A row's prompt from its parts."""
    return Prompt(
        prompt_id=prompt_id(row.problem, row.answer, [image.sha256 for image in images]),
        position=position,
        token_ids=tuple(token_ids),
        images=tuple(images),
        question=row.problem,
        answer=row.answer,
        meta=row.meta,
    )


def user_content(template: str, problem: str, num_images: int) -> list[str | None]:
    """Pieces of the user's message: text, or None for a picture.

    Args:
        template: text with `{problem}` in it.
        problem: with a mark a picture, or none to put the pictures first.
        num_images: pictures of the row.
    """
    before, after = template.split("{problem}")
    parts = problem.split(PLACEHOLDER)
    pieces: list[str | None] = []
    if len(parts) == 1:
        pieces += [None] * num_images
    pieces.append(before)
    for number, part in enumerate(parts):
        if number > 0:
            pieces.append(None)
        pieces.append(part)
    pieces.append(after)
    merged: list[str | None] = []
    for piece in pieces:
        if piece is not None and merged and merged[-1] is not None:
            merged[-1] += piece
        elif piece != "":
            merged.append(piece)
    return merged


def num_image_tokens(
    width: int, height: int, *, cell: int, min_pixels: int, max_pixels: int
) -> int:
    """Tokens that Qwen-VL makes of a picture (Qwen2-VL's `smart_resize`, then one a merged cell).

    Args:
        width: of the picture in pixels.
        height: of the picture in pixels.
        cell: pixels of one token's side: patch size times merge size.
        min_pixels: smaller pictures are enlarged to this area.
        max_pixels: larger pictures are shrunk to this area.
    """
    rows, columns = round(height / cell), round(width / cell)
    if rows * columns * cell**2 > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        rows = max(1, math.floor(height / shrink / cell))
        columns = max(1, math.floor(width / shrink / cell))
    elif rows * columns * cell**2 < min_pixels:
        enlarge = math.sqrt(min_pixels / (height * width))
        rows = math.ceil(height * enlarge / cell)
        columns = math.ceil(width * enlarge / cell)
    return rows * columns


@lru_cache(maxsize=4)
def load_processor(
    model_path: str, min_pixels: int | None = None, max_pixels: int | None = None
) -> Any:
    """The model's processor, from a folder or a Hugging Face id; loaded once a process.

    Args:
        model_path: folder or id.
        min_pixels: smaller pictures are scaled up to it; the processor's own limit where None.
        max_pixels: larger pictures are scaled down to it; likewise.

    Raises:
        DataError: no such model, or it has no processor for images and chat.
    """
    # Importing transformers takes seconds, and the processes that only render do without it.
    from transformers import AutoProcessor

    path = Path(model_path).expanduser()
    looks_local = (
        path.is_absolute() or model_path.startswith((".", "~")) or model_path.count("/") > 1
    )
    if looks_local and not path.is_dir():
        raise DataError(f"model folder {model_path} does not exist (looked from {Path.cwd()})")
    try:
        processor = AutoProcessor.from_pretrained(str(path) if path.is_dir() else model_path)
    except (OSError, ValueError) as err:
        raise DataError(
            f"cannot load a processor for model {model_path!r}; expected a Hugging Face folder "
            f"with tokenizer and processor files, or an id: {first_line(err)}"
        ) from err
    images = getattr(processor, "image_processor", None)
    lacking = [a for a in ("patch_size", "merge_size", "size") if not hasattr(images, a)]
    if images is None or lacking:
        raise DataError(
            f"model {model_path!r} has {type(images or processor).__name__} for pictures; expected "
            "the image processor of Qwen2.5-VL or Qwen3-VL"
        )
    if not processor.chat_template:
        raise DataError(f"model {model_path!r} has no chat template; one with images is expected")
    limits = {"shortest_edge": min_pixels, "longest_edge": max_pixels}
    for edge, pixels in limits.items():
        if pixels is not None:
            # Under these names the Qwen-VL processors keep numbers of pixels (transformers 5.19).
            images.size[edge] = pixels
    return processor


def load_template(template: str) -> str:
    """Text of a prompt template, by name or from a file.

    Raises:
        DataError: neither, or `{problem}` is not in it once.
    """
    text = TEMPLATES.get(template)
    if text is None:
        path = Path(template).expanduser()
        if not path.is_file():
            raise DataError(
                f"template {template!r} is neither a file nor one of {', '.join(sorted(TEMPLATES))}"
            )
        text = path.read_text(encoding="utf-8").rstrip("\n")
    if text.count("{problem}") != 1:
        raise DataError(
            f"template {template!r} holds {{problem}} {text.count('{problem}')} times, "
            "expected once"
        )
    return text


def _compile_chat_template(source: str) -> jinja2.Template:
    """As transformers compiles it: sandboxed, since a template comes with a downloaded model."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(source)
