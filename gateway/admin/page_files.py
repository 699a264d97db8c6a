"""Files of the page at the admin port: HTML, styles and modules, from gateway/web/static/ or made at start. Their
headers let a browser run only these.

The files are the same for every caller and hold no data, so they are served without a sign-in. All data comes from the
API, with the caller's key.
"""

import gzip
import hashlib
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from aiohttp import hdrs, web

STATIC = Path(__file__).parents[1] / "web/static"
INDEX = "index.html"
PREFIX = "/web/"
TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
GZIP_LEVEL = 6
COMPRESSED_BYTES_MIN = 512  # below it the header of gzip and one packet weigh as much

# https://www.w3.org/TR/CSP3/. Nothing is loaded from outside, no script stands in HTML but the import map, whose hash
# is named, and no string becomes markup: trusted types without a policy refuse every innerHTML.
POLICY = (
    "default-src 'none'; script-src 'self' {inline}; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS: Mapping[str, str] = {
    hdrs.CACHE_CONTROL: "no-cache",  # kept, and asked about by its ETag: all modules are of one version
    hdrs.VARY: hdrs.ACCEPT_ENCODING,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",  # for what does not know frame-ancestors
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_INLINE_SCRIPT = re.compile(r"<script[^>]*type=\"importmap\"[^>]*>(.*?)</script>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A static file of the page (the admin port's web interface). `compressed` is the file in gzip; None: compression
    would save nothing.
    """

    body: bytes
    compressed: bytes | None
    headers: Mapping[str, str]

    @property
    def tag(self) -> str:
        """The opaque part of the ETag, which is compared weakly (RFC 9110, 13.1.2)."""
        return self.headers[hdrs.ETAG].removeprefix("W/").strip('"')


class StaticFiles:
    """The static files of the page (the admin port's web interface), by path. Some are in a folder, which is read once.
    The gateway generates the others: `made` has their contents by name.
    """

    def __init__(self, folder: Path = STATIC, *, made: Mapping[str, bytes]) -> None:
        policy = content_security_policy((folder / INDEX).read_text(encoding="utf-8"))
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self._files = dict(_files({**files, **made}, policy))
        self._files["/"] = self._files[PREFIX + INDEX]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the paths."""
        return iter(self._files)

    def find(self, request: web.BaseRequest) -> web.Response | None:
        """The response to a GET or HEAD of a file; None for any other request."""
        found = self._files.get(request.path)
        if found is None or request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            return None
        if any(each.value in ("*", found.tag) for each in request.if_none_match or ()):
            return web.Response(status=304, headers=found.headers)
        if found.compressed is None or not _takes_gzip(request):
            return web.Response(body=found.body, headers=found.headers)
        return web.Response(body=found.compressed, headers={**found.headers, hdrs.CONTENT_ENCODING: "gzip"})


def content_security_policy(index: str) -> str:
    """The policy under which a browser runs this page: only its own files, and the import map in the page."""
    inline = (b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in _INLINE_SCRIPT.findall(index))
    return POLICY.format(inline=" ".join(f"'sha256-{each}'" for each in inline))


def _files(bodies: Mapping[str, bytes], policy: str) -> Iterator[tuple[str, StaticFile]]:
    for name, body in sorted(bodies.items()):
        content_type = TYPES.get(Path(name).suffix)
        if content_type is not None:
            yield PREFIX + name, _file(body, content_type, policy)


@lru_cache(maxsize=128)  # once for all ports of this process; the page has 40 files
def _file(body: bytes, content_type: str, policy: str) -> StaticFile:
    compressed = gzip.compress(body, GZIP_LEVEL, mtime=0) if len(body) >= COMPRESSED_BYTES_MIN else None
    # Weak: the same for both encodings (RFC 9110, 8.8.1).
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**HEADERS, hdrs.CONTENT_TYPE: content_type, hdrs.ETAG: etag, hdrs.CONTENT_SECURITY_POLICY: policy}
    return StaticFile(body, compressed, headers)


def _takes_gzip(request: web.BaseRequest) -> bool:
    """Whether the caller accepts gzip (RFC 9110, 12.5.3); a weight of 0 refuses it."""
    for each in request.headers.get(hdrs.ACCEPT_ENCODING, "").lower().split(","):
        coding, _, weight = each.partition(";")
        if coding.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
