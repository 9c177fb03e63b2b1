# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge settings in a NIC's flash: current, at the next boot, and wanted.

Written settings take effect at the card's next reset, for which one reboot is requested. If they do not take effect
then, it is an error, and no further reboot is requested. Source: the mstflint tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Tuple, Union

from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding, one_cause
from ..core.host import Problem
from ..core.plan import Command, Plan, merge
from . import pending, tools, wanted
from .nv_settings import Value
from .read import Card, NicsState
from .tools import Image
from .wanted import Wanted

_RUN = fix_command.run_tag("nic_firmware")

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
    fix="install mstflint (apt-get install mstflint, dnf install mstflint), which has both, then " + _RUN,
)
"Are the tools for `nic_firmware_settings` installed, and is the record of pending resets valid"


@dataclass(frozen=True)
class Write(Command):
    """Write the settings of the card at ``address``; they count from its next reset on."""

    address: str = ""


def plan(have: NicsState) -> Plan:
    """Plan the writes; pure. A card that fails does not affect the others."""
    findings: List[Finding] = []
    if have.hypervisor and have.cards:
        text = "a virtual machine (%s): a NIC's firmware is its host's" % have.hypervisor
        fix = "set no nic_firmware_settings, nic_firmware_recommended or, in the profile, nic_firmware of virtual"
        fix += " machines; contact the operator of the host"
        return Plan((SETTINGS.judge("settings", "not_owned", have.cards[0].key, text, "DMI", fix),))
    if have.missing is not None:
        return Plan((TOOL.judge(have.missing.source, "unknown", "a response", have.missing.message),))
    if isinstance(have.record, Problem):
        fix = "inspect it, then remove it: the next run may request one more reboot; then " + _RUN
        findings.append(TOOL.judge(have.record.source, "unknown", "a record", have.record.message, fix=fix))
    plans = []
    for card in have.cards:
        if not isinstance(card.answer, Problem):
            plans.append(_plan_card(have, card))
            continue
        fix = "run %s as root and read its output; with Secure Boot it needs NVIDIA's tools and mst start" % card.source
        findings.append(SETTINGS.judge(card.label, "unknown", card.key, str(card.answer), card.source, fix))
    merged = merge(Plan(tuple(findings)), *plans)
    # A name that no card has is one mistake.
    return merged._replace(findings=one_cause(merged.findings, ("unsupported",)))


def mends(finding: Finding) -> bool:
    """Return whether a run removes this finding: it writes settings, and a reboot loads them."""
    return finding.check == SETTINGS.id and finding.aspect == "persisted"


def _plan_card(have: NicsState, card: Card) -> Plan:
    """Judge and plan one card that has responded."""
    findings = _supported(card)
    if not card.changeable:
        return Plan(tuple(findings))
    persisted = _persisted(have, card)
    more, reboot = _live(have, card, persisted)
    commands: List[Command] = []
    if card.to_write and not isinstance(have.record, Problem):
        argv = (card.source.split()[0], "-d", card.address, "-y", "set", *(one.argument for one in card.to_write))
        commands.append(Write(argv, "for the card's next reset", "none", tools.SET_SECONDS, card.address))
    return Plan((*findings, *more[:-1], persisted, more[-1]), (), tuple(commands), reboot)


def _supported(card: Card) -> List[Finding]:
    declared = [one for one in card.wanted if one.declared]
    refused: List[str] = []
    for one in declared:
        setting = card.settings.get(one.name)
        if setting is None:
            refused.append("%s: not shown" % one.name)
        elif setting.read_only and not one.matches(setting.following):
            refused.append("%s: %s, read-only" % (one.name, setting.following))
    if not declared:
        return []
    state, text = "unsupported" if refused else "ok", "; ".join(refused) or "all are there"
    want, fix = "each setting that is declared", SUPPORTED.fix % card.address
    return [SUPPORTED.judge(card.label, state, want, text, card.source, fix)]


