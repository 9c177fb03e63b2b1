"""Damaged files, a misbehaving nvidia-smi, wrong arguments and hostile names: findings or one sentence, no traceback.

run_module fails by itself on a traceback: it takes the last thing a module prints for its JSON, and wants SystemExit.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import verdict
from ansible_collections.busbar.fabric.plugins.plugin_utils.role_result import role_results

from lab import store
from tests import series
from tests.lab import tools
from tests.lab.conftest import few_slots

Answer = Callable[..., dict[str, Any]]
NODES = ("node01", "node02")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two nodes: each test puts back what it damages, and there are many tests."""
    directory = tmp_path_factory.mktemp("lab")
    store.create(directory, few_slots(store.STANDARD))
    return directory


@pytest.fixture(autouse=True)
def _ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tool reads here may keep it waiting: Host.run has to be able to end it."""
    monkeypatch.setattr(tools, "PARENT", 0)


# -- damaged files ---------------------------------------------------------------------------------------------------


def _text(content: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(content)

    return damage


def _truncate(path: Path) -> None:
    """To its first byte: the file exists, so what is in its place has to be told from what was."""
    path.write_bytes(path.with_name(path.name + ".healthy").read_bytes()[:1])


def _mode_000(path: Path) -> None:
    shutil.copy(path.with_name(path.name + ".healthy"), path)
    path.chmod(0)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "removed": lambda path: None,
    "empty": _text(b""),
    "truncated": _truncate,
    "binary": _text(b"\xff\xfe\x80\0\x01" * 10),
    "5 MiB": _text(b"0123456789abcde\n" * 327_680),
    "N/A": _text(b"N/A\n"),
    "[Unknown Error]": _text(b"[Unknown Error]\n"),
    "escapes": _text(b"\x1b]0;owned\x07\x1b[2J\n"),
    "directory": Path.mkdir,
    "dangling": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
    "pipe": os.mkfifo,
}
if os.geteuid() != 0:
    DAMAGES["unreadable"] = _mode_000


@contextmanager
def damaged(path: Path, damage: Callable[[Path], None]) -> Iterator[None]:
    """The file in a damaged state; afterwards as it was."""
    healthy = path.with_name(path.name + ".healthy")
    path.rename(healthy)
    try:
        damage(path)
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        healthy.rename(path)


@dataclass(frozen=True)
class Kind:
    """A file of rail 3 or GPU 3. asked: the checks of the profile that need it; none: not asked for, one node will do.

    harmless: damages under which the value is known all the same (a first byte that is the whole value), or absent
    for a reason.
    """

    path: str
    asked: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    nodes: tuple[str, ...] = NODES


NIC = "/sys/bus/pci/devices/{nic}"
PORT = "/sys/class/infiniband/{rdma}/ports/1"
NET = "/sys/class/net/{net}"
DEVICE_GONE = ("platform.rail_device",)
GPU_GONE = ("platform.gpu_count",)
KINDS = {
    "NIC class": Kind(f"{NIC}/class", DEVICE_GONE),
    "NIC vendor": Kind(f"{NIC}/vendor", DEVICE_GONE),
    "NIC device": Kind(f"{NIC}/device", DEVICE_GONE),
    "NIC numa_node": Kind(f"{NIC}/numa_node", ("platform.rail_numa",), ("truncated",)),
    "NIC width": Kind(f"{NIC}/current_link_width", ("platform.rail_pcie",)),
    "NIC speed": Kind(f"{NIC}/current_link_speed", ("platform.rail_pcie",)),
    "NIC maximum speed": Kind(f"{NIC}/max_link_speed"),
    "GPU class": Kind("/sys/bus/pci/devices/{gpu}/class", GPU_GONE),
    "GPU vendor": Kind("/sys/bus/pci/devices/{gpu}/vendor", GPU_GONE),
    "GPU numa_node": Kind("/sys/bus/pci/devices/{gpu}/numa_node", ("platform.rail_numa",), ("truncated",)),
    "GPU width": Kind("/sys/bus/pci/devices/{gpu}/current_link_width", ("platform.gpu_pcie",)),
    "GPU maximum speed": Kind("/sys/bus/pci/devices/{gpu}/max_link_speed", ("platform.gpu_pcie",)),
    # It falls while the GPU idles, so the profile asks for the maximum.
    "GPU speed": Kind("/sys/bus/pci/devices/{gpu}/current_link_speed"),
    "slot class": Kind("/sys/bus/pci/devices/{slot}/class", ("platform.gpu_pcie",)),
    "slot maximum speed": Kind(
        "/sys/bus/pci/devices/{slot}/max_link_speed", ("platform.gpu_pcie",), ("removed", "dangling")
    ),
    # The width that counts is the one at present.
    "slot maximum width": Kind("/sys/bus/pci/devices/{slot}/max_link_width"),
    "port state": Kind(f"{PORT}/state", ("platform.rail_state",)),
    "port rate": Kind(f"{PORT}/rate", ("platform.rail_rate",)),
    "port link layer": Kind(f"{PORT}/link_layer", ("platform.rail_link_layer",)),
    "GID": Kind(f"{PORT}/gids/3", ("platform.rail_gid",), nodes=("node02",)),
    "GID type": Kind(f"{PORT}/gid_attrs/types/3", ("platform.rail_gid",), nodes=("node02",)),
    "GID interface": Kind(f"{PORT}/gid_attrs/ndevs/3", nodes=("node02",)),
    "firmware": Kind("/sys/class/infiniband/{rdma}/fw_ver"),
    "operstate": Kind(f"{NET}/operstate"),
    "interface MTU": Kind(f"{NET}/mtu"),
    "driver version": Kind("/proc/driver/nvidia/version", ("platform.gpu_driver",)),
    # nvidia-smi has the model, too.
    "GPU information": Kind("/proc/driver/nvidia/gpus/{gpu}/information"),
    "IPv4 routes": Kind("/proc/net/route", ("nccl_conf.socket_interface",)),
    "DMI vendor": Kind("/sys/class/dmi/id/sys_vendor"),
    "CPU flags": Kind("/proc/cpuinfo"),
}

KIND_ON_NODE = [(node, kind) for kind, k in KINDS.items() for node in (k.nodes if k.asked else k.nodes[:1])]


@pytest.fixture
def names(lab: Path, on_node: Answer) -> Callable[[str], dict[str, str]]:
    """Addresses and names of rail 3 and GPU 3 of a node."""

    def of(node: str) -> dict[str, str]:
        machine = store.healthy(lab, node)
        rail, gpu = machine.rail(3), machine.gpu(3)
        net = next(netdev.name for netdev in machine.netdevs if netdev.address == rail.address)
        slot = machine.chain(gpu.address)[-2]
        return {"nic": rail.address, "rdma": rail.name, "net": net, "gpu": gpu.address, "slot": slot}

    return of


@pytest.mark.parametrize(("node", "kind"), series.some(KIND_ON_NODE, 4))
def test_a_damaged_file_is_survived_and_what_it_would_tell_is_never_passed(
    lab: Path, on_node: Answer, names: Callable[[str], dict[str, str]], node: str, kind: str
) -> None:
    file = KINDS[kind]
    path = lab / node / "hw" / file.path.format(**names(node)).lstrip("/")
    for name, damage in DAMAGES.items():
        with damaged(path, damage):
            platform = on_node("topology_info", node, cross_checks=[])
            conf = on_node("nccl_conf", node, check_mode=True)
        for answer in (platform, conf):
            assert "failed" not in answer, (name, answer)
            assert answer["passed"] or answer["findings"]
        found = {finding["check"] for finding in platform["findings"] + conf["findings"]}
        if name not in file.harmless:
            assert set(file.asked) <= found, name


def test_nccl_conf_is_not_rewritten_while_a_file_about_a_rail_is_unreadable(
    lab: Path, on_node: Answer, names: Callable[[str], dict[str, str]]
) -> None:
    """Either the text stays as it is, or there is a blocker: no damage may pass for a reason to write another list."""
    for node in NODES:
        on_node("nccl_conf", node)
        for kind, file in KINDS.items():
            if node not in file.nodes:
                continue
            path = lab / node / "hw" / file.path.format(**names(node)).lstrip("/")
            with damaged(path, DAMAGES["binary"]):
                answer = on_node("nccl_conf", node, check_mode=True)
            assert answer["changed"] is False, kind
        (lab / node / "sys" / "etc" / "nccl.conf").unlink()


@pytest.mark.parametrize(
    "file", ["/etc/nccl.conf", "/etc/environment", "/root/.nccl.conf", "/home/user1/.nccl.conf", "/home"]
)
def test_damage_below_the_system_root_is_a_finding(lab: Path, on_node: Answer, file: str) -> None:
    path = lab / "node01" / "sys" / file.lstrip("/")
    for name, damage in DAMAGES.items():
        if name == "truncated" or not path.exists():
            path.parent.mkdir(exist_ok=True)
            if not path.exists():
                path.write_text("NCCL_DEBUG=INFO\n")
            if path.is_dir():
                continue
        with damaged(path, damage):
            answer = on_node("nccl_conf", "node01", check_mode=True)
        assert "failed" not in answer, (name, answer)
        if name in ("binary", "5 MiB", "loop", "pipe", "directory") and file != "/home":
            assert "nccl_conf.readable" in {finding["check"] for finding in answer["findings"]}, name
            assert answer["changed"] is False or file != "/etc/nccl.conf", name
    if path.is_file() and file != "/etc/environment":
        path.unlink()


# -- nvidia-smi ------------------------------------------------------------------------------------------------------

HEADER = "index, uuid, name, pci.bus_id, fabric.state, fabric.status"
TOOLS = {
    "no devices": "echo 'No devices were found'; exit 6",
    "driver not loaded": "echo 'NVIDIA-SMI has failed: it could not communicate with the NVIDIA driver.'; exit 9",
    "mismatch": "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
    "lost": "echo 'Unable to determine the device handle for GPU0000:1B:00.0: GPU is lost.'; exit 15",
    "unknown error": "echo 'Failed to initialize NVML: Unknown Error' >&2; exit 255",
    "silent": "exit 1",
    "silent success": "exit 0",
    "half a table": f"echo '{HEADER}'; printf '0, GPU-1, NVIDIA H1'",
    "header only": f"echo '{HEADER}'",
    "too few columns": f"echo '{HEADER}'; echo '0, GPU-1'",
    "too many columns": f"echo '{HEADER}'; echo '0, GPU-1, H100, 00000000:1B:00.0, Completed, Success, more, more'",
    "no address": f"echo '{HEADER}'; echo '0, GPU-1, H100, [N/A], Completed, Success'",
    "all unknown": f"echo '{HEADER}'; echo '[Unknown Error], [N/A], [GPU is lost], 1b:00.0, [N/A], [N/A]'",
    "long name": f"echo '{HEADER}'; printf '0, GPU-1, %010240d, 00000000:1B:00.0, Completed, Success\\n' 0",
    "megabytes": "head -c 17825792 /dev/zero | tr '\\0' 'x'",
    "endless": "exec yes",
    "endless stderr": "yes >&2",
    "escapes": "printf '\\033]0;owned\\007\\033[2J%s\\n'",
    "not text": "printf '\\377\\376\\200\\n'",
    "sleeps": "sleep 3000",
    "closes and sleeps": "exec >&- 2>&-; sleep 3000",
    "child keeps stdout": "sleep 3000 & echo done",
    "child in a session of its own": "setsid sleep 5 & echo done",
    "asks": "printf 'Continue? [y/N] '; read answer; echo \"$answer\"",
    "ignores signals": "trap '' TERM INT HUP; while :; do :; done",
    "kills itself": "kill -9 $$",
    "entities": "printf '<!DOCTYPE a [<!ENTITY b \"c\">]><nvidia_smi_log/>'",
}


@pytest.mark.parametrize("behaviour", series.some(TOOLS, 9))
def test_a_misbehaving_nvidia_smi_costs_what_only_it_knows_and_no_more(
    lab: Path, on_node: Answer, behaviour: str
) -> None:
    tool = lab / "node01" / "sys" / "usr" / "bin" / "nvidia-smi"
    started = time.monotonic()
    with damaged(tool, _text(f"#!/bin/sh\n{TOOLS[behaviour]}\n".encode())):
        tool.chmod(0o755)
        answer = on_node("topology_info", "node01", tool_timeout=5)
    assert time.monotonic() - started < 600  # not for ever
    assert "failed" not in answer
    assert {finding["check"] for finding in answer["findings"]} == {
        "platform.gpu_tool",
        "platform.nvlinks",
        "platform.nvlink_fabric",
        "platform.cross_check",
    } - ({"platform.gpu_tool"} if behaviour in FABRIC_IS_KNOWN else set())
    assert all(finding["state"] == "unknown" for finding in answer["findings"])
    assert len(answer["passed"]) > 70


# One GPU of eight answers there, so the tool does.
FABRIC_IS_KNOWN = ("long name",)


# -- wrong arguments -------------------------------------------------------------------------------------------------

RAIL = {"pci": "0000:18:00.0", "paths": {"0": "PIX"}, "rate_gbps": 400, "link_layers": ["InfiniBand"]}
GPUS = {"count": 8, "models": ["NVIDIA H100 80GB HBM3"]}


def profile_with(**changes: Any) -> dict[str, Any]:
    return {"description": "x", "gpus": GPUS, "rails": [RAIL]} | changes


WRONG_PROFILES: list[tuple[Any, str]] = [
    ("a sentence", "profile"),
    ([1, 2], "profile"),
    ({}, "description"),
    (profile_with(rials=[]), "rials"),
    (profile_with(rails=7), "rails"),
    (profile_with(rails={"0": RAIL}), "rails"),
    (profile_with(rails=["0000:18:00.0"]), "rails[0]"),
    (profile_with(gpus=[1]), "gpus"),
    (profile_with(gpus=GPUS | {"count": "eight"}), "gpus.count"),
    (profile_with(gpus=GPUS | {"count": "9" * 5000}), "gpus.count"),
    (profile_with(rails=[RAIL | {"rate_gbps": 10**400}]), "rate_gbps"),
    (profile_with(rails=[RAIL | {"rate_gbps": float("nan")}]), "rate_gbps"),
    (profile_with(rails=[RAIL | {"rate_gbps": float("inf")}]), "rate_gbps"),
    (profile_with(rails=[RAIL | {"pci": "0000:18:00.0\n"}]), "rails[0].pci"),
    (profile_with(rails=[RAIL | {"paths": ["PIX"]}]), "rails[0].paths"),
    (profile_with(rails=[RAIL | {"paths": {"0": ["PIX"]}}]), "rails[0].paths"),
    (profile_with(rails=[RAIL | {"numa": ["same"]}]), "rails[0].numa"),
    (profile_with(rails=[RAIL | {"link_layers": ["Ethernet"]}]), "busbar_fabric"),
]


# Module -> option -> values of which each is refused with the option's name.
WRONG_VALUES: dict[str, dict[str, list[Any]]] = {
    "topology_info": {
        "fabric": ["token-ring"],
        "address_family": ["ipx"],
        "cross_checks": [["lspci"]],
        "tool_timeout": ["soon", 0, -1, "inf", "nan"],
        "hardware_root": ["/no/such", "/no\0such"],
        "system_root": ["/dev/null"],
        "profil": [{}],
    },
    "node_health": {"tool_timeout": [0, "inf", "nan"], "power_limit": [-1], "hardware_root": ["/no\0such"]},
    "nccl_conf": {
        "fabric": ["token-ring"],
        "nccl_version": ["abc", "2.27.7\n"],
        "dscp": [64, -2, "ef"],
        "gpudirect": ["maybe"],
        "containers": [["podman"]],
        "path": ["etc/nccl.conf", "/etc/nccl\n.conf", "/etc/nccl\0.conf", ""],
        "libraries": [[""], ["libnccl.so.2"]],
        "hardware_root": ["/dev/null"],
        "system_root": ["/no/such", "/no\0such"],
    },
}
# Of one variable.
WRONG_SETTINGS = (["INFO"], {"a": 1}, None, True, "INFO\nNCCL_IB_DISABLE=1", "\x1b[2J")
WRONG_ARGUMENTS: list[tuple[str, dict[str, Any], str]] = [
    *((module, {name: value}, name) for module, of in WRONG_VALUES.items() for name in of for value in of[name]),
    ("nic_firmware", {"recommended": True, "firmware": {"MT_1": 28.43}}, "busbar_firmware.MT_1"),
    ("nic_firmware", {"settings": {"LINK_TYPE": [1]}}, "nic_firmware_settings.LINK_TYPE"),
    *(("nccl_conf", {"extra": {"NCCL_DEBUG": value}}, "extra: NCCL_DEBUG") for value in WRONG_SETTINGS),
    ("nccl_conf", {"extra": {"NCCL_DEBUG=INFO\nX": "1"}}, "extra: 'NCCL_DEBUG=INFO"),
    ("nccl_conf", {"extra": {"": "1"}}, "extra: ''"),
    *(("topology_info", {"profile": wrong, "check_mode": True}, says) for wrong, says in WRONG_PROFILES),
    ("nccl_conf", {"profile": {}, "check_mode": True}, "description"),
]


@pytest.mark.parametrize(("module", "arguments", "says"), WRONG_ARGUMENTS)
def test_a_wrong_argument_is_one_sentence_that_names_it(
    on_node: Answer, module: str, arguments: dict[str, Any], says: str
) -> None:
    answer = on_node(module, "node01", **arguments)
    assert answer["failed"]
    assert says in answer["msg"]
    assert "\n" not in answer["msg"].strip()
    assert "Traceback" not in str(answer)


def test_libraries_that_are_none_are_findings_and_do_not_keep_the_file_from_being_judged(
    lab: Path, on_node: Answer
) -> None:
    folder = lab / "node01" / "sys" / "odd"
    folder.mkdir()
    (folder / "directory").mkdir()
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_text("libnccl.so.2\n")
    (folder / "truncated").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(40))
    (folder / "header").write_bytes(b"\x7fELF\x02\x01\x01" + b"\xff" * 57)
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    paths = [f"/odd/{path.name}" for path in sorted(folder.iterdir())] + ["/odd/absent"]
    answer = on_node("nccl_conf", "node01", check_mode=True, libraries=paths)
    assert sorted(f["subject"] for f in answer["findings"] if f["check"] == "nccl_conf.library") == sorted(paths)
    assert "failed" not in answer
    shutil.rmtree(folder)


# -- hostile names ---------------------------------------------------------------------------------------------------

HOSTILE = [
    "mlx5_0\nNCCL_DEBUG=INFO",
    "mlx5 0",
    "mlx5_0,mlx5_9",
    "mlx5_0:2",
    "=mlx5_0",
    "^mlx5_0",
    "a=b",
    "\x1b[2Jmlx5",
    "é",
    os.fsdecode(b"mlx5_\xff\xfe"),
]


@pytest.mark.parametrize("name", series.some(HOSTILE, 4))
def test_a_device_name_that_would_say_something_else_in_the_file_blocks_it(
    lab: Path, on_node: Answer, names: Callable[[str], dict[str, str]], name: str
) -> None:
    node = lab / "node01"
    devices = node / "hw" / "sys" / "class" / "infiniband"
    link = devices / names("node01")["rdma"]
    link.rename(devices / name)
    try:
        conf = on_node("nccl_conf", "node01")
        platform = on_node("topology_info", "node01")
    finally:
        (devices / name).rename(link)
    assert [f["subject"] for f in conf["findings"] if f["check"] == "nccl_conf.device_name"] == ["rail 3"]
    assert (conf["changed"], conf["variables"]) == (False, {})
    assert not (node / "sys" / "etc" / "nccl.conf").exists()
    assert_printable({"nccl_conf": conf, "platform": platform})


@pytest.mark.parametrize("name", ["eno1=2", "eno1,docker0", "\x1b[2J", "a" * 200, "=eno1"])
def test_an_interface_name_that_would_say_something_else_in_the_file_blocks_it(
    lab: Path, on_node: Answer, name: str
) -> None:
    routes = lab / "node01" / "hw" / "proc" / "net" / "route"
    head, *rows = routes.read_text().splitlines()
    odd = "\n".join([head, *(re.sub(r"^\S+", lambda _: name, row) for row in rows)]) + "\n"
    with damaged(routes, _text(odd.encode())):
        from_route = on_node("nccl_conf", "node01")
    from_site = on_node("nccl_conf", "node01", management_interface=name)
    for answer in (from_route, from_site):
        assert [f["check"] for f in answer["findings"]] == ["nccl_conf.device_name"]
        assert answer["variables"] == {}
        assert_printable({"nccl_conf": answer})


def test_a_profile_name_cannot_become_an_assignment_in_a_comment(lab: Path, on_node: Answer) -> None:
    answer = on_node("nccl_conf", "node01", check_mode=True, profile_name="x\nNCCL_DEBUG=INFO \x1b[2J é")
    text = answer["diff"][0]["after"]
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert "NCCL_DEBUG" not in answer["variables"]
    assert not any("=" in line for line in comments)
    assert all(line.isascii() and line.isprintable() for line in text.splitlines())


def assert_printable(results: dict[str, dict[str, Any]]) -> None:
    """The verdict that a person reads holds no control character, whatever the host's names are."""
    text = verdict.render(
        verdict.judge({"node01": role_results(results)}, list(results), partial=False), check_mode=False
    )
    assert all(line.isprintable() for line in text.split("\n"))
