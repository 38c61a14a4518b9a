"""Single files of a web server, by Python's own client: never a page in place of a file, and never a part of one."""

import netrc
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse
from urllib.parse import quote, urlsplit

SCHEMES = ("http", "https")
TIMEOUT = 30  # seconds without a byte after which a connection is lost
BLOCK = 1 << 20
HEADERS = {"User-Agent": "Thaw", "Accept": "*/*"}  # some servers refuse programs without a name
KEPT = "%/:=&?~#+!$,;'@()*[]"  # characters of an address that are not escaped
PAGE = (b"<!doctype html", b"<html")


class NoFile(ValueError):
    """A server answers with something else than a file, or with one whose end cannot be known."""

    page = "the server answers with a page, such as a form to log in, and not with a file"


def open_web(address: str) -> HTTPResponse:
    """Opens an address, with the password in ~/.netrc for its host. Raises OSError, HTTPException or ValueError."""
    request = urllib.request.Request(quote(address, KEPT), headers=HEADERS)
    with suppress(OSError, netrc.NetrcParseError):
        if login := netrc.netrc().authenticators(urlsplit(address).hostname or ""):
            word = b64encode(f"{login[0]}:{login[2]}".encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {word}")  # not for another server
    opener = urllib.request.build_opener()  # unlike urlopen, it reads the proxies from the environment at every call
    return opener.open(request, timeout=TIMEOUT)


def head(address: str) -> tuple[int | None, str]:
    """Returns the size of a file, if the server tells it, and its version."""
    with open_web(address) as response:
        return _checked(response)


def _checked(response: HTTPResponse) -> tuple[int | None, str]:
    """Returns size and version of a file. Raises NoFile."""
    headers = response.headers
    if headers.get_content_type() == "text/html":
        raise NoFile(NoFile.page)
    size = headers.get("Content-Length")
    if size is None and "chunked" not in headers.get("Transfer-Encoding", "").lower():
        raise NoFile("the server does not tell the length of the file")
    return size and int(size), headers.get("ETag") or headers.get("Last-Modified") or ""


def blocks(address: str, expected: tuple[int | None, str]) -> Iterator[bytes]:
    """Yields the contents of a file. Raises OSError if it has changed or a part is missing, and NoFile for a page."""
    with open_web(address) as response:
        if _checked(response) != expected:
            raise OSError("the file has changed meanwhile")
        came = 0
        while block := response.read(BLOCK):
            if not came and block.lstrip().lower().startswith(PAGE):
                raise NoFile(NoFile.page)
            came += len(block)
            yield block
        if expected[0] not in (None, came):
            raise OSError(f"{came:,} of {expected[0]:,} bytes came")
