# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Render the report for node_exporter's textfile collector, without a series per node: a thousand are too many."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping

from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

_HELP = {
    "busbar_drift_last_run_timestamp_seconds": "End of the last run; alert when it is older than a day.",
    "busbar_drift_last_complete_timestamp_seconds": "End of the last run in which every host returned a full result.",
    "busbar_drift_duration_seconds": "How long the last run took.",
    "busbar_drift_exit_code": "0 in sync, 2 drift, 3 something could not be judged.",
    "busbar_drift_hosts": "Hosts by the class in which they ended.",
    "busbar_drift_finding_hosts": "Hosts with a finding, by check, severity and state; accepted ones are left out.",
    "busbar_drift_findings": "Findings as the report lists them, by severity; accepted ones are left out.",
    "busbar_drift_following": "Findings that others cause.",
    "busbar_drift_changes": "Findings that are new, standing, fixed, gone, unverified or flapping.",
}


def render(report: Plain, complete: str | None) -> str:
    """Return the metrics. complete: end of the last run with a full result of every host, None without one."""
    run, counts = report["run"], report["counts"]
    common = {"simulated": "true"} if report["simulated"] else {}
    ended, duration = _seconds(run["ended"]), _seconds(run["ended"]) - _seconds(run["started"])
    plain = {"last_run_timestamp_seconds": ended, "duration_seconds": duration, "exit_code": report["exit_code"]}
    plain |= {"last_complete_timestamp_seconds": _seconds(complete)} if complete else {}
    plain |= {"following": counts["follow"]}
    samples: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in _HELP}
    for name, value in plain.items():
        samples[f"busbar_drift_{name}"].append(({}, value))
    samples["busbar_drift_hosts"] += [({"class": name}, number) for name, number in counts["hosts"].items()]
    standing = {group["fingerprint"] for group in report["groups"]}
    of_check: Counter[tuple[str, str, str]] = Counter()
    for host in report["hosts"].values():
        found = [finding for finding in host["findings"] if finding["group"] in standing]
        of_check.update({(finding["check"], finding["severity"], finding["state"]) for finding in found})
    for (check, severity, state), number in sorted(of_check.items()):
        labels = {"check": check, "severity": severity, "state": state}
        samples["busbar_drift_finding_hosts"].append((labels, number))
    samples["busbar_drift_findings"] += [({"severity": name}, number) for name, number in counts["severity"].items()]
    for kind in ("new", "standing", "fixed", "gone", "unverified", "flapping"):
        samples["busbar_drift_changes"].append(({"kind": kind}, counts[kind]))
    lines = []
    for name, found in samples.items():
        lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_labels({**labels, **common})} {value:.15g}" for labels, value in found]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    # Checks, classes and severities are words of the suite: nothing in them needs an escape.
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""


def _seconds(moment: str) -> float:
    return datetime.datetime.fromisoformat(moment).timestamp()
