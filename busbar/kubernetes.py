# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar kubernetes``: write the gate's last verdict as a condition and a taint of the Node.

Runs once: reads, changes what differs, ends. Usually three requests, over HTTPS with the token of a service account;
nothing has to be installed. Only our condition and our taint are ever written. As a plugin of node-problem-detector
(``--problem``) it only reads the verdict. Sources: the API reference of Kubernetes 1.26 to 1.33, Node v1 core (patch of
nodes and of nodes/status; taints are replaced as a whole); kubernetes/node-problem-detector, custom_plugin_monitor.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core import http_client
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.gate import read as gate
from ansible_collections.busbar.fabric.plugins.plugin_utils import findings_file
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import FINDINGS, GOOD, UNKNOWN
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .command_line import complain, number

CONDITION = "BusbarNetworkPath"
TAINT = "busbar.fabric/network-path"
EFFECT = "NoSchedule"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Minutes after which a verdict is too old.
MAX_AGE = 60.0
MAX_SHARE = 0.1
TIMEOUT = 20.0
# Times that a node is read again after another client changed it in between.
ATTEMPTS = 6
PAGE, PAGES, LIMIT = 500, 200, 64 << 20
# The API takes 1,024 characters of a reason and 32,768 of a message.
_MESSAGE = 1000
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
STATUS = {"pass": "True", "warn": "True", "fail": "False", "unknown": "Unknown"}
# Exit codes of a custom plugin of node-problem-detector: no problem, a problem, unknown; others are unknown, too.
PROBLEM = {"pass": 0, "warn": 0, "fail": 1, "unknown": 2}
# Characters of its line that node-problem-detector takes (max_output_length of docs/kubernetes.md).
_LINE = 250
REASON = {"pass": "GatePassed", "warn": "GateWarns", "fail": "GateFailed", "unknown": "GateHasNoVerdict"}


class KubernetesError(RuntimeError):
    """The request failed; the message has the reason, and what to do."""


class Conflict(KubernetesError):
    """Another client has changed the node since it was read."""


@dataclass(frozen=True)
class Verdict:
    """verdict: a key of STATUS.   message: for people.   reason: in CamelCase, as the API wants it."""

    verdict: str
    message: str
    reason: str

    @property
    def status(self) -> str:
        return STATUS[self.verdict]


def add(command: argparse.ArgumentParser) -> None:
    for name, metavar, default, kind, text in (
        ("--node", "NAME", os.environ.get("NODE_NAME"), str, "name of the Node (default: $NODE_NAME)"),
        ("--state", "FILE", Path(gate.STATE), Path, "state of the gate on the node"),
        ("--max-age", "M", MAX_AGE, float, "minutes until the gate's verdict becomes unknown (%(default)g)"),
        ("--max-share", "S", MAX_SHARE, number(0, 1, "share"), "maximum share of nodes with the taint (%(default)g)"),
        ("--selector", "LABELS", "", str, "label selector of the nodes that --max-share counts"),
        ("--server", "URL", None, str, "URL of the API (default: the cluster of this pod)"),
        ("--token-file", "FILE", ACCOUNT / "token", Path, "token of the service account"),
        ("--ca-file", "FILE", ACCOUNT / "ca.crt", Path, "certificate authority of the API"),
    ):
        command.add_argument(name, metavar=metavar, default=default, type=kind, help=text)
    command.add_argument("--check", action="store_true", help="print the changes without making them")
    text = "print the verdict for node-problem-detector and query no API; exit code 0: good, 1: problem, 2: unknown"
    command.add_argument("--problem", action="store_true", help=text)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.problem:
        return _problem(arguments)
    name = arguments.node or ""
    try:
        if not _NAME.fullmatch(name):
            way = "--node NAME, or NODE_NAME from the downward API (spec.nodeName)"
            raise KubernetesError(f"{name!r} is not a name of a Node: {way}")
        verdict = _stored(arguments)
        api = Api.connect(arguments.server, arguments.token_file, arguments.ca_file)
        for line in apply(api, name, verdict, arguments):
            print(printable(line))
    except (KubernetesError, OSError) as error:
        return complain("kubernetes", error)
    return {"True": GOOD, "False": FINDINGS}.get(verdict.status, UNKNOWN)


