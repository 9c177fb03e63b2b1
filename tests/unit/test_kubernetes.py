# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar kubernetes`` against a small server of our own that answers as the API reference says (Node v1 core).

No kube-apiserver can be had where these tests run: what the real one does beyond this is not tested.
"""

from __future__ import annotations

import contextlib
import json
import re
import socketserver
import ssl
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar import cli
from busbar import kubernetes as command
from busbar.kubernetes import CONDITION, EFFECT, TAINT

TOKEN = "hush-token"
OURS = {"key": TAINT, "effect": EFFECT}
OTHER = {"key": "node.kubernetes.io/unschedulable", "effect": EFFECT}
FINDING = {"check": "platform.gpus", "subject": "host", "have": "7 of 8", "severity": "critical"}
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastTransitionTime": "t0"}


class Cluster(ThreadingHTTPServer):
    """nodes: name -> Node.   interfere: called with each node just before it is patched.   tokens: of all requests."""

    request_queue_size = 128

    def __init__(self, *names: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.nodes: dict[str, dict[str, Any]] = {name: node(name) for name in names}
        self.interfere: Callable[[dict[str, Any]], None] = lambda _node: None
        self.tokens: list[str | None] = []
        self.status = 200
        self.lock = threading.Lock()

    def conditions(self, name: str) -> dict[str, dict[str, Any]]:
        return {one["type"]: one for one in self.nodes[name]["status"]["conditions"]}

    def taints(self, name: str) -> list[dict[str, Any]]:
        """Without the moment at which they were put there."""
        found = self.nodes[name]["spec"].get("taints", [])
        return [{key: value for key, value in one.items() if key != "timeAdded"} for one in found]


def node(name: str, *taints: dict[str, Any], **labels: str) -> dict[str, Any]:
    spec = {"taints": list(taints)} if taints else {}
    metadata = {"name": name, "resourceVersion": "1", "labels": labels}
    return {"kind": "Node", "metadata": metadata, "spec": spec, "status": {"conditions": [dict(READY)]}}


def touch(one: dict[str, Any]) -> None:
    one["metadata"]["resourceVersion"] = str(int(one["metadata"]["resourceVersion"]) + 1)


class Handler(BaseHTTPRequestHandler):
    server: Cluster

    def log_message(self, *_words: Any) -> None:
        pass

    def answer(self, status: int, data: Any) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def refuse(self, status: int, message: str) -> None:
        self.answer(status, {"kind": "Status", "status": "Failure", "message": message, "code": status})

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        self.server.tokens.append(self.headers["Authorization"])
        if self.server.status != 200:
            self.refuse(self.server.status, "nodes is forbidden")
        return self.server.status == 200

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        name = url.path.removeprefix("/api/v1/nodes").strip("/")
        if name:
            found = self.server.nodes.get(name)
            return self.answer(200, found) if found else self.refuse(404, f'nodes "{name}" not found')
        query = dict(urllib.parse.parse_qsl(url.query))
        key, _equals, value = query.get("labelSelector", "").partition("=")
        every = [one for one in self.server.nodes.values() if not key or one["metadata"]["labels"].get(key) == value]
        first, limit = int(query.get("continue", 0)), int(query["limit"])
        more = str(first + limit) if first + limit < len(every) else ""
        metadata = {"resourceVersion": "9", **({"continue": more} if more else {})}
        return self.answer(200, {"kind": "NodeList", "metadata": metadata, "items": every[first : first + limit]})

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Content-Type"] == "application/strategic-merge-patch+json"
        name, _slash, part = self.path.removeprefix("/api/v1/nodes/").partition("/")
        with self.server.lock:
            there = self.server.nodes[name]
            self.server.interfere(there)
            version = body.get("metadata", {}).get("resourceVersion")
            if version not in (None, there["metadata"]["resourceVersion"]):
                return self.refuse(409, "the object has been modified; please apply your changes to the latest version")
            # The subresource takes the status and nothing else, the node all else.
            if part == "status":
                conditions = {one["type"]: one for one in there["status"]["conditions"]}
                for one in body["status"]["conditions"]:
                    conditions[one["type"]] = {**conditions.get(one["type"], {}), **one}
                there["status"]["conditions"] = list(conditions.values())
            elif body["spec"]["taints"] is None:
                there["spec"].pop("taints", None)
            else:
                there["spec"]["taints"] = body["spec"]["taints"]
            touch(there)
            return self.answer(200, deepcopy(there))


@contextlib.contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    server = Cluster(*(f"gpu-{number:02}" for number in range(20)))
    with serving(server):
        yield server


STORED: dict[str, Any] = {
    "verdict": "pass",
    "stage": "health",
    "action": "none",
    "findings": [],
    "history": [],
    "kept_out": None,
}


@pytest.fixture(autouse=True)
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with the gate's state of this boot, for each verdict, in the working directory."""
    monkeypatch.chdir(tmp_path)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for verdict in command.STATUS:
        state = {**STORED, "verdict": verdict, "at": time.time(), "boot_id": boot_id, "findings": [FINDING]}
        Path(verdict).write_text(json.dumps(state))


