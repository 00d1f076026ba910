"""New weights from the trainer to every engine: the sending end.

    trainer ranks                    publisher (no CPU)         engine workers
      gather (collective) --put-->   refs, manifest   <--get--  stage: map, verify checksum
      rank 0 waits .............................................. sampling goes on
      rank 0: commit ------------------------------------------> pause, load, clear caches, resume
      all ranks learn the outcome <---- version, digest, count -- report

Every wait has a time limit and names who is late. An engine that fails stays fenced and is tried
again with the next version; the round fails only where no engine is left.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError

from mupo_ray.errors import WeightSyncError, cause_of
from mupo_ray.sync.bucket import Digest, Manifest, bucketize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStats:
    """Outcome of one broadcast."""

    policy_version: int
    engines: tuple[int, ...]
    """Engines that now hold the version."""
    failed: dict[int, str] = field(default_factory=dict)
    """Engine -> why it does not; such an engine is fenced."""
    num_bytes: int = 0
    publish_s: float = 0.0
    stage_s: float = 0.0
    commit_s: float = 0.0


class WeightChannel(Protocol):
    """Carries one version of the weights to all engines."""

    def send(self, version: int, weights: Iterable[tuple[str, torch.Tensor]]) -> SyncStats | None:
        """Collective over trainer ranks: all iterate `weights`, rank 0 sends and reports.

        Args:
            version: policy version of the weights.
            weights: (name, whole tensor) pairs under the names of the saved checkpoint.

        Returns:
            The outcome on rank 0, None on the others.

        Raises:
            WeightSyncError: no engine took the weights.
        """
        ...


class WeightPublisher:
    """Holds references to the buckets of the published version; deployed as an actor without CPU.

    References handed through an actor are released with it. Pickled into a message to vLLM they
    would stay pinned for ever.
    """

    def __init__(self) -> None:
        self._manifest: Manifest | None = None
        self._refs: list[Any] = []

    def publish(self, manifest: Manifest, refs: list[Any]) -> None:
        """Offer a version; the one before is released."""
        self._manifest, self._refs = manifest, refs

    def buckets(self, version: int) -> list[Any]:
        """References to the buckets of a version."""
        current = None if self._manifest is None else self._manifest.version
        if version != current:
            raise WeightSyncError(f"version {version} is not published, version {current} is")
        return self._refs

    def manifest(self) -> Manifest | None:
        """The manifest of the published version."""
        return self._manifest


def publish(
    publisher: Any,
    name: str,
    version: int,
    weights: Iterable[tuple[str, torch.Tensor]],
    *,
    bucket_bytes: int,
    timeout_s: float,
) -> tuple[Manifest, int]:
    """Put weights into the object store and have a publisher offer them.

    Args:
        publisher: handle of the `WeightPublisher` actor.
        name: its name, by which vLLM's workers find it.
        version: policy version of the weights.
        weights: (name, whole tensor) pairs under the names of the saved checkpoint.
        bucket_bytes: size at which a bucket closes.
        timeout_s: limit for the publisher to take them, and for engines to fetch them.

    Returns:
        What engines are told, and the bytes of the weights.

    Raises:
        WeightSyncError: the publisher is late or failed.
    """
    refs, layouts, digest, num_bytes = [], [], Digest(), 0
    for layout, arrays in bucketize(weights, bucket_bytes):
        digest.add(layout, arrays)
        refs.append(ray.put(arrays))
        layouts.append(layout)
        num_bytes += sum(a.nbytes for a in arrays)
    context = ray.get_runtime_context()
    manifest = Manifest(
        publisher=name,
        ray_address=context.gcs_address,
        ray_namespace=context.namespace,
        version=version,
        buckets=tuple(layouts),
        digest=digest.hex(),
        timeout_s=timeout_s,
    )
    # The references travel inside a list, so that Ray does not resolve them on the way.
    wait_all(
        {-1: publisher.publish.remote(manifest, refs)},
        timeout_s,
        f"the publisher to take version {version}",
    )
    return manifest, num_bytes


class ObjectStoreChannel:
    """Buckets through Ray's object store: one copy a node, however many engines it hosts."""

    def __init__(
        self,
        *,
        engines: Sequence[Any],
        publisher: Any,
        publisher_name: str,
        is_sender: bool,
        bucket_bytes: int,
        pause: str,
        timeout_s: float,
        start_timeout_s: float,
    ) -> None:
        """Remember who takes part.

        Args:
            engines: actor handles in pool order.
            publisher: handle of the `WeightPublisher` actor.
            publisher_name: its name, by which vLLM's workers find it.
            is_sender: True on trainer rank 0.
            bucket_bytes: size at which a bucket closes.
            pause: what becomes of requests in flight: `abort`, `wait` or `keep`.
            timeout_s: limit of each stage.
            start_timeout_s: limit for a dead engine to be up again.
        """
        self._engines = list(engines)
        self._publisher = publisher
        self._publisher_name = publisher_name
        self._is_sender = is_sender
        self._bucket_bytes = bucket_bytes
        self._pause = pause
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s

    def send(self, version: int, weights: Iterable[tuple[str, torch.Tensor]]) -> SyncStats | None:
        """See `WeightChannel.send`."""
        if not self._is_sender:
            for _ in weights:
                pass
            return None
        began = time.monotonic()
        manifest, num_bytes = publish(
            self._publisher,
            self._publisher_name,
            version,
            weights,
            bucket_bytes=self._bucket_bytes,
            timeout_s=self._timeout_s,
        )
        published = time.monotonic()
        staged, failed = self._stage(manifest, range(len(self._engines)))
        staged_at = time.monotonic()
        done, failed_commit = self._commit(manifest, staged)
        failed |= failed_commit
        if not done:
            raise WeightSyncError(
                f"no engine took version {version}: "
                + "; ".join(f"engine {i}: {why}" for i, why in sorted(failed.items()))
            )
        for i, why in sorted(failed.items()):
            logger.warning("engine %d is fenced, it lacks version %d: %s", i, version, why)
        return SyncStats(
            policy_version=version,
            engines=tuple(done),
            failed=failed,
            num_bytes=num_bytes,
            publish_s=published - began,
            stage_s=staged_at - published,
            commit_s=time.monotonic() - staged_at,
        )

    def _stage(
        self, manifest: Manifest, engines: Iterable[int]
    ) -> tuple[list[int], dict[int, str]]:
        digests, failed = gather(
            {i: self._engines[i].stage.remote(manifest.to_dict()) for i in engines},
            self._timeout_s,
        )
        for i, digest in digests.items():
            if digest != manifest.digest:
                failed[i] = f"checksum {digest}, {manifest.digest} was sent"
        return [i for i in digests if i not in failed], failed

    def _commit(
        self, manifest: Manifest, engines: Iterable[int]
    ) -> tuple[list[int], dict[int, str]]:
        reports, failed = gather(
            {
                i: self._engines[i].commit.remote(manifest.version, manifest.digest, self._pause)
                for i in engines
            },
            self._timeout_s,
        )
        for i, report in reports.items():
            answer = (report.policy_version, report.digest, report.num_tensors)
            meant = (manifest.version, manifest.digest, manifest.num_tensors)
            if answer != meant:
                failed[i] = f"(version, checksum, tensors) is {answer}, {meant} was sent"
        return [i for i in reports if i not in failed], failed

    def resync(self, engine: int) -> None:
        """Bring one restarted engine to the latest published version; any rank may call it.

        Raises:
            WeightSyncError: nothing is published, or the engine does not take it.
        """
        _wait_until_up(self._engines[engine], engine, self._start_timeout_s)
        manifest = ray.get(self._publisher.manifest.remote(), timeout=self._timeout_s)
        if manifest is None:
            raise WeightSyncError(f"engine {engine} cannot be synced: no version is published")
        staged, failed = self._stage(manifest, [engine])
        if staged:
            _, failed = self._commit(manifest, staged)
        if failed:
            raise WeightSyncError(f"engine {engine} cannot be synced: {failed[engine]}")


