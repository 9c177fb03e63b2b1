"""The lab's ib_write_bw and ib_write_lat between two simulated nodes, and the counters that they move."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import perftest, perftest_errors

from lab import qos, store
from lab.machine import LabError
from lab.machines import hgx_h200_roce
from tests.lab.conftest import few_slots

PORT = "18999"


@pytest.fixture(scope="module")
def created(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pair")
    store.create(directory, few_slots(dict.fromkeys(("node01", "node02"), hgx_h200_roce)))
    for node in ("node01", "node02"):
        configure(directory, node, 9000)
    return directory


def configure(directory: Path, node: str, mtu: int) -> None:
    """Rail 0 as a site has it."""
    machine, root = store.healthy(directory, node), str(directory / node / "hw")
    qos.replace(root + qos.state_path(machine.rail(0).address), qos.state(qos.configured()))
    path = Path(f"{root}/sys/class/net/{machine.netdev(0).name}/mtu").resolve()
    qos.replace(str(path), f"{mtu}\n")


@pytest.fixture
def pair(created: Path) -> Iterator[Path]:
    yield created
    for node in ("node01", "node02"):
        store._render(created / node, store.healthy(created, node))
        configure(created, node, 9000)


def command(directory: Path, node: str, program: str, *words: str, gid: int = 3) -> list[str]:
    device = store.healthy(directory, node).rail(0).name
    path = str(directory / node / "sys/usr/bin" / program)
    return [path, "-F", "-d", device, "-p", PORT, "-x", str(gid), "--tclass=106", "--report_gbits", *words]


def run(directory: Path, program: str = "ib_write_bw", gid: int = 3) -> tuple[str, str]:
    """What the server on node02 and the client on node01 print, both streams together."""
    server = subprocess.Popen(
        command(directory, "node02", program), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert server.stdout
    while "Waiting" not in (line := server.stdout.readline()) and line:
        pass
    address = str(store.healthy(directory, "node02").netdev(0).ipv4).partition("/")[0]
    argv = command(directory, "node01", program, address, gid=gid)
    client = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return server.communicate(timeout=1800)[0], client.stdout


def counters(directory: Path, node: str) -> dict[str, int]:
    netdev = store.healthy(directory, node).netdev(0).name
    argv = [str(directory / node / "sys/usr/local/sbin/ethtool"), "-S", netdev]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return {name.strip(): int(value) for name, _, value in (line.rpartition(":") for line in text.splitlines()[1:])}


def test_both_ends_print_the_same_figure_and_that_it_is_none(pair: Path) -> None:
    before = counters(pair, "node01"), counters(pair, "node02")
    for text in run(pair):
        figure, mtu = perftest.parse("bw", text)
        assert figure == pytest.approx(388.23, abs=0.01)
        assert mtu == 4096
        assert "simulated: no figure here is a measurement" in text
    for old, new, name in zip(before, (counters(pair, "node01"), counters(pair, "node02")), ("tx", "rx"), strict=True):
        moved = {key: new[key] - old[key] for key in new if new[key] != old[key]}
        assert set(moved) == {f"{name}_prio3_bytes", f"{name}_prio3_packets"}


def test_a_gid_that_is_not_there_and_a_server_that_is_not_there(pair: Path) -> None:
    assert "RoCE v1" in perftest_errors.reason(run(pair, gid=200)[1])[0]
    argv = command(pair, "node01", "ib_write_bw", "10.16.0.2")
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, f"Couldn't connect to 10.16.0.2:{PORT}")


def test_a_fault_between_nodes_is_made_and_taken_back_by_its_name(pair: Path) -> None:
    for name in ("slow-node", "dead-partner"):
        store.break_(pair, "node02", name)
        configure(pair, "node02", 9000)
    with pytest.raises(LabError, match="node02 has slow-node already"):
        store.break_(pair, "node02", "slow-node")
    assert store.repair(pair, "node02", "dead-partner") == ["dead-partner"]
    configure(pair, "node02", 9000)
    assert perftest.parse("bw", run(pair)[1])[0] == pytest.approx(0.6 * 388.23, abs=0.01)
    assert store.status(pair)["node02"] == ["slow-node"]
    assert store.repair(pair, "node02") == ["slow-node"]
    configure(pair, "node02", 9000)
    assert perftest.parse("bw", run(pair)[1])[0] == pytest.approx(388.23, abs=0.01)
