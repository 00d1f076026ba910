"""Requests and swaps of the weights, kept apart.

    request: lease ----- render, sample, answer ----- release       many at a time
    swap:                   closes: new requests wait; the last release lets it in; opens again

So every response is sampled by one policy from its first token to its last, no request is dropped
for a swap, and nothing that was rendered against the engine's caches meets an engine whose caches
were cleared in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class VersionGate:
    """Leases of the current policy version; used from one event loop."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._num_leases = 0
        self._is_closed = False
        self._changed = asyncio.Condition()

    @property
    def version(self) -> int:
        """Policy version that a request would get now."""
        return self._version

    @property
    def num_leases(self) -> int:
        """Requests in progress."""
        return self._num_leases

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[int]:
        """Hold the current version for as long as a request takes."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_closed)
            self._num_leases += 1
        try:
            yield self._version
        finally:
            # Shielded by being synchronous: a request that is cancelled must give its lease back.
            self._num_leases -= 1
            if self._is_closed and self._num_leases == 0:
                asyncio.get_running_loop().create_task(self._notify())

    @asynccontextmanager
    async def swap(self, version: int) -> AsyncIterator[None]:
        """Wait until no request is in progress, hold new ones back, go on as `version`.

        The version stays what it was where the body raises.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_closed)
            self._is_closed = True
            try:
                await self._changed.wait_for(lambda: self._num_leases == 0)
            except BaseException:
                self._is_closed = False
                self._changed.notify_all()
                raise
        try:
            yield
            self._version = version
        finally:
            self._is_closed = False
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
