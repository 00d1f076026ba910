"""The files in `serve/` say what Serve, KubeRay and `build_app` understand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field
from ray.serve.schema import ServeDeploySchema

from mupo_ray.serving.arguments import Policy, ServingArgs

FOLDER = Path(__file__).resolve().parents[2] / "serve"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class PodTemplate(Strict):
    """Of a pod only what every container needs; the rest is Kubernetes' own."""

    class Spec(BaseModel):
        containers: list[dict[str, Any]] = Field(min_length=1)

    metadata: dict[str, Any] = {}
    spec: Spec


class HeadGroup(Strict):
    """`HeadGroupSpec` of ray.io/v1."""

    serviceType: str | None = None  # noqa: N815 - KubeRay's names
    headService: dict[str, Any] | None = None  # noqa: N815
    enableIngress: bool | None = None  # noqa: N815
    rayStartParams: dict[str, str] = {}  # noqa: N815
    template: PodTemplate


class WorkerGroup(Strict):
    """`WorkerGroupSpec` of ray.io/v1."""

    groupName: str  # noqa: N815
    replicas: int | None = None
    minReplicas: int  # noqa: N815
    maxReplicas: int  # noqa: N815
    numOfHosts: int = 1  # noqa: N815
    rayStartParams: dict[str, str] = {}  # noqa: N815
    scaleStrategy: dict[str, Any] | None = None  # noqa: N815
    template: PodTemplate


class RayCluster(Strict):
    """`RayClusterSpec` of ray.io/v1."""

    headGroupSpec: HeadGroup  # noqa: N815
    workerGroupSpecs: list[WorkerGroup] = []  # noqa: N815
    rayVersion: str | None = None  # noqa: N815
    enableInTreeAutoscaling: bool | None = None  # noqa: N815
    autoscalerOptions: dict[str, Any] | None = None  # noqa: N815
    headServiceAnnotations: dict[str, str] | None = None  # noqa: N815
    suspend: bool | None = None


class RayServiceSpec(Strict):
    """`RayServiceSpec` of ray.io/v1."""

    serveConfigV2: str  # noqa: N815
    rayClusterConfig: RayCluster  # noqa: N815
    serveService: dict[str, Any] | None = None  # noqa: N815


class RayService(Strict):
    apiVersion: Literal["ray.io/v1"]  # noqa: N815
    kind: Literal["RayService"]
    metadata: dict[str, Any]
    spec: RayServiceSpec


def check_serve_config(config: dict[str, Any]) -> ServingArgs:
    (application,) = ServeDeploySchema.model_validate(config).applications
    assert application.import_path == "mupo_ray.serving.app:build_app"
    for deployment in application.deployments:
        assert deployment.name in ("model", "embedder")
        Policy.model_validate(deployment.user_config)
    return ServingArgs.model_validate(application.args)


@pytest.mark.parametrize("name", ["mupo.yaml", "mupo_gpu.yaml"])
def test_serve_configs_are_valid(name: str) -> None:
    args = check_serve_config(yaml.safe_load((FOLDER / name).read_text()))
    assert args.engine.device == ("cuda" if "gpu" in name else "cpu")


def test_the_kuberay_manifest_is_valid() -> None:
    manifest = RayService.model_validate(yaml.safe_load((FOLDER / "rayservice.yaml").read_text()))
    args = check_serve_config(yaml.safe_load(manifest.spec.serveConfigV2))
    (worker,) = manifest.spec.rayClusterConfig.workerGroupSpecs
    (container,) = worker.template.spec.containers
    (head,) = manifest.spec.rayClusterConfig.headGroupSpec.template.spec.containers
    # Serve must be told the same on every node.
    assert head["env"] == [{"name": "RAY_SERVE_ENABLE_HA_PROXY", "value": "1"}]
    assert head["env"][0] in container["env"]
    assert args.api_key_env in {entry["name"] for entry in container["env"]}
    assert args.autoscaling is not None
    assert worker.maxReplicas == args.autoscaling.max_replicas
    assert container["resources"]["limits"]["nvidia.com/gpu"] == str(
        args.engine.tensor_parallel_size
    )
    cpus = args.engine.cpus + 0.25  # and a share of the embedder
    assert float(container["resources"]["limits"]["cpu"]) >= cpus
