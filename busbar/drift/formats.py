# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write a report in every requested format, and the findings file of the run (docs/findings.md)."""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.plugin_utils import accepted, findings_file, suite
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from . import html, junit, output, prometheus, text
from .history import History
from .inventory import Manifest
from .related_results import RelatedResults
from .run import HostResult, Run

RESULTS = Path("busbar-results")
FORMATS = {
    "json": "everything as JSON",
    "junit": "JUnit XML for CI",
    "prometheus": "metrics for node_exporter's textfile collector",
    "html": "one HTML page",
}


def emit(
    arguments: argparse.Namespace,
    data: Plain,
    nights: History,
    manifest: Manifest | None,
    again: Sequence[str],
    more: Mapping[str, Callable[[], str]] | None = None,
) -> None:
    """Write every output; the verdict goes to standard output where nothing else goes there.

    manifest: of the inventory, None where none is named. again: shows the run. more: outputs of a run.
    """
    day = datetime.date.fromisoformat(data["run"]["started"][:10])
    known = manifest or Manifest((), (), False)
    results = arguments.results or Path(known.results or RESULTS)
    related = RelatedResults(results, data["run"]["ended"], known.secrets, known.max_age_days)
    data = {**data, "related": related.sections()}
    makers: dict[str, Callable[[], str]] = {
        "json": lambda: json.dumps(_with_evidence(data), indent=1, sort_keys=True) + "\n",
        "junit": lambda: junit.render(data),
        "prometheus": lambda: prometheus.render(data, nights.complete(data["run"]["id"])),
        "html": lambda: html.render(data),
        **(more or {}),
    }
    targets = {name: output.dated(getattr(arguments, name), day) for name in makers if getattr(arguments, name, None)}
    failed = None
    for name, target in targets.items():
        try:
            # node_exporter is another user, and its file holds no value of a node.
            output.write(target, makers[name](), 0o644 if name == "prometheus" else arguments.mode)
        except OSError as error:
            failed = error
    if "-" not in targets.values():
        print(text.rendered(data, again, verbose=arguments.verbose), end="", flush=True)
    if failed:
        # The verdict comes first.
        raise failed


def _with_evidence(data: Plain) -> dict[str, object]:
    hosts = {
        name: {**host, "evidence": findings_file.unpacked(host["evidence"])} for name, host in data["hosts"].items()
    }
    return {**data, "hosts": hosts}


def findings(run: Run, manifest: Manifest, hosts: Mapping[str, HostResult]) -> str:
    """Return the findings file of a finished run of `busbar drift`."""
    ended, inventory = run.ended or findings_file.now(), run.inventory.split("\n")
    where = (inventory, run.limit, manifest.group, run.simulated, run.commit)
    day = datetime.date.fromisoformat(run.started[:10])
    data = {
        "check_mode": True,
        "expected": suite.judged(nightly=True),
        "left_out": [],
        "run": findings_file.of_run(run.started, ended, *where),
        "hosts": {name: _of_host(host, day) for name, host in hosts.items()},
    }
    return "".join(findings_file.text(data, lambda name: findings_file.unpacked(hosts[name].evidence)))


def _of_host(host: HostResult, day: datetime.date) -> Plain:
    """Return a host's entry, with standing and accepted findings: repairs read the first only."""
    of = accepted.covered(host.findings, host.acceptances, day)
    return {
        **{key: getattr(host, key) for key in ("end", "intent", "busbw", "notes", "health")},
        "findings": [finding.to_dict() for finding in host.findings if finding.id not in of],
        "accepted": [finding.to_dict() for finding in host.findings if finding.id in of],
        "passed_ids": sorted(host.passed),
        "acceptances": [entry.to_dict() for entry in host.acceptances],
    }
