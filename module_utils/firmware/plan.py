# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge settings in a NIC's flash: current, at the next boot, and wanted.

A card holds the settings of all its ports, so it is queried, written and reset as one, by the address of its first
declared port. A card without a declared port is never touched. Written settings count from the next reset on: by the
lowest level that the card offers, at most once for each level and boot; else by one reboot. If a setting does not take
effect by that, it is an error, and no further reboot is requested.
Source: the mstflint tools (firmware/).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

from ..change import apply
from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding, one_cause
from ..core.host import Host, ParseError, Problem, ReadError, ToolMissing, attempt
from ..core.plan import Command, Plan
from ..machine import lockdown
from ..machine.profile import NicSetting, Profile
from ..machine.rails import Rails
from ..machine.topology import Nic, Topology
from . import pending, tools, wanted
from .image import Image
from .nv_settings import Setting, Value
from .pending import Record, Waiting
from .reset_levels import PCI_RESET, Levels
from .tools import CardSettings
from .wanted import Usual, Wanted

BOOT_ID = "/proc/sys/kernel/random/boot_id"
# Device ids of the BlueField families: a reset can take their mode, which only a power cycle brings back.
BLUEFIELD = (0xA2D2, 0xA2D6, 0xA2DC, 0xA2DF)
_RUN = fix_command.run_tag("nic_firmware")
_LOCKED = (
    "; the kernel is locked down (%s), which blocks access to PCI configuration space: use NVIDIA's tools with their"
    " signed driver (mst start), or boot without Secure Boot"
)
_POWER_CYCLE = "drain the node, power-cycle it through its BMC, then " + _RUN

SETTINGS = Check(
    "nic_firmware.settings",
    why="settings in the NIC's flash decide how it starts, and no driver can change them later",
    fix=_RUN,
)
"""Do the card's settings match the configured ones, for its next reset (`persisted`) and now (`live`); checked if
`nic_firmware_settings`, `nic_firmware_recommended` or `nic_firmware` of the profile has any"""
SUPPORTED = Check(
    "nic_firmware.supported",
    why="a setting that the card lacks, hides, or does not allow to write cannot be set",
    fix="see what the card shows: mstconfig -d %s query; correct its name, take it out of nic_firmware_settings (or"
    " the profile's nic_firmware) for nodes with this card, or update its firmware; a PCI setting may show with"
    " ADVANCED_PCI_SETTINGS: 1",
    aspect="persisted",
)
"Does the card have every setting of `nic_firmware_settings` and the profile, and can it be written"
IMAGE = Check(
    "nic_firmware.image",
    why="every reset of the card, also a reboot, loads the burned firmware, intended or not",
    fix="declare the wanted firmware in busbar_firmware; or, on a drained node: mstfwreset -d %s -y reset for"
    " the burned one, or burn the running one again (mstflint -d %s -i FILE burn); then " + _RUN,
    aspect="persisted",
)
"""Is the firmware in the card's flash the running one, or that of `busbar_firmware`; checked if its settings wait for
a reset, which would load it"""
TOOL = Check(
    "nic_firmware.tool",
    why="only NVIDIA's tools read and write the flash of a NIC",
    fix="install mstflint (apt-get install mstflint, dnf install mstflint), which has all three, then " + _RUN,
)
"Are the tools for `nic_firmware_settings` installed, and is the record of pending resets valid"
DEVICE = Check(
    "nic_firmware.device",
    why="the settings of a missing card cannot be changed",
    fix="correct nic_firmware_devices, or find out why the card is missing: lspci -s %s",
)
"Does each card of `nic_firmware_devices` exist, with a driver"


@dataclass(frozen=True)
class SettingsWanted:
    """settings: the site's, as wanted.parse returns them.   usual: for any training node, None: not wanted.

    devices: PCI addresses of cards besides the rails'.   of_profile: its settings, by wanted.profile_settings.
    firmware: PSID -> version that the site declares.
    """

    settings: Mapping[str, NicSetting]
    usual: Optional[Usual] = None
    devices: Tuple[str, ...] = ()
    of_profile: Mapping[str, NicSetting] = field(default_factory=dict)
    firmware: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Card:
    """address: of its first declared port, and label.   functions: of all declared ports.

    others: labels of undeclared ports or virtual functions of the same card.
    bluefield: it has a processor.
    """

    address: str
    label: str
    functions: Tuple[str, ...]
    others: Tuple[str, ...]
    wanted: Tuple[Wanted, ...]
    bluefield: bool = False

    @property
    def key(self) -> str:
        """Return its wanted settings as one line."""
        return " ".join(one.argument for one in self.wanted)


