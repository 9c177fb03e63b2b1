# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one HTTP client: one request a connection, no redirects, a total deadline, and no secret in an error.

Sources: RFC 9110 5.5 (field values); Python's http.client, whose timeouts count for each read alone.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import threading
import urllib.parse
import urllib.request
from contextlib import closing
from typing import Callable, Dict, List, Mapping, Optional, Tuple, Union

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PIECE = 1 << 20


class HttpError(RuntimeError):
    """No usable response. The message names the host and the reason, and quotes neither address nor header."""


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
    # Visible ASCII, and blanks in it: anything else would end the header, and be quoted by http.client's error.
    if authorization and not re.fullmatch(r"[!-~]+( [!-~]+)*", authorization):
        raise HttpError("%s: the token is not one line of printable ASCII: nothing was sent" % url.hostname)
    sent = dict(headers or {}, **({"Authorization": authorization} if authorization else {}))
    try:
        context = None if url.scheme == "http" else ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise HttpError("certificates of %s cannot be used: %s" % (ca_file, _reason(error))) from None
    path = (url.path or "/") + ("?" + url.query if url.query else "")
    result: List[Union[HttpError, Tuple[int, bytes]]] = []

    def exchange() -> None:
        try:
            with closing(_connection(url, context, seconds, proxies)) as connection:
                connection.request(method, path, body, sent)
                response = connection.getresponse()
                result.append((response.status, _body(response, limit)))
        except HttpError as error:
            result.append(error)
        except (OSError, ValueError, http.client.HTTPException) as error:
            result.append(HttpError(_reason(error)))

    return _within(exchange, result, url.hostname or "", seconds)


def _within(
    exchange: Callable[[], None], result: List[Union[HttpError, Tuple[int, bytes]]], host: str, seconds: float
) -> Tuple[int, bytes]:
    """Return what the exchange puts into ``result`` within these seconds. Raises HttpError.

    Name resolution has no timeout, and that of a socket starts anew with each byte: a late thread is left behind.
    """
    thread = threading.Thread(target=exchange, daemon=True)
    thread.start()
    thread.join(seconds)
    if not result:
        raise HttpError("%s: no complete response within %g s" % (host, seconds))
    if isinstance(result[0], HttpError):
        raise HttpError("%s: %s" % (host, result[0])) from None
    return result[0]


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


def _connection(
    url: urllib.parse.SplitResult, context: Optional[ssl.SSLContext], seconds: float, proxies: bool
) -> http.client.HTTPConnection:
    host, port = url.hostname or "", url.port
    if context is None:
        return http.client.HTTPConnection(host, port, timeout=seconds)
    proxy = _proxy(host) if proxies else None
    if proxy is None:
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
    connection = http.client.HTTPSConnection(proxy[0], proxy[1], timeout=seconds, context=context)
    connection.set_tunnel(host, port or 443)
    return connection


def _proxy(host: str) -> Optional[Tuple[str, int]]:
    """Host and port of the proxy that the environment names for a host."""
    found: Dict[str, str] = urllib.request.getproxies()
    if "https" not in found or urllib.request.proxy_bypass(host):
        return None
    parts = urllib.parse.urlsplit(found["https"] if "//" in found["https"] else "//" + found["https"])
    if not parts.hostname:
        raise HttpError("the proxy of the environment has no host")
    return parts.hostname, parts.port or 3128


def _body(response: http.client.HTTPResponse, limit: int) -> bytes:
    """Read the body piece by piece; more than the limit is an error."""
    pieces: List[bytes] = []
    size = 0
    while True:
        piece = response.read(_PIECE)
        if not piece:
            # http.client raises nothing where a body ends early and was read in pieces.
            if response.length:
                raise HttpError("the response ends early")
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise HttpError("the response has more than %d bytes" % limit)


def _reason(error: Exception) -> str:
    """Return the error as words that come from no header and no address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "certificate: %s" % error.verify_message
    if isinstance(error, (socket.gaierror, OSError)) and error.strerror:
        return str(error.strerror)
    return type(error).__name__