def _wait_until_up(engine: Any, index: int, timeout_s: float) -> None:
    """Wait for Ray to have restarted an engine actor."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            ray.get(engine.status.remote(), timeout=max(0.1, deadline - time.monotonic()))
            return
        except (ActorUnavailableError, GetTimeoutError) as err:
            if time.monotonic() > deadline:
                raise WeightSyncError(
                    f"engine {index} was not up again within {timeout_s:g} s"
                ) from err
            time.sleep(0.5)
        except ActorDiedError as err:
            raise WeightSyncError(f"engine {index} is dead and not restarted: {err}") from err


def gather(refs: dict[int, Any], timeout_s: float) -> tuple[dict[int, Any], dict[int, str]]:
    """Collect one result an engine within a time limit.

    Args:
        refs: engine -> reference.
        timeout_s: limit for all together, kept by the caller's side: a get inside a hung engine
            would never return.

    Returns:
        Results of those that answered, and the reason for each that did not.
    """
    ready, _ = ray.wait(list(refs.values()), num_returns=len(refs), timeout=timeout_s)
    in_time = set(ready)
    results: dict[int, Any] = {}
    failed: dict[int, str] = {}
    for i, ref in refs.items():
        if ref not in in_time:
            failed[i] = f"no answer within {timeout_s:g} s"
            continue
        try:
            results[i] = ray.get(ref)
        except Exception as err:
            # Whatever an engine raised is its report; the caller decides with all of them at hand.
            failed[i] = cause_of(err)
    return results, failed


def wait_all(refs: dict[int, Any], timeout_s: float, what: str) -> list[Any]:
    """Collect all results or raise; `what` completes "waited for ...".

    Raises:
        WeightSyncError: someone is late or failed.
    """
    results, failed = gather(refs, timeout_s)
    if failed:
        raise WeightSyncError(f"waited for {what}: {'; '.join(failed.values())}")
    return [results[i] for i in refs]
