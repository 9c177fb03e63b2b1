# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check the fields that results of several modules have: ids, addresses, findings, devices, rates."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_interface

from ansible_collections.busbar.fabric.plugins.module_utils.core import finding as findings
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import (
    ASPECTS,
    DISRUPTIONS,
    SEVERITIES,
    STATES,
    Finding,
)
from ansible_collections.busbar.fabric.plugins.module_utils.rail_info import HostInfo, RailInfo

from .codec import (
    LINE,
    MANY,
    Check,
    Invalid,
    Record,
    anything,
    as_dict,
    as_list,
    as_text,
    each,
    many,
    maybe,
    number,
    of_class,
    one_of,
    quoted,
    table,
    text,
    whole,
)
from .plain_data import Plain


def one_or_flag(value: object) -> None:
    """Accept 0 and 1, which Ansible's own modules return for false and true."""
    if value not in (0, 1):
        raise Invalid(f"is {quoted(value)}, expected 0 or 1")


an_id = text(LINE, empty=False, line=True)


def ids(value: object) -> None:
    """Check ids of findings. There are hundreds a host, so they are checked together before one by one."""
    if not isinstance(value, list) or len(value) > MANY or not _all_good(value):
        many(an_id)(value)


def evidence(value: object) -> None:
    """Check evidence of passed checks: id -> value and source."""
    found = as_dict(value)
    if not _all_good([*found]):
        table(anything, an_id)(value)
    for name, pair in found.items():
        if not (isinstance(pair, list) and len(pair) == 2 and _all_good(pair)):
            raise Invalid(f"is {quoted(pair)}, expected a value and its source").within(quoted(name))


def _all_good(words: list[str]) -> bool:
    if not all(map(str.__instancecheck__, words)):
        return False
    sizes = [*map(len, words), 1]
    return min(sizes) > 0 and max(sizes) <= LINE and "".join(words).isprintable()


def address(value: object) -> None:
    """Check a rail's address, which other hosts connect to: it leads to one host, and not to itself or to many."""
    word = as_text(value, 64)
    try:
        parsed = ip_address(word)
    except ValueError:
        raise Invalid(f"is {quoted(word)}, which is not an IP address") from None
    if "%" in word or parsed.is_multicast or parsed.is_loopback or parsed.is_unspecified or word == _BROADCAST:
        raise Invalid(f"is {quoted(value)}, which is not an address of a host")


_BROADCAST = "255.255.255.255"
_CHECK_ID = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
# PCI functions; RDMA devices, whose names come from the kernel or from udev; interfaces (IFNAMSIZ).
PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
DEVICE = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,63}")
NETDEV = re.compile(r"(?![-.]|\.{1,2}$)[!-.0-~]{1,15}")

line = text(LINE, line=True)
lines = many(text())

_of_finding = of_class(
    Finding,
    check=text(100, _CHECK_ID),
    state=one_of(*STATES),
    severity=one_of(*SEVERITIES),
    aspect=one_of(*ASPECTS),
    disruption=one_of(*DISRUPTIONS),
    because=maybe(an_id),
    subject=an_id,
    **each(("want", "have"), maybe(text())),
    **each(("source", "why"), text(empty=False)),
    fix=text(),
)
a_finding = Record({"id": an_id, **_of_finding.keys})


def decode_findings(value: object) -> tuple[Finding, ...]:
    """Return the findings of plain data: complete, with ids that fit. Raises Invalid."""
    many(a_finding, 2000)(value)
    found = []
    for place, item in enumerate(as_list(value)):
        try:
            found.append(findings.from_dict(as_dict(item)))
        except ValueError as error:
            raise Invalid(str(error)[:200]).within(f"[{place}]") from None
    return tuple(found)


def of_findings(value: object) -> None:
    """Check findings."""
    decode_findings(value)


seconds = number(0, 1e11)
_hex = text(16, re.compile(r"[0-9a-f]{16}"))


def interface(value: object) -> None:
    """Accept an address with the length of its prefix, ``10.16.0.1/24``."""
    word = as_text(value, 64)
    try:
        ip_interface(word)
    except ValueError:
        word = ""
    if "%" in word or "/" not in word:
        raise Invalid(f"is {quoted(value)}, which is not an address with a prefix")


# A field of one of these names is the same in every result.
RATE, SHORT = number(0, 1e6), text(255, line=True)
LIMITS: dict[str, Check] = {
    "pci": text(20, PCI),
    "device": text(64, DEVICE),
    **each(("netdev", "vrf"), text(15, re.compile("|" + NETDEV.pattern))),
    "link_layer": one_of("Ethernet", "InfiniBand"),
    "rate_gbps": number(1, 10000),
    "mtu": whole(0, 1 << 20),
    "rail": whole(0, 99),
    "gpu": text(20, re.compile("|" + PCI.pattern)),
    "gpu_index": whole(0, 999),
    **each(("busbw", "algbw", "bar", "prediction"), RATE),
    "size": whole(),
    "errors": text(),
    **each(("devices", "without_gdr", "found"), text(64, line=True)),
}


def known(names: str, optional: bool = False) -> Plain:
    """Return name -> its check in LIMITS. optional: it may be null."""
    return {name: maybe(LIMITS[name]) if optional else LIMITS[name] for name in names.split()}


rail = of_class(
    RailInfo,
    LIMITS,
    optional=("gpu", "gpu_index", "addresses", "guids", "vrf"),
    number=whole(0, 99),
    address=maybe(address),
    addresses=many(interface, 16),
    guids=table(_hex, one_of("node", "port", "system"), 3),
)
_info = of_class(
    HostInfo,
    optional=("gpus",),
    gpus=many(text(64, re.compile("[A-Za-z0-9-]+")), 64),
    rails=many(rail, 100),
    missing=table(text(), text(2, re.compile(r"[0-9]{1,2}")), 100),
)


def info(value: object) -> None:
    """Check ``rail_info`` of topology_info's result, with each rail once."""
    _info(value)
    numbers = [one["number"] for one in as_dict(value)["rails"]]
    if len(set(numbers)) != len(numbers):
        raise Invalid("names a rail twice").within("rails")


def count(value: object) -> None:
    """Check a 64-bit counter. The history has the same limit."""
    whole(0, (1 << 64) - 1)(value)
