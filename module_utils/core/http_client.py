# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one HTTP client: one request a connection, no redirects, a total deadline, and no secret in an error.

Sources: RFC 9110 5.5 (field values); Python's http.client, whose timeouts count for each read alone.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from contextlib import closing
from typing import List, Mapping, Optional, Tuple, Union

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PIECE = 1 << 20
Result = Union["HttpError", Tuple[int, bytes]]


class HttpError(RuntimeError):
    """No usable response. The message names the host and the reason, and quotes neither address nor header."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_response: object) -> None:
        return None


def request(
    address: str,
    method: str = "GET",
    body: Optional[bytes] = None,
    headers: Optional[Mapping[str, str]] = None,
    authorization: str = "",
    ca_file: Optional[Union[str, os.PathLike[str]]] = None,
    seconds: float = 60.0,
    limit: int = 64 << 20,
    proxies: bool = False,
) -> Tuple[int, bytes]:
    """Return the status and the body of a response. Raises HttpError.

    address: https, or http for a loopback address.   authorization: value of that header, "" for none.
    ca_file: certificates to trust in place of the system's.   seconds: of the whole exchange.
    limit: most bytes of the body.   proxies: use the proxies of the environment, as HTTPS_PROXY.
    """
    url = _checked(address)
    host = url.hostname or ""
    # Visible ASCII, and blanks in it: anything else would end the header, and be quoted by http.client's error.
    if authorization and not re.fullmatch(r"[!-~]+( [!-~]+)*", authorization):
        raise HttpError("%s: the token is not one line of printable ASCII: nothing was sent" % host)
    try:
        context = None if url.scheme == "http" else ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise HttpError("certificates of %s cannot be used: %s" % (ca_file, _reason(error))) from None
    tunnel = urllib.request.ProxyHandler(None if proxies and url.scheme == "https" else {})
    opener = urllib.request.build_opener(tunnel, urllib.request.HTTPSHandler(context=context), _NoRedirect)
    sent = {**(headers or {}), **({"Authorization": authorization} if authorization else {})}
    wanted = urllib.request.Request(url.geturl(), body, sent, method=method)
    result: List[Result] = []
    # Name resolution has no timeout, and that of a socket starts anew with each byte: a late thread is left behind.
    work = threading.Thread(target=lambda: result.append(_exchange(opener, wanted, seconds, limit)), daemon=True)
    work.start()
    work.join(seconds)
    if not result:
        raise HttpError("%s: no complete response within %g s" % (host, seconds))
    if isinstance(result[0], HttpError):
        raise HttpError("%s: %s" % (host, result[0])) from None
    return result[0]


def _exchange(
    opener: urllib.request.OpenerDirector, wanted: urllib.request.Request, seconds: float, limit: int
) -> Result:
    try:
        try:
            response = opener.open(wanted, timeout=seconds)
        except urllib.error.HTTPError as error:
            response = error
        with closing(response):
            return response.status, _body(response, limit)
    except HttpError as error:
        return error
    except (OSError, ValueError, http.client.HTTPException) as error:
        return HttpError(_reason(error))


def _checked(address: str) -> urllib.parse.SplitResult:
    try:
        url = urllib.parse.urlsplit(address)
        known = bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        raise HttpError("the address is not a URL") from None
    if not known or not re.fullmatch(r"[!-~]+", address):
        raise HttpError("the address is not a URL of printable ASCII with a host")
    if url.scheme != "https" and not (url.scheme == "http" and url.hostname in LOOPBACK):
        raise HttpError("the address of %s has to begin with https:// (http:// for this machine alone)" % url.hostname)
    return url


def _body(response: http.client.HTTPResponse, limit: int) -> bytes:
    """Read the body piece by piece; more than the limit is an error."""
    pieces: List[bytes] = []
    while sum(map(len, pieces)) <= limit:
        pieces.append(response.read(_PIECE))
        if not pieces[-1]:
            # http.client raises nothing where a body ends early and was read in pieces.
            if response.length:
                raise HttpError("the response ends early")
            return b"".join(pieces)
    raise HttpError("the response has more than %d bytes" % limit)


def _reason(error: object) -> str:
    """Return the error as words that come from no header and no address."""
    if isinstance(error, urllib.error.URLError):
        error = error.reason
    if isinstance(error, ssl.SSLCertVerificationError):
        return "certificate: %s" % error.verify_message
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    return type(error).__name__
