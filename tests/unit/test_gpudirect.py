"""GPUDirect RDMA on trees of files with stand-ins for modprobe, modinfo, ofed_info, dmesg and getconf."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.module_utils import gpudirect
from ansible_collections.busbar.fabric.plugins.module_utils.core import os_release
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.driver import module_lists, ofed_state, peermem
from ansible_collections.busbar.fabric.plugins.module_utils.driver.module_file import parse as parse_modinfo
from ansible_collections.busbar.fabric.plugins.module_utils.driver.peermem import (
    NO_API,
    NO_SYMBOLS,
    NOT_INSTALLED,
    NOT_SIGNED,
    OTHER_DRIVER,
    OTHER_KERNEL,
    OTHER_OFED,
    Failure,
    Reason,
    classify,
)
from ansible_collections.busbar.fabric.plugins.module_utils.gpudirect import (
    DROPIN,
    LEGACY_MASK,
    LIST,
    OPENIBD_DROPIN,
    UNIT,
    judge,
)
from ansible_collections.busbar.fabric.plugins.modules import gpudirect as module
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trees import put, tool

RELEASE = "6.8.0-60-generic"
UBUNTU = 'NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\n'
DEBIAN = "ID=debian\n"
ROCKY = 'ID="rocky"\nID_LIKE="rhel centos fedora"\n'
BUILT_FOR_OFED = "nvidia,ib_core"
BUILT_WITHOUT = "nvidia"
# From here on the module is there, as the kernel would show it.
LOADS = """\
[ "$*" = nvidia_peermem ] || exit 64
mkdir -p {root}/sys/module/nvidia_peermem
echo live > {root}/sys/module/nvidia_peermem/initstate
echo 580.95.05 > {root}/sys/module/nvidia_peermem/version
echo loaded >> {root}/calls
"""
EINVAL = "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument"
DISAGREES = "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client"
UNKNOWN = "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)"
ABSENT = "modprobe: FATAL: Module nvidia_peermem not found in directory /lib/modules/" + RELEASE
CALLBACK = "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"

Run = Callable[..., dict[str, Any]]


class Node:
    """A sound machine without nvidia_peermem: open driver, Ubuntu, OFED, and a kernel that rules DMA-BUF out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.driver()
        self.put("/proc/sys/kernel/osrelease", f"{RELEASE}\n")
        self.put("/proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz ro quiet\n")
        self.put("/proc/driver/nvidia/gpus/0000:1b:00.0/information", "Model: \t NVIDIA H100 80GB HBM3\n")
        self.put("/etc/os-release", UBUNTU)
        self.config("CONFIG_PCI_P2PDMA=n")
        self.module(BUILT_FOR_OFED)
        self.ofed("OFED-internal-25.10-1.7.1:")
        self.tool("dmesg", f"cat {root}/kernel.log")
        self.put("/kernel.log", "")
        self.tool("modprobe", LOADS.format(root=root))

    def put(self, path: str, text: str) -> None:
        put(self.root, path, text)

    def text(self, path: str) -> str | None:
        target = self.root / path.lstrip("/")
        return target.read_text() if target.exists() else None

    def tool(self, name: str, body: str) -> None:
        tool(self.root, f"/usr/bin/{name}", body)

    def no_tool(self, name: str) -> None:
        (self.root / "usr/bin" / name).unlink()

    def driver(self, version: str = "580.95.05", kind: str = "Open Kernel Module") -> None:
        text = f"NVRM version: NVIDIA UNIX {kind} for x86_64  {version}  Release Build  (dvs-builder)\n"
        self.put("/proc/driver/nvidia/version", text)

    def config(self, *lines: str, release: str = RELEASE) -> None:
        self.put(f"/boot/config-{release}", "CONFIG_64BIT=y\n" + "\n".join(lines) + "\n")

    def module(self, depends: str) -> None:
        self.tool("modinfo", f"printf 'filename: /lib/modules/nvidia-peermem.ko\\ndepends: {depends}\\n'")

    def no_module(self) -> None:
        self.tool("modinfo", "echo 'modinfo: ERROR: Module nvidia-peermem not found.' >&2; exit 1")

    def ofed(self, said: str) -> None:
        self.tool("ofed_info", f"echo '{said}'")

    def loaded(self, version: str | None = "580.95.05") -> None:
        self.put("/sys/module/nvidia_peermem/initstate", "live\n")
        if version is not None:
            self.put("/sys/module/nvidia_peermem/version", f"{version}\n")

    def legacy(self) -> None:
        self.put("/sys/module/nv_peer_mem/initstate", "live\n")
        self.put("/sys/module/nv_peer_mem/refcnt", "3\n")

    def have(self, mode: str = "auto") -> gpudirect.Have:
        return gpudirect.read(Host(str(self.root), str(self.root)), mode)

    def plan(self, mode: str = "auto") -> Plan:
        return gpudirect.plan(self.have(mode), mode)

    def judge(self, mode: str = "auto", failed: Failure | None = None) -> gpudirect.Judgement:
        return judge(self.have(mode), mode, failed)

    def files(self) -> dict[str, str]:
        return {str(path): path.read_text() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def run(node: Node, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(mode: str = "auto", *, check: bool = False, **more: Any) -> dict[str, Any]:
        roots = {"hardware_root": str(node.root), "system_root": str(node.root)}
        arguments = {"mode": mode, **roots, **more, "_ansible_check_mode": check}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            module.main()
        return dict(json.loads(capsys.readouterr().out))

    return call


def states(plan: Plan) -> dict[str, str]:
    return {finding.id: finding.state for finding in plan.findings if not finding.ok}


def ids(result: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in result["findings"]]


PATH = "gpudirect.path[live]@GPUDirect RDMA"
PERSISTED = "gpudirect.persisted[persisted]@nvidia_peermem"

# -- why a module does not load --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (EINVAL, NO_SYMBOLS),
        (f"{EINVAL}\n{UNKNOWN}", NO_API),
        # The kernel says both of them, and the first is the cause.
        (f"{EINVAL}\n{DISAGREES}\nnvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)", OTHER_OFED),
        (f"{EINVAL}\nnvidia_peermem: disagrees about version of symbol nvidia_p2p_get_pages", OTHER_DRIVER),
        (ABSENT, NOT_INSTALLED),
        ("modprobe: ERROR: could not insert 'nvidia_peermem': Key was rejected by service", NOT_SIGNED),
        ("modprobe: ERROR: could not insert 'nvidia_peermem': Required key not available", NOT_SIGNED),
        ("modprobe: ERROR: could not insert 'nvidia_peermem': Exec format error", OTHER_KERNEL),
        ("modprobe: ERROR: could not insert 'nvidia_peermem': Cannot allocate memory", None),
        ("modprobe: ERROR: could not insert 'rpcrdma': Invalid argument", None),
        ("mlx5_ib: disagrees about version of symbol ib_register_device", None),
        (CALLBACK, None),
        ("", None),
    ],
)
def test_a_failed_load_is_classified(text: str, reason: Reason | None) -> None:
    assert classify(text) is reason


