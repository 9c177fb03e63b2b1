# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Remove secrets of an inventory from findings, files and reports.

A module's error message or a tool's output may repeat a password. The variable's name, or a vault, marks a value as
secret; it is then removed from every text, wherever that came from.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Dict, Iterable, Iterator, Mapping, Tuple, Union

REDACTED = "[redacted]"
# Shorter ones are not secrets: removing them would tear other words apart.
SHORTEST = 4
# So many characters of a secret, or half of it, are removed where a message was cut within it.
BEGINNING = 8
_CUT = ("'", '"', " ...", "...")
_NAME = re.compile(
    r"(^|_)pass(_|$)|passw(or)?d|passphrase|secret|token|credential|api_?key|private_?key|access_?key", re.IGNORECASE
)
# Scheme, authority, and of the rest of the word so much as a password may be long. JSON may write a slash with a
# backslash. Without the bounds, a long word would take for ever.
_ADDRESS = re.compile(r"""([a-zA-Z][a-zA-Z0-9+.-]{0,20}:\\?/\\?/)([^\s/?#"<>]*)(?=([^\s"<>]{0,500}))""")
_HOST = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.%]+\])(:[0-9]*)?[\\]?")
# The user of such an address is a name and no token.
_OF_SSH = ("ssh://", "sftp://", "git+ssh://", "ssh+git://")


# A thousand hosts have variables of the same names.
@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name holds a secret, not the path of one."""
    return _NAME.search(name) is not None and not name.lower().endswith(("_file", "_path"))


def find_secrets(value: object, vaulted: Union[type, Tuple[type, ...]] = (), secret: bool = False) -> Iterator[str]:
    """Yield the secret texts in variables: values below a secret name at any depth, and those of type ``vaulted``.

    The ``str`` of that type decrypts.
    """
    if isinstance(value, vaulted):
        yield str(value)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from find_secrets(item, vaulted, secret or is_secret_name(str(name)))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from find_secrets(item, vaulted, secret)
    elif secret and isinstance(value, (str, int)) and not isinstance(value, bool):
        yield str(value)


def secret_texts(found: Iterable[str]) -> Tuple[str, ...]:
    """Return the texts to remove, the longest first: one may be a part of another.

    Messages quote lines, so each line is one; and they quote as Python or JSON does.
    """
    parts = {part for text in found for part in (text, *text.splitlines()) if len(part.strip()) >= SHORTEST}
    quoted = {quote(part)[1:-1] for part in parts for quote in (repr, json.dumps)}
    return tuple(sorted(parts | quoted, key=lambda part: (-len(part), part)))


# A thousand hosts say the same, and each may have its own password.
@lru_cache(maxsize=4096)
def scrub(text: str, secrets: Tuple[str, ...]) -> str:
    """Remove secrets (as ``secret_texts`` returns them), and user and password of addresses."""
    for secret in secrets:
        text = _without_beginning(text.replace(secret, REDACTED), secret)
    return _without_userinfo(text) if ":/" in text or ":\\/" in text else text


def scrub_all(values: Mapping[str, object], secrets: Tuple[str, ...] = ()) -> Dict[str, object]:
    """Return a copy of JSON values without the secrets, and without user and password in addresses."""
    return {name: _scrubbed(value, secrets) for name, value in values.items()}


def _scrubbed(value: object, secrets: Tuple[str, ...]) -> object:
    if isinstance(value, str):
        return scrub(value, secrets)
    if isinstance(value, dict):
        return scrub_all(value, secrets)
    return [_scrubbed(item, secrets) for item in value] if isinstance(value, (list, tuple)) else value


def _without_userinfo(text: str) -> str:
    """Remove what stands before the hosts of a text's addresses.

    A password may hold an @ and unescaped characters: then it ends at the last @ of the word, even if that belongs to
    the path. A token without a colon that holds a slash looks like a host and its path.
    """
    parts, done = [], 0
    match = _ADDRESS.search(text)
    while match:
        scheme, authority, rest = match.groups()
        user, at, host = authority.rpartition("@")
        parts.append(text[done : match.start()] + scheme)
        done = match.end()
        if at and ":" not in user and scheme.lower() in _OF_SSH:
            parts.append(authority)
        elif "@" in rest and (at or not _HOST.fullmatch(authority)):
            parts.append(REDACTED + "@")
            done += rest.rindex("@") + 1
        else:
            parts.append(REDACTED + "@" + host if at else authority)
        match = _ADDRESS.search(text, done)
    return "".join(parts) + text[done:]


def _without_beginning(text: str, secret: str) -> str:
    """Remove the first part of a secret if the text was cut within it: at its end, or before a quote."""
    head = secret[: max(BEGINNING, len(secret) // 2)]
    start = text.find(head) if len(head) < len(secret) else -1
    while start >= 0:
        end = start + len(head)
        while end < len(text) and text[end] == secret[end - start]:
            end += 1
        if end == len(text) or text.startswith(_CUT, end):
            text = text[:start] + REDACTED + text[end:]
            end = start + len(REDACTED)
        start = text.find(head, end)
    return text
