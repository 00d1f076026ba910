"""vLLM's own OpenAI API on an engine that takes new weights while it serves (vLLM 0.29).

    body --our checks--> literal prompt --+
                                          v
    OpenAIServingChat / -Completion: sampling parameters, choices, log-probs, streaming
                                          |
    VllmEngine (the one that training samples from) ---> AsyncLLM

Only the rendering of prompts is replaced: vLLM's takes special tokens in a user's text for the chat
template's own and fetches pictures by rules of its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr, ValidationError
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.sampling_params import RequestOutputKind

from mupo_ray.rollout.engine import EngineSettings, SyncReport, VllmEngine
from mupo_ray.rollout.pool import placeholder_ids
from mupo_ray.serving.chat import RenderedChat, refuse_long
from mupo_ray.serving.requests import RefusedError, refusal_of

if TYPE_CHECKING:
    from mupo_ray.data.render import PromptRenderer

# What vLLM's request model wants to see; the prompt comes from elsewhere.
_NO_MESSAGES = [{"role": "user", "content": ""}]
_LEAST_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text that one response grew by."""

    index: int
    text: str
    num_tokens: int
    num_prompt_tokens: int
    """Of the prompt, pictures expanded."""
    finish_reason: str | None
    """`stop` or `length` with the last piece."""


class OpenAiEngine(VllmEngine):
    """Answers OpenAI's requests."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        renderer: PromptRenderer,
        name: str,
        version: int,
        max_new_tokens: int | None,
    ) -> None:
        """Start the engine and put vLLM's API on it.

        Args:
            settings: of the engine.
            renderer: of the model's prompts.
            name: of the model in the API.
            version: policy version of the weights in the model's folder.
            max_new_tokens: longest response; the model's length alone limits it where None.
        """
        super().__init__(0, settings)
        self._first_version = version
        self._has_failed = False
        self._renderer = renderer
        models = OpenAIServingModels(self._llm, [BaseModelPath(name=name, model_path=name)])
        prompts: Any = _LiteralPrompts(self._llm, renderer)
        self._chat = OpenAIServingChat(
            self._llm,
            models,
            "assistant",
            online_renderer=prompts,
            request_logger=None,
            chat_template=None,
            chat_template_content_format="auto",
        )
        self._chat.override_max_tokens = max_new_tokens
        self._completion = OpenAIServingCompletion(
            self._llm, models, online_renderer=prompts, request_logger=None
        )

    @property
    def is_dead(self) -> bool:
        """Whether vLLM's core has failed, or holds weights that were loaded in part."""
        return self._has_failed or bool(self._llm.errored)

    async def start(self) -> None:
        """Serve the weights that the engine was started with."""
        await self.serve_loaded(self._first_version)

    async def commit(self, version: int, digest: str, pause: str) -> SyncReport:
        """See `VllmEngine.commit`; an engine that failed in it is dead."""
        try:
            return await super().commit(version, digest, pause)
        except BaseException:
            self._has_failed = True
            raise

    async def chat(
        self, fields: dict[str, Any], prompt: RenderedChat
    ) -> bytes | AsyncGenerator[str, None]:
        """Answer a chat.

        Args:
            fields: of the request; its messages are not looked at.
            prompt: the messages, rendered.

        Returns:
            The JSON of the response, or events where `stream` is asked for.

        Raises:
            RefusedError: vLLM refuses the request.
        """
        try:
            request = _ChatRequest.model_validate({**fields, "messages": _NO_MESSAGES})
            request._prompt = prompt
            return await _answer(await self._chat.create_chat_completion(request))
        except Exception as err:
            raise _refusal(err) from err

    async def complete(self, fields: dict[str, Any]) -> bytes | AsyncGenerator[str, None]:
        """Continue prompts given as text or as token ids; see `chat`.

        Raises:
            RefusedError: vLLM refuses the request.
        """
        try:
            request = CompletionRequest.model_validate(fields)
            return await _answer(await self._completion.create_completion(request))
        except Exception as err:
            raise _refusal(err) from err

    async def sample(
        self,
        prompt: RenderedChat,
        request_id: str,
        *,
        num_generations: int,
        max_new_tokens: int | None,
        temperature: float,
        top_p: float,
        seed: int | None,
    ) -> AsyncGenerator[Piece, None]:
        """Several responses to one chat, as they grow.

        Args:
            prompt: the chat, rendered.
            request_id: of its own.
            num_generations: responses.
            max_new_tokens: longest response; the model's length alone limits it where None.
            temperature: 0 is greedy.
            top_p: share of probability that is sampled from.
            seed: of the responses; they differ from call to call where None.

        Raises:
            RefusedError: vLLM refuses the request.
        """
        params = SamplingParams(
            n=num_generations,
            max_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            output_kind=RequestOutputKind.DELTA,
        )
        try:
            (engine_input,) = await self._llm.renderer.render_cmpl_async([_tokens(prompt)])
            async for output in self._llm.generate(engine_input, params, request_id):
                for part in output.outputs:
                    yield Piece(
                        index=part.index,
                        text=part.text,
                        num_tokens=len(part.token_ids),
                        num_prompt_tokens=len(output.prompt_token_ids or ()),
                        finish_reason=part.finish_reason,
                    )
        except Exception as err:
            raise _refusal(err) from err