def test_every_reason_has_its_own_way_out() -> None:
    reasons = {reason for _sign, reason in peermem.SIGNS}
    fixes = {reason.fix % {"version": "580.95.05"} for reason in reasons}
    assert len(fixes) == len(reasons) == 7
    assert "dkms install --force nvidia/580.95.05" in NO_SYMBOLS.fix % {"version": "580.95.05"}


# -- which path ------------------------------------------------------------------------------------------------------

OPEN, CLOSED = "Open Kernel Module", "Kernel Module"
OFED, INBOX = "OFED-internal-25.10-1.7.1:", ""
NEW, OLD = "6.8.0-60-generic", "5.10.0-28-amd64"


@pytest.mark.parametrize(
    ("mode", "driver", "ofed", "kernel", "path", "state"),
    [
        ("auto", OPEN, OFED, NEW, "dmabuf", "ok"),
        ("auto", OPEN, INBOX, NEW, "dmabuf", "ok"),
        ("auto", OPEN, OFED, OLD, "peermem", "drift"),
        ("auto", OPEN, INBOX, OLD, "", "unsupported"),
        ("auto", CLOSED, OFED, NEW, "peermem", "drift"),
        ("auto", CLOSED, OFED, OLD, "peermem", "drift"),
        ("auto", CLOSED, INBOX, NEW, "", "unsupported"),
        ("auto", CLOSED, INBOX, OLD, "", "unsupported"),
        ("peermem", OPEN, OFED, NEW, "peermem", "drift"),
        ("peermem", OPEN, OFED, OLD, "peermem", "drift"),
        ("peermem", OPEN, INBOX, NEW, "", "unsupported"),
        ("peermem", OPEN, INBOX, OLD, "", "unsupported"),
        ("peermem", CLOSED, OFED, NEW, "peermem", "drift"),
        ("peermem", CLOSED, OFED, OLD, "peermem", "drift"),
        ("peermem", CLOSED, INBOX, NEW, "", "unsupported"),
        ("peermem", CLOSED, INBOX, OLD, "", "unsupported"),
        ("dmabuf", OPEN, OFED, NEW, "dmabuf", "ok"),
        ("dmabuf", OPEN, INBOX, NEW, "dmabuf", "ok"),
        ("dmabuf", OPEN, OFED, OLD, "dmabuf", "unsupported"),
        ("dmabuf", OPEN, INBOX, OLD, "dmabuf", "unsupported"),
        ("dmabuf", CLOSED, OFED, NEW, "dmabuf", "unsupported"),
        ("dmabuf", CLOSED, OFED, OLD, "dmabuf", "unsupported"),
        ("dmabuf", CLOSED, INBOX, NEW, "dmabuf", "unsupported"),
        ("dmabuf", CLOSED, INBOX, OLD, "dmabuf", "unsupported"),
    ],
)
def test_the_path_of_each_mode(
    node: Node, mode: str, driver: str, ofed: str, kernel: str, path: str, state: str
) -> None:
    node.put("/etc/os-release", DEBIAN)
    node.driver(kind=driver)
    node.put("/proc/sys/kernel/osrelease", kernel)
    node.config("CONFIG_PCI_P2PDMA=y", release=kernel)
    node.module(BUILT_FOR_OFED if ofed else BUILT_WITHOUT)
    if ofed:
        node.ofed(ofed)
    else:
        node.no_tool("ofed_info")
    found = node.judge(mode)
    assert (found.path, found.state) == (path, state)
    assert found.load == (state == "drift")
    assert bool(found.fix) == (state != "ok")


