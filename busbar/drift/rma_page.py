# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a vendor asks for, on one page for each device that something is wrong with: which part, where, since when.

``busbar report --rma DIRECTORY``. From the history, the action log, and the record that remediation has kept of a node.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, identity
from ansible_collections.busbar.fabric.plugins.module_utils.health import judge_gpu
from ansible_collections.busbar.fabric.plugins.module_utils.machine import platform
from ansible_collections.busbar.fabric.plugins.plugin_utils import answer, results_folder, rma_record

from . import health, html
from .beside import Beside, moment
from .history import History
from .report import OPEN
from .run import HostResult, Run

# Pages of a night; nights and attempts of a page; counters of a night; bytes of a record.
PAGES, NIGHTS, ATTEMPTS, COUNTERS, BYTES = 200, 60, 100, 6, 4 << 20
# Checks of a device itself, not of how it is set up; those of ``_ABSENT`` name a device without an address.
_CHECKS = (
    "node_health.",
    *(
        check.id
        for check in (
            *(platform.GPU_DRIVER, platform.GPU_PCIE, platform.NVLINKS, platform.PCIE_LINK),
            *(platform.RAIL_STATE, platform.RAIL_RATE, platform.RAIL_PCIE),
        )
    ),
)
_ABSENT = (platform.GPU_COUNT.id, platform.RAIL_DEVICE.id)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Devices of a host that are named.
_NAMED = 8
_PARTS = ("product", "serial", "part", "revision", "firmware", "slot", "guid", "psid", "uuid")
_NAMES = {"part": "part number", "serial": "serial number", "guid": "GUID", "psid": "PSID", "uuid": "UUID"}


@dataclass(frozen=True)
class Device:
    """One part of a node, by its PCI address; one that has none any more by what the finding names."""

    host: str
    pci: str

    @property
    def file(self) -> str:
        return f"{results_folder.file_name(self.host)}-{re.sub('[^A-Za-z0-9]', '-', self.pci)}.html"


def wrong(data: Mapping[str, Any]) -> list[Device]:
    """Return the devices that have a finding in a report, by host and address."""
    found = {
        Device(host, identity(one["subject"])): None
        for host, said in data["hosts"].items()
        for one in said["findings"]
        if _is_of_device(one) and (one["state"] == "drift" or _is_lost(one))
    }
    return sorted(found, key=lambda device: (device.host, device.pci))


def _is_of_device(finding: Mapping[str, Any]) -> bool:
    # Of what is no device the whole subject is what lasts.
    named = _ADDRESS.fullmatch(identity(finding["subject"])) is not None
    check = str(finding["check"])
    return check in _ABSENT or (named and check.startswith(_CHECKS))


def _is_lost(finding: Mapping[str, object]) -> bool:
    """Whether nvidia-smi itself reports that a GPU failed to answer."""
    return (finding["check"], finding["severity"]) == (judge_gpu.GPU_ANSWERS.id, "critical")


def not_judged(data: Mapping[str, Any], hosts: Mapping[str, HostResult]) -> list[str]:
    """Return what no page says anything about: hosts whose devices were not judged, and devices without a verdict."""
    found = []
    for host, said in data["hosts"].items():
        checks = {one["check"] for one in said["findings"]} | set(hosts[host].passed)
        devices = {
            identity(one["subject"]): None
            for one in said["findings"]
            if _is_of_device(one) and one["state"] == "unknown" and not _is_lost(one)
        }
        if said["class"] in OPEN[:3] or not any(name.startswith(_CHECKS[0]) for name in checks):
            found.append(f"{host}: {said['class'].replace('_', ' ')}, its devices were not checked")
        elif devices:
            more = f" and {len(devices) - _NAMED} more" if len(devices) > _NAMED else ""
            found.append(f"{host}: some checks of {', '.join([*devices][:_NAMED])}{more} are unknown")
    return found


