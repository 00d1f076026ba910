"""Requests and swaps of the weights exclude each other, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from mupo_ray.serving.gate import VersionGate


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 10))


def test_a_swap_waits_for_requests_and_holds_new_ones_back() -> None:
    async def main() -> None:
        gate = VersionGate(3)
        log: list[str] = []
        leave = asyncio.Event()

        async def early() -> None:
            async with gate.lease() as version:
                log.append(f"early {version}")
                await leave.wait()
                log.append("early done")

        async def swap() -> None:
            async with gate.swap(4):
                log.append(f"swap with {gate.num_leases}")

        async def late() -> None:
            async with gate.lease() as version:
                log.append(f"late {version}")

        tasks = [asyncio.create_task(early())]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(swap()))
        await asyncio.sleep(0.01)
        tasks.append(asyncio.create_task(late()))
        await asyncio.sleep(0.01)
        assert log == ["early 3"]
        leave.set()
        await asyncio.gather(*tasks)
        assert log == ["early 3", "early done", "swap with 0", "late 4"]

    run(main())


def test_a_failed_swap_leaves_the_version_and_opens_again() -> None:
    async def main() -> None:
        gate = VersionGate(3)
        with pytest.raises(RuntimeError):
            async with gate.swap(4):
                raise RuntimeError
        async with gate.lease() as version:
            assert version == 3

    run(main())


def test_a_request_that_is_cancelled_gives_its_lease_back() -> None:
    async def main() -> None:
        gate = VersionGate(0)

        async def endless() -> None:
            async with gate.lease():
                await asyncio.sleep(100)

        requests = [asyncio.create_task(endless()) for _ in range(3)]
        await asyncio.sleep(0.01)
        swap = asyncio.create_task(gate.swap(1).__aenter__())
        await asyncio.sleep(0.01)
        for request in requests:
            request.cancel()
        await swap
        assert gate.num_leases == 0

    run(main())


def test_a_swap_that_is_cancelled_while_it_waits_opens_the_gate() -> None:
    async def main() -> None:
        gate = VersionGate(0)
        async with gate.lease():
            swap = asyncio.create_task(gate.swap(1).__aenter__())
            await asyncio.sleep(0.01)
            swap.cancel()
            async with gate.lease() as version:
                assert version == 0

    run(main())


def test_a_request_that_is_cancelled_at_the_closed_gate_holds_nothing() -> None:
    async def main() -> None:
        gate = VersionGate(0)
        async with gate.swap(1):
            waiting = asyncio.create_task(gate.lease().__aenter__())
            await asyncio.sleep(0.01)
            waiting.cancel()
        async with gate.swap(2):
            assert gate.num_leases == 0

    run(main())
