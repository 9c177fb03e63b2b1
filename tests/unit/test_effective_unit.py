"""What files of others make of our units, and what else sets a port's DCB values at boot."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import effective_unit
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import boot_setters as setters
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import chain
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import PortConfig
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.port import Port

from tests.trees import put, put_all

OURS = "/etc/systemd/system/busbar-pcie-path.service"
TEXT = "[Unit]\nDescription=ours\n[Service]\nExecStart=/usr/local/ours\n"
DROPIN = "/etc/systemd/system/%s.d/50-site.conf"
UNIT = DROPIN % "busbar-pcie-path.service"
FALSE = ("ConditionPathExists=/etc/allowed", "ConditionPathExists=!/proc/cmdline", "AssertKernelCommandLine=no-such")
CHECK = Check("pcie_path.unit", why="a test", fix="look", aspect="persisted")
PCI = "0000:1b:00.0"
PORT = Port(f"{PCI} mlx5_0 ens1", PCI, "ens1", "mlx5_0")
PACKAGED = "/usr/lib/systemd/system/a.service"
INSTALL = "[Install]\nWantedBy=x.target\n"
WANTED_SOCKET = "/etc/systemd/system/sockets.target.wants/%s.socket"
BOOT_UNIT = "/etc/systemd/system/site-qos.service"
WANTED = "/etc/systemd/system/multi-user.target.wants/site-qos.service"


def host(root: Path, files: dict[str, str]) -> Host:
    (root / f"sys/bus/pci/devices/{PCI}/net/ens1").mkdir(parents=True)
    put(root, "/proc/cmdline", "ro quiet iommu=pt\n")
    put_all(root, files)
    for path in root.rglob("*.sh"):
        path.chmod(0o755)
    return Host(str(root), str(root))


@pytest.mark.parametrize(
    ("path", "text", "state"),
    [
        (UNIT, "[Service]\nExecStart=\n", "not_owned"),
        *((UNIT, f"[Unit]\n{term}\n", "not_owned") for term in FALSE),
        (UNIT, "[Unit]\nConditionVirtualization=vm\n", "unknown"),
        (DROPIN % "busbar-.service", "[Service]\nUser=nobody\n", "not_owned"),
        (DROPIN % "service", "[Service]\nPrivateDevices=yes\n", "not_owned"),
        # Legal: limits, order, conditions that hold, settings that are off, another unit.
        (UNIT, "[Unit]\nAfter=x.service\n[Service]\nNice=5\nLimitNOFILE=9\n", None),
        *(
            (UNIT, f"[Unit]\nCondition{term}\n", None)
            for term in ("KernelCommandLine=iommu", "PathExists=/proc/cmdline")
        ),
        (DROPIN % "service", "[Service]\nPrivateDevices=no\n", None),
        (DROPIN % "other.service", "[Service]\nExecStart=\n", None),
        # Masked: that our file is not as written is found by whoever writes it.
        (OURS, "", None),
    ],
)
def test_a_file_that_changes_our_unit_is_found(tmp_path: Path, path: str, text: str, state: str | None) -> None:
    found = effective_unit.overrides(host(tmp_path, {OURS: TEXT, path: text}), CHECK, (OURS,)).findings
    assert [(f.subject, f.state) for f in found] == ([] if state is None else [(path, state)])
    assert effective_unit.overrides(Host(str(tmp_path), str(tmp_path / "none")), CHECK, (OURS,)).findings == ()


def test_a_file_of_ours_that_others_may_change_is_found(tmp_path: Path) -> None:
    node = host(tmp_path, {OURS: TEXT})
    assert effective_unit.owned_by_others(node, CHECK, (OURS, "/etc/none")) == []
    (tmp_path / OURS[1:]).chmod(0o646)
    assert [f.state for f in effective_unit.overrides(node, CHECK, (OURS,)).findings] == ["not_owned"]
    # Masked: everybody may write to /dev/null.
    (tmp_path / OURS[1:]).unlink()
    (tmp_path / OURS[1:]).symlink_to("/dev/null")
    assert effective_unit.overrides(node, CHECK, (OURS,)).findings == ()


@pytest.mark.parametrize(
    ("files", "idle"),
    [
        ({}, False),
        ({"/etc/systemd/system/a.service": ""}, True),
        ({"/run/systemd/system/a.service": "", "/etc/systemd/system/a.service": TEXT}, False),
        ({PACKAGED: TEXT}, False),
        ({PACKAGED: TEXT + INSTALL}, True),
        ({PACKAGED: TEXT + INSTALL, "/etc/systemd/system/x.target.wants/a.service": ""}, False),
        ({PACKAGED: TEXT + "[Install]\nAlso=a.socket\n", WANTED_SOCKET % "a": ""}, False),
    ],
)
def test_a_unit_that_the_boot_does_not_start_is_idle(tmp_path: Path, files: dict[str, str], idle: bool) -> None:
    assert bool(effective_unit.idle(host(tmp_path, files), "a.service")) is idle


QOS = "mlnx_qos -i ens1 --trust %s --pfc %s\n"
GOOD, BAD = QOS % ("dscp", "0,0,0,1,0,0,0,0"), QOS % ("dscp", "0,0,0,0,1,0,0,0")
ECN = "/sys/class/net/%s/ecn/roce_rp/enable/%d\n"
OPENIBD = "/etc/infiniband/post-start-hook.sh"
LLDPAD = "/usr/lib/systemd/system/lldpad.service"
HOOK = "/etc/NetworkManager/dispatcher.d/30-qos.sh"
SITE_RULE, UDEV_BAD = "/etc/udev/rules.d/95-site.rules", BAD[:-1].replace("ens1", "%k")
SITE = f"[Service]\nExecStart=/bin/sh -c '{BAD[:-1]}'\n[Install]\nWantedBy=multi-user.target\n"


@pytest.mark.parametrize(
    ("files", "states"),
    [
        ({}, ["ok", "ok"]),
        ({HOOK: "#!/bin/sh\n" + GOOD}, ["ok", "ok"]),
        ({HOOK: "#!/bin/sh\n" + BAD.replace("ens1", "eno9")}, ["ok", "ok"]),
        ({HOOK.replace(".sh", ".bak"): BAD}, ["ok", "ok"]),
        ({BOOT_UNIT: SITE}, ["ok", "ok"]),
        ({LLDPAD: INSTALL}, ["ok", "ok"]),
        ({SITE_RULE: f'SUBSYSTEM=="net", KERNEL=="eno*", RUN+="/bin/{UDEV_BAD}"\n'}, ["ok", "ok"]),
        ({SITE_RULE: f'SUBSYSTEM=="net", ACTION=="remove", RUN+="/bin/{UDEV_BAD}"\n'}, ["ok", "ok"]),
        ({HOOK: 'ethtool -A "$IFACE" autoneg off rx off tx off\nethtool -K ens1 rx on tx on\n'}, ["ok", "ok"]),
        ({SITE_RULE: f'SUBSYSTEM=="net", DRIVERS=="mlx5_core", RUN+="/bin/{UDEV_BAD}"\n'}, ["ok", "not_owned"]),
        ({SITE_RULE: f'ACTION=="add", KERNEL=="ens1", RUN{{program}}="{UDEV_BAD}"\n'}, ["ok", "not_owned"]),
        ({"/etc/networkd-dispatcher/routable.d/p.sh": "ethtool -A $IFACE rx on tx off\n"}, ["ok", "not_owned"]),
        ({HOOK: "#!/bin/sh\n" + BAD}, ["ok", "not_owned"]),
        ({"/etc/network/interfaces": f"iface ens1 inet manual\n  pre-down {BAD}  down {BAD}"}, ["ok", "ok"]),
        ({"/etc/network/interfaces.d/a": f"iface ens1 inet manual\n  post-up {BAD}"}, ["ok", "not_owned"]),
        ({HOOK: "/usr/bin/" + BAD.replace("--pfc ", "--pfc=").replace("ens1", '"$1"')}, ["ok", "not_owned"]),
        ({HOOK: QOS % ("pcp", "$PFC")}, ["ok", "unknown", "not_owned"]),
        ({OPENIBD: "cma_roce_tos -d mlx5_0 -t 96\n"}, ["ok", "not_owned"]),
        ({BOOT_UNIT: SITE, WANTED: ""}, ["ok", "not_owned"]),
        ({BOOT_UNIT: "[Service]\nExecStart=/opt/qos\n" + INSTALL, "/opt/qos": BAD, WANTED: ""}, ["ok", "not_owned"]),
        ({LLDPAD: INSTALL, WANTED_SOCKET % "lldpad": ""}, ["not_owned", "ok"]),
        ({OPENIBD: "#" * (1 << 24)}, ["ok", "unknown"]),
        ({OPENIBD: 'IF=storage0; mlnx_qos -i "$IF" --trust pcp\n'}, ["ok", "ok"]),
        ({OPENIBD: "D=mlx5_0\ncma_roce_tos -d ${D} -t 96\n"}, ["ok", "not_owned"]),
        ({HOOK: "dcb pfc show dev ens1\ndcb pfc set dev ens1 prio-pfc all:off 3:on\n"}, ["ok", "ok"]),
        ({HOOK: "dcb app add dev ens1 dscp-prio 26:3 40:5\nmlnx_qos -i ens1 -F x,x,x,1,x,x,x,x\n"}, ["ok", "ok"]),
        ({HOOK: "echo 1 > /sys/class/net/ens1/ecn/roce_np/enable/3\necho 0 >" + ECN % ("eno9", 3)}, ["ok", "ok"]),
        ({HOOK: "[ $2 = up ] && dcb pfc set dev ens1 prio-pfc all:off\n"}, ["ok", "not_owned"]),
        ({HOOK: "dcb app replace dev $1 dscp-prio 48:6 26:0\n"}, ["ok", "not_owned"]),
        ({f"/usr/lib{HOOK[4:]}": BAD}, ["ok", "not_owned"]),
        ({HOOK: "dcb app del dev ens1 dscp-prio 26:3\n"}, ["ok", "not_owned"]),
        ({HOOK: "mlnx_qos -i ens1 --dscp2prio=set,26,4\n"}, ["ok", "not_owned"]),
        ({HOOK: "mlnx_qos -i ens1 -F x,x,x,0,x,x,x,x\n"}, ["ok", "not_owned"]),
        ({HOOK: "echo 0 > " + ECN % ("$i", 3)}, ["ok", "not_owned"]),
        ({HOOK: 'echo "96" > /sys/class/infiniband/mlx5_0/tc/1/traffic_class\n'}, ["ok", "not_owned"]),
        ({HOOK: "echo 0 >/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos\n"}, ["ok", "not_owned"]),
    ],
)
def test_what_sets_other_values_at_boot_is_found(tmp_path: Path, files: dict[str, str], states: list[str]) -> None:
    roce = {"dscp": 26, "priority": 3, "cnp_dscp": 48, "cnp_priority": 6}
    want = PortConfig.from_values(chain.resolve(roce, {"traffic_class": 106}), {"pause_off": True})
    assert [f.state for f in setters.findings(host(tmp_path, files), (PORT,), want)] == states
