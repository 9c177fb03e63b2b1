# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Replace what names a machine, its owner and its users in a recording: the same text by the same text, everywhere.

Subnets, gateways, cabling and the vendor of a card survive: of an IPv4 address the last two octets stay, of a MAC or
GUID all but the last three bytes, and a value stays the same one in each of its forms (MAC, GUID, GID, IPoIB address).
Secrets go, whether names do or not.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator

from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction

_SETTING = re.compile(r"""(?m)(?<![\w.-])("?([\w.-]{1,80})"?\s*[=:]\s*)("[^"\n]*"|'[^'\n]*'|[^\s,;]+)""")
# MAC, GUID or IPoIB address; GUID or GID; IPv6; IPv4; addresses in /proc/net/route; UUID.
_FORMS = re.compile(
    r"(?P<pairs>(?<![\w:.])(?:[0-9a-f]{2}:){5,19}[0-9a-f]{2}(?![\w:]))"
    r"|(?P<words>(?<![\w:.])(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?:(?::[0-9a-f]{4}){4})?(?![\w:]))"
    r"|(?P<ipv6>(?<![\w:.])(?=[0-9a-f:]{0,38}::|(?:[0-9a-f]{1,4}:){7})[0-9a-f:]{3,39}(?![\w:.]))"
    r"|(?P<ipv4>(?<![\w.~+-])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w.~+]|-[0-9]|/[0-9]\b|/1[0-5]\b))"
    r"|(?P<route>(?<=\t)[0-9A-F]{8}(?=\t))"
    r"|(?P<uuid>(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![\w-]))",
    re.IGNORECASE,
)
_SERIALS = (
    re.compile(r"<\w*(?:serial|pdi)\w*>\s*([\w.-]{5,40})\s*<", re.IGNORECASE),
    re.compile(r"\bserial[\w ]{0,12}\"?\s*[:=]\s*\"?([\w.-]{5,40})", re.IGNORECASE),
)
# Names of LLDP's neighbours, by lldpcli and networkctl; of file servers, in mounts and in the kernel's log.
_HOSTS = re.compile(
    r'"name":\s*\[\s*\{\s*"value":\s*"([^"\n]+)"|"SystemName":\s*"([^"\n]+)"|^([\w.-]+):/|server ([\w.-]+) not res',
    re.MULTILINE,
)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{2,62}")
# Accounts of images, which name no person, and words that tools print.
_COMMON = (
    "localhost localdomain root admin ubuntu debian centos rocky cloud-user ec2-user azureuser opc nvidia slurm test"
    " user gpu node host server compute login driver kernel memory link port product system"
)


