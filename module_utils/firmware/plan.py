# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge settings in a NIC's flash: current, at the next boot, and wanted.

If a setting does not take effect by a reset of each level and one reboot, it is an error, and no further reboot is
requested. Source: the mstflint tools.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding, one_cause
from ..core.host import Problem
from ..core.plan import Command, Plan
from . import pending, tools, wanted
from .apply import CardCommand, Reset, Write
from .nv_settings import Setting, Value
from .pending import Record, Waiting
from .read import Card, CardState, NicsState
from .reset_levels import PCI_RESET, Levels
from .tools import CardSettings
from .wanted import Wanted

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
        findings.append(SETTINGS.judge("settings", "not_owned", have.cards[0].key, said, "DMI", fix))
        return Plan(tuple(findings))
    if have.missing is not None:
        findings.append(TOOL.judge(have.missing.source, "unknown", "a response", have.missing.message))
        return Plan(tuple(findings))
    if isinstance(have.record, Problem):
        fix = "inspect it, then remove it: the next run may once reset each card with waiting settings; then " + _RUN
        findings.append(TOOL.judge(have.record.source, "unknown", "a record", have.record.message, fix=fix))
    commands: List[Command] = []
    reboot: List[str] = []
    for card in have.cards:
        told = have.told[card.address]
        if isinstance(told.answer, Problem):
            fix = "run %s as root and read its output; a card that does not respond is left alone" % told.answer.source
            fix += _LOCKED % have.locked if have.locked else ""
            source = told.answer.source
            findings.append(SETTINGS.judge(card.label, "unknown", card.key, str(told.answer), source, fix))
            continue
        judged = _card(have, card, told, told.answer)
        findings += judged.findings
        commands += judged.commands
        reboot += judged.reboot
    commands.sort(key=lambda command: isinstance(command, Reset))
    # A name that no card has is one mistake.
    return Plan(one_cause(findings, ("unsupported",)), (), tuple(commands), tuple(reboot))


def _card(have: NicsState, card: Card, told: CardState, answer: CardSettings) -> Plan:
    """Return findings of one card that has responded, and the changes."""
    usable = card.changeable(answer)
    refused: List[str] = []
    for one in card.wanted:
        setting = answer.settings.get(one.name)
        if setting is None:
            refused += ["%s: not shown" % one.name] if one.declared else []
        elif setting.read_only and one.declared and not one.matches(setting.following):
            refused.append("%s: %s, read-only" % (one.name, setting.following))
    findings: List[Finding] = []
    if any(one.declared for one in card.wanted):
        state, said = "unsupported" if refused else "ok", "; ".join(refused) or "all are there"
        want, fix = "each setting that is declared", SUPPORTED.fix % card.address
        findings.append(SUPPORTED.judge(card.label, state, want, said, answer.source, fix))
    if not usable:
        return Plan(tuple(findings))
    writes, persisted = _persisted(have, card, usable, answer)
    live, resets, reboot, image = _live(have, card, told, usable, answer, persisted)
    images = () if image is None else (image,)
    return Plan((*findings, *images, persisted, live), (), (*writes, *resets), reboot)


def _persisted(
    have: NicsState, card: Card, usable: Sequence[Tuple[Wanted, Setting]], answer: CardSettings
) -> Tuple[Tuple[Write, ...], Finding]:
    """Return the writes, and the finding on what the card will load at its next reset."""
    pairs = [(one, setting.following) for one, setting in usable]
    wrong = [one for one, value in pairs if one.differs(value)]
    state = "drift" if wrong else "unknown" if any(value is None for _one, value in pairs) else "ok"
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
    elif wrong:
        argv = (answer.source.split()[0], "-d", card.address, "-y", "set", *(one.argument for one in wrong))
        entry = Waiting(have.boot, card.key, _tried(have, card))
        writes = (Write(argv, "for the card's next reset", "none", tools.SET_SECONDS, card, entry),)
    want, why = wanted.text([one for one, _setting in usable]), _why(wrong or [one for one, _setting in usable])
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
    want, said = wanted.text([one for one, _setting in usable]), _values_text(pairs)
    wrong = [one for one, value in pairs if one.differs(value)]

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
    finding, resets, reboot = _outdated(have, card, told, persisted, image, judged)
    return finding, resets, reboot, image


