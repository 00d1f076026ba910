"""The models that can be evaluated: a checkpoint on engines of one's own, or a served one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from mupo_ray.data.chat import ChatRenderer
from mupo_ray.data.fingerprint import fingerprint_of_model
from mupo_ray.errors import ConfigError
from mupo_ray.evaluation.evaluation import Contestant
from mupo_ray.evaluation.samplers import EngineSampler, services_for
from mupo_ray.openai_client import ChatServer
from mupo_ray.placement.plan import Role
from mupo_ray.rewards.verdicts import Verifier
from mupo_ray.rollout.embedder import EmbedderPool
from mupo_ray.rollout.served_sampler import ServedSampler
from mupo_ray.settings.load import RUN_FILE
from mupo_ray.train.entry import make_renderer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from mupo_ray.config import Config
    from mupo_ray.evaluation.samplers import Sampler
    from mupo_ray.rollout.services import Services


def find_model(source: str) -> tuple[str, Path | None]:
    """Folder or hub id of the model that a user means, and the run it comes from.

    Args:
        source: a Hugging Face folder or id, a checkpoint `step_...` of a run, or a run, whose
            newest whole checkpoint is taken.

    Raises:
        CheckpointError: a folder without a model or a whole checkpoint.
    """
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return source, None
    if not (folder / "config.json").is_file():
        from mupo_ray.runs.export import find_checkpoint
        from mupo_ray.train.checkpoint import HF_FOLDER

        folder = find_checkpoint(folder)[0] / HF_FOLDER
    run = folder.absolute().parent.parent
    return str(folder), run if (run / RUN_FILE).is_file() else None


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
    renderer = make_renderer(config)
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