def test_inbox_says_both_ways_out(node: Node) -> None:
    node.put("/etc/os-release", ROCKY)
    node.module(BUILT_WITHOUT)
    node.no_tool("ofed_info")
    node.driver(kind=CLOSED)
    found = node.judge("peermem")
    assert "no peer-memory API" in found.have
    assert "install DOCA-OFED" in found.fix
    assert "install the open GPU kernel modules" in found.fix
    node.driver()
    node.config("CONFIG_PCI_P2PDMA=y")
    assert "set busbar_gpudirect: auto" in node.judge("peermem").fix


def test_ubuntus_own_kernel_has_the_api_so_a_rebuild_helps(node: Node) -> None:
    node.module(BUILT_WITHOUT)
    node.no_tool("ofed_info")
    found = node.judge("peermem")
    assert (found.state, found.load) == ("drift", False)
    assert "dkms build --force nvidia/580.95.05" in found.fix


def test_a_module_without_peer_memory_symbols_is_not_even_tried(node: Node) -> None:
    node.module(BUILT_WITHOUT)
    plan = node.plan("peermem")
    assert plan.commands == ()
    assert "built without the peer-memory symbols" in str(plan.findings[0].have)


def test_a_missing_module_is_not_even_tried(node: Node) -> None:
    node.no_module()
    found = node.judge("peermem")
    assert (found.state, found.load, found.fix) == ("drift", False, NOT_INSTALLED.fix)


@pytest.mark.parametrize("mode", ["auto", "peermem", "dmabuf"])
def test_gb10_knows_no_gpudirect(node: Node, mode: str) -> None:
    node.put("/proc/driver/nvidia/gpus/0000:1b:00.0/information", "Model: \t NVIDIA GB10\n")
    found = node.judge(mode)
    assert (found.path, found.state) == ("", "unsupported")
    assert "busbar_gpudirect: off" in found.fix


@pytest.mark.parametrize(
    ("version", "faulty"),
    [
        ("590.44.01", True),
        ("595.45.04", True),
        ("595.84", True),
        ("610.43.02", True),
        ("580.95.05", False),
        ("595.84.01", True),
        ("595.840.1", False),
    ],
)
@pytest.mark.parametrize("large", [True, False])
def test_drivers_that_fault_with_large_pages(node: Node, version: str, faulty: bool, large: bool) -> None:
    node.driver(version)
    node.config("CONFIG_PCI_P2PDMA=y", f"CONFIG_ARM64_64K_PAGES={'y' if large else 'n'}")
    found = node.judge("dmabuf")
    assert found.state == ("unsupported" if faulty and large else "ok")
    if faulty and large:
        assert "branch 580" in found.fix


