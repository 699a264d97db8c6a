"""Asking backends about themselves: short GETs with a limit on everything, and one error for all that goes wrong."""

import ssl

import aiohttp

from backends.spec import BackendSpec


class UnansweredError(Exception):
    """A backend was asked and did not answer as it should. `status` is there where it answered something else."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Poller:
    """One session for all backends. `start` it on the loop that uses it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
        )

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, spec: BackendSpec, path: str, *, bytes_max: int) -> bytes:
        """Return the body of a 2xx, whole; with `bytes_max` 0 it is not read. Every failure is an UnansweredError."""
        assert self._session is not None, "asked before start"
        tls = spec.tls if spec.tls is not None else True
        try:
            async with self._session.get(
                spec.url + path, headers=spec.headers, allow_redirects=False, ssl=tls
            ) as response:
                if not 200 <= response.status < 300:
                    raise UnansweredError(f"{path}: status {response.status}", response.status)
                body = bytearray()
                while bytes_max and (chunk := await response.content.readany()):
                    body += chunk
                    if len(body) > bytes_max:
                        raise UnansweredError(f"{path}: more than {bytes_max} bytes")
                return bytes(body)
        except TimeoutError:
            raise UnansweredError(f"{path}: no answer in {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UnansweredError(f"{path}: {error or type(error).__name__}") from error


def tls_context(ca_file: str) -> ssl.SSLContext:
    """Trust whoever this PEM file names, and nobody else. Raises ValueError where it cannot be read."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"the file {ca_file} is not one of CA certificates: {error}") from error
