# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A history of nights of a simulated fleet, for tests of the reports: racks of 32, one switch fault, some drift.

By hand: python -m tests.report.fleet DIRECTORY [HOSTS].
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding

from busbar.drift import command, html
from busbar.drift.history import History
from busbar.drift.run import HostResult, Run

NIGHTS = 12
MARKUP = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
CHECKS = [f"platform.check_{i}[live]@0000:{i:02x}:00.0" for i in range(90)] + ["nccl_perf.busbw[live]@all_reduce"]
RAIL = "platform.rail_state[live]@rail 3"
LIMITS = "host_limits.login[persisted]@/etc/security/limits.d/99-busbar.conf"
NVLINKS = "platform.nvlinks[live]@0000:c3:00.0"
RUNS = ("all_gather-8G", "all_reduce-8G", "reduce_scatter-8G", "alltoall-8G", "broadcast-8G", "sendrecv-8G")


def finding(check: str, subject: str, want: str, have: str, **more: Any) -> Finding:
    why = "a simulated reason why this matters to a job that waits for the slowest of its nodes"
    given: dict[str, Any] = {"state": "drift", "severity": "major", "source": "simulated", "why": why}
    given["fix"] = "run site.yml --tags host_limits for this host"
    return Finding(check=check, subject=subject, want=want, have=have, **(given | more))


def names(hosts: int) -> list[str]:
    return [f"gpu-r{i // 32 + 1:02}-{i % 32 + 1:02}" for i in range(hosts)]


def night(hosts: int, number: int, chance: random.Random) -> dict[str, HostResult]:
    """The hosts of a night; the last one has the most to tell."""
    found = {}
    last = number == NIGHTS
    for place, host in enumerate(names(hosts)):
        findings = []
        down = place in (7, 300, 301) or (last and place in (11, 12, 640))
        if last and 96 <= place < 186:
            cable = {"severity": "critical", "fix": "check the switch port and the cable of the rail"}
            findings.append(finding("platform.rail_state", "rail 3", "ACTIVE", "DOWN (Polling)", **cable))
            gone = {"state": "unknown", "severity": "critical", "because": RAIL}
            findings.append(finding("nccl_conf.rails", "rail 3", "a device", "none", **gone))
        if number > 4 and place % 32 == 5:
            path = "/etc/security/limits.d/99-busbar.conf"
            low = ("memlock unlimited", "memlock 8 MiB")
            findings.append(finding("host_limits.login", path, *low, aspect="persisted"))
        if last and place == 41:
            findings.append(finding("platform.nvlinks", "0000:c3:00.0 GPU5", "18 active", "17 active"))
        if place == 77 and number % 2 == 0:
            drivers = {"disruption": "driver", "fix": "run site.yml --tags nvidia_peermem for this host"}
            findings.append(finding("gpudirect.path", "nvidia_peermem", "loaded", "not loaded", **drivers))
        if last and place == 200:
            findings.append(finding("nccl_conf.file", MARKUP, f"{MARKUP} & wanted", f"'{MARKUP}\" onload=x ]]>"))
        if last and 500 <= place < 560:
            findings.append(finding("ofed.loaded", "mlx5_core", "24.10", f"build {place} of this very host"))
        passed = {*CHECKS, RAIL, LIMITS, NVLINKS, "gpudirect.path[live]@nvidia_peermem"}
        if not (last and 96 <= place < 186):
            passed.add("nccl_conf.rails[live]@rail 3")
        if down:
            gone = {"state": "unknown", "severity": "critical", "fix": "check that the node is up and that ssh works"}
            findings = [finding("run.platform", "platform", "a result", "unreachable: no route to host", **gone)]
            passed = set()
        slow = 0.9 if place == 123 else 1.0
        figure = {"bar": 320.0, "finished": number, "simulated": True}
        busbw = {name: {"busbw": chance.gauss(365, 1.5) * slow, **figure} for name in (() if down else RUNS)}
        end = "unreachable" if down else "complete"
        well = frozenset(passed - {item.id for item in findings})
        found[host] = HostResult(host, end, tuple(findings), well, "one", busbw)
    if last:
        found[MARKUP] = HostResult(MARKUP, "complete", (), frozenset(CHECKS), "one")
    return found


def waivers() -> tuple[dict[str, str], ...]:
    given = {"owner": "anna", "reason": f"part on its way {MARKUP}", "expires": "2026-12-31"}
    late = {"check": "platform.nvlinks", "hosts": "gpu-r01-01", "owner": "otto", "reason": "old"}
    return ({"check": "run.*", "hosts": "gpu-r01-08", **given}, {**late, "expires": "2026-11-01"})


def write(path: Path, hosts: int) -> dict[str, Any]:
    """Fills a history, and the report of its last night."""
    chance = random.Random(1)
    data: dict[str, Any] = {}
    with History.create(path) as nights:
        for number in range(1, NIGHTS + 1):
            of_site = ("/srv/site/inventory", None, "0.2.0", "busbar", "0123456789ab", True, "minor", waivers())
            begun = Run(0, f"2026-11-{9 + number:02}T02:00:00Z", None, "running", *of_site)
            run = replace(begun, id=nights.begin(begun))
            data = command.store(run, night(hosts, number, chance), nights)
    return data


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    data = write(folder / "drift.sqlite", int(sys.argv[2]) if sys.argv[2:] else 1000)
    (folder / "report.html").write_text(html.render(data), encoding="utf-8")