def run(cluster: Cluster, verdict: str, *more: str, name: str = "gpu-00") -> int:
    return cli.main(["kubernetes", "--node", name, "--server", cluster.url, "--state", verdict, *more])


THEIRS = {**OURS, "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("before", "runs"),
    [
        # What others have put there is as it was.
        ([OTHER], [("fail", 2, "False", [OTHER, OURS]), ("pass", 0, "True", [OTHER])]),
        ([], [("fail", 2, "False", [OURS]), ("warn", 0, "True", [])]),
        # An unknown verdict leaves the taint as it is.
        ([], [("unknown", 3, "Unknown", [])]),
        ([OURS], [("unknown", 3, "Unknown", [OURS])]),
        # Another effect of the same key is another client's.
        ([THEIRS], [("fail", 2, "False", [THEIRS, OURS]), ("pass", 0, "True", [THEIRS])]),
    ],
)
def test_a_bad_node_gets_the_condition_and_the_taint_and_a_good_one_loses_it(
    cluster: Cluster, before: list[Any], runs: list[tuple[str, int, str, list[Any]]]
) -> None:
    cluster.nodes["gpu-00"] = node("gpu-00", *before)
    for verdict, code, status, taints in runs:
        assert run(cluster, verdict) == code
        found = cluster.conditions("gpu-00")
        assert (found[CONDITION]["status"], found["Ready"]) == (status, READY)
        assert found[CONDITION]["message"] == "platform.gpus of host: 7 of 8"
        assert (found[CONDITION]["reason"] == "GateFailed") is (code == 2)
        assert cluster.taints("gpu-00") == taints
        # Where ours was the only one, there is no list left.
        assert ("taints" in cluster.nodes["gpu-00"]["spec"]) is bool(taints)


