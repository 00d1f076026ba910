"""The Serve application: `serve run serve/mupo.yaml`, `serve deploy serve/mupo.yaml`.

    client --HTTP--> Serve proxy --> replica: OpenAI API and engine in one process
                                        |  /v1/strategies
                                        +--> embedder (a deployment of its own, shared)

Weights are swapped through Serve's `user_config`: `serve deploy` with another `model` there calls
`reconfigure` on one replica after another, and replicas that start later take it too.
"""

# No `from __future__ import annotations`: Serve reads the type of `build_app`'s argument.

import logging
from pathlib import Path
from typing import Any

import ray
from pydantic import ValidationError
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from mupo_ray.config import Config
from mupo_ray.data.render import PromptRenderer, load_template
from mupo_ray.errors import MupoError
from mupo_ray.rollout.embedder import TextEmbedder
from mupo_ray.rollout.engine import EngineSettings
from mupo_ray.runs.folder import load_resolved
from mupo_ray.serving.api import HttpApi
from mupo_ray.serving.arguments import Policy, ServingArgs
from mupo_ray.serving.gate import VersionGate
from mupo_ray.serving.http import build_http_app
from mupo_ray.serving.weights import PolicySource, check_alike, find_policy, swap
from mupo_ray.settings.sections import EmbedderConfig

logger = logging.getLogger(__name__)

# Our own limit answers in OpenAI's form, so Serve's has to be out of its way.
_SERVE_SLACK = 64
_HEALTH_PERIOD_S = 5.0
_DRAIN_S = 10.0


def build_app(args: ServingArgs) -> Application:
    """The application for a model.

    Args:
        args: what a Serve config file holds under `args`.

    Raises:
        CheckpointError: no such model.
        DataError: no such prompt template.
        ConfigError: the run's record cannot be read.
    """
    args = args.model_copy(update={"storage_path": str(Path(args.storage_path).absolute())})
    source = find_policy(args.model, args.storage_path, args.policy_version)
    args = _as_trained(args, source)
    embedder = args.embedder or EmbedderConfig()
    gpus = embedder.gpus_per_actor
    embedding = (
        serve.deployment(TextEmbedder)
        .options(
            name="embedder",
            num_replicas=embedder.num_actors,
            # Its cache is not made for threads.
            max_ongoing_requests=1,
            ray_actor_options={"num_cpus": embedder.cpus_per_actor, "num_gpus": gpus},
        )
        .bind(embedder, "cuda" if gpus else "cpu")
    )
    return serve.deployment(ModelServer).options(**_options(args)).bind(args, source, embedding)  # type: ignore[no-any-return]


@serve.ingress()
class ModelServer:
    """One replica: an engine under vLLM's OpenAI API, and what mupo_ray adds to it."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it.
        self, args: ServingArgs, source: PolicySource, embedder: DeploymentHandle
    ) -> None:
        """Start the engine.

        Args:
            args: of the application.
            source: weights to start with.
            embedder: handle of the embedding deployment.
        """
        from mupo_ray.serving.openai_engine import OpenAiEngine

        renderer = PromptRenderer.from_pretrained(
            source.folder,
            template=args.template or "plain",
            system_prompt=args.system_prompt,
            max_prompt_tokens=args.engine.max_model_len,
            min_pixels=args.engine.min_pixels,
            max_pixels=args.engine.max_pixels,
        )
        self._args = args
        self._source = source
        self._is_first_policy = True
        self._gate = VersionGate(source.version)
        self._engine = OpenAiEngine(
            _engine_settings(args, source),
            renderer=renderer,
            name=args.name,
            version=source.version,
            max_new_tokens=args.limits.max_new_tokens,
        )
        await self._engine.start()
        self._api = HttpApi(
            args=args,
            engine=self._engine,
            gate=self._gate,
            renderer=renderer,
            embed=embedder.embed.remote,
            checkpoint=source.name,
        )

    def __serve_build_asgi_app__(self) -> Any:  # noqa: N807 - Serve's name
        """The routes, for Serve."""
        return build_http_app(self._api)

    async def reconfigure(self, policy: dict[str, Any]) -> None:
        """Serve other weights; Serve calls this with the `user_config`.

        A replica that serves goes on as it was where the weights cannot be used: better old answers
        that say their version than none. One that starts fails instead.
        """
        is_first, self._is_first_policy = self._is_first_policy, False
        try:
            await self._take(policy)
            self._api.swap_fault = None
        except (MupoError, ValidationError) as err:
            if is_first or self._engine.is_dead:
                raise
            logger.error("policy version %d stays: %s", self._gate.version, err)
            self._api.swap_fault = str(err)

    async def _take(self, policy: dict[str, Any]) -> None:
        target = Policy.model_validate(policy)
        source = find_policy(target.model, self._args.storage_path, target.policy_version)
        if (source.folder, source.version) == (self._source.folder, self._source.version):
            return
        check_alike(self._source.folder, source.folder)
        await swap(self._engine, self._gate, source)
        logger.info("serving %s as policy version %d", source.folder, source.version)
        self._source = source
        self._api.checkpoint = source.name

    def check_health(self) -> None:
        """Have Serve replace a replica whose engine is dead."""
        if self._engine.is_dead:
            raise RuntimeError("the engine is dead")


def _as_trained(args: ServingArgs, source: PolicySource) -> ServingArgs:
    """The arguments with what is left open taken from the run that made the weights."""
    run = Config() if source.run is None else load_resolved(source.run).with_absolute_paths()
    engine = args.engine.model_copy(
        update={
            "min_pixels": args.engine.min_pixels or run.data.min_pixels,
            "max_pixels": args.engine.max_pixels or run.data.max_pixels,
        }
    )
    template = args.template or run.data.template
    load_template(template)
    return args.model_copy(
        update={
            "engine": engine,
            "template": str(Path(template).absolute()) if Path(template).is_file() else template,
            "system_prompt": args.system_prompt or run.data.system_prompt,
            "embedder": args.embedder or run.embedder,
        }
    )


def _options(args: ServingArgs) -> dict[str, Any]:
    """Serve's options of the model's deployment."""
    engine = args.engine
    scale: dict[str, Any] = {"num_replicas": args.replicas}
    if args.autoscaling is not None:
        scale = {"autoscaling_config": args.autoscaling.model_dump()}
    return {
        "name": "model",
        "max_ongoing_requests": args.limits.max_concurrent + _SERVE_SLACK,
        "health_check_period_s": _HEALTH_PERIOD_S,
        "graceful_shutdown_timeout_s": args.limits.timeout_s + _DRAIN_S,
        "ray_actor_options": {
            "num_cpus": engine.cpus,
            "num_gpus": engine.tensor_parallel_size if engine.device == "cuda" else 0,
        },
        **scale,
    }


def _engine_settings(args: ServingArgs, source: PolicySource) -> EngineSettings:
    engine = args.engine
    context = ray.get_runtime_context()
    return EngineSettings(
        model_path=source.folder,
        dtype=engine.dtype,
        device=engine.device,
        seed=engine.seed,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_images=args.limits.max_images,
        min_pixels=engine.min_pixels,
        max_pixels=engine.max_pixels,
        tensor_parallel_size=engine.tensor_parallel_size,
        kv_cache_gib=engine.kv_cache_gib,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        enforce_eager=engine.enforce_eager,
        scaled_logprobs=False,
        transport="object_store",
        ray_address=context.gcs_address,
        ray_namespace=context.namespace,
        keeps_stats=True,
    )