@dataclass(frozen=True)
class CardState:
    """Output of the tools for one card; a Problem on failure. levels, image: None while nothing waits."""

    answer: Union[CardSettings, Problem]
    levels: Union[Levels, Problem, None] = None
    image: Union[Image, Problem, None] = None


@dataclass(frozen=True)
class NicsState:
    """hypervisor: "" on bare metal.   boot: id of this boot.   failed: PCI address -> a tool's error on a change.

    told: by the card's address; empty where the tool is missing.   locked: the kernel's lockdown, "" where it has none.
    firmware: as in SettingsWanted.
    """

    hypervisor: str
    cards: Tuple[Card, ...]
    absent: Tuple[str, ...] = ()
    told: Mapping[str, CardState] = field(default_factory=dict)
    boot: str = ""
    record: Union[Record, Problem] = field(default_factory=Record)
    missing: Optional[Problem] = None
    failed: Mapping[str, str] = field(default_factory=dict)
    locked: str = ""
    firmware: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Write(Command):
    """Write settings of the card at ``address``; they count from its next reset on.

    waiting: the card's stored entry from then on.
    """

    address: str = ""
    waiting: Waiting = field(default_factory=lambda: Waiting("", ""))


@dataclass(frozen=True)
class Reset(Command):
    """Reset the card at ``address`` by each of ``levels`` in turn, until its settings are in effect.

    waiting: its stored entry meanwhile.   wanted: those settings.
    """

    address: str = ""
    levels: Tuple[int, ...] = ()
    waiting: Waiting = field(default_factory=lambda: Waiting("", ""))
    wanted: Tuple[Wanted, ...] = ()


# -- what there is ---------------------------------------------------------------------------------------------------


def cards(
    topology: Topology, profile: Profile, rails: Rails, asked: SettingsWanted
) -> Tuple[Tuple[Card, ...], Tuple[str, ...]]:
    """The cards that are declared, as rails or by address, in PCI order; and the addresses that no NIC has."""
    layers = {rail.number: rail.link_layers[0] for rail in profile.rails if len(rail.link_layers) == 1}
    of_rails = {nic.pci: layers.get(number, "") for number, nic in rails.nics.items()}
    there = {nic.pci: nic for nic in topology.nics}
    declared = {**{address: "" for address in asked.devices if address in there}, **of_rails}
    groups: Dict[str, List[Nic]] = {}
    for nic in topology.nics:
        if nic.pci in declared:
            groups.setdefault(_card_of(nic), []).append(nic)
    found = []
    for key, nics in groups.items():
        own = tuple(nic.pci for nic in nics)
        rest = [nic for nic in topology.nics if nic.pci not in own]
        others = [nic.label for nic in rest if _card_of(nic) == key or nic.device.physfn in own]
        ports = {int(nic.pci[-1]) + 1: declared[nic.pci] for nic in nics}
        want = wanted.card_settings((asked.of_profile, asked.settings), ports, asked.usual)
        if want:
            first = nics[0]
            bluefield = first.device.device in BLUEFIELD
            found.append(Card(first.pci, first.label, own, tuple(others), want, bluefield))
    return tuple(found), tuple(address for address in asked.devices if address not in there)


def _card_of(nic: Nic) -> str:
    """Ports of one card share its image GUID, also where it sits in two slots; without one, its slot."""
    guid = nic.rdma.sys_image_guid if nic.rdma else None
    return guid if guid and ":" in guid.strip("0:") else nic.pci[:-2]