class _ChatRequest(ChatCompletionRequest):
    _prompt: RenderedChat = PrivateAttr()


class _LiteralPrompts:
    """Stands in for vLLM's `OnlineRenderer`."""

    def __init__(self, llm: Any, renderer: PromptRenderer) -> None:
        self._llm = llm
        self._renderer = renderer
        # Without the pictures that belong to them, these would send the engine looking.
        self._forbidden = frozenset(placeholder_ids(llm.model_config.hf_config))

    async def render_chat(
        self, request: _ChatRequest, *, skip_mm_cache: bool = False
    ) -> tuple[list[Any], list[Any]]:
        prompts = await self._llm.renderer.render_cmpl_async(
            [_tokens(request._prompt)], request.build_tok_params(self._llm.model_config)
        )
        return [], prompts

    async def render_completion(
        self, request: CompletionRequest, *, skip_mm_cache: bool = False
    ) -> list[Any]:
        prompt = request.prompt
        many = prompt if isinstance(prompt, list) and _is_many(prompt) else [prompt]
        prompts = [self._completion_ids(one) for one in many]
        rendered: list[Any] = await self._llm.renderer.render_cmpl_async(
            [{"prompt_token_ids": ids} for ids in prompts],
            request.build_tok_params(self._llm.model_config),
        )
        return rendered

    def _completion_ids(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            refuse_long([prompt], self._renderer, self._llm.model_config.max_model_len)
            ids = self._renderer.text_ids(prompt)
        else:
            ids = list(prompt or ())
        if not ids:
            raise RefusedError("prompt is empty; should have at least one token", param="prompt")
        if max(ids) >= self._renderer.vocab_size:
            raise RefusedError(
                f"prompt holds token {str(max(ids))[:20]}; should be below "
                f"{self._renderer.vocab_size}",
                param="prompt",
            )
        placeholders = self._forbidden.intersection(ids)
        if placeholders:
            raise RefusedError(
                f"prompt holds token {min(placeholders)}, a placeholder of pictures; pictures go "
                "into /v1/chat/completions",
                param="prompt",
            )
        return ids


def _is_many(prompt: Sequence[Any]) -> bool:
    return bool(prompt) and isinstance(prompt[0], (str, list))


def _tokens(prompt: RenderedChat) -> dict[str, Any]:
    tokens: dict[str, Any] = {"prompt_token_ids": list(prompt.token_ids)}
    if prompt.images:
        tokens["multi_modal_data"] = {"image": [image.pil() for image in prompt.images]}
        tokens["multi_modal_uuids"] = {"image": [image.sha256 for image in prompt.images]}
    return tokens


async def _answer(result: Any) -> bytes | AsyncGenerator[str, None]:
    if isinstance(result, ErrorResponse):
        raise _from_vllm(result)
    if hasattr(result, "model_dump_json"):
        return str(result.model_dump_json()).encode()
    # The engine checks a request when it is first asked; what it refuses then is no stream yet.
    first = await anext(result)
    if first.startswith('data: {"error"'):
        await result.aclose()
        error = ErrorResponse.model_validate_json(first.removeprefix("data: "))
        raise _from_vllm(error)
    return _chain(first, result)


async def _chain(first: str, rest: Any) -> AsyncGenerator[str, None]:
    try:
        yield first
        async for event in rest:
            yield event
    finally:
        await rest.aclose()


def _refusal(err: Exception) -> Exception:
    if isinstance(err, RefusedError):
        return err
    if isinstance(err, ValidationError):
        return refusal_of(err)
    return _from_vllm(create_error_response(err), err)


def _from_vllm(response: Any, err: Exception | None = None) -> Exception:
    error = response.error
    if error.code >= _LEAST_SERVER_ERROR:
        return err or RuntimeError(error.message)
    return RefusedError(error.message, status=error.code, param=error.param)