@pytest.mark.parametrize(("said", "possible"), [("65536", False), ("4096", None), ("large", None)])
def test_without_a_kernel_config_the_page_size_is_asked(node: Node, said: str, possible: bool | None) -> None:
    node.driver("590.44.01")
    (node.root / f"boot/config-{RELEASE}").unlink()
    node.tool("getconf", f"[ $1 = PAGESIZE ] && echo {said}")
    assert gpudirect.dmabuf(node.have())[0] is possible


def test_large_pages_have_no_peermem_either(node: Node) -> None:
    node.driver("590.44.01")
    node.config("CONFIG_PCI_P2PDMA=y", "CONFIG_ARM64_64K_PAGES=y")
    node.no_module()
    found = node.judge("auto")
    assert (found.path, found.state) == ("", "unsupported")
    assert "branch 580" in found.fix


def test_without_a_kernel_config_auto_believes_what_is_loaded_and_nothing_else(node: Node) -> None:
    (node.root / f"boot/config-{RELEASE}").unlink()
    found = node.judge("auto")
    assert (found.state, found.load) == ("unknown", False)
    assert f"config-{RELEASE}" in found.have
    node.loaded()
    assert (node.judge("auto").path, node.judge("auto").state) == ("peermem", "ok")


def test_a_kernel_without_p2pdma_has_no_dmabuf(node: Node) -> None:
    assert "CONFIG_PCI_P2PDMA" in node.judge("dmabuf").have


def test_loaded_counts_only_with_the_file_that_nccl_looks_for(node: Node) -> None:
    node.loaded(version=None)
    assert node.judge("peermem").state == "unknown"


def test_without_a_driver_nothing_is_known_and_nothing_is_loaded(node: Node) -> None:
    (node.root / "proc/driver/nvidia/version").unlink()
    plan = node.plan("auto")
    assert states(plan) == {PATH: "unknown"}
    assert not plan.changed


def test_a_healthy_node_is_asked_by_no_tool(node: Node) -> None:
    node.loaded()
    for name in ("modinfo", "ofed_info", "dmesg", "modprobe"):
        node.tool(name, f"echo {name} >> {node.root}/calls")
    node.plan("peermem")
    node.config("CONFIG_PCI_P2PDMA=y")
    node.plan("auto")
    assert node.text("/calls") is None


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/proc/sys/kernel/osrelease", ""),
        ("/proc/sys/kernel/osrelease", "a\nb"),
        ("/proc/driver/nvidia/version", "garbage"),
        ("/etc/os-release", "garbage"),
        (f"/boot/config-{RELEASE}", "garbage"),
    ],
)
def test_what_cannot_be_read_is_unknown_and_named(node: Node, path: str, text: str) -> None:
    node.put(path, text)
    found = states(node.plan("auto"))
    assert found[f"gpudirect.readable[live]@{path}"] == "unknown"


def test_off_asks_for_nothing(tmp_path: Path) -> None:
    host = Host(str(tmp_path), str(tmp_path))
    assert gpudirect.plan(gpudirect.read(host, "off"), "off") == Plan()


@pytest.mark.parametrize("name", ["modinfo", "ofed_info"])
def test_a_tool_that_prints_nonsense_is_named(node: Node, name: str) -> None:
    node.tool(name, "echo nonsense")
    assert any(id.startswith(f"gpudirect.readable[live]@{name}") for id in states(node.plan("peermem")))


# -- at boot ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "openibd", "files"),
    [
        (UBUNTU, False, [LIST]),
        (DEBIAN, False, [LIST]),
        (UBUNTU, True, [LIST, UNIT, DROPIN, OPENIBD_DROPIN]),
        (ROCKY, False, [UNIT, DROPIN]),
        (ROCKY, True, [UNIT, DROPIN, OPENIBD_DROPIN]),
        ("ID=sles\n", False, [UNIT, DROPIN]),
    ],
)
def test_how_each_distribution_loads_it_at_boot(node: Node, release: str, openibd: bool, files: list[str]) -> None:
    node.loaded()
    node.put("/etc/os-release", release)
    if openibd:
        node.put("/usr/lib/systemd/system/openibd.service", "[Unit]\n")
    plan = node.plan("peermem")
    assert states(plan) == {PERSISTED: "drift"}
    assert [change.path for change in plan.changes] == files
    assert plan.commands == ()
    for change in plan.changes:
        node.put(change.path, change.after or "")
    assert states(node.plan("peermem")) == {}