def read(
    host: Host,
    topology: Topology,
    profile: Profile,
    rails: Rails,
    asked: SettingsWanted,
    failed: Mapping[str, str],
) -> NicsState:
    """Query the cards; for one whose settings wait also its reset levels, and the firmware in its flash.

    failed: as in NicsState. Raises ReadError if settings wait and the boot has no id.
    """
    found, absent = cards(topology, profile, rails, asked)
    if topology.virtualization.is_vm:
        return NicsState(topology.virtualization.owner, found, absent)
    if not found:
        return NicsState("", (), absent)
    told: Dict[str, CardState] = {}
    try:
        tools.find_tool(host, tools.CONFIG)
    except ToolMissing as error:
        return NicsState("", found, absent, missing=error.problem)
    for card in found:
        told[card.address] = _query_card(host, card)
    boot = host.read(BOOT_ID) or ""
    if not boot and any(one.levels is not None for one in told.values()):
        raise ReadError(BOOT_ID, "is missing: whether the node was rebooted is unknown")
    problems: List[Problem] = []
    record = attempt(lambda: pending.read(host), pending.STORE, problems) or problems[0]
    # It matters only for cards that fail or wait.
    asked_for = any(one.levels is not None or isinstance(one.answer, Problem) for one in told.values())
    locked = lockdown.read(host) if asked_for else ""
    return NicsState("", found, absent, told, boot, record, None, dict(failed), locked, asked.firmware)


def _query_card(host: Host, card: Card) -> CardState:
    problems: List[Problem] = []
    source = "%s -d %s" % (tools.CONFIG[0], card.address)
    answer = attempt(lambda: tools.query(host, card.address, [one.name for one in card.wanted]), source, problems)
    if answer is None:
        return CardState(problems[0])
    if not any(_waits(answer, one) for one in card.wanted):
        return CardState(answer)
    levels = attempt(lambda: tools.levels(host, card.address), tools.RESET[0] + " query", problems)
    levels_or_problem = levels or problems.pop()
    flash = attempt(lambda: tools.flash(host, card.address), tools.FLINT[0] + " query", problems)
    return CardState(answer, levels_or_problem, flash or problems.pop())


def _waits(answer: CardSettings, one: Wanted) -> bool:
    """Return whether a setting of the card differs from the wanted one, and can be changed."""
    setting = answer.settings.get(one.name)
    if setting is None or setting.read_only or setting.current is None:
        return False
    return not setting.current.matches(one.value)


# -- the plan --------------------------------------------------------------------------------------------------------


def plan(have: NicsState) -> Plan:
    """Plan the writes, then the resets; pure. A card that fails does not affect the others."""
    findings = [
        DEVICE.judge(address, "unknown", "a NIC", "none with a driver", "nic_firmware_devices", DEVICE.fix % address)
        for address in have.absent
    ]
    if have.hypervisor and have.cards:
        said = "a virtual machine (%s): a NIC's firmware is its host's" % have.hypervisor
        fix = "set no nic_firmware_settings, nic_firmware_recommended or, in the profile, nic_firmware of virtual"
        fix += " machines; contact the operator of the host"
        findings.append(SETTINGS.judge("settings", "not_owned", _want(have.cards[0].wanted), said, "DMI", fix))
        return Plan(tuple(findings))
    if have.missing is not None:
        findings.append(TOOL.judge(have.missing.source, "unknown", "a response", have.missing.message))
        return Plan(tuple(findings))
    if isinstance(have.record, Problem):
        fix = "inspect it, then remove it: the next run may once reset each card with waiting settings; then " + _RUN
        findings.append(TOOL.judge(have.record.source, "unknown", "a record", have.record.message, fix=fix))
    writes: List[Command] = []
    resets: List[Command] = []
    reboot: List[str] = []
    for card in have.cards:
        told = have.told[card.address]
        if isinstance(told.answer, Problem):
            fix = "run %s as root and read its output; a card that does not respond is left alone" % told.answer.source
            if have.locked:
                fix += _LOCKED % have.locked
            findings.append(
                SETTINGS.judge(card.label, "unknown", _want(card.wanted), str(told.answer), told.answer.source, fix)
            )
            continue
        judged = _card(have, card, told, told.answer)
        findings += judged.findings
        writes += [command for command in judged.commands if isinstance(command, Write)]
        resets += [command for command in judged.commands if isinstance(command, Reset)]
        reboot += judged.reboot
    # A name that no card has is one mistake.
    return Plan(one_cause(findings, ("unsupported",)), (), (*writes, *resets), tuple(reboot))


