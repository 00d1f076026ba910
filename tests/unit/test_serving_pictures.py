"""Pictures by URL: where the server goes, and where it never goes.

Listeners on 127.0.0.2 stand in for public hosts; the canary on 127.0.0.1 counts who comes.
"""

from __future__ import annotations

import asyncio
import base64
import io
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from PIL import Image

from mupo_ray.serving.arguments import ImageUrls, Limits
from mupo_ray.serving.pictures import PictureLoader, is_public_address
from mupo_ray.serving.requests import RefusedError

PUBLIC = "127.0.0.2"


def png(width: int = 8, height: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (255, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def data_url(encoded: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(encoded).decode()


@dataclass
class Listener:
    port: int
    hits: int = 0
    hosts: list[str] = field(default_factory=list)


@asynccontextmanager
async def listener(
    host: str, answer: Callable[[Listener, str], bytes], port: int = 0
) -> AsyncIterator[Listener]:
    """An HTTP server that answers every connection with the bytes of `answer(self, path)`."""
    found = Listener(port)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.hits += 1
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        found.hosts += [x[6:] for x in head.split("\r\n") if x.lower().startswith("host: ")]
        writer.write(answer(found, head.split(" ")[1]))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, host, port)
    found.port = server.sockets[0].getsockname()[1]
    async with server:
        yield found


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def redirect(to: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


def loader(*names: tuple[str, list[list[str]]], **urls: float) -> PictureLoader:
    """A loader for which 127.0.0.2 is public, and with its own DNS: name -> answers in turn."""
    answers = dict(names)

    async def resolve(host: str, port: int) -> list[str]:
        if host not in answers:
            return [
                str(entry[4][0])
                for entry in await asyncio.get_running_loop().getaddrinfo(host, port)
            ]
        given = answers[host]
        return given.pop(0) if len(given) > 1 else given[0]

    return PictureLoader(
        Limits(max_image_bytes=4096, max_image_pixels=10_000),
        ImageUrls.model_validate(urls),
        resolve=resolve,
        is_public=lambda address: address == PUBLIC or is_public_address(address),
    )


def refusal(loading: PictureLoader, url: str) -> str:
    with pytest.raises(RefusedError) as refused:
        asyncio.run(asyncio.wait_for(loading.load(url, "messages[0].content"), 10))
    assert (refused.value.status, refused.value.param) == (400, "messages[0].content")
    return str(refused.value)


def test_a_data_url_is_decoded() -> None:
    image = asyncio.run(PictureLoader(Limits(), None).load(data_url(png(9, 7)), "x"))
    assert (image.width, image.height) == (9, 7)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("data:image/png;base64,@@@", "base64"),
        ("data:image/png;base64,AAAA", "decoded"),
        ("data:image/png;base64,", "0 bytes"),
        (data_url(png()[:40]), "decoded"),
        ("data:text/html,<b>", "no picture"),
        ("data:image/png," + "A", "no picture"),
        (data_url(b"A" * 5000), "4096 bytes"),
        (data_url(png(200, 100)), "20000|200 x 100"),
        (data_url(png(201, 1)), "aspect"),
        ("file:///etc/passwd", "scheme 'file'"),
        ("/etc/passwd", "scheme"),
        ("ftp://127.0.0.1/x.png", "scheme 'ftp'"),
        ("", "scheme"),
        ("javascript:1", "scheme"),
    ],
)
def test_what_is_no_picture_is_refused(url: str, says: str) -> None:
    assert re.search(says, refusal(loader(), url))


def test_addresses_are_refused_unless_allowed() -> None:
    loading = PictureLoader(Limits(), None)
    assert "by address" in refusal(loading, "http://example.com/x.png")
    assert "by address" in refusal(loading, "HTTPS://example.com/x.png")


INWARD = (
    "127.0.0.1 127.8.9.1 0.0.0.0 10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 "
    "224.0.0.1 255.255.255.255 240.0.0.1 ::1 :: fe80::1 fc00::1 ff02::1 ::ffff:127.0.0.1 "
    "::ffff:10.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: fec0::1 fe80::1%eth0 2001:db8::1"
)


@pytest.mark.parametrize("address", INWARD.split())
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public_address(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:4700:4700::1111"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public_address(address)


def test_d12_internal_addresses_are_never_contacted() -> None:
    async def main() -> None:
        async with listener("0.0.0.0", lambda *_: ok(png())) as canary:
            port = canary.port
            names = {
                "inner.test": [["127.0.0.1"]],
                "mixed.test": [["127.0.0.2", "127.0.0.1"]],
                "none.test": [[]],
            }
            loading = loader(*names.items())
            hosts = [
                "127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433", "0x7f000001", "127.1",
                "0177.0.0.1", "[::ffff:127.0.0.1]", "inner.test", "mixed.test", "none.test",
                "user@127.0.0.1", "127.0.0.1.", "LOCALHOST", "127.0.0.2\\@127.0.0.1",
            ]  # fmt: skip
            for host in hosts:
                with pytest.raises(RefusedError):
                    await loading.load(f"http://{host}:{port}/x.png", "x")
            for other in ("http://169.254.169.254/", "http://10.0.0.1/x.png", "http://[fe80::1]/"):
                with pytest.raises(RefusedError):
                    await asyncio.wait_for(loading.load(other, "x"), 5)
            assert canary.hits == 0

    asyncio.run(main())


def test_a_public_picture_is_fetched_under_its_name() -> None:
    async def main() -> None:
        async with listener(PUBLIC, lambda *_: ok(png(5, 4))) as public:
            url = f"http://pictures.test:{public.port}/x.png"
            image = await loader(("pictures.test", [[PUBLIC]])).load(url, "x")
            assert (image.width, image.height) == (5, 4)
            assert public.hosts == [f"pictures.test:{public.port}"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.1:{port}/", "http://inner.test:{port}/", "//127.0.0.1:{port}/",
     "http://2130706433:{port}/", "file:///etc/passwd", "gopher://127.0.0.1:{port}/", ""],
)  # fmt: skip
def test_redirects_inwards_are_not_followed(target: str) -> None:
    async def main() -> None:
        async with listener("127.0.0.1", lambda *_: ok(png())) as canary:
            to = target.format(port=canary.port)
            async with listener(PUBLIC, lambda *_: redirect(to)) as public:
                loading = loader(("a.test", [[PUBLIC]]), ("inner.test", [["127.0.0.1"]]))
                with pytest.raises(RefusedError):
                    await loading.load(f"http://a.test:{public.port}/x.png", "x")
                assert public.hits >= 1
            assert canary.hits == 0

    asyncio.run(main())


def test_a_name_that_changes_after_the_check_changes_nothing() -> None:
    async def main() -> None:
        with socket.socket() as probe:
            probe.bind((PUBLIC, 0))
            port = probe.getsockname()[1]
        async with (
            listener("127.0.0.1", lambda *_: ok(png()), port) as canary,
            listener(PUBLIC, lambda *_: ok(png()), port) as public,
        ):
            rebinding = loader(("a.test", [[PUBLIC], ["127.0.0.1"]]))
            await rebinding.load(f"http://a.test:{port}/x.png", "x")
            with pytest.raises(RefusedError):
                await rebinding.load(f"http://a.test:{port}/x.png", "x")
            assert (public.hits, canary.hits) == (1, 0)

    asyncio.run(main())


def test_redirects_size_and_time_are_limited() -> None:
    async def main() -> None:
        async def fails(answer: Callable[[Listener, str], bytes], says: str) -> None:
            async with listener(PUBLIC, answer) as public:
                loading = loader(("a.test", [[PUBLIC]]), timeout_s=0.5)
                with pytest.raises(RefusedError, match=says):
                    await loading.load(f"http://a.test:{public.port}/x.png", "x")
                assert public.hits <= 4

        await fails(lambda me, path: redirect(f"http://a.test:{me.port}{path}y"), "more than 3")
        await fails(lambda *_: ok(b"A" * 5000), "4096 bytes")
        # Without a length the body is read only as far as the limit.
        await fails(lambda *_: b"HTTP/1.1 200 OK\r\n\r\n" + b"A" * 10**6, "4096 bytes")
        await fails(lambda *_: b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nA", "fetched|arrive")
        await fails(lambda *_: b"HTTP/1.1 404 Not\r\nContent-Length: 0\r\n\r\n", "status 404")
        await fails(lambda *_: ok(b"<svg/>"), "decoded")

        async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(3)

        server = await asyncio.start_server(never, PUBLIC, 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with pytest.raises(RefusedError, match="within 0.5 s"):
                await loader(("a.test", [[PUBLIC]]), timeout_s=0.5).load(
                    f"http://a.test:{port}/", "x"
                )

    asyncio.run(main())