def _stored(arguments: argparse.Namespace) -> Verdict:
    """Return the gate's last verdict on this node. Raises OSError."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return of_state(arguments.state, arguments.max_age, time.time(), boot_id)


def _problem(arguments: argparse.Namespace) -> int:
    """Print one line, and return the exit code, that node-problem-detector takes."""
    try:
        verdict = _stored(arguments)
    except OSError as error:
        verdict = Verdict("unknown", error_text(error), "GateStateUnreadable")
    print(" ".join(printable(verdict.message).split())[:_LINE])
    return PROBLEM[verdict.verdict]


# -- the verdict -------------------------------------------------------------------------------------------------------


def of_state(path: Path, max_age: float, now: float, boot_id: str) -> Verdict:
    """Return the gate's last verdict; unknown where it is of another boot, old, or cannot be read."""

    def unknown(why: str, reason: str = "GateStateUnreadable") -> Verdict:
        return Verdict("unknown", why, reason)

    try:
        with open(path, "rb") as stream:
            state = gate.parse_state(stream.read(1 << 20).decode())
        verdict, at, boot = state["verdict"], float(state["at"]), state["boot_id"]
        critical = [one for one in state["findings"] if one["severity"] == "critical"] or state["findings"]
        words = "; ".join(f"{one['check']} of {one['subject']}: {one['have']}" for one in critical[:3])
    except FileNotFoundError:
        return unknown(f"{path} is not there: the gate has not run on this node", "GateHasNotRun")
    except OSError as error:
        return unknown(error_text(error))
    except ParseError as error:
        return unknown(f"{path} {error}")
    except (ValueError, LookupError, TypeError, RecursionError):
        return unknown(f"{path} is not a state that the gate has written")
    if boot != boot_id:
        return unknown("the gate has not run since the node was booted", "GateHasNotRun")
    minutes = (now - at) / 60
    if not -5 <= minutes <= max_age:
        return unknown(f"the gate's last verdict is {minutes:.0f} minutes old", "GateVerdictIsOld")
    return Verdict(verdict, (words or f"the gate's verdict is {verdict}")[:_MESSAGE], REASON[verdict])


# -- changes -----------------------------------------------------------------------------------------------------------


def apply(api: Api, name: str, verdict: Verdict, wanted: argparse.Namespace) -> list[str]:
    """Write condition, then taint: people see the condition, whatever happens to the taint. Return the changes.

    Raises KubernetesError.
    """
    did = "would be" if wanted.check else "is"
    for attempt in range(ATTEMPTS):
        node = api.node(name)
        tainted = _tainted(node)
        bad = verdict.verdict == "fail"
        held = _held(api, wanted, tainted) if bad and not tainted else ""
        want = tainted if verdict.verdict == "unknown" else bad and not held
        message = verdict.message + (f" ({held})" if held else "")
        said = [f"{name}: condition {CONDITION} {did} {verdict.status} ({verdict.reason}): {message}"]
        if want != tainted:
            said.append(f"{name}: taint {TAINT}:{EFFECT} {did} {'put there' if want else 'taken away'}")
        elif held:
            said.append(f"{name}: not tainted: {held}")
        if wanted.check:
            return said
        try:
            status = {"status": {"conditions": [_condition(node, verdict, message)]}}
            node = api.patch(f"/api/v1/nodes/{name}/status", status)
            # The node after that: changes of others stay.
            if want != _tainted(node):
                api.patch(f"/api/v1/nodes/{name}", _taint_patch(node, want))
        except Conflict:
            # Each retry waits longer, so that two clients do not collide for ever.
            time.sleep(0.05 * (attempt + 1))
            continue
        if want and not tainted:
            said += _taken_back(api, name, wanted)
        return said
    raise KubernetesError(f"{name} was changed by another client {ATTEMPTS} times while it was read: run it again")


def _held(api: Api, wanted: argparse.Namespace, tainted: bool) -> str:
    nodes = api.nodes(wanted.selector)
    most, there = _most(wanted.max_share, len(nodes)), sum(map(_tainted, nodes))
    held = f"{there} of {len(nodes)} nodes have the taint already, the limit is {most}: is the gate right?"
    return "" if there + (not tainted) <= most else held


def _most(share: float, nodes: int) -> int:
    """Return how many nodes may carry the taint: one at least where any may, and never all."""
    return max(1, min(int(share * nodes), nodes - 1)) if share and nodes > 1 else 0


def _taken_back(api: Api, name: str, wanted: argparse.Namespace) -> list[str]:
    """Remove our taint if it exceeds the limit: several nodes may have seen room for one more at once."""
    if not (held := _held(api, wanted, True)):
        return []
    for _attempt in range(ATTEMPTS):
        with contextlib.suppress(Conflict):
            api.patch(f"/api/v1/nodes/{name}", _taint_patch(api.node(name), False))
            return [f"{name}: taint {TAINT}:{EFFECT} is taken back: {held}"]
    raise KubernetesError(f"{name}: the taint is one too many, and could not be taken back: run it again")


def _taints(node: Plain) -> list[Plain]:
    found = node.get("spec", {}).get("taints") or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise KubernetesError("the API's response has invalid taints")
    return found