def _card(have: NicsState, card: Card, told: CardState, answer: CardSettings) -> Plan:
    """Return findings of one card that has responded, and the changes."""
    findings: List[Finding] = []
    usable: List[Tuple[Wanted, Setting]] = []
    refused: List[str] = []
    for one in card.wanted:
        setting = answer.settings.get(one.name)
        if setting is None:
            refused += ["%s: not shown" % one.name] if one.declared else []
        elif setting.read_only:
            good = setting.following is not None and setting.following.matches(one.value)
            refused += ["%s: %s, read-only" % (one.name, setting.following)] if one.declared and not good else []
        else:
            usable.append((one, setting))
    if any(one.declared for one in card.wanted):
        state = "unsupported" if refused else "ok"
        said = "; ".join(refused) or "all are there"
        want, fix = "each setting that is declared", SUPPORTED.fix % card.address
        findings.append(SUPPORTED.judge(card.label, state, want, said, answer.source, fix))
    if not usable:
        return Plan(tuple(findings))
    writes, persisted = _persisted(have, card, usable, answer)
    live, resets, reboot, image = _live(have, card, told, usable, answer, persisted)
    if image is not None:
        findings.append(image)
    return Plan((*findings, persisted, live), (), (*writes, *resets), reboot)


def _persisted(
    have: NicsState, card: Card, usable: Sequence[Tuple[Wanted, Setting]], answer: CardSettings
) -> Tuple[Tuple[Write, ...], Finding]:
    """Return the writes, and the finding on what the card will load at its next reset."""
    pairs = [(one, setting.following) for one, setting in usable]
    wrong = [one for one, value in pairs if value is not None and not value.matches(one.value)]
    unread = [one for one, value in pairs if value is None]
    state = "drift" if wrong else "unknown" if unread else "ok"
    said, fix = _values_text(pairs), None
    failed = have.failed.get(card.address)
    if wrong and failed:
        said, fix = "%s; %s" % (said, failed), "read the tool's output, fix it, then " + _RUN
    elif state == "unknown":
        fix = "see %s on the node; update the card's firmware if it shows nothing" % answer.source
    writes: Tuple[Write, ...] = ()
    because = None
    if wrong and isinstance(have.record, Problem):
        because = TOOL.finding_id(have.record.source)
    elif wrong and isinstance(have.record, Record):
        argv = (answer.source.split()[0], "-d", card.address, "-y", "set", *(one.argument for one in wrong))
        kept = Waiting(have.boot, card.key, _tried(have, card))
        writes = (Write(argv, "for the card's next reset", "none", tools.SET_SECONDS, card.address, kept),)
    why = _why(wrong or [one for one, _setting in usable])
    want = _want([one for one, _setting in usable])
    return writes, SETTINGS.judge(card.label, state, want, said, answer.source, fix, because, why, aspect="persisted")


def _live(
    have: NicsState,
    card: Card,
    told: CardState,
    usable: Sequence[Tuple[Wanted, Setting]],
    answer: CardSettings,
    persisted: Finding,
) -> Tuple[Finding, Tuple[Reset, ...], Tuple[str, ...], Optional[Finding]]:
    """Return the finding on the card's current settings; the reset, or else the reason for a reboot, that fixes it.

    Last: the finding on the firmware that such a reset would load, None if none is declared.
    """
    pairs = [(one, setting.current) for one, setting in usable]
    want, said = _want([one for one, _setting in usable]), _values_text(pairs)
    wrong = [one for one, value in pairs if value is not None and not value.matches(one.value)]

    def judged(
        state: str,
        note: str = "",
        fix: Optional[str] = None,
        because: Union[Finding, str, None] = None,
        costs: str = "none",
    ) -> Finding:
        have_text = "%s; %s" % (said, note) if note else said
        why = _why(wrong or [one for one, _setting in usable])
        return SETTINGS.judge(card.label, state, want, have_text, answer.source, fix, because, why, disruption=costs)

    if not wrong:
        if any(value is None for _one, value in pairs):
            fix = "update the card's firmware, which does not report its active settings; after a reboot it is what the"
            return judged("unknown", fix=fix + " next boot's settings were"), (), (), None
        return judged("ok"), (), (), None
    image = _image(card, told, have.firmware)
    if persisted.state == "unknown" or isinstance(have.record, Problem):
        cause = persisted if persisted.state == "unknown" else TOOL.finding_id(pending.STORE)
        return judged("unknown", "the value after the next boot is unknown", because=cause), (), (), image
    if image is not None and not image.ok:
        return judged("drift", because=image, fix=image.fix), (), (), image
    waiting = have.record.find(card.address, card.key)
    if waiting is not None and waiting.boot != have.boot and persisted.ok:
        note = "a reboot did not load it" + (": %s" % waiting.said if waiting.said else "")
        return (
            judged("drift", note, _POWER_CYCLE + "; if that does not load it, declare a value that the card accepts"),
            (),
            (),
            image,
        )
    because = None if persisted.ok else persisted
    tried = _tried(have, card)
    against = _against(have, card, told, tried)
    if not against and isinstance(told.levels, Levels):
        levels = tuple(level for level in told.levels.resets if level > max(tried, default=-1))
        costs = "driver" if PCI_RESET in levels else "link"
        kept = Waiting(have.boot, card.key, tried)
        argv = (tools.RESET[0], "-d", card.address, "-l", str(levels[0]), "-y", "reset")
        command = Reset(
            argv, "to load its settings", costs, tools.RESET_SECONDS, card.address, levels, kept, card.wanted
        )
        return judged("drift", "waits for a reset of level %d" % levels[0], None, because, costs), (command,), (), image
    if waiting is not None and waiting.said:
        against += ": %s" % waiting.said
    reason = "NIC %s has settings that wait for a reboot (%s)" % (card.label, against)
    fix = "reboot the node, or " + _RUN
    # A reboot does not help if the write failed.
    asked = () if have.failed.get(card.address) and not persisted.ok else (reason,)
    return judged("drift", "waits for a reboot, %s" % against, fix, because, "reboot"), (), asked, image


