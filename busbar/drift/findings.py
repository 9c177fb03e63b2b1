# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the findings file of a run of ``busbar drift``, as the playbooks write theirs (docs/findings.md)."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from ansible_collections.busbar.fabric.plugins.plugin_utils import accepted, findings_file, suite

from .inventory import Manifest
from .run import HostResult, Run


def render(run: Run, manifest: Manifest, hosts: Mapping[str, HostResult]) -> str:
    """Return the findings file of a finished run of `busbar drift`."""
    data = {
        "check_mode": True,
        "expected": suite.judged(nightly=True),
        "left_out": [],
        "run": findings_file.of_run(
            run.started,
            run.ended or findings_file.now(),
            run.inventory.split("\n"),
            run.limit,
            manifest.group,
            run.simulated,
            run.commit,
        ),
        "hosts": {
            name: {
                "end": host.end,
                **_findings(host, datetime.date.fromisoformat(run.started[:10])),
                "passed_ids": sorted(host.passed),
                "intent": host.intent,
                "busbw": host.busbw,
                "notes": host.notes,
                "health": host.health,
                "acceptances": [entry.to_dict() for entry in host.acceptances],
            }
            for name, host in hosts.items()
        },
    }
    return "".join(findings_file.text(data, lambda name: findings_file.unpacked(hosts[name].evidence)))


def _findings(host: HostResult, day: datetime.date) -> dict[str, list[dict[str, str | None]]]:
    """Return standing and accepted findings: repairs read the first only."""
    of = accepted.covered(host.findings, host.acceptances, day)
    found: dict[str, list[dict[str, str | None]]] = {"findings": [], "accepted": []}
    for finding in host.findings:
        found["accepted" if finding.id in of else "findings"].append(finding.to_dict())
    return found
