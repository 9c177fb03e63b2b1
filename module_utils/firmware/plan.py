# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge settings in a NIC's flash: current, at the next boot, and wanted.

If a setting does not take effect by a reset of each level and one reboot, it is an error, and no further reboot is
requested. Source: the mstflint tools.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding, one_cause
from ..core.host import Problem
from ..core.plan import Command, Plan
from . import pending, tools, wanted
from .apply import CardCommand, Reset, Write
from .nv_settings import Value
from .pending import Record, Waiting
from .read import Card, CardState, NicsState
from .tools import CardSettings, Levels
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
        judged = _CardPlan(have, card, told, told.answer).plan()
        findings += judged.findings
        commands += judged.commands
        reboot += judged.reboot
    commands.sort(key=lambda command: isinstance(command, Reset))
    # A name that no card has is one mistake.
    return Plan(one_cause(findings, ("unsupported",)), (), tuple(commands), tuple(reboot))


class _CardPlan:
    """Judge and plan one card that has responded."""

    def __init__(self, have: NicsState, card: Card, told: CardState, answer: CardSettings) -> None:
        self.have, self.card, self.told, self.answer = have, card, told, answer
        self.usable = card.changeable(answer)
        record = have.record
        self.waiting = record.find(card.address, card.key) if isinstance(record, Record) else None
        # Levels by which the card was reset in this boot.
        self.tried = self.waiting.tried if self.waiting is not None and self.waiting.boot == have.boot else ()
        self.entry = Waiting(have.boot, card.key, self.tried)
        self.findings: List[Finding] = []
        self.commands: List[Command] = []
        self.reboot: Tuple[str, ...] = ()

    def plan(self) -> Plan:
        """Return findings and changes."""
        self._supported()
        if self.usable:
            persisted = self._persisted()
            live = self._live(persisted)
            self.findings += [persisted, live]
        return Plan(tuple(self.findings), (), tuple(self.commands), self.reboot)

    def _supported(self) -> None:
        refused: List[str] = []
        declared = [one for one in self.card.wanted if one.declared]
        for one in declared:
            setting = self.answer.settings.get(one.name)
            if setting is None:
                refused.append("%s: not shown" % one.name)
            elif setting.read_only and not one.matches(setting.following):
                refused.append("%s: %s, read-only" % (one.name, setting.following))
        if declared:
            state, have = "unsupported" if refused else "ok", "; ".join(refused) or "all are there"
            want, fix = "each setting that is declared", SUPPORTED.fix % self.card.address
            self.findings.append(SUPPORTED.judge(self.card.label, state, want, have, self.answer.source, fix))

    def _persisted(self) -> Finding:
        """Plan the write. Return the finding on what the card will load at its next reset."""
        pairs = [(one, setting.following) for one, setting in self.usable]
        wrong = [one for one, value in pairs if one.differs(value)]
        state = "drift" if wrong else "unknown" if any(value is None for _one, value in pairs) else "ok"
        note, fix, because = "", None, None
        if wrong and self.have.failed.get(self.card.address):
            note, fix = self.have.failed[self.card.address], "read the tool's output, fix it, then " + _RUN
        elif state == "unknown":
            fix = "see %s on the node; update the card's firmware if it shows nothing" % self.answer.source
        if wrong and isinstance(self.have.record, Problem):
            because = TOOL.finding_id(self.have.record.source)
        elif wrong:
            tool = self.answer.source.split()[0]
            argv = (tool, "-d", self.card.address, "-y", "set", *(one.argument for one in wrong))
            write = Write(argv, "for the card's next reset", "none", tools.SET_SECONDS, self.card, self.entry)
            self.commands.append(write)
        return self._judge("persisted", pairs, state, note, fix, because)

    def _live(self, persisted: Finding) -> Finding:
        """Plan the reset, or else the reboot. Return the finding on the card's current settings."""
        pairs = [(one, setting.current) for one, setting in self.usable]
        if not any(one.differs(value) for one, value in pairs):
            if all(value is not None for _one, value in pairs):
                return self._judge("live", pairs, "ok")
            fix = "update the card's firmware, which does not report its active settings; after a reboot it is what the"
            return self._judge("live", pairs, "unknown", fix=fix + " next boot's settings were")
        image = _image(self.card, self.told, self.have.firmware)
        self.findings += [] if image is None else [image]
        if persisted.state == "unknown" or isinstance(self.have.record, Problem):
            cause = persisted if persisted.state == "unknown" else TOOL.finding_id(pending.STORE)
            return self._judge("live", pairs, "unknown", "the value after the next boot is unknown", because=cause)
        if image is not None and not image.ok:
            return self._judge("live", pairs, "drift", fix=image.fix, because=image)
        waiting, card, against = self.waiting, self.card, self._against()
        refused = ": %s" % waiting.said if waiting is not None and waiting.said else ""
        if waiting is not None and waiting.boot != self.have.boot and persisted.ok:
            fix = _POWER_CYCLE + "; if that does not load it, declare a value that the card accepts"
            return self._judge("live", pairs, "drift", "a reboot did not load it" + refused, fix)
        if not against and isinstance(self.told.levels, Levels):
            levels = tuple(level for level in self.told.levels.resets if level > max(self.tried, default=-1))
            costs = "driver" if tools.PCI_RESET in levels else "link"
            argv = (tools.RESET[0], "-d", card.address, "-l", str(levels[0]), "-y", "reset")
            reset = Reset(argv, "to load its settings", costs, tools.RESET_SECONDS, card, self.entry, levels)
            self.commands.append(reset)
            note = "waits for a reset of level %d" % levels[0]
            return self._judge("live", pairs, "drift", note, None, persisted, costs)
        against += refused
        # A reboot does not help if the write failed.
        if persisted.ok or not self.have.failed.get(card.address):
            self.reboot = ("NIC %s has settings that wait for a reboot (%s)" % (card.label, against),)
        note, fix = "waits for a reboot, %s" % against, "reboot the node, or " + _RUN
        return self._judge("live", pairs, "drift", note, fix, persisted, "reboot")

    def _judge(
        self,
        aspect: str,
        pairs: Sequence[Tuple[Wanted, Optional[Value]]],
        state: str,
        note: str = "",
        fix: Optional[str] = None,
        because: Union[Finding, str, None] = None,
        costs: str = "none",
    ) -> Finding:
        """Return a finding on the card's settings.   pairs: with their values."""
        wrong = ["%s=%s" % (one.name, value or "not reported") for one, value in pairs if not one.matches(value)]
        have = "; ".join(filter(None, (" ".join(wrong) or "all as wanted", note)))
        reasons = [one.why for one, value in pairs if one.differs(value)] or [one.why for one, _value in pairs]
        want, why = wanted.text([one for one, _value in pairs]), "; ".join([*dict.fromkeys(reasons), SETTINGS.why])
        source, label = self.answer.source, self.card.label
        return SETTINGS.judge(label, state, want, have, source, fix, because, why, aspect=aspect, disruption=costs)

    def _against(self) -> str:
        """Return why the card is not reset automatically; "" if it can be."""
        card, levels = self.card, self.told.levels
        if card.bluefield:
            return "since a reset can take a BlueField's mode"
        if card.others:
            return "since a reset would take %s, too, which are not declared" % ", ".join(card.others[:3])
        if self.have.locked:
            return "since the kernel is locked down (%s), where no tool resets it" % self.have.locked
        if not isinstance(levels, Levels):
            return "since no reset level is known: %s" % levels
        if not levels.resets:
            return "since it offers no other reset than %s" % levels
        if max(self.tried, default=-1) >= levels.resets[-1]:
            return "since a reset of level %d did not load it" % self.tried[-1]
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
