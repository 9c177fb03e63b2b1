# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the LLDP neighbours of a host's interfaces from lldpd, else systemd-networkd.

A switch port may send anything: every text is cut and made printable here, every number has a range.
Sources: lldpcli(8) of lldpd 1.0.16, run (json0: the form whose shape does not depend on how much there is); networkctl
of systemd 256 and later (older ones print only a table for people).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.finding import printable
from ..core.host import Host, ParseError, Problem, ReadError, ToolMissing, attempt, problem_of
from ..core.systemd_files import mask_of

LLDPCLI = ("lldpcli", "-f", "json0", "show", "neighbors", "details")
NETWORKCTL = ("networkctl", "lldp", "--json=short")
# Characters of a name: an LLDP text has at most 255 bytes. TLVs stored per neighbour, and bytes of one.
TEXT, TLVS, TLV = 255, 64, 507
UNIT = "lldpd.service"
# Organisation of IEEE 802.1, whose TLVs lldpd passes on unchanged.
_IEEE_8021 = "00,80,C2"
_BYTES = re.compile(r"([0-9A-Fa-f]{2}(,[0-9A-Fa-f]{2})*)?")
_SWITCHES = ("Bridge", "Router")
# The same two in networkd's bits (IEEE 802.1AB, table 8-4).
_SWITCH_BITS = 1 << 2 | 1 << 4


