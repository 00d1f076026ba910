"""The models that can be evaluated, and what answers for them.

checkpoint_contestant   a model folder, on vLLM engines of one's own: EngineSampler
served_contestant       a model behind an address: ServedSampler
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import ray

from mupo_ray.config import load_config
from mupo_ray.data.chat import ChatRenderer
from mupo_ray.data.fingerprint import fingerprint_of_model
from mupo_ray.data.render import PromptRenderer
from mupo_ray.errors import ConfigError, RolloutError, WeightSyncError, cause_of
from mupo_ray.openai_client import ChatServer
from mupo_ray.placement.plan import Role, wait_for_plan
from mupo_ray.rewards.verdicts import Verifier
from mupo_ray.rollout.embedder import EmbedderPool
from mupo_ray.rollout.pool import EnginePool, placeholder_ids
from mupo_ray.rollout.served_sampler import ServedSampler
from mupo_ray.rollout.services import Services, start_services, stop_services
from mupo_ray.runs.export import find_model
from mupo_ray.runs.folder import load_resolved
from mupo_ray.types import SampledResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from mupo_ray.config import Config
    from mupo_ray.data.render import PromptRenderer
    from mupo_ray.rollout.pool import SamplingPlan
    from mupo_ray.types import Prompt

# Engines call the weights they were started with by this version.
_VERSION = 0


class Sampler(Protocol):
    """Answers prompts that are taken only as there is room for them."""

    def stream(
        self, tasks: Iterable[tuple[Prompt, SamplingPlan]]
    ) -> Iterator[tuple[int, tuple[SampledResponse, ...]]]:
        """Number of a task and its responses in order of their seeds, as they are finished."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """The model that is evaluated."""

    name: str
    """In results: a folder, or the name of a served model."""
    depends_on: Mapping[str, object]
    """What decides its responses apart from sampling, by name."""
    renderer: PromptRenderer | ChatRenderer
    sampler: Callable[[], AbstractContextManager[Sampler]]
    """Starts what answers; not called where nothing is missing."""
    verifier: Verifier
    embedder: Callable[[], AbstractContextManager[EmbedderPool]] | None
    """Starts what embeds; None where nothing is to be embedded."""


def load_model_config(model: str, files: Sequence[Path], overrides: Sequence[str]) -> Config:
    """How to ask the model that a user means; `model.path` names it.

    Args:
        model: as `find_model` takes it.
        files: of settings. Where there are none, a run's model is asked as it was trained: with the
            run's template, limits and engines.
        overrides: `section.field=value`.

    Raises:
        CheckpointError: a folder without a model or a whole checkpoint.
        ConfigError: a file, key or value is wrong.
    """
    path, run = find_model(model)
    if run is not None and not files:
        config = load_config((), overrides, base=load_resolved(run))
    else:
        config = load_config(files, overrides)
    return config.model_copy(update={"model": config.model.model_copy(update={"path": path})})


def checkpoint_contestant(
    config: Config, max_new_tokens: int, *, embeds: bool, running: Services | None = None
) -> Contestant:
    """A model folder (`model.path`) on vLLM engines.

    Args:
        config: how to render, sample and embed.
        max_new_tokens: longest response.
        embeds: whether reasoning is embedded.
        running: engines that hold this model already, and embedders; started where None.

    Raises:
        DataError: no such model, or one that takes no pictures.
        ConfigError: the longest prompt with the longest response does not fit an engine.
    """
    longest = config.data.max_prompt_tokens + max_new_tokens
    if longest > config.rollout.max_model_len:
        raise ConfigError(
            f"data.max_prompt_tokens + --max-new-tokens = {longest} exceeds rollout.max_model_len "
            f"= {config.rollout.max_model_len}; should be at most that"
        )
    renderer = PromptRenderer.from_config(config)
    path = Path(config.model.path).expanduser()

    @contextlib.contextmanager
    def sampler() -> Iterator[Sampler]:
        with services_for(config, Role.ENGINE, running) as services:
            yield EngineSampler(config, services)

    return Contestant(
        name=config.model.path,
        depends_on={
            "model": fingerprint_of_model(path) if path.is_dir() else config.model.path,
            "dtype": config.model.dtype,
            "template": renderer.plan.template,
            "system_prompt": renderer.plan.system_prompt,
            "min_pixels": renderer.plan.min_pixels,
            "max_pixels": renderer.plan.max_pixels,
        },
        renderer=renderer,
        sampler=sampler,
        verifier=_verifier(config, is_think_opened=renderer.opens_think),
        embedder=_embedder(config, running) if embeds else None,
    )


def served_contestant(config: Config, server: ChatServer, *, embeds: bool) -> Contestant:
    """A model behind an address.

    Args:
        config: how to render and embed.
        server: where it is and how to ask it.
        embeds: whether reasoning is embedded.

    Raises:
        DataError: a bad prompt template.
    """
    renderer = ChatRenderer.from_template(config.data.template, config.data.system_prompt)

    @contextlib.contextmanager
    def sampler() -> Iterator[Sampler]:
        yield ServedSampler(server, renderer)

    return Contestant(
        name=server.model,
        depends_on={
            "model": f"{server.model} at {server.address}",
            "template": renderer.template,
            "system_prompt": renderer.system_prompt,
        },
        renderer=renderer,
        sampler=sampler,
        # The server may open the reasoning itself; then its reply holds it or leaves it out whole.
        verifier=_verifier(config, is_think_opened=False),
        embedder=_embedder(config, None) if embeds else None,
    )


@contextlib.contextmanager
def services_for(config: Config, role: Role, running: Services | None) -> Iterator[Services]:
    """Actors of one role, started for the block, or those that run already.

    Raises:
        RolloutError: one failed to start or was late.
        PlacementError: the cluster has no room for them.
    """
    if running is not None:
        yield running
        return
    started = start_services(config, wait_for_plan(config, roles=(role,)))
    try:
        yield started
    finally:
        stop_services(started)


class EngineSampler:
    """vLLM engines that serve the weights they load."""

    def __init__(self, config: Config, services: Services) -> None:
        """Make engines serve their own weights.

        Args:
            config: of the evaluation, with the model's path.
            services: with engines started for that model.

        Raises:
            RolloutError: an engine does not answer.
        """
        from transformers import AutoConfig

        self._engines = services.engines
        self._timeout_s = config.rollout.start_timeout_s
        for engine in range(len(self._engines)):
            try:
                self._serve(engine)
            except WeightSyncError as err:
                raise RolloutError(str(err)) from err
        self._pool = EnginePool(
            self._engines,
            forbidden_ids=placeholder_ids(AutoConfig.from_pretrained(config.model.path)),
            max_num_seqs=config.rollout.max_num_seqs,
            request_timeout_s=config.rollout.request_timeout_s,
            max_restarts=config.rollout.max_restarts,
            resync=self._serve,
        )

    def stream(
        self, tasks: Iterable[tuple[Prompt, SamplingPlan]]
    ) -> Iterator[tuple[int, tuple[SampledResponse, ...]]]:
        """As `Sampler.stream`.

        Raises:
            RolloutError: a request timed out or was refused, or no engine is left.
        """
        for number, responses in self._pool.stream(tasks, version=_VERSION):
            yield number, tuple(SampledResponse.of(response) for response in responses)

    def _serve(self, engine: int) -> None:
        """Also for an engine that died: Ray starts it again, and it loads the same weights."""
        call = self._engines[engine].serve_loaded.remote(_VERSION)
        try:
            ray.get(call, timeout=self._timeout_s)
        except Exception as err:
            raise WeightSyncError(f"engine {engine} does not answer: {cause_of(err)}") from err


def _verifier(config: Config, *, is_think_opened: bool) -> Verifier:
    """Rules and model judge; a run's own rewards are its own."""
    rewards = config.reward.model_copy(update={"extra": ()})
    return Verifier.from_config(rewards, is_think_opened=is_think_opened)


def _embedder(
    config: Config, running: Services | None
) -> Callable[[], AbstractContextManager[EmbedderPool]]:
    @contextlib.contextmanager
    def start() -> Iterator[EmbedderPool]:
        with services_for(config, Role.EMBEDDER, running) as services:
            yield EmbedderPool(services.embedders, config.embedder.timeout_s)

    return start
