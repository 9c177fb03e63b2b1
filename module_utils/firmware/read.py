# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the cards that settings are wanted of: their settings, and of one whose settings wait also its firmware.

A card holds the settings of all its ports, so it is queried and written as one, by the address of its first declared
port. A card without a declared port is never touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple, TypeVar, Union

from ..core.host import BOOT_ID, Host, Problem, ReadError, ToolMissing, attempt
from ..machine.profile import NicSetting, Profile
from ..machine.rails import Rails
from ..machine.topology import Nic, Topology
from ..roce_qos.chain import Chain
from . import pending, tools, wanted
from .nv_settings import Setting
from .pending import Record
from .tools import Image
from .wanted import Wanted

T = TypeVar("T")


@dataclass(frozen=True)
class SettingsWanted:
    """declared, usual: as in wanted.card_settings.   firmware: PSID -> version that the site declares."""

    declared: Tuple[Mapping[str, NicSetting], ...]
    usual: Optional[Chain] = None
    firmware: Mapping[str, str] = field(default_factory=dict)


class Card(NamedTuple):
    """address: of its first declared port, and label.   wanted: its settings.

    answer: its settings by name; None: not queried.   source: the command that has queried it.
    image: its firmware, of a card whose settings wait.
    failed: a tool's error on a change, "" for none.
    """

    address: str
    label: str
    wanted: Tuple[Wanted, ...]
    answer: Union[Mapping[str, Setting], Problem, None] = None
    source: str = ""
    image: Union[Image, Problem, None] = None
    failed: str = ""

    @property
    def key(self) -> str:
        """Return its wanted settings as one line."""
        return wanted.text(self.wanted)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Return the settings that the card has shown, by name."""
        return {} if self.answer is None or isinstance(self.answer, Problem) else self.answer

    @property
    def changeable(self) -> List[Tuple[Wanted, Setting]]:
        """Return the wanted settings that the card shows and lets be written, with what it reports of each."""
        pairs = ((one, self.settings.get(one.name)) for one in self.wanted)
        return [(one, setting) for one, setting in pairs if setting is not None and not setting.read_only]

    @property
    def to_write(self) -> List[Wanted]:
        """Return the settings that differ from the wanted ones at the next boot."""
        return [one for one, setting in self.changeable if one.differs(setting.following)]

    @property
    def waits(self) -> bool:
        """Return whether a current setting differs from the wanted one, and can be changed."""
        return any(one.differs(setting.current) for one, setting in self.changeable)


@dataclass(frozen=True)
class NicsState:
    """hypervisor: "" on bare metal.   boot: id of this boot.   firmware: as in SettingsWanted.

    missing: the tool that is.
    """

    hypervisor: str
    cards: Tuple[Card, ...]
    boot: str = ""
    record: Union[Record, Problem] = field(default_factory=Record)
    missing: Optional[Problem] = None
    firmware: Mapping[str, str] = field(default_factory=dict)


def cards(topology: Topology, profile: Profile, rails: Rails, asked: SettingsWanted) -> Tuple[Card, ...]:
    """Return the cards of the rails, in PCI order."""
    layers = {rail.number: rail.link_layers[0] for rail in profile.rails if len(rail.link_layers) == 1}
    declared = {nic.pci: layers.get(number, "") for number, nic in rails.nics.items()}
    groups: Dict[str, List[Nic]] = {}
    for nic in topology.nics:
        if nic.pci in declared:
            groups.setdefault(_card_of(nic), []).append(nic)
    found = []
    for nics in groups.values():
        ports = {int(nic.pci[-1]) + 1: declared[nic.pci] for nic in nics}
        want = wanted.card_settings(asked.declared, ports, asked.usual)
        if want:
            found.append(Card(nics[0].pci, nics[0].label, want))
    return tuple(found)


def _card_of(nic: Nic) -> str:
    """Ports of one card share its image GUID, also where it sits in two slots; without one, its slot."""
    guid = nic.rdma.sys_image_guid if nic.rdma else None
    return guid if guid and ":" in guid.strip("0:") else nic.pci[:-2]


def read(
    host: Host, topology: Topology, profile: Profile, rails: Rails, asked: SettingsWanted, failed: Mapping[str, str]
) -> NicsState:
    """Query the cards; for one whose settings wait also the firmware in its flash.

    failed: PCI address -> a tool's error on a change. Raises ReadError if settings wait and the boot has no id.
    """
    found = cards(topology, profile, rails, asked)
    if topology.virtualization.is_vm or not found:
        return NicsState(topology.virtualization.owner if topology.virtualization.is_vm else "", found)
    try:
        tools.find_tool(host, tools.CONFIG)
    except ToolMissing as error:
        return NicsState("", found, missing=error.problem)
    queried = []
    for card in found:
        query = partial(tools.query, host, card.address, [one.name for one in card.wanted])
        result = _attempt(query, "%s -d %s" % (tools.CONFIG[0], card.address))
        card = card._replace(failed=failed.get(card.address, ""))
        if isinstance(result, Problem):
            card = card._replace(answer=result, source=result.source)
        else:
            card = card._replace(answer=result[0], source=result[1])
        if card.waits:
            card = card._replace(image=_attempt(partial(tools.flash, host, card.address), tools.FLINT[0] + " query"))
        queried.append(card)
    boot = host.read(BOOT_ID) or ""
    if not boot and any(card.waits for card in queried):
        raise ReadError(BOOT_ID, "is missing: whether the node was rebooted is unknown")
    record = _attempt(partial(pending.read, host), pending.STORE)
    return NicsState("", tuple(queried), boot, record, firmware=asked.firmware)


def _attempt(step: Callable[[], T], source: str) -> Union[T, Problem]:
    problems: List[Problem] = []
    found = attempt(step, source, problems)
    return problems[0] if found is None else found