def _tried(have: NicsState, card: Card) -> Tuple[int, ...]:
    """The levels by which the card was reset in this boot."""
    waiting = have.record.find(card.address, card.key) if isinstance(have.record, Record) else None
    return waiting.tried if waiting is not None and waiting.boot == have.boot else ()


def _against(have: NicsState, card: Card, told: CardState, tried: Sequence[int]) -> str:
    """Return why the card is not reset automatically; "" if it can be."""
    if card.bluefield:
        return "since a reset can take a BlueField's mode"
    if card.others:
        return "since a reset would take %s, too, which are not declared" % ", ".join(card.others[:3])
    if have.locked:
        return "since the kernel is locked down (%s), where no tool resets it" % have.locked
    if not isinstance(told.levels, Levels):
        return "since no reset level is known: %s" % told.levels
    if not told.levels.resets:
        return "since it offers no other reset than %s" % told.levels
    if max(tried, default=-1) >= told.levels.resets[-1]:
        return "since a reset of level %d did not load it" % tried[-1]
    return ""


def _image(card: Card, told: CardState, declared: Mapping[str, str]) -> Optional[Finding]:
    """Judge the firmware that a reset would load; None if it was not read. declared: PSID -> version."""
    fix = IMAGE.fix.replace("%s", card.address)
    if isinstance(told.image, Problem):
        return IMAGE.judge(
            card.label,
            "unknown",
            "the running firmware",
            str(told.image),
            told.image.source,
            "install mstflint; " + _RUN,
        )
    if told.image is None:
        return None
    meant = declared.get(told.image.psid)
    state = "drift" if told.image.pending and told.image.following != meant else "ok"
    said = "%s in flash, %s runs" % (told.image.following, told.image.running)
    source = "%s -d %s query" % (tools.FLINT[0], card.address)
    return IMAGE.judge(card.label, state, meant or "the running firmware", said, source, fix)


def _want(settings: Sequence[Wanted]) -> str:
    return " ".join(one.argument for one in settings)


def _values_text(pairs: Sequence[Tuple[Wanted, Optional[Value]]]) -> str:
    """Return all values that are not as wanted, or that all are."""
    wrong = [
        "%s=%s" % (one.name, "not reported" if value is None else value)
        for one, value in pairs
        if value is None or not value.matches(one.value)
    ]
    return " ".join(wrong) or "all as wanted"


def _why(settings: Sequence[Wanted]) -> str:
    reasons: Dict[str, None] = {one.why: None for one in settings}
    return "; ".join([*reasons, SETTINGS.why])


# -- what is done ----------------------------------------------------------------------------------------------------