def _persisted(have: NicsState, card: Card) -> Finding:
    """Judge what the card will load at its next reset."""
    note, fix, because = "", None, None
    if card.to_write:
        if isinstance(have.record, Problem):
            because = TOOL.finding_id(have.record.source)
        if card.failed:
            note, fix = card.failed, "read the tool's output, fix it, then " + _RUN
        return _judge(card, "persisted", "drift", note, fix, because)
    if any(setting.following is None for _one, setting in card.changeable):
        fix = "see %s on the node; update the card's firmware if it shows nothing" % card.source
        return _judge(card, "persisted", "unknown", fix=fix)
    return _judge(card, "persisted", "ok")


def _live(have: NicsState, card: Card, persisted: Finding) -> Tuple[List[Finding], Tuple[str, ...]]:
    """Judge the card's current settings, and the firmware that a reset would load. Return why a reboot is needed."""
    if not card.waits:
        if all(setting.current is not None for _one, setting in card.changeable):
            return [_judge(card, "live", "ok")], ()
        fix = "update the card's firmware, which does not report its active settings; after a reboot it is what the"
        return [_judge(card, "live", "unknown", fix=fix + " next boot's settings were")], ()
    image = _image(have, card)
    if persisted.state == "unknown" or isinstance(have.record, Problem):
        cause = persisted if persisted.state == "unknown" else TOOL.finding_id(pending.STORE)
        text = "the value after the next boot is unknown"
        return [image, _judge(card, "live", "unknown", text, because=cause)], ()
    if not image.ok:
        return [image, _judge(card, "live", "drift", fix=image.fix, because=image)], ()
    since = have.record.boot_of(card.address, card.key)
    if since not in (None, have.boot) and persisted.ok:
        fix = "drain the node, power-cycle it through its BMC, then " + _RUN
        fix += "; if that does not load it, declare a value that the card accepts"
        return [image, _judge(card, "live", "drift", "a reboot did not load it", fix)], ()
    note, fix = "waits for a reboot", _RUN + "; or reboot the node"
    live = _judge(card, "live", "drift", note, fix, persisted, "reboot")
    # A reboot does not help if the write failed.
    helps = persisted.ok or not card.failed
    return [image, live], ("NIC %s has settings that wait for a reboot" % card.label,) if helps else ()


def _judge(
    card: Card,
    aspect: str,
    state: str,
    note: str = "",
    fix: Optional[str] = None,
    because: Union[Finding, str, None] = None,
    costs: str = "none",
) -> Finding:
    """Return a finding on the card's settings: those of the next boot (persisted) or the current ones (live)."""
    pairs: List[Tuple[Wanted, Optional[Value]]] = [
        (one, setting.following if aspect == "persisted" else setting.current) for one, setting in card.changeable
    ]
    wrong = ["%s=%s" % (one.name, value or "not reported") for one, value in pairs if not one.matches(value)]
    text = "; ".join(filter(None, (" ".join(wrong) or "all as wanted", note)))
    reasons = [one.why for one, value in pairs if one.differs(value)] or [one.why for one, _value in pairs]
    want, why = wanted.text([one for one, _value in pairs]), "; ".join([*dict.fromkeys(reasons), SETTINGS.why])
    return SETTINGS.judge(
        card.label, state, want, text, card.source, fix, because, why, aspect=aspect, disruption=costs
    )


def _image(have: NicsState, card: Card) -> Finding:
    """Judge the firmware that a reset would load."""
    image = card.image
    if not isinstance(image, Image):
        fix = "install mstflint; then " + _RUN
        return IMAGE.judge(card.label, "unknown", "the running firmware", str(image), tools.FLINT[0], fix)
    declared = have.firmware.get(image.psid)
    state = "drift" if image.pending and image.following != declared else "ok"
    text = "%s in flash, %s runs" % (image.following, image.running)
    source, fix = "%s -d %s query" % (tools.FLINT[0], card.address), IMAGE.fix.replace("%s", card.address)
    return IMAGE.judge(card.label, state, declared or "the running firmware", text, source, fix)