def test_what_openibd_is_told_goes_with_openibd(node: Node) -> None:
    node.loaded()
    node.put("/etc/os-release", ROCKY)
    for path in (UNIT, DROPIN, OPENIBD_DROPIN):
        node.put(path, gpudirect.TEXTS[path])
    assert [(change.path, change.after) for change in node.plan("peermem").changes] == [(OPENIBD_DROPIN, None)]


def test_in_auto_the_boot_files_say_why_dmabuf_is_no_way_out(node: Node) -> None:
    node.loaded()
    [found] = [finding for finding in node.plan("auto").findings if finding.check == "gpudirect.persisted"]
    assert found.why.endswith(
        "DMA-BUF is not an alternative: kernel 6.8.0-60-generic was built without CONFIG_PCI_P2PDMA"
    )


def test_somebody_elses_list_will_do_on_debian(node: Node) -> None:
    node.loaded()
    node.put("/usr/lib/modules-load.d/nvidia-peermem-loader.conf", "# loader\nnvidia-peermem\n")
    assert not node.plan("peermem").changed
    # A file of the same name in /etc hides it.
    node.put("/etc/modules-load.d/nvidia-peermem-loader.conf", "")
    assert [change.path for change in node.plan("peermem").changes] == [LIST]


def test_on_el_a_list_that_names_it_is_drift(node: Node) -> None:
    node.loaded()
    node.put("/etc/os-release", ROCKY)
    node.put("/etc/modules-load.d/gpu.conf", "# GPU\nib_umad\nnvidia-peermem\n")
    node.put("/etc/modules-load.d/peer.conf", "nvidia_peermem\n")
    node.put("/usr/lib/modules-load.d/vendor.conf", "nvidia_peermem\n")
    plan = node.plan("peermem")
    assert states(plan) == {
        PERSISTED: "drift",
        "gpudirect.persisted[persisted]@/etc/modules-load.d/gpu.conf": "drift",
        "gpudirect.persisted[persisted]@/etc/modules-load.d/peer.conf": "drift",
        "gpudirect.persisted[persisted]@/usr/lib/modules-load.d/vendor.conf": "not_owned",
    }
    after = {change.path: change.after for change in plan.changes}
    assert after["/etc/modules-load.d/gpu.conf"] == "# GPU\nib_umad\n"
    assert after["/etc/modules-load.d/peer.conf"] is None
    assert [note.partition(" named")[0].split()[-1] for note in gpudirect.notes(plan)] == [
        "/etc/modules-load.d/gpu.conf",
        "/etc/modules-load.d/peer.conf",
    ]


@pytest.mark.parametrize("mode", ["off", "dmabuf"])
def test_busbars_own_files_go_when_nobody_asks_for_the_module(node: Node, mode: str) -> None:
    node.config("CONFIG_PCI_P2PDMA=y")
    node.loaded()
    assert states(node.plan(mode)) == {}
    node.put(LIST, gpudirect.TEXTS[LIST])
    plan = node.plan(mode)
    assert states(plan) == {PERSISTED: "drift"}
    assert [(change.path, change.after) for change in plan.changes] == [(LIST, None)]
    assert plan.commands == ()


def test_an_unknown_distribution_gets_no_files(node: Node) -> None:
    node.loaded()
    (node.root / "etc/os-release").unlink()
    plan = node.plan("peermem")
    assert states(plan)[PERSISTED] == "unknown"
    assert plan.changes == ()


@pytest.mark.parametrize("path", [LIST, LEGACY_MASK, "/etc/init.d/nv_peer_mem", "/etc/modprobe.d/site.conf"])
def test_what_an_unreadable_file_would_say_is_not_ok(node: Node, path: str) -> None:
    node.loaded()
    node.put(LIST, gpudirect.TEXTS[LIST])
    (node.root / path.lstrip("/")).unlink(missing_ok=True)
    (node.root / path.lstrip("/")).mkdir(parents=True)
    plan = node.plan("peermem")
    assert states(plan)[f"gpudirect.readable[live]@{path}"] == "unknown"
    assert plan.changes == ()
    check = {LIST: "persisted", "/etc/modprobe.d/site.conf": "blocked"}.get(path, "legacy")
    assert not [f for f in plan.findings if f.check == f"gpudirect.{check}" and f.aspect == "persisted" and f.ok]


