# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs the playbook drift.yml and says how it ended for every host."""

from __future__ import annotations

import json
import re
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils import secrets
from ansible_collections.busbar.fabric.plugins.module_utils.finding import Finding, from_dict, printable

from .. import ansible_process
from .inventory import Manifest
from .progress import Progress
from .run import HostResult

PLAYBOOK = "busbar.fabric.drift"
# What fleet_audit says meanwhile.
HEARD = re.compile(r"(\d+) of \d+ hosts have answered")


class RunnerError(RuntimeError):
    """The run told nothing about any host; the message says why."""


class Interrupted(RuntimeError):
    """Somebody ended the run: a signal, or the time for all of it."""


@dataclass
class _Watch:
    """Hosts that an event of the run told something about that a findings file cannot."""

    progress: Progress
    ends: dict[str, str] = field(default_factory=dict)
    failed: str = ""

    def __call__(self, event: Mapping[str, Any]) -> bool:
        """False: the runner keeps no file of the event. There would be two for each task of each host."""
        name, data = event.get("event", ""), event.get("event_data") or {}
        host, result = data.get("host"), data.get("res")
        if name == "playbook_on_task_start":
            self.progress.task(printable(str(data.get("task") or "")))
        elif heard := HEARD.fullmatch(str(event.get("stdout") or "").strip()):
            self.progress.answered(int(heard[1]))
        if host and name == "runner_on_unreachable":
            self.ends[host] = "unreachable"
        elif host and name == "runner_on_failed" and isinstance(result, dict):
            self.failed = self.failed or str(result.get("msg") or "")
            if result.get("timedout"):
                self.ends[host] = "timed_out"
        return False


def run(
    inventory: Sequence[Path],
    limit: str | None,
    manifest: Manifest,
    progress: Progress,
    forks: int | None,
    host_timeout: int,
    timeout: int,
) -> dict[str, HostResult]:
    """Host -> result, for every host of the manifest.

    host_timeout: seconds for one task on one host. timeout: for the whole run. Raises RunnerError, Interrupted.
    """
    watch = _Watch(progress)
    variables = {"ANSIBLE_TASK_TIMEOUT": str(host_timeout)}
    if forks:
        variables["ANSIBLE_FORKS"] = str(forks)
    with tempfile.TemporaryDirectory(prefix="busbar-drift-") as private, _signals() as ended:
        file = Path(private) / "findings.json"
        done = ansible_process.run(
            private_data_dir=private,
            inventory=[str(path.resolve()) for path in inventory],
            playbook=PLAYBOOK,
            cmdline="--check",
            limit=limit,
            extravars={"busbar_findings_path": str(file), "drift_host_timeout": host_timeout},
            envvars=variables,
            event_handler=watch,
            cancel_callback=lambda: bool(ended),
            timeout=timeout,
        )
        if ended:
            raise Interrupted(f"ended by {signal.Signals(ended[0]).name}")
        # Ansible ends with 2 for drift and for its own mistakes: the file alone says that there is a verdict.
        if file.exists():
            return results(json.loads(file.read_text(encoding="utf-8")), manifest, watch.ends)
        if done.status == "timeout":
            return results({"hosts": {}}, manifest, watch.ends)
        said = watch.failed or _tail(done.stdout.read())
        raise RunnerError(clean(f"ansible-playbook {done.status}, rc {done.rc}: {said}", manifest.secrets))


def clean(text: str, hidden: tuple[str, ...]) -> str:
    """One line that holds no secret and commands no terminal."""
    return printable(" ".join(secrets.scrub(text, hidden).split()))[:2000]


def _tail(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "[ERROR]" in line or "ERROR!" in line]
    said = " ".join(errors[:3] or lines[-3:]) or "it said nothing"
    if f"{PLAYBOOK} could not be found" in said:
        said += (
            "; it is in the collection busbar.fabric: install busbar with pip beside Ansible, or the collection with"
            " ansible-galaxy, or let collections_path of ansible.cfg name where it is"
        )
    return said


def results(data: Mapping[str, Any], manifest: Manifest, ends: Mapping[str, str]) -> dict[str, HostResult]:
    """Every host of the manifest with what the findings file and the events say of it."""
    found = {}
    for name in manifest.hosts:
        host = printable(name)
        said = data["hosts"].get(name)
        if said is None:
            found[host] = HostResult(host, ends.get(name, "not_run"), (not_asked(host, ends.get(name)),))
            continue
        findings = tuple(_clean(from_dict(item), manifest.secrets) for item in said["findings"])
        silent = any(finding.check.startswith("run.") for finding in findings)
        found[host] = HostResult(
            host=host,
            end=said.get("end") or (ends.get(name, "incomplete") if silent else "complete"),
            findings=findings,
            passed=frozenset(printable(item) for item in said["passed_ids"]),
            intent=said["intent"],
            busbw=said["busbw"],
        )
    return found


def not_asked(host: str, end: str | None) -> Finding:
    """What stands in the report for a host that the verdict does not know."""
    return Finding(
        check="run.host",
        subject="host",
        state="unknown",
        severity="critical",
        want="an answer",
        have={"unreachable": "unreachable", "timed_out": "no answer in time"}.get(end or "", "not asked in time"),
        source="ansible-playbook",
        why="a host that did not answer counts like a host that is wrong",
        fix="check that the node is up and that ssh to it works, then run busbar drift again with --limit",
    )


def _clean(finding: Finding, hidden: tuple[str, ...]) -> Finding:
    """No secret, and no character that a terminal obeys: from here on every text can be shown as it is."""
    data = secrets.scrub_finding(finding, hidden).to_dict()
    del data["id"]
    return from_dict({key: printable(value) if isinstance(value, str) else value for key, value in data.items()})


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGTERM and SIGINT instead of dying, so that Ansible is ended, too, and the history says it."""
    got: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda number, frame: got.append(number))
    try:
        yield got
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
