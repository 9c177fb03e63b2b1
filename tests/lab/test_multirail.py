# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Settings, rules and routes of a simulated node's interfaces: sysctl and ip, and what a boot makes of files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from lab import qos, tree
from lab.machines import hgx_h200_roce
from lab.toolkit import start

RAIL0, RAIL1, CONF = "enp26s0np0", "enp60s0np0", "proc/sys/net/ipv4/conf"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("node")
    tree.write(hgx_h200_roce("node02"), folder / "hw", folder / "sys")
    return folder


def run(node: Path, tool: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([node / "sys/usr/local/sbin" / tool, *words], capture_output=True, text=True, check=False)


def boot(node: Path, **files: str) -> None:
    """files: of /etc/sysctl.d, their names without .conf; "-" stands as "_"."""
    folder = node / "sys/etc/sysctl.d"
    for path in folder.glob("*.conf"):
        path.unlink()
    for name, text in files.items():
        (folder / f"{name.replace('_', '-')}.conf").write_text(text)
    qos.reboot(str(node / "hw"))
    start.main(str(node / "hw"), str(node / "sys"))


def value(node: Path, interface: str, key: str) -> str:
    return (node / "hw" / CONF / interface / key).read_text().strip()


def test_sysctl_reads_sets_and_refuses(node: Path) -> None:
    boot(node)
    assert run(node, "sysctl", f"net.ipv4.conf.{RAIL0}.rp_filter").stdout == f"net.ipv4.conf.{RAIL0}.rp_filter = 2\n"
    assert run(node, "sysctl", "-q", "-w", f"net/ipv4/conf/{RAIL0}/rp_filter=0").stdout == ""
    both = (f"net.ipv4.conf.{RAIL0}.rp_filter", "net.ipv4.conf.all.rp_filter")
    assert run(node, "sysctl", "-n", *both).stdout == "0\n0\n"
    for word, said in (("nosuch.rp_filter=1", "cannot stat"), (f"{RAIL0}.rp_filter=off", "Invalid argument")):
        done = run(node, "sysctl", "-w", f"net.ipv4.conf.{word}")
        assert (done.returncode, said in done.stderr) == (255, True)
    assert value(node, RAIL0, "rp_filter") == "0"
    boot(node)
    assert value(node, RAIL0, "rp_filter") == "2"


def test_at_boot_a_named_line_counts_more_than_a_pattern_and_the_last_of_each(node: Path) -> None:
    boot(
        node,
        **{
            "10_a": f"net.ipv4.conf.{RAIL0}.arp_ignore = 1\n# net.ipv4.conf.{RAIL0}.arp_ignore = 8\n",
            "50_default": "net.ipv4.conf.*.rp_filter = 2\n-net.ipv4.conf.all.rp_filter\n",
            "60_b": "net.ipv4.conf.enp*.rp_filter = 1\nnet/ipv4/conf/*/arp_ignore=3\n",
            "98_c": f"net/ipv4/conf/{RAIL1}/rp_filter = 0\nno line\nnet.ipv4.conf.nosuch.rp_filter = 0\n",
        },
    )
    assert [value(node, name, "rp_filter") for name in ("all", "eno8303", RAIL0, RAIL1)] == ["0", "2", "1", "0"]
    assert [value(node, name, "arp_ignore") for name in ("all", RAIL0, RAIL1)] == ["3", "1", "3"]


def test_an_interface_that_no_line_names_comes_up_with_the_default(node: Path) -> None:
    boot(node, default=f"net.ipv4.conf.default.arp_announce = 2\nnet.ipv4.conf.{RAIL1}.arp_announce = 1\n")
    assert [value(node, name, "arp_announce") for name in ("all", "default", RAIL0, RAIL1)] == ["0", "2", "2", "1"]


def test_a_file_of_etc_stands_for_that_of_usr(node: Path) -> None:
    theirs = node / "sys/usr/lib/sysctl.d/50-x.conf"
    theirs.parent.mkdir(parents=True, exist_ok=True)
    theirs.write_text("net.ipv4.conf.all.arp_ignore = 1\n")
    boot(node)
    assert value(node, "all", "arp_ignore") == "1"
    boot(node, **{"50_x": ""})
    assert value(node, "all", "arp_ignore") == "0"
    theirs.unlink()


def test_networkd_brings_the_rules_and_routes_of_drop_ins_back(node: Path) -> None:
    dropin = node / "sys/etc/systemd/network/10-rail1.network.d/50-rules.conf"
    dropin.parent.mkdir(parents=True, exist_ok=True)
    dropin.write_text(
        "[RoutingPolicyRule]\nFrom=10.17.0.2\nTable=7\nPriority=70\n\n"
        "[Route]\nDestination=10.17.0.0/24\nScope=link\nPreferredSource=10.17.0.2\nTable=7\n\n"
        "[Route]\nGateway=10.17.0.1\nTable=7\n"
    )
    boot(node)
    assert "70:\tfrom 10.17.0.2 lookup 7\n" in run(node, "ip", "rule").stdout
    assert run(node, "ip", "route", "show", "table", "7").stdout == (
        f"10.17.0.0/24 dev {RAIL1} proto static scope link src 10.17.0.2 \n"
        f"default via 10.17.0.1 dev {RAIL1} proto static \n"
    )
    routes = json.loads(run(node, "ip", "-j", "route", "show", "table", "all").stdout)
    assert [route["dst"] for route in routes if route.get("table") == "7"] == ["10.17.0.0/24", "default"]
    assert {"dst": "10.17.0.0/24", "dev": RAIL1, "protocol": "kernel", "scope": "link", "flags": []} in routes
    run(node, "ip", "rule", "del", "priority", "70")
    boot(node)
    assert "70:\t" in run(node, "ip", "rule").stdout
    dropin.unlink()
    boot(node)
    assert "70:\t" not in run(node, "ip", "rule").stdout