# -- what is in the way ----------------------------------------------------------------------------------------------


def test_the_old_module_stays_loaded_and_loses_its_start(node: Node) -> None:
    node.legacy()
    node.put("/etc/init.d/nv_peer_mem", "#!/bin/bash\n")
    node.put("/etc/modules-load.d/peer.conf", "nv_peer_mem\nib_umad\n")
    plan = node.plan("peermem").limit("reboot")
    assert states(plan) == {
        PATH: "withheld",
        PERSISTED: "drift",
        "gpudirect.legacy[live]@nv_peer_mem": "withheld",
        "gpudirect.legacy[persisted]@nv_peer_mem": "drift",
        "gpudirect.legacy[persisted]@/etc/modules-load.d/peer.conf": "drift",
    }
    assert plan.commands == ()
    live = next(finding for finding in plan.findings if finding.id == "gpudirect.legacy[live]@nv_peer_mem")
    assert (live.have, live.disruption) == ("loaded, held by use count 3", "driver")
    assert next(finding for finding in plan.findings if finding.id == PATH).because == live.id
    assert {change.path: change.after for change in plan.changes} == {
        LIST: gpudirect.TEXTS[LIST],
        LEGACY_MASK: "",
        "/etc/modules-load.d/peer.conf": "ib_umad\n",
    }


def test_a_masked_old_module_is_ok(node: Node) -> None:
    node.loaded()
    node.put(LIST, gpudirect.TEXTS[LIST])
    node.put("/etc/init.d/nv_peer_mem", "#!/bin/bash\n")
    mask = node.root / LEGACY_MASK.lstrip("/")
    mask.parent.mkdir(parents=True)
    mask.symlink_to("/dev/null")
    assert states(node.plan("peermem")) == {}


def test_the_file_behind_debians_link_is_changed_and_not_the_link(node: Node) -> None:
    node.loaded()
    node.put("/etc/modules", "nv_peer_mem\nloop\n")
    (node.root / "etc/modules-load.d").mkdir()
    (node.root / "etc/modules-load.d/modules.conf").symlink_to("../modules")
    assert ("/etc/modules", "loop\n") in [(change.path, change.after) for change in node.plan("peermem").changes]


def test_lines_that_forbid_the_module_are_taken_out(node: Node) -> None:
    node.put("/etc/modprobe.d/site.conf", "options mlx5_core x=1\nblacklist nvidia-peermem\n# end\n")
    node.put("/etc/modprobe.d/more.conf", "install nvidia_peermem \\\n  /bin/true\nblacklist nouveau\n")
    plan = node.plan("peermem")
    after = {change.path: change.after for change in plan.changes}
    assert after["/etc/modprobe.d/site.conf"] == "options mlx5_core x=1\n# end\n"
    assert after["/etc/modprobe.d/more.conf"] == "blacklist nouveau\n"
    assert len(plan.commands) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/usr/lib/modprobe.d/vendor.conf", "install nvidia_peermem /bin/false\n"),
        ("/proc/cmdline", "ro module_blacklist=nouveau,nvidia_peermem\n"),
        ("/proc/cmdline", "ro modprobe.blacklist=nvidia-peermem\n"),
    ],
)
def test_what_others_forbid_stays_and_nothing_is_loaded(node: Node, path: str, text: str) -> None:
    node.put(path, text)
    plan = node.plan("peermem")
    assert states(plan)[f"gpudirect.blocked[persisted]@{path}"] == "not_owned"
    assert plan.commands == ()
    assert next(f for f in plan.findings if f.id == PATH).because == f"gpudirect.blocked[persisted]@{path}"


def test_what_the_next_boot_forbids_is_found(node: Node) -> None:
    node.tool("update-grub", "exit 0")
    node.put("/etc/default/grub", "")
    node.put("/boot/grub/grub.cfg", "linux /vmlinuz-1 ro module_blacklist=nouveau,nvidia-peermem\n")
    assert states(node.plan("peermem"))["gpudirect.blocked[persisted]@the next boot"] == "not_owned"