class Redactor:
    """Replace names. texts: path in the recording and text, of which names are learned.   passwd: of the machine."""

    def __init__(self, texts: Iterable[tuple[str, str]], passwd: str) -> None:
        self._key = os.urandom(16)
        self._networks: dict[int, int] = {}
        self._names: dict[str, str] = {}
        for kind, name in (*_users(passwd), *(pair for path, text in texts for pair in _learned(path, text))):
            new = f"{kind}-{self._digest(name)[:8]}"
            if kind == "guid":
                new = self._identifier(name)
            elif re.fullmatch("[0-9]+", name):
                new = str(int(self._digest(name), 16))[-len(name) :]
            if name.lower() not in _COMMON.split():
                self._names[name.lower()] = new
        words = "|".join(map(re.escape, sorted(self._names, key=len, reverse=True))) or "(?!)"
        self._word = re.compile(rf"(?<![A-Za-z0-9_])(0x|)({words})(?![A-Za-z0-9_])", re.IGNORECASE)

    def text(self, text: str) -> str:
        """Return the text with every name replaced."""
        text = _FORMS.sub(lambda match: getattr(self, f"_{match.lastgroup}")(match[0]), text)
        return self._word.sub(lambda match: match[1] + self._names[match[2].lower()], text)

    def _digest(self, value: str) -> str:
        return hashlib.blake2b(value.encode(), key=self._key, digest_size=16).hexdigest()

    def _identifier(self, digits: str) -> str:
        """Return another MAC or GUID of the same vendor; groups, and those that name no card, stay."""
        is_one = len(digits) in (12, 16) and digits[-6:] not in ("000000", "ffffff") and not int(digits[:2], 16) & 1
        # The second bit differs between a MAC and the address that is made of it.
        vendor = f"{int(digits[:6], 16) & ~0x020000:06x}"
        return digits[:-6] + self._digest(vendor + digits[-6:])[:6] if is_one else digits

    def _pairs(self, value: str) -> str:
        digits = value.replace(":", "").lower()
        return _grouped(digits[:-16] + self._identifier(digits[-16:]), 2)

    def _words(self, value: str) -> str:
        digits = value.replace(":", "").lower()
        return _grouped(self._identifier(digits) if len(digits) == 16 else self._gid(digits), 4)

    def _gid(self, digits: str) -> str:
        if digits.startswith(20 * "0" + "ffff"):
            return (
                digits[:24]
                + ipaddress.IPv4Address(self._ipv4(str(ipaddress.IPv4Address(int(digits[24:], 16))))).packed.hex()
            )
        if int(digits, 16) < 2 or digits.startswith("ff"):
            return digits
        is_local = digits.startswith(("fe80", "fec0"))
        prefix = digits[:16] if is_local else "20010db8" + self._digest(digits[:16])[:8]
        return prefix + (self._identifier(digits[16:]) if int(digits[16:], 16) >> 16 else digits[16:])

    def _ipv6(self, value: str) -> str:
        try:
            digits = ipaddress.IPv6Address(value).packed.hex()
        except ValueError:
            return value
        return str(ipaddress.IPv6Address(bytes.fromhex(self._gid(digits))))

    def _ipv4(self, value: str) -> str:
        """Return an address of another network; an octet that is none, masks, and those that name no host stay."""
        first, second, *rest = (int(octet) for octet in value.split("."))
        if max(first, second, *rest) > 255 or first in (0, 127) or first >= 224 or (first, second) == (169, 254):
            return value
        new = self._networks.setdefault(first, 100 + len(self._networks) % 100)
        return ".".join(map(str, (new, second ^ int(self._digest(str(first))[:2], 16), *rest)))

    def _route(self, value: str) -> str:
        address = ipaddress.IPv4Address(bytes.fromhex(value)[::-1])
        return ipaddress.IPv4Address(self._ipv4(str(address))).packed[::-1].hex().upper()

    def _uuid(self, value: str) -> str:
        digest = self._digest(value.lower())
        return (
            "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:]))
            if value.strip("0-")
            else value
        )


def _grouped(digits: str, size: int) -> str:
    return ":".join(digits[at : at + size] for at in range(0, len(digits), size))


def _users(passwd: str) -> Iterator[tuple[str, str]]:
    """Yield names of people in passwd(5); packages make accounts below 1000 and above 59999 (Debian policy, 9.2.2)."""
    for row in (line.split(":") for line in passwd.splitlines()):
        if len(row) > 6 and re.fullmatch("[1-9][0-9]{3}|[1-5][0-9]{4}", row[2]):
            yield from (("user", name) for name in (row[0], row[4].split(",")[0]) if len(name) > 2)


def _learned(path: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each name that a file, or the output of a tool, shows."""
    name = path.rpartition("/")[2]
    for match in _FORMS.finditer(text):
        if match.lastgroup in ("pairs", "words"):
            yield "guid", match[0].replace(":", "").lower()[-16:]
    words = [word for pattern in _SERIALS for word in pattern.findall(text)]
    words += text.split() if re.search(r"serial|asset_tag|machine-id", name) else []
    yield from (("serial", word) for word in words if len(word) > 4 and re.search("[1-9]", word))
    hosts = [*filter(None, (word for found in _HOSTS.findall(text) for word in found))]
    hosts += text.split() if name == "hostname" else []
    parts = {part for word in hosts for part in (word, word.partition(".")[0], word.partition(".")[2])}
    yield from (("host", part) for part in parts if _NAME.fullmatch(part))


def without_secrets(text: str) -> str:
    """Return the text without values of settings whose names are of secrets, and without passwords in addresses."""

    def hide(match: re.Match[str]) -> str:
        is_secret = redaction.is_secret_name(match[2]) or match[2].lower() in ("psk", "wep-key0", "private-key")
        quote = match[3][0] if match[3][0] in "\"'" else ""
        return f"{match[1]}{quote}{redaction.REDACTED}{quote}" if is_secret else match[0]

    return redaction.scrub(_SETTING.sub(hide, text), ())