def test_check_changes_nothing_and_the_moment_of_a_change_stays(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    before = deepcopy(cluster.nodes)
    assert run(cluster, "fail", "--check") == 2
    assert cluster.nodes == before
    assert "would be put there" in capsys.readouterr().out
    run(cluster, "pass")
    cluster.conditions("gpu-00")[CONDITION]["lastTransitionTime"] = "before"
    for verdict, stays in (("pass", True), ("fail", False)):
        run(cluster, verdict)
        assert (cluster.conditions("gpu-00")[CONDITION]["lastTransitionTime"] == "before") is stays


@pytest.mark.parametrize(
    ("there", "named", "words", "tainted"),
    [
        (1, 0, "--max-share 0.1", True),
        (2, 0, "--max-share 0.1", False),
        (0, 0, "--max-share 0", False),
        # One of the ten that are named carries it, and one may.
        (1, 10, "--selector gpu=true", False),
        (1, 10, "", True),
    ],
)
def test_the_breaker_holds_a_further_taint_back_over_all_pages(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: Any, there: int, named: int, words: str, tainted: bool
) -> None:
    monkeypatch.setattr(command, "PAGE", 3)
    for number, name in enumerate(cluster.nodes):
        labels = {"gpu": "true"} if number < named else {}
        cluster.nodes[name] = node(name, *[OURS] * (10 - there <= number < 10), **labels)
    assert run(cluster, "fail", *words.split()) == 2
    assert cluster.taints("gpu-00") == [OURS] * tainted
    assert cluster.conditions("gpu-00")[CONDITION]["status"] == "False"
    assert ("have the taint already" in capsys.readouterr().out) != tainted


def test_at_least_one_node_may_carry_the_taint_and_never_all() -> None:
    given = [(1.0, 10), (0.5, 10), (0.1, 3), (0.1, 2), (0.5, 1), (0.0, 9)]
    assert [command._most(*each) for each in given] == [9, 5, 1, 1, 0, 0]


def test_many_that_fail_at_the_same_moment_do_not_empty_the_cluster(cluster: Cluster) -> None:
    """A driver update that all gates dislike."""
    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        list(pool.map(lambda name: run(cluster, "fail", name=name), list(cluster.nodes)))
    assert sum(bool(cluster.taints(name)) for name in cluster.nodes) <= 2
    assert {cluster.conditions(name)[CONDITION]["status"] for name in cluster.nodes} == {"False"}


def test_who_changes_the_node_meanwhile_is_not_overwritten(cluster: Cluster) -> None:
    times: list[dict[str, Any]] = []

    def cordon(there: dict[str, Any]) -> None:
        # Between the condition and the taint.
        if len(times) in (1, 3):
            there["spec"]["taints"] = [OTHER]
            touch(there)
        times.append(there)

    cluster.interfere = cordon
    assert run(cluster, "fail") == 2
    assert cluster.taints("gpu-00") == [OTHER, OURS]
    assert len(times) == 6


def test_who_changes_it_for_ever_is_told(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    count = iter(range(1000))
    cluster.interfere = lambda there: touch(there) if next(count) % 2 else None
    assert run(cluster, "fail") == 1
    assert "changed by another client 6 times" in capsys.readouterr().err
    assert cluster.taints("gpu-00") == []


@pytest.mark.parametrize(
    ("status", "argv", "said"),
    [
        (401, "--node gpu-00", "service account"),
        (403, "--node gpu-00", "ClusterRole"),
        (500, "--node gpu-00", "500: nodes is forbidden"),
        (200, "--node gpu-77", "kubectl get nodes"),
        (200, "--node ../x", "downward API"),
        (200, "--node gpu-00 --server http://10.0.0.1", "https://"),
        (200, "--node gpu-00 --server http://127.0.0.1:1", "refused"),
    ],
)
def test_a_refusal_and_wrong_input_name_the_way_out(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], status: int, argv: str, said: str
) -> None:
    cluster.status = status
    assert cli.main(["kubernetes", "--state", "fail", "--server", cluster.url, *argv.split()]) == 1
    assert said in capsys.readouterr().err


def certified(folder: Path) -> ssl.SSLContext:
    """Return the context of a server on 127.0.0.1 with a certificate of its own: ca.crt in the folder."""
    name = ["-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "key", "-out", "ca.crt"]
    subprocess.run(["openssl", "req", "-x509", *name, *key], cwd=folder, capture_output=True, check=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key")
    return context


def test_the_token_goes_only_to_the_server_whose_certificate_is_known(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "other.crt").write_text(Path(ssl.get_default_verify_paths().openssl_cafile).read_text())
    secure = Cluster("gpu-00", "gpu-01")
    secure.socket = certified(tmp_path).wrap_socket(secure.socket, server_side=True)
    argv = ["kubernetes", "--node", "gpu-00", "--state", "fail", "--token-file", str(tmp_path / "token")]
    argv += ["--server", secure.url.replace("http:", "https:"), "--ca-file"]
    with serving(secure):
        assert cli.main([*argv, str(tmp_path / "other.crt")]) == 1
        assert secure.tokens == []
        assert cli.main([*argv, str(tmp_path / "ca.crt")]) == 2
    assert set(secure.tokens) == {f"Bearer {TOKEN}"}
    assert secure.taints("gpu-00") == [OURS]


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, "True", "the gate's verdict is pass"),
        ({"verdict": "fail", "findings": [FINDING]}, "False", "platform.gpus of host: 7 of 8"),
        ({"verdict": "unknown"}, "Unknown", "unknown"),
        ({"verdict": "good"}, "Unknown", "its verdict is 'good'"),
        ({"verdict": ["pass"]}, "Unknown", "its verdict is ['pass']"),
        ({"at": 0}, "Unknown", "minutes old"),
        ({"boot_id": "b"}, "Unknown", "since the node was booted"),
        ({"findings": [{}], "verdict": "fail"}, "Unknown", "is not a state that the gate has written"),
        ({"at": "x"}, "Unknown", "its at is 'x'"),
    ],
)
def test_the_gates_state_is_a_verdict_while_it_is_young_and_of_this_boot(
    tmp_path: Path, changes: dict[str, Any], status: str, said: str
) -> None:
    path = tmp_path / "state.json"
    assert command.of_state(path, 60, 1000.0, "a").reason == "GateHasNotRun"
    path.write_text(json.dumps({**STORED, "at": 900.0, "boot_id": "a", **changes}))
    found = command.of_state(path, 10, 1000.0, "a")
    assert found.status == status
    assert said in found.message