@dataclass(frozen=True)
class Neighbour:
    """One neighbour of one interface.

    netdev: the receiving interface.   chassis, port: its ids, of any kind.   name, description: of system and port.
    is_switch: it forwards (enabled capabilities Bridge or Router); None: not sent.
    mfs: largest frame in bytes (IEEE 802.3); None: not sent.
    dcbx: TLVs of IEEE 802.1 by subtype, in their order, the bytes after the subtype.
    """

    netdev: str
    chassis: str
    port: str
    name: str = ""
    description: str = ""
    is_switch: Optional[bool] = None
    mfs: Optional[int] = None
    dcbx: Mapping[int, Tuple[Sequence[int], ...]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """``leaf-3 swp7``."""
        return "%s %s" % (self.name or self.chassis, self.port)


class LldpState(NamedTuple):
    """Output of the host's LLDP agent.

    source: its command; "" if none is running, and ``silent`` has the reason.   mask: what masks lldpd.
    tlvs: it reports the switch's TLVs, not only its name.
    problem: of an agent that runs, but fails.
    """

    neighbours: Tuple[Neighbour, ...] = ()
    source: str = ""
    silent: str = ""
    tlvs: bool = True
    problem: Optional[Problem] = None
    mask: str = ""

    def switches(self, netdev: str) -> List[Neighbour]:
        """Return the neighbours; of several (a DPU in between, a bridge) only the switch."""
        every = [one for one in self.neighbours if one.netdev == netdev]
        return ([one for one in every if one.is_switch] if len(every) > 1 else []) or every


def read(host: Host) -> LldpState:
    """Read from lldpd if it runs, else from systemd-networkd."""
    silent = []
    asked: Tuple[Tuple[Tuple[str, ...], Callable[[str], List[Neighbour]]], ...] = (
        (LLDPCLI, parse_lldpcli),
        (NETWORKCTL, parse_networkctl),
    )
    for argv, parse in asked:
        command = " ".join(argv)
        try:
            output = host.run(argv)
            if output.rc != 0:
                silent.append("%s exited with %d: %.160s" % (argv[0], output.rc, output.last_words))
            elif argv is NETWORKCTL and not output.stdout.lstrip().startswith("{"):
                silent.append("networkctl prints neighbours as text only (systemd before 256)")
            else:
                return LldpState(tuple(parse(output.stdout)), command, tlvs=argv is LLDPCLI)
        except ToolMissing:
            silent.append("%s is not installed" % argv[0])
        except (ReadError, ParseError) as error:
            return LldpState(source=command, problem=problem_of(error, command))
    mask = attempt(lambda: mask_of(host, UNIT), UNIT, []) or ""
    return LldpState(silent=printable("; ".join([*silent, *(["%s is masked" % UNIT] if mask else [])])), mask=mask)


def parse_lldpcli(text: str) -> List[Neighbour]:
    """Return neighbours in ``lldpcli -f json0 show neighbors details``, without those of other protocols.

    Raises ParseError.
    """
    found = []
    for top in _dicts(_loaded(text), "lldp"):
        for entry in _dicts(top, "interface", []):
            if not str(entry.get("via", "LLDP")).startswith("LLDP"):
                continue
            chassis, port = ((_dicts(entry, name, []) or [{}])[0] for name in ("chassis", "port"))
            known = _dicts(chassis, "capability", [])
            on = {one.get("type") for one in known if one.get("enabled") is True}
            found.append(
                Neighbour(
                    netdev=_text(entry.get("name")),
                    chassis=_value(chassis, "id"),
                    port=_value(port, "id"),
                    name=_value(chassis, "name"),
                    description=_value(port, "descr"),
                    is_switch=bool(on.intersection(_SWITCHES)) if known else None,
                    mfs=_mfs(_value(port, "mfs")),
                    dcbx=_tlvs(entry),
                )
            )
    return found


def parse_networkctl(text: str) -> List[Neighbour]:
    """Neighbours in ``networkctl lldp --json=short`` of systemd 256 and later. Raises ParseError."""
    found = []
    for link in _dicts(_loaded(text), "Neighbors"):
        for entry in _dicts(link, "Neighbors", []):
            bits = entry.get("EnabledCapabilities")
            found.append(
                Neighbour(
                    netdev=_text(link.get("InterfaceName")),
                    chassis=_text(entry.get("ChassisID")),
                    port=_text(entry.get("PortID")),
                    name=_text(entry.get("SystemName")),
                    description=_text(entry.get("PortDescription")),
                    is_switch=bool(bits & _SWITCH_BITS) if isinstance(bits, int) else None,
                )
            )
    return found


def _loaded(text: str) -> Dict[str, Any]:
    try:
        data = json.loads(text)
    except RecursionError:
        raise ParseError("its JSON is nested too deeply") from None
    except ValueError as error:
        raise ParseError("what it prints is not JSON: %.100s" % error) from error
    if not isinstance(data, dict):
        raise ParseError("its JSON is %s, expected an object" % type(data).__name__)
    return data


def _dicts(entry: Mapping[str, object], name: str, default: object = None) -> List[Dict[str, Any]]:
    value = entry.get(name, default)
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ParseError("%s is %.60r, expected a list of objects" % (name, value))
    return value


def _value(entry: Mapping[str, object], name: str) -> str:
    """Return the value of ``{"name": [{"value": "leaf-3"}]}``; "" without one."""
    found = _dicts(entry, name, [])
    return _text(found[0].get("value")) if found else ""


def _text(value: object) -> str:
    if not isinstance(value, (str, type(None))):
        raise ParseError("%.60r is not a text" % (value,))
    # Escapes grow: a text of them alone is cut again.
    return printable((value or "")[:TEXT])[:TEXT]


def _mfs(text: str) -> Optional[int]:
    if text and (re.fullmatch("[0-9]{1,5}", text) is None or int(text) > 0xFFFF):
        raise ParseError("mfs is %r, expected bytes" % text[:40])
    # A switch that does not know it sends 0.
    return int(text or 0) or None


def _tlvs(entry: Mapping[str, object]) -> Dict[int, Tuple[Sequence[int], ...]]:
    found: Dict[int, Tuple[Sequence[int], ...]] = {}
    for group in _dicts(entry, "unknown-tlvs", []):
        for one in _dicts(group, "unknown-tlv", [])[:TLVS]:
            if str(one.get("oui")).upper() != _IEEE_8021:
                continue
            subtype, text = str(one.get("subtype")), str(one.get("value", ""))[: 3 * TLV]
            if re.fullmatch("[0-9]{1,3}", subtype) is None or _BYTES.fullmatch(text) is None:
                raise ParseError("unknown-tlv %.20r holds %.60r, expected bytes" % (subtype, text))
            found[int(subtype)] = (*found.get(int(subtype), ()), tuple(bytes.fromhex(text.replace(",", ""))))
    return found