# -- parsers ---------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.sampled_from("nvidia_peermem-blacklist install\\\n#;:=.,0123456789 \r\"'CONFIG_ID")))
def test_parsers_parse_or_say_why(text: str) -> None:
    module_lists.listed(text)
    module_lists.unlisted(text, "nvidia_peermem")
    classify(text)
    for parse in (
        gpudirect.parse_release,
        gpudirect.parse_config,
        lambda said: gpudirect.ids(os_release.parse(said)),
        ofed_state.parse_release,
        gpudirect.parse_page_size,
        parse_modinfo,
    ):
        with suppress(ParseError):
            parse(text)


# -- the module ------------------------------------------------------------------------------------------------------


def test_check_apply_and_again(node: Node, run: Run) -> None:
    before = node.files()
    predicted = run(check=True)
    assert node.files() == before
    assert predicted["commands"] == ["modprobe nvidia_peermem"]
    assert ids(predicted) == [PATH, PERSISTED]
    assert predicted["repaired"] == [PERSISTED, PATH]
    done = run()
    for name in ("changed", "commands", "diff", "repaired", "reboot_required", "withheld", "notes"):
        assert done[name] == predicted[name], name
    assert done["changed"]
    assert done["findings"] == []
    assert node.text(LIST) == gpudirect.TEXTS[LIST]
    again = run()
    assert (again["changed"], again["commands"], again["diff"], again["findings"]) == (False, [], [], [])
    assert node.text("/calls") == "loaded\n"
    assert run("off")["repaired"] == [PERSISTED]
    assert node.text(LIST) is None
    assert [path.name for path in (node.root / "etc/modules-load.d").iterdir()] == []


@pytest.mark.parametrize(
    ("modprobe", "log", "words"),
    [
        (EINVAL, "", "built without the peer-memory symbols"),
        (EINVAL, DISAGREES, "built for another ib_core"),
        (EINVAL, UNKNOWN, "no peer-memory API"),
        (ABSENT, "", "not installed for the running kernel"),
        ("modprobe: ERROR: could not insert 'nvidia_peermem': Cannot allocate memory", "", "Cannot allocate memory"),
    ],
)
def test_a_failing_modprobe_is_a_finding(node: Node, run: Run, modprobe: str, log: str, words: str) -> None:
    node.put(LIST, gpudirect.TEXTS[LIST])
    node.tool("modprobe", f'echo "{log}" >> {node.root}/kernel.log; echo "{modprobe}" >&2; exit 1')
    for _time in range(2):
        result = run("peermem")
        (finding,) = result["findings"]
        assert (finding["id"], finding["state"]) == (PATH, "drift")
        assert words in finding["have"]
        assert finding["fix"]
        assert (result["changed"], result["repaired"]) == (False, [])


def test_what_an_earlier_attempt_left_in_the_log_is_not_this_failure(node: Node, run: Run) -> None:
    node.put("/kernel.log", f"{DISAGREES}\n")
    node.tool("modprobe", f"echo \"{EINVAL}\" >&2; echo '{UNKNOWN}' >> {node.root}/kernel.log; exit 1")
    predicted = next(finding for finding in run("peermem", check=True)["findings"] if finding["id"] == PATH)
    assert "at the last attempt: it was built for another ib_core" in predicted["have"]
    found = next(finding for finding in run("peermem")["findings"] if finding["id"] == PATH)
    assert "no peer-memory API" in found["have"]


def test_exit_code_zero_is_no_proof(node: Node, run: Run) -> None:
    node.tool("modprobe", "exit 0")
    found = next(finding for finding in run("peermem")["findings"] if finding["id"] == PATH)
    assert "it ended with 0, but /sys/module/nvidia_peermem is not there" in found["have"]


def test_a_host_without_modprobe_gets_a_finding(node: Node, run: Run) -> None:
    node.no_tool("modprobe")
    found = next(finding for finding in run("peermem")["findings"] if finding["id"] == PATH)
    assert "modprobe: is not installed" in found["have"]


def test_other_peoples_files_are_kept_in_a_copy(node: Node, run: Run) -> None:
    node.put("/etc/modprobe.d/site.conf", "blacklist nvidia_peermem\n")
    (kept,) = run("peermem")["backup_files"]
    assert Path(kept).read_text() == "blacklist nvidia_peermem\n"
    assert node.text("/etc/modprobe.d/site.conf") == ""
    assert run("peermem")["findings"] == []


def test_a_root_that_is_no_directory_is_refused(node: Node, run: Run) -> None:
    assert "system_root" in run(system_root=str(node.root / "none"))["msg"]