@pytest.mark.parametrize(
    ("changes", "code", "line"),
    [
        ({}, 0, "the gate's verdict is pass"),
        ({"verdict": "warn"}, 0, "the gate's verdict is warn"),
        ({"verdict": "fail", "findings": [{**FINDING, "have": "7\nof 8"}]}, 1, "platform.gpus of host: 7\\nof 8"),
        ({"verdict": "fail", "findings": [{**FINDING, "have": "x" * 999}]}, 1, "platform.gpus of host: xxx"),
        ({"boot_id": "b"}, 2, "the gate has not run since the node was booted"),
        ({"verdict": None}, 2, ""),
    ],
)
def test_node_problem_detector_gets_one_line_and_its_own_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], code: int, line: str
) -> None:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    path = tmp_path / "state.json"
    path.write_text(json.dumps({**STORED, "at": time.time(), "boot_id": boot_id, **changes}))
    assert cli.main(["kubernetes", "--problem", "--state", str(path)]) == code
    out, err = capsys.readouterr()
    assert out.startswith(line)
    assert (out.count("\n"), err) == (1, "")
    assert len(out) <= 251


def blocks(kind: str) -> list[Any]:
    """The examples of docs/kubernetes.md."""
    text = (Path(__file__).parents[2] / "docs/kubernetes.md").read_text()
    parts = re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [document for part in parts for document in yaml.safe_load_all(part)]


def test_the_documented_forms_name_what_the_command_writes() -> None:
    [plugin] = blocks("json")
    [condition], [rule] = plugin["conditions"], plugin["rules"]
    assert rule["condition"] == condition["type"] != CONDITION
    assert (rule["path"], rule["args"]) == ("/usr/local/bin/busbar", ["kubernetes", "--problem"])
    assert plugin["pluginConfig"]["max_output_length"] == command._LINE
    [readiness] = [one for one in blocks("yaml") if one["kind"] == "NodeReadinessRule"]
    assert readiness["spec"]["conditions"] == [{"type": CONDITION, "requiredStatus": "True"}]
    assert readiness["spec"]["taint"]["key"].startswith("readiness.k8s.io/")