def _tainted(node: Plain) -> bool:
    return any(map(_ours, _taints(node)))


def _ours(taint: Mapping[str, object]) -> bool:
    """Return whether a taint is ours; with another effect another client has set it."""
    return taint.get("key") == TAINT and taint.get("effect") == EFFECT


def _taint_patch(node: Plain, want: bool) -> Plain:
    """Return the patch with the taints of others unchanged: the API replaces the list. Refused after a change."""
    taints = [one for one in _taints(node) if not _ours(one)]
    if want:
        taints.append({"key": TAINT, "effect": EFFECT, "timeAdded": findings_file.now()})
    return {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": taints or None}}


def _condition(node: Plain, verdict: Verdict, message: str) -> Plain:
    """Return the patch: a strategic merge joins conditions by type, so that no other is touched."""
    there = [one for one in node.get("status", {}).get("conditions") or [] if one.get("type") == CONDITION]
    since = there[0].get("lastTransitionTime") if there and there[0].get("status") == verdict.status else None
    return {
        "type": CONDITION,
        "status": verdict.status,
        "reason": verdict.reason,
        "message": printable(message),
        "lastHeartbeatTime": findings_file.now(),
        "lastTransitionTime": since or findings_file.now(),
    }


# -- the API -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Api:
    """The needed part of the API, without redirects and proxies.

    token_file: read for each request, since the kubelet writes a new one every hour; None for no token.
    """

    server: str
    token_file: Path | None
    ca_file: Path

    @staticmethod
    def connect(server: str | None, token_file: Path, ca_file: Path) -> Api:
        """Return the API of a server. Raises KubernetesError."""
        if server is None:
            host, port = (os.environ.get(f"KUBERNETES_SERVICE_{what}") for what in ("HOST", "PORT"))
            if not host or not port:
                way = "use --server, such as http://127.0.0.1:8001 with `kubectl proxy`"
                raise KubernetesError(f"this is not a pod (KUBERNETES_SERVICE_HOST): {way}")
            server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        return Api(server, None if server.startswith("http://") else token_file, ca_file)

    def node(self, name: str) -> Plain:
        return _node(self._request("GET", f"/api/v1/nodes/{name}"))

    def nodes(self, selector: str) -> list[Plain]:
        found: list[Plain] = []
        more = ""
        for _page in range(PAGES):
            query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {})}
            query |= {"continue": more} if more else {}
            page = self._request("GET", "/api/v1/nodes?" + urllib.parse.urlencode(query))
            found += page.get("items") or []
            more = (page.get("metadata") or {}).get("continue") or ""
            if not more:
                return found
        raise KubernetesError(f"the API's list of nodes did not end within {PAGES} pages")

    def patch(self, path: str, patch: Mapping[str, object]) -> Plain:
        """Patch by a strategic merge. Return the node after it. Raises Conflict, KubernetesError."""
        return _node(self._request("PATCH", path, patch))

    def _request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Plain:
        headers = {"Accept": "application/json", "User-Agent": "busbar"}
        if body is not None:
            headers["Content-Type"] = "application/strategic-merge-patch+json"
        try:
            status, text = http_client.request(
                self.server.rstrip("/") + path,
                method,
                None if body is None else json.dumps(body).encode(),
                headers,
                authorization=f"Bearer {self.token_file.read_text('ascii').strip()}" if self.token_file else "",
                ca_file=self.ca_file,
                seconds=TIMEOUT,
                limit=LIMIT,
            )
        except UnicodeDecodeError:
            raise KubernetesError(f"--token-file {self.token_file} is not ASCII") from None
        except http_client.HttpError as error:
            raise KubernetesError(str(error)) from error
        data = None
        with contextlib.suppress(ValueError, RecursionError):
            data = json.loads(text)
        if status == 409:
            raise Conflict(_status_message(data))
        if status != 200 or not isinstance(data, dict):
            said = f"{status}: {_status_message(data)}{_WAYS_OUT.get(status, '')}"
            raise KubernetesError(f"{method} {path.partition('?')[0]}: {said}")
        return data


def _node(data: Plain) -> Plain:
    meta = data.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("resourceVersion"), str):
        raise KubernetesError("the API's response is not a Node")
    return data


def _status_message(data: object) -> str:
    return str(data.get("message", ""))[:300] if isinstance(data, dict) else "no response from a Kubernetes API"


_WAYS_OUT = {
    401: "; the token is not taken: does the pod have a service account (automountServiceAccountToken)",
    403: "; the service account lacks the ClusterRole of docs/kubernetes.md#node-condition",
    404: "; there is no such Node: --node is its name in kubectl get nodes",
}
