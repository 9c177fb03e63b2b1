"""A node sweeps each plane once, within its time, and says what it could not ask."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import locks
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, Output, ParseError, ToolHung
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import diags
from ansible_collections.busbar.fabric.plugins.modules import ib_fabric_info
from ansible_collections.busbar.fabric.plugins.plugin_utils import codec, result_schema
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.record import read_sweep

from tests import goldens, trees
from tests.unit import finding_rows

FOLDER = Path(__file__).parent / "fabric"
VERSION = 'case "$*" in *--version*) echo "ibnetdiscover BUILD VERSION: 44.0"; exit;; esac; '
ERRORS = 'case "$*" in *--counters*) cat {0}/ibqueryerrors-counters.txt; exit;; esac; cat {0}/ibqueryerrors.txt; exit 1'
OUTPUTS = {
    "ibnetdiscover": VERSION + "cat {}/ibnetdiscover.txt",
    "iblinkinfo": "cat {}/iblinkinfo-line.txt",
    "sminfo": "cat {}/sminfo.txt",
    "saquery": "cat {}/saquery-smir.txt",
    "ibqueryerrors": ERRORS,
    "smpquery": 'case "$*" in *pkeys*) cat {0}/smpquery-pkeys.txt;; *) cat {0}/smpquery-nodeinfo.txt;; esac',
}
UNWILLING = 'echo "ibwarn: [7] mad_rpc_open_port: can\'t open UMAD port (mlx5_0:1)" >&2; exit 255'
GIVEN = {"devices": [], "seconds": 60.0, "partitions": False, "known": [], "dumps": ""}
Node = Callable[..., Host]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A host with two InfiniBand ports in one plane and the tools, which note that they were called."""

    def made(ports: int = 2, layer: str = "InfiniBand", state: str = "4: ACTIVE", **scripts: str) -> Host:
        for number in range(ports):
            trees.rdma_device(tmp_path, f"mlx5_{number}", None, link_layer=layer, state=state)
        for name, script in {**{name: text.format(FOLDER) for name, text in OUTPUTS.items()}, **scripts}.items():
            script = script.replace("CALLED", f"{tmp_path}/called")
            trees.tool(tmp_path, f"/usr/sbin/{name}", f'echo "{name} $*" >> {tmp_path}/called\n{script}')
        return Host(str(tmp_path), str(tmp_path))

    return made


def called(tmp_path: Path) -> list[str]:
    calls = tmp_path / "called"
    return calls.read_text().splitlines() if calls.exists() else []


def states(findings: list[Finding]) -> dict[str, str]:
    return {f"{finding.check} {finding.subject}": finding.state for finding in findings if not finding.ok}


def test_two_ports_in_one_plane_are_one_sweep(node: Node, tmp_path: Path) -> None:
    reading = diags.read(node())
    [found] = reading.sweeps
    assert (found.complete, found.problems, found.host, found.source) == (True, (), "", "infiniband-diags")
    calls = called(tmp_path)
    # Both ports are asked for their manager, one is swept through, and nothing is cleared.
    managers = [call for call in calls if call.startswith("sminfo")][:2]
    assert managers == [f"sminfo -C mlx5_{number} -P 1" for number in (0, 1)]
    assert not [call for call in calls if {"-k", "-K", "--clear-errors", "--clear-counts", "-R"} & set(call.split())]


def test_the_port_and_the_keys_that_are_wanted_are_read(node: Node) -> None:
    [found] = diags.read(node(), ["mlx5_1:1"], partitions=True).sweeps
    assert found.device == "mlx5_1"
    assert found.pkeys == {one.guid: (0xFFFF,) for one in found.nodes if one.kind == "ca"}
    for wrong in ("mlx5_0", "mlx5_0:0", "mlx5_0:255", "-x:1", "../x:1", "a b:1"):
        with pytest.raises(ParseError, match="write DEVICE:PORT"):
            diags.read(node(), [wrong])