class Hands:
    """Make a plan's changes. A card that fails does not affect the others: ``failed`` has its error."""

    def __init__(self) -> None:
        self.failed: Dict[str, str] = {}

    def __call__(self, host: Host, planned: Plan) -> List[str]:
        """Returns the paths of backups: none."""
        for command in planned.commands:
            if isinstance(command, Reset):
                if command.address not in self.failed:
                    _reset(host, command)
            elif isinstance(command, Write):
                _store(host, command.address, command.waiting)
                try:
                    apply.run(host, command)
                except ReadError as error:
                    self.failed[command.address] = str(error)
        return []


def _reset(host: Host, command: Reset) -> None:
    """Writes down each level before it is tried: a run that is killed then is not followed by the same reset.

    Raises ReadError where the record cannot be written; then nothing is reset.
    """
    waiting = command.waiting
    for level in command.levels:
        waiting = replace(waiting, tried=(*waiting.tried, level))
        _store(host, command.address, waiting)
        try:
            tools.reset(host, command.address, level)
            answer = tools.query(host, command.address, [one.name for one in command.wanted])
        except ReadError as error:
            waiting = replace(waiting, said=str(error))
            _store(host, command.address, waiting)
            # What state it left the card in is not known: the next level is not tried on top of it.
            return
        except ParseError:
            return
        if not any(_waits(answer, one) for one in command.wanted):
            return


def _store(host: Host, address: str, waiting: Optional[Waiting]) -> None:
    try:
        change = pending.read(host).with_card(address, waiting).change()
    except ParseError as error:
        raise ReadError(pending.STORE, str(error)) from error
    if change is not None:
        apply.write(host, change)


def remember(host: Host, have: NicsState) -> None:
    """Writes down which cards wait in this boot, and forgets those that do not: state of ours, and no setting.

    Only where something was allowed to change. Raises ReadError.
    """
    if not isinstance(have.record, Record):
        return
    record = have.record
    for card in have.cards:
        told = have.told.get(card.address)
        if told is None or isinstance(told.answer, Problem):
            continue
        if not any(_waits(told.answer, one) for one in card.wanted):
            record = record.with_card(card.address, None)
        elif record.find(card.address, card.key) is None and _written(told.answer, card):
            record = record.with_card(card.address, Waiting(have.boot, card.key))
    change = record.change()
    if change is not None:
        apply.write(host, change)


def _written(answer: CardSettings, card: Card) -> bool:
    """Return whether the next boot's settings are as wanted, as far as the card reports them."""
    return all(
        setting.following is not None and setting.following.matches(one.value)
        for one, setting in ((one, answer.settings.get(one.name)) for one in card.wanted)
        if setting is not None and not setting.read_only
    )


def mended(planned: Plan) -> Set[str]:
    """Return ids of the findings that the plan's commands remove, if the tools succeed."""
    writes = {SETTINGS.finding_id(one.address, "persisted") for one in planned.commands if isinstance(one, Write)}
    return writes | {SETTINGS.finding_id(one.address) for one in planned.commands if isinstance(one, Reset)}


def changed(planned: Plan, before: NicsState, after: NicsState) -> bool:
    """Return whether the plan's commands have changed a card: its settings differ, or it was reset."""
    resets = any(isinstance(one, Reset) and one.address not in after.failed for one in planned.commands)
    return resets or any(after.told.get(address, told).answer != told.answer for address, told in before.told.items())


def diff(have: NicsState) -> List[Dict[str, str]]:
    """Ansible's diff structure, one for each card that is written: settings for its next reset, before and after."""
    found = []
    for card in have.cards if isinstance(have.record, Record) else ():
        told = have.told.get(card.address)
        if told is None or isinstance(told.answer, Problem):
            continue
        before, after = [], []
        for one in card.wanted:
            setting = told.answer.settings.get(one.name)
            value = setting.following if setting is not None and not setting.read_only else None
            if value is not None and not value.matches(one.value):
                before.append("%s=%s\n" % (one.name, value))
                after.append("%s\n" % one.argument)
        if before:
            header = "%s, settings of the next reset" % card.label
            texts = {"before": "".join(before), "after": "".join(after)}
            found.append({"before_header": header, "after_header": header, **texts})
    return found


def notes(have: NicsState) -> List[str]:
    """Sentences for the verdict."""
    if not have.cards and not have.absent:
        return ["settings of NICs are wanted, and no rail is there that has any"]
    return []