def page(device: Device, run: Run, nights: History, beside: Beside) -> dict[str, Any]:
    """All that the page says."""
    growth = nights.health_of(run, device.host, NIGHTS)
    said = nights.of_device(run, device.host, device.pci)
    known: Mapping[str, Any] = {}
    rows = []
    for started, devices in growth:
        one = next((item for item in devices if item["pci"] == device.pci), None)
        # The newest that tells of the part itself; a later night may have had no answer.
        known = one or known
        findings = [_finding(finding) for night, finding in said if night == started]
        grown = sorted(health.per_day(one).items(), key=lambda item: -item[1]) if one else []
        told = [f"{name} {health.shown(name, value)}" for name, value in grown[:COUNTERS]]
        rows.append({"night": started, "findings": findings, "grown": told, "more": len(grown[COUNTERS:])})
    kept, at = _record(device, beside)
    parts = _parts(device, known, kept or {})
    last = [finding for night, finding in said if night == run.started]
    return {
        "host": device.host,
        "pci": device.pci,
        "name": known.get("name", ""),
        "run": {"id": run.id, "started": run.started, "version": run.version},
        "simulated": run.simulated,
        "parts": [(_NAMES.get(name, name), value) for name, value in parts.items()],
        "board": _board(kept or {}, beside),
        "record": at,
        "now": [{**_finding(one), "why": one.why, "fix": one.fix, "severity": one.severity} for one in last],
        "nights": [row for row in reversed(rows) if row["findings"] or row["grown"]],
        "asked": len(rows),
        "first": said[0][0] if said else None,
        "attempts": _attempts(device, beside),
    }


def render(data: Mapping[str, Any]) -> str:
    return html.standing(data, "rma.html.j2")


def _finding(finding: Finding) -> dict[str, Any]:
    return {"check": finding.check, "state": finding.state, "have": finding.have or "-", "want": finding.want or "-"}


def _record(device: Device, beside: Beside) -> tuple[Mapping[str, Any] | None, str]:
    """The hardware of the newest record that remediation has kept of the node, and when that was."""
    folder = beside.results / rma_record.FOLDER
    name = re.compile(re.escape(results_folder.file_name(device.host)) + r"-([0-9]{8}T[0-9]{6}Z)(-[0-9]+)?\.json")
    try:
        names = sorted(entry for entry in os.listdir(folder) if name.fullmatch(entry))
    except OSError:
        return None, ""
    for entry in reversed(names):
        data = _read(folder / entry)
        if data is not None and data.get("host") == device.host and answer.is_valid(answer.hardware, data["hardware"]):
            return data["hardware"], moment(float(data["at"]))
    return None, ""


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as stream:
            data = json.loads(stream.read(BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    at = data.get("at") if isinstance(data, dict) else None
    good = isinstance(at, int | float) and isinstance(data.get("hardware"), dict)
    return data if good else None


def _parts(device: Device, known: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, str]:
    """What names the part: as the node has said it last, else as the record has it."""
    listed = [one for one in (*kept.get("gpus", ()), *kept.get("nics", ())) if one.get("pci") == device.pci]
    of_record = {**(listed[0] if listed else {})}
    of_record.setdefault("firmware", of_record.get("vbios"))
    found = {name: known.get(name) or of_record.get(name) for name in _PARTS}
    return {name: str(value) for name, value in found.items() if value}


def _board(kept: Mapping[str, Any], beside: Beside) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), beside.text(str(value))) for name, value in (kept.get("board") or {}).items()]


def _attempts(device: Device, beside: Beside) -> list[dict[str, str]]:
    _found, log = beside.actions
    entries = [one for one in log.entries if one.host == device.host] if log else []
    mine = [one for one in entries if identity(one.subject) == device.pci]
    return [
        {
            "at": moment(one.at),
            "what": beside.text(" ".join(filter(None, (one.action, one.role)))),
            "outcome": beside.text(one.outcome),
            "why": beside.text(one.why),
        }
        for one in mine[-ATTEMPTS:]
    ]


def written(data: Mapping[str, object], run: Run, nights: History, beside: Beside) -> tuple[dict[str, str], int]:
    """Name of a file -> page, and the number of devices left out."""
    devices = wrong(data)
    return {one.file: render(page(one, run, nights, beside)) for one in devices[:PAGES]}, len(devices[PAGES:])