def _outdated(
    have: NicsState,
    card: Card,
    told: CardState,
    persisted: Finding,
    image: Optional[Finding],
    judged: Callable[..., Finding],
) -> Tuple[Finding, Tuple[Reset, ...], Tuple[str, ...]]:
    """Return as ``_live`` for settings that are not in effect. judged: makes the finding.

    image: the finding on the firmware that a reset would load.
    """
    if persisted.state == "unknown" or isinstance(have.record, Problem):
        cause = persisted if persisted.state == "unknown" else TOOL.finding_id(pending.STORE)
        return judged("unknown", "the value after the next boot is unknown", because=cause), (), ()
    if image is not None and not image.ok:
        return judged("drift", because=image, fix=image.fix), (), ()
    waiting = have.record.find(card.address, card.key)
    if waiting is not None and waiting.boot != have.boot and persisted.ok:
        note = "a reboot did not load it" + (": %s" % waiting.said if waiting.said else "")
        fix = _POWER_CYCLE + "; if that does not load it, declare a value that the card accepts"
        return judged("drift", note, fix), (), ()
    because = None if persisted.ok else persisted
    tried = _tried(have, card)
    against = _against(have, card, told, tried)
    if not against and isinstance(told.levels, Levels):
        levels = tuple(level for level in told.levels.resets if level > max(tried, default=-1))
        costs = "driver" if PCI_RESET in levels else "link"
        argv = (tools.RESET[0], "-d", card.address, "-l", str(levels[0]), "-y", "reset")
        entry = Waiting(have.boot, card.key, tried)
        reset = Reset(argv, "to load its settings", costs, tools.RESET_SECONDS, card, entry, levels)
        return judged("drift", "waits for a reset of level %d" % levels[0], None, because, costs), (reset,), ()
    if waiting is not None and waiting.said:
        against += ": %s" % waiting.said
    reason = "NIC %s has settings that wait for a reboot (%s)" % (card.label, against)
    fix = "reboot the node, or " + _RUN
    # A reboot does not help if the write failed.
    asked = () if have.failed.get(card.address) and not persisted.ok else (reason,)
    return judged("drift", "waits for a reboot, %s" % against, fix, because, "reboot"), (), asked


def _tried(have: NicsState, card: Card) -> Tuple[int, ...]:
    """Return the levels by which the card was reset in this boot."""
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
        source, fix = told.image.source, "install mstflint; " + _RUN
        return IMAGE.judge(card.label, "unknown", "the running firmware", str(told.image), source, fix)
    if told.image is None:
        return None
    meant = declared.get(told.image.psid)
    state = "drift" if told.image.pending and told.image.following != meant else "ok"
    said = "%s in flash, %s runs" % (told.image.following, told.image.running)
    source = "%s -d %s query" % (tools.FLINT[0], card.address)
    return IMAGE.judge(card.label, state, meant or "the running firmware", said, source, fix)


def _values_text(pairs: Sequence[Tuple[Wanted, Optional[Value]]]) -> str:
    """Return all values that are not as wanted, or that all are."""
    wrong = ["%s=%s" % (one.name, value or "not reported") for one, value in pairs if not one.matches(value)]
    return " ".join(wrong) or "all as wanted"


def _why(settings: Sequence[Wanted]) -> str:
    return "; ".join([*dict.fromkeys(one.why for one in settings), SETTINGS.why])


def mended(planned: Plan) -> Set[str]:
    """Return ids of the findings that the plan's commands remove, if the tools succeed."""
    commands = [one for one in planned.commands if isinstance(one, CardCommand)]
    aspects: Dict[type, str] = {Write: "persisted", Reset: "live"}
    return {SETTINGS.finding_id(one.card.address, aspects[type(one)]) for one in commands}


def notes(have: NicsState) -> List[str]:
    """Return sentences for the verdict."""
    if not have.cards and not have.absent:
        return ["settings of NICs are wanted, and no rail is there that has any"]
    return []
