"""Pictures of a request: data URLs, and addresses where they are allowed.

An address is fetched only where every name in its way, redirects included, resolves to public
addresses alone, and the connection goes to the very addresses that were checked: a name that
resolves otherwise a moment later changes nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from mupo_ray.data.images import check_aspect_ratio, decode_image
from mupo_ray.data.table import RowError
from mupo_ray.serving.requests import RefusedError

if TYPE_CHECKING:
    from mupo_ray.serving.arguments import ImageUrls, Limits
    from mupo_ray.types import RgbImage

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) -> IP addresses."""

_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]{1,32};base64,", re.IGNORECASE)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK_BYTES = 2**16
_NOT_PUBLIC = "image url leads to an address that is not public"


class PictureLoader:
    """Turns the `image_url`s of a request into pictures."""

    def __init__(
        self,
        limits: Limits,
        urls: ImageUrls | None,
        *,
        resolve: Resolve | None = None,
        is_public: Callable[[str], bool] | None = None,
    ) -> None:
        """Remember what is allowed.

        Args:
            limits: of pictures.
            urls: how addresses are fetched; refused where None.
            resolve: looks names up; the system's resolver where None.
            is_public: whether an IP address may be contacted; `is_public_address` where None.
        """
        self._limits = limits
        self._urls = urls
        self._resolve = resolve or _resolve
        self._is_public = is_public or is_public_address

    async def load(self, url: str, param: str) -> RgbImage:
        """The picture behind a URL.

        Args:
            url: of the request.
            param: where the request holds it.

        Raises:
            RefusedError: not allowed, not there, or no picture.
        """
        try:
            if url[:5].lower() == "data:":
                return await asyncio.to_thread(lambda: self._decode(self._from_base64(url)))
            encoded = await self._download(url)
            return await asyncio.to_thread(self._decode, encoded)
        except (RefusedError, RowError) as err:
            raise RefusedError(str(err), param=param) from err

    async def _download(self, url: str) -> bytes:
        scheme = url.partition(":")[0][:20].lower()
        if scheme not in ("http", "https"):
            raise RefusedError(f"image url has scheme {scheme!r}; should be a data URL")
        if self._urls is None:
            raise RefusedError("this server fetches no image by address; send it as a data URL")
        try:
            async with asyncio.timeout(self._urls.timeout_s):
                return await self._fetch(URL(url), self._urls.max_redirects)
        except TimeoutError as err:
            raise RefusedError(
                f"the image at the url given did not arrive within {self._urls.timeout_s:g} s"
            ) from err
        except (aiohttp.ClientError, OSError, ValueError) as err:
            raise RefusedError(
                f"the image at the url given cannot be fetched ({type(err).__name__})"
            ) from err

    def _from_base64(self, url: str) -> bytes:
        header = _DATA_URL.match(url)
        if header is None:
            raise RefusedError(
                "image url is no picture; should begin with data:image/<format>;base64,"
            )
        limit = self._limits.max_image_bytes
        if (len(url) - header.end()) * 3 // 4 > limit + 2:
            raise RefusedError(f"image has more than the {limit} bytes that are allowed")
        try:
            return base64.b64decode(url[header.end() :], validate=True)
        except (binascii.Error, ValueError) as err:
            raise RefusedError(f"image is no base64: {err}") from err

    def _decode(self, encoded: bytes) -> RgbImage:
        image = decode_image(encoded, max_pixels=self._limits.max_image_pixels)
        check_aspect_ratio(image.width, image.height)
        return image

    async def _fetch(self, address: URL, num_redirects: int) -> bytes:
        connector = aiohttp.TCPConnector(
            resolver=_CheckedResolver(self._resolve, self._is_public),
            use_dns_cache=False,
            force_close=True,
        )
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            headers={"Accept": "image/*", "Accept-Encoding": "identity"},
        ) as session:
            for _ in range(num_redirects + 1):
                async with session.get(self._checked(address), allow_redirects=False) as answer:
                    if answer.status in _REDIRECTS:
                        address = address.join(URL(answer.headers.get("Location", "")))
                        continue
                    if answer.status != 200:
                        raise RefusedError(f"the image url answers with status {answer.status}")
                    return await self._read_body(answer)
        raise RefusedError(f"the image url redirects more than {num_redirects} times")

    def _checked(self, address: URL) -> URL:
        """Refuse what the resolver would not see: schemes, credentials, hosts given by number."""
        if address.scheme not in ("http", "https") or not address.host:
            raise RefusedError("image url leads to something other than http or https")
        if address.user is not None or address.password is not None:
            raise RefusedError("image url holds a user name; should hold none")
        try:
            ipaddress.ip_address(address.host)
        except ValueError:
            return address
        if not self._is_public(address.host):
            raise RefusedError(_NOT_PUBLIC)
        return address

    async def _read_body(self, answer: aiohttp.ClientResponse) -> bytes:
        limit = self._limits.max_image_bytes
        body = bytearray()
        async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
            body += chunk
            if len(body) > limit:
                raise RefusedError(f"image has more than the {limit} bytes that are allowed")
        return bytes(body)


def is_public_address(address: str) -> bool:
    """Whether an IP address is one of the public internet, in whatever form it hides another."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public_address(str(inner))
        if ip.is_site_local:
            return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


class _CheckedResolver(AbstractResolver):
    """Hands aiohttp only addresses that were checked; a name with any other is refused whole."""

    def __init__(self, resolve: Resolve, is_public: Callable[[str], bool]) -> None:
        self._resolve = resolve
        self._is_public = is_public

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = await self._resolve(host, port)
        if not addresses or not all(map(self._is_public, addresses)):
            raise RefusedError(_NOT_PUBLIC)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing is held."""


async def _resolve(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))