def test_a_tool_that_hangs_costs_no_other_its_answer(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    host = node()
    real = host.run

    def run(argv: list[str], *more: Any, **options: Any) -> Output:
        if "--details" in argv:
            raise ToolHung(" ".join(argv), "did not respond within 9 s and was abandoned")
        return real(argv, *more, **options)

    monkeypatch.setattr(host, "run", run)
    reading = diags.read(host)
    [found] = reading.sweeps
    assert len(found.nodes) == 8
    assert not found.complete
    assert states(reading.findings) == {
        "ib_fabric.answer ibqueryerrors --details --threshold-file /dev/null -C mlx5_0 -P 1": "unknown"
    }
    [[port]] = [node.ports for node in found.nodes if node.guid == "0008f10500100010"]
    # Its data counters are there, and of its errors nothing is known.
    assert port.counters["PortXmitPkts"] > 0
    assert port.unread == "no output shows those of errors"


LOG = (FOLDER / "opensm.log").read_text()
CRASH = (
    'case "$*" in *--counters*) [ "$(grep -c "^ibqueryerrors.*--counters" CALLED)" -gt %d ] || kill -SEGV $$;; esac; '
)
SECOND = f'case "$*" in *mlx5_1*) sed s/100011/100099/ {FOLDER}/sminfo.txt;; *) cat {FOLDER}/sminfo.txt;; esac'
SILENT = "echo 'ibwarn: [7] mad_rpc: _do_madrpc failed; dport (Lid 1)' >&2; exit 255"


def logs(**texts: str) -> Callable[[Path], None]:
    """Files in /var/log; a text of nothing is a directory."""

    def prepare(root: Path) -> None:
        for name, text in texts.items():
            path = f"var/log/opensm{name}"
            trees.put(root, path, text) if text else (root / path).mkdir(parents=True)

    return prepare


def no_tools(root: Path) -> None:
    (root / "usr/sbin/saquery").unlink()
    (root / "usr/sbin/iblinkinfo").chmod(0o777)


def nvswitches(root: Path) -> None:
    """Two ports manage these."""
    for number in (0, 1):
        trees.line(root / f"sys/class/infiniband/mlx5_{number}/hca_type", "MT4131")
        trees.line(root / f"sys/class/infiniband/mlx5_{number}/ports/1/state", "1: DOWN")


def row(prepare: Callable[[Path], object] = str, devices: Sequence[str] = (), **node: Any) -> tuple[Any, ...]:
    """Of the host, of the question, and what else there is."""
    return node, devices, prepare


LOSSY = f"{FOLDER}/lossy/ibnetdiscover"
DIES = f"if [ $(grep -c sminfo CALLED) -lt 4 ]; then cat {FOLDER}/sminfo.txt; else exit 255; fi"
TIMED_OUT = "echo 'Query SA failed: Connection timed out; sa call path_query failed' >&2"
OTHERS = LOG.replace("0x8f10500100011", "0x8f10500100021")
# CALLED: the file that the tools note their calls in.
HOSTS = {
    "two planes": row(sminfo=SECOND),
    "complaints": row(ibnetdiscover=f"cat {LOSSY}.txt; cat {LOSSY}.err >&2"),
    "exit code": row(iblinkinfo=f"cat {FOLDER}/iblinkinfo-line.txt; exit 3"),
    "one crash": row(ibqueryerrors=CRASH % 1 + ERRORS.format(FOLDER)),
    "two crashes": row(ibqueryerrors=CRASH % 2 + ERRORS.format(FOLDER)),
    # The second port is of a node that the first has found.
    "silent manager": row(sminfo=SILENT),
    "manager that dies": row(sminfo=DIES, ibqueryerrors=TIMED_OUT),
    "log of the manager": row(logs(**{".log": LOG, "-subnet.lst": "{"})),
    "log of another plane's manager": row(logs(**{".log": OTHERS, "-subnet.lst": "{"})),
    "logs that cannot be read": row(logs(**{"-a.log": "", "-b.log": LOG, "-unhealthy-ports.dump": ""})),
    "not permitted": row(sminfo=UNWILLING),
    "Ethernet": row(layer="Ethernet"),
    "Ethernet, named": row(devices=["mlx5_0:1"], layer="Ethernet"),
    "down": row(state="1: DOWN"),
    "no tools": row(no_tools),
    "ports of NVSwitches": row(nvswitches, ports=4),
    "ports of NVSwitches, named": row(nvswitches, ["mlx5_2:1"], ports=4),
}


@pytest.mark.golden
@pytest.mark.parametrize("name", HOSTS)
def test_what_a_host_sweeps(name: str, node: Node, tmp_path: Path) -> None:
    scripts, devices, prepare = HOSTS[name]
    host = node(**scripts)
    prepare(tmp_path)
    reading = diags.read(host, devices)
    rows: list[Any] = []
    for one in reading.sweeps:
        unread = sorted({port.unread for found in one.nodes for port in found.ports})
        rows.append([one.device, one.port, one.plane, one.complete, len(one.nodes), one.routing, unread])
        rows += [[problem.source, finding_rows.values(problem.message)] for problem in one.problems]
    rows += [[key, state] for key, state in states(reading.findings).items()]
    calls = Counter(" ".join(re.findall("^[a-z]+|mlx5_[0-9]", call)) for call in called(tmp_path))
    goldens.check("fabric_diags", name, [*rows, dict(sorted(calls.items()))])


def test_nothing_is_asked_once_the_time_is_over(node: Node) -> None:
    reading = diags.read(node(), ["mlx5_0:1"], seconds=1e-6)
    [found] = reading.sweeps
    assert (found.nodes, found.complete) == ((), False)
    assert sum("was not queried" in problem.message for problem in found.problems) == 2
    assert states(reading.findings) == {"ib_fabric.answer sminfo -C mlx5_0 -P 1": "unknown"}


@pytest.mark.parametrize(("hours", "unread"), [(23, ["/var/log/opensm-b.log"]), (30, [])])
def test_of_a_log_that_is_too_large_the_end_is_read(
    hours: int, unread: list[str], node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "%s 717944 [EC430700] 0x01 -> osm_x: ERR 3113: %s\n"
    begun, now = (time.strftime("%b %d %H:%M:%S", time.localtime(time.time() - ago)) for ago in (hours * 3600, 60))
    trees.put(tmp_path, "/var/log/opensm-a.log", line % (now, "other log"))
    trees.put(tmp_path, "/var/log/opensm-b.log", line % (begun, "x" * 900) + line % (begun, "") + line % (now, "end"))
    monkeypatch.setattr(diags, "LOG", 500)
    reading = diags.read(node())
    texts = [event.text.rpartition(": ")[2] for event in reading.sweeps[0].events]
    assert texts == ["other log", "end"]
    assert [finding.subject for finding in reading.findings if not finding.ok] == unread


def test_two_sweeps_of_one_host_wait_for_each_other(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diags, "PATIENCE", 0.1)
    host = node()
    with locks.hold(host, diags.LOCK):
        reading = diags.read(host)
    assert reading.sweeps == []
    assert states(reading.findings) == {"ib_fabric.answer sweep": "unknown"}


def test_what_the_module_answers_passes_the_gate(node: Node) -> None:
    result = json.loads(json.dumps(ib_fabric_info.work(node(), GIVEN, False)))
    kept = result_schema.check("ib_fabric_info", result)
    [found] = [read_sweep(one) for one in kept["sweeps"]]
    assert found.complete
    assert kept["findings"] == []
    assert not result["changed"]
    result["sweeps"][0]["nodes"][0][0] = "../../etc"
    with pytest.raises(codec.Invalid, match="sweeps"):
        result_schema.check("ib_fabric_info", result)


@pytest.mark.parametrize("wrong", [{"seconds": 0.0}, {"seconds": 1e9}, {"dumps": "/x", "devices": ["a:1"]}])
def test_options_that_contradict_each_other_are_refused(node: Node, wrong: dict[str, object]) -> None:
    with pytest.raises(ParseError):
        ib_fabric_info.work(node(), {**GIVEN, **wrong}, False)
