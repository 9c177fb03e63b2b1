"""GPUDirect RDMA on trees of files with stand-ins for modprobe, modinfo, ofed_info and dmesg."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import EllipsisType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.module_utils.core import os_release
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.driver import kernels, module_lists
from ansible_collections.busbar.fabric.plugins.module_utils.driver.module_file import parse as parse_modinfo
from ansible_collections.busbar.fabric.plugins.module_utils.gpudirect import peermem, plan, read
from ansible_collections.busbar.fabric.plugins.module_utils.ofed import read as ofed_state
from ansible_collections.busbar.fabric.plugins.modules import gpudirect as module
from hypothesis import given
from hypothesis import strategies as st

from tests import golden_rows, goldens
from tests.trees import contents, put, tool

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
REFUSED = "modprobe: ERROR: could not insert 'nvidia_peermem': "
EINVAL = f"{REFUSED}Invalid argument"
VERSION = {"module": "nvidia/580.95.05"}
OF_SERVERS = {"/var/lib/dkms/nvidia-srv/580.95.05/source/dkms.conf": ""}
NO_SYMBOL = "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)"
DISAGREES = "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client"
UNKNOWN = "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)"
ABSENT = "modprobe: FATAL: Module nvidia_peermem not found in directory /lib/modules/" + RELEASE
OTHERS = "mlx5_ib: disagrees about version of symbol ib_register_device"
CALLBACK = "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"

Run = Callable[..., dict[str, Any]]


# Path below the root -> text; None where there is none, ... for a directory, a Path for a link.
Files = Mapping[str, "str | Path | EllipsisType | None"]
OPEN, CLOSED = "Open Kernel Module", "Kernel Module"
OLD = "5.10.0-28-amd64"


def driver(version: str = "580.95.05", kind: str = OPEN) -> Files:
    text = f"NVRM version: NVIDIA UNIX {kind} for x86_64  {version}  Release Build  (dvs-builder)\n"
    return {"/proc/driver/nvidia/version": text}


def config(*lines: str, release: str = RELEASE) -> Files:
    return {f"/boot/config-{release}": "CONFIG_64BIT=y\n" + "\n".join(lines) + "\n"}


def module_of(depends: str) -> Files:
    text = f"printf 'filename: /lib/modules/nvidia-peermem.ko\\ndepends: {depends}\\n'"
    return {"/usr/bin/modinfo": f"#!/bin/sh\n{text}\n"}


NO_MODULE = {"/usr/bin/modinfo": "#!/bin/sh\necho 'modinfo: ERROR: Module nvidia-peermem not found.' >&2; exit 1\n"}
OFED = {"/usr/bin/ofed_info": "#!/bin/sh\necho OFED-internal-25.10-1.7.1:\n"}
INBOX = {"/usr/bin/ofed_info": None}
LOADED = {"/sys/module/nvidia_peermem/initstate": "live\n", "/sys/module/nvidia_peermem/version": "580.95.05\n"}
INIT = "/etc/init.d/nv_peer_mem"
LEGACY = {"/sys/module/nv_peer_mem/initstate": "live\n", "/sys/module/nv_peer_mem/refcnt": "3\n", INIT: "#!/bin/bash\n"}
P2PDMA = config("CONFIG_PCI_P2PDMA=y")
LARGE_PAGES = {**driver("590.44.01"), **config("CONFIG_PCI_P2PDMA=y", "CONFIG_ARM64_64K_PAGES=y")}
OF_DEBIAN, OF_ROCKY, OF_NOBODY = ({"/etc/os-release": text} for text in (DEBIAN, ROCKY, None))
OPENIBD = {"/usr/lib/systemd/system/openibd.service": "[Unit]\n"}
LISTED = {read.LIST: plan.TEXTS[read.LIST]}
THEIRS = {"/usr/lib/modules-load.d/of-others.conf": "# loader\nnvidia-peermem\n"}
EL = {**OF_ROCKY, **module_of(BUILT_WITHOUT), **INBOX}


class Node:
    """A sound machine without nvidia_peermem: open driver, Ubuntu, OFED, and a kernel that rules DMA-BUF out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.set(
            {
                **driver(),
                **config("CONFIG_PCI_P2PDMA=n"),
                **module_of(BUILT_FOR_OFED),
                **OFED,
                "/proc/sys/kernel/osrelease": f"{RELEASE}\n",
                "/proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz ro quiet\n",
                "/proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: \t NVIDIA H100 80GB HBM3\n",
                "/etc/os-release": UBUNTU,
                "/usr/bin/dmesg": f"#!/bin/sh\ncat {root}/kernel.log\n",
                "/kernel.log": "",
                "/usr/bin/modprobe": "#!/bin/sh\n" + LOADS.format(root=root),
            }
        )

    def set(self, files: Files) -> None:
        """Make each file what it is to be; a program where it lies in /usr/bin."""
        for path, what in files.items():
            file = self.root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            if what is None or isinstance(what, Path) or what is ...:
                file.unlink(missing_ok=True)
            if isinstance(what, Path):
                file.symlink_to(what)
            elif what is ...:
                file.mkdir()
            elif isinstance(what, str):
                put(self.root, path, what, 0o755 if path.startswith("/usr/bin") else 0o644)

    def text(self, path: str) -> str | None:
        target = self.root / path.lstrip("/")
        return target.read_text() if target.exists() else None

    def tool(self, name: str, body: str) -> None:
        tool(self.root, f"/usr/bin/{name}", body)

    def have(self, mode: str = "auto") -> read.State:
        return read.State(Host(str(self.root), str(self.root)), mode)

    def planned(self, mode: str = "auto") -> Plan:
        return plan.plan(self.have(mode), mode)

    def judge(self, mode: str = "auto") -> plan.Judgement:
        return plan.judge(self.have(mode), mode)


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


PATH = "gpudirect.path[live]@GPUDirect RDMA"
PERSISTED = "gpudirect.persisted[persisted]@nvidia_peermem"


@pytest.mark.golden
def test_the_path_of_each_mode(node: Node) -> None:
    rows = []
    stacks = (("OFED", {**OFED, **module_of(BUILT_FOR_OFED)}), ("inbox", {**INBOX, **module_of(BUILT_WITHOUT)}))
    for kind, (stack, files), kernel in itertools.product((OPEN, CLOSED), stacks, (RELEASE, OLD)):
        node.set({**OF_DEBIAN, **driver(kind=kind), **files, "/proc/sys/kernel/osrelease": kernel})
        node.set(config("CONFIG_PCI_P2PDMA=y", release=kernel))
        for mode in ("auto", "peermem", "dmabuf"):
            found = node.judge(mode)
            rows.append([mode, kind, stack, kernel, found.path, found.state, found.load])
            assert bool(found.fix) == (found.state != "ok")
    goldens.check("gpudirect", "path of each mode", rows)


# A node, the mode, and what its findings name.
CASES: dict[str, tuple[Any, ...]] = {
    "inbox of EL": (
        {**EL, **driver(kind=CLOSED)},
        "peermem",
        "install DOCA-OFED",
        "install the open GPU kernel modules",
    ),
    "inbox of EL, DMA-BUF would do": ({**EL, **P2PDMA}, "peermem", "set busbar_gpudirect: auto"),
    # Ubuntu's own kernel has the API.
    "inbox of Ubuntu": ({**module_of(BUILT_WITHOUT), **INBOX, **OF_SERVERS}, "peermem", "--force nvidia-srv/580.95.05"),
    "built without peer memory": (module_of(BUILT_WITHOUT), "peermem", peermem.NO_SYMBOLS.fix % VERSION),
    "not installed": (NO_MODULE, "peermem", peermem.NOT_INSTALLED.fix),
    "large pages": ({**LARGE_PAGES, **NO_MODULE}, "auto", "branch 580"),
    "no kernel config": ({f"/boot/config-{RELEASE}": None}, "auto", f"config-{RELEASE}"),
    "no kernel config, loaded": ({f"/boot/config-{RELEASE}": None, **LOADED}, "auto"),
    "no P2PDMA": ({}, "dmabuf", "CONFIG_PCI_P2PDMA"),
    # NCCL looks for this file.
    "loaded without a version": ({**LOADED, "/sys/module/nvidia_peermem/version": None}, "peermem"),
    "no driver": ({"/proc/driver/nvidia/version": None}, "auto"),
    "at boot on Ubuntu": (LOADED, "peermem"),
    "at boot on Ubuntu, auto": (LOADED, "auto", "kernel 6.8.0-60-generic was built without CONFIG_PCI_P2PDMA"),
    "at boot on Debian": ({**LOADED, **OF_DEBIAN}, "peermem"),
    "at boot on Ubuntu with openibd": ({**LOADED, **OPENIBD}, "peermem"),
    "at boot on EL": ({**LOADED, **OF_ROCKY}, "peermem"),
    "at boot on EL with openibd": ({**LOADED, **OF_ROCKY, **OPENIBD}, "peermem"),
    "at boot on SLES": ({**LOADED, "/etc/os-release": "ID=sles\n"}, "peermem"),
    "at boot on nobody's": ({**LOADED, **OF_NOBODY}, "peermem"),
    "openibd is gone": (
        {**LOADED, **OF_ROCKY, **{path: plan.TEXTS[path] for path in (read.UNIT, read.DROPIN, read.OPENIBD_DROPIN)}},
        "peermem",
    ),
    "list of others": ({**LOADED, **THEIRS}, "peermem"),
    "list of others, hidden": ({**LOADED, **THEIRS, "/etc/modules-load.d/of-others.conf": ""}, "peermem"),
    "lists on EL": (
        {
            **LOADED,
            **OF_ROCKY,
            "/etc/modules-load.d/gpu.conf": "# GPU\nib_umad\nnvidia-peermem\n",
            "/etc/modules-load.d/peer.conf": "nvidia_peermem\n",
            "/usr/lib/modules-load.d/vendor.conf": "nvidia_peermem\n",
        },
        "peermem",
    ),
    "old module": ({**LEGACY, "/etc/modules-load.d/peer.conf": "nv_peer_mem\nib_umad\n"}, "peermem", "use count 3"),
    "old module, masked": ({**LOADED, **LISTED, INIT: LEGACY[INIT], read.LEGACY_MASK: Path("/dev/null")}, "peermem"),
    # The file behind Debian's link is changed, and not the link.
    "old module behind a link": (
        {**LOADED, "/etc/modules": "nv_peer_mem\nloop\n", "/etc/modules-load.d/modules.conf": Path("../modules")},
        "peermem",
    ),
    "forbidden": (
        {
            "/etc/modprobe.d/site.conf": "options mlx5_core x=1\nblacklist nvidia-peermem\n# end\n",
            "/etc/modprobe.d/more.conf": "install nvidia_peermem \\\n  /bin/true\nblacklist nouveau\n",
        },
        "peermem",
    ),
    "forbidden by a package": ({"/usr/lib/modprobe.d/vendor.conf": "install nvidia_peermem /bin/false\n"}, "peermem"),
    "forbidden to the kernel": ({"/proc/cmdline": "ro module_blacklist=nouveau,nvidia_peermem\n"}, "peermem"),
    "forbidden to modprobe": ({"/proc/cmdline": "ro modprobe.blacklist=nvidia-peermem\n"}, "peermem"),
    "forbidden from the next boot on": (
        {
            "/usr/bin/update-grub": "#!/bin/sh\n",
            "/etc/default/grub": "",
            "/boot/grub/grub.cfg": "linux /vmlinuz-1 ro module_blacklist=nouveau,nvidia-peermem\n",
        },
        "peermem",
    ),
    "nonsense of modinfo": ({"/usr/bin/modinfo": "#!/bin/sh\necho nonsense\n"}, "peermem"),
    "nonsense of ofed_info": ({"/usr/bin/ofed_info": "#!/bin/sh\necho nonsense\n"}, "peermem"),
}
for mode in ("auto", "peermem", "dmabuf"):
    gb10 = {"/proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: \t NVIDIA GB10\n"}
    CASES[f"GB10, {mode}"] = (gb10, mode, "busbar_gpudirect: off")
for mode in ("off", "dmabuf"):
    CASES[f"not wanted, {mode}"] = ({**P2PDMA, **LOADED}, mode)
    CASES[f"not wanted any more, {mode}"] = ({**P2PDMA, **LOADED, **LISTED}, mode)
for path in (read.LIST, read.LEGACY_MASK, INIT, "/etc/modprobe.d/site.conf"):
    CASES[f"a directory at {path}"] = ({**LOADED, **LISTED, path: ...}, "peermem")
for path, text in (
    ("/proc/sys/kernel/osrelease", ""),
    ("/proc/sys/kernel/osrelease", "a\nb"),
    ("/proc/driver/nvidia/version", "garbage"),
    ("/etc/os-release", "garbage"),
    (f"/boot/config-{RELEASE}", "garbage"),
):
    CASES[f"{text!r} in {path}"] = ({path: text}, "auto")


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_is_planned(node: Node, case: str) -> None:
    files, mode, *words = CASES[case]
    node.set(files)
    made = node.planned(mode).limit("reboot")
    notes = [["note", *re.findall(r"/[\w./-]+", note)] for note in plan.notes(made)]
    goldens.check("gpudirect", case, golden_rows.plan(made, texts=True) + notes)
    text = "\n".join(f"{finding.have} {finding.fix} {finding.why}" for finding in made.findings if not finding.ok)
    assert [word for word in words if word not in text] == []
    node.set({change.path: change.after for change in made.changes})
    assert node.planned(mode).changes == ()


@pytest.mark.parametrize(
    ("version", "faulty"),
    [
        *((version, True) for version in ("590.44.01", "595.45.04", "595.84", "595.84.01", "610.43.02")),
        *((version, False) for version in ("580.95.05", "595.840.1")),
    ],
)
@pytest.mark.parametrize("large", [True, False])
def test_drivers_that_fault_with_large_pages(node: Node, version: str, faulty: bool, large: bool) -> None:
    node.set({**driver(version), **config("CONFIG_PCI_P2PDMA=y", f"CONFIG_ARM64_64K_PAGES={'y' if large else 'n'}")})
    found = node.judge("dmabuf")
    assert found.state == ("unsupported" if faulty and large else "ok")
    if faulty and large:
        assert "branch 580" in found.fix


JAMMY = "5.15.0-100-generic"
GIN_CASES: list[tuple[Files, str, str]] = [
    ({**LOADED}, "peermem", "ok"),
    (P2PDMA, "dmabuf", "ok"),
    ({**config("CONFIG_PCI_P2PDMA=y", release=JAMMY), "/proc/sys/kernel/osrelease": JAMMY}, "dmabuf", "drift"),
    ({"/proc/driver/nvidia/version": None}, "auto", "unknown"),
]


@pytest.mark.parametrize(("files", "mode", "state"), GIN_CASES)
def test_a_path_that_gpus_may_start_transfers_on(node: Node, files: Files, mode: str, state: str) -> None:
    node.set(files)
    [found] = plan.judge_gin(node.have(mode), mode)
    assert (found.state, found.because is None) == (state, state != "unknown")
    assert not [*plan.judge_gin(node.have("off"), "off")]


def test_a_healthy_node_is_asked_by_no_tool(node: Node) -> None:
    node.set(LOADED)
    for name in ("modinfo", "ofed_info", "dmesg", "modprobe"):
        node.tool(name, f"echo {name} >> {node.root}/calls")
    node.planned("peermem")
    node.set(P2PDMA)
    node.planned("auto")
    assert node.text("/calls") is None


@given(st.text(alphabet=st.sampled_from("nvidia_peermem-blacklist install\\\n#;:=.,0123456789 \r\"'CONFIG_ID")))
def test_parsers_parse_or_say_why(text: str) -> None:
    module_lists.listed(text)
    module_lists.unlisted(text, "nvidia_peermem")
    peermem.classify(text)
    for parse in (
        kernels.parse_release,
        read.parse_config,
        lambda said: read.ids(os_release.parse(said)),
        ofed_state.parse_release,
        parse_modinfo,
    ):
        with suppress(ParseError):
            parse(text)


def test_check_apply_and_again(node: Node, run: Run) -> None:
    before = contents(node.root)
    predicted = run(check=True)
    assert contents(node.root) == before
    assert predicted["commands"] == ["modprobe nvidia_peermem"]
    assert [finding["id"] for finding in predicted["findings"]] == [PATH, PERSISTED]
    assert predicted["repaired"] == [PERSISTED, PATH]
    done = run()
    for name in ("changed", "commands", "diff", "repaired", "reboot_required", "withheld", "notes"):
        assert done[name] == predicted[name], name
    assert done["changed"]
    assert done["findings"] == []
    assert node.text(read.LIST) == plan.TEXTS[read.LIST]
    again = run()
    assert (again["changed"], again["commands"], again["diff"], again["findings"]) == (False, [], [], [])
    assert node.text("/calls") == "loaded\n"
    assert run("off")["repaired"] == [PERSISTED]
    assert node.text(read.LIST) is None
    assert [path.name for path in (node.root / "etc/modules-load.d").iterdir()] == []


def finding_of(result: dict[str, Any]) -> dict[str, Any]:
    return next(finding for finding in result["findings"] if finding["id"] == PATH)


@pytest.mark.parametrize(
    ("modprobe", "log", "reason"),
    [
        (EINVAL, "", peermem.NO_SYMBOLS),
        # The kernel says both of them, and the first is the cause.
        (EINVAL, f"{DISAGREES}\n{NO_SYMBOL}", peermem.OTHER_OFED),
        (EINVAL, "nvidia_peermem: disagrees about version of symbol nvidia_p2p_get_pages", peermem.OTHER_DRIVER),
        (EINVAL, UNKNOWN, peermem.NO_API),
        (ABSENT, "", peermem.NOT_INSTALLED),
        (f"{REFUSED}Key was rejected by service", "", peermem.NOT_SIGNED),
        (f"{REFUSED}Required key not available", "", peermem.NOT_SIGNED),
        (f"{REFUSED}Exec format error", "", peermem.OTHER_KERNEL),
        *((f"{REFUSED}Cannot allocate memory", line, None) for line in ("", CALLBACK, OTHERS)),
    ],
)
def test_a_failing_modprobe_is_a_finding(node: Node, run: Run, modprobe: str, log: str, reason: Any) -> None:
    node.set(LISTED)
    node.tool("modprobe", f'echo "{log}" >> {node.root}/kernel.log; echo "{modprobe}" >&2; exit 1')
    for _time in range(2):
        result = run("peermem")
        (finding,) = result["findings"]
        assert (finding["id"], finding["state"]) == (PATH, "drift")
        assert finding["fix"]
        if reason is None:
            assert "Cannot allocate memory" in finding["have"]
        else:
            assert finding["fix"].startswith(reason.fix % VERSION)
        assert (result["changed"], result["repaired"]) == (False, [])


def test_what_an_earlier_attempt_left_in_the_log_is_not_this_failure(node: Node, run: Run) -> None:
    node.set({"/kernel.log": f"{DISAGREES}\n"})
    node.tool("modprobe", f"echo \"{EINVAL}\" >&2; echo '{UNKNOWN}' >> {node.root}/kernel.log; exit 1")
    assert finding_of(run("peermem", check=True))["have"].endswith(peermem.OTHER_OFED.says)
    assert peermem.NO_API.says in finding_of(run("peermem"))["have"]


def test_without_modprobe_or_without_effect_it_is_a_finding(node: Node, run: Run) -> None:
    node.tool("modprobe", "exit 0")
    assert "it ended with 0, but /sys/module/nvidia_peermem is not there" in finding_of(run("peermem"))["have"]
    node.set({"/usr/bin/modprobe": None})
    assert "modprobe: is not installed" in finding_of(run("peermem"))["have"]


def test_other_peoples_files_are_kept_in_a_copy(node: Node, run: Run) -> None:
    node.set({"/etc/modprobe.d/site.conf": "blacklist nvidia_peermem\n"})
    (kept,) = run("peermem")["backup_files"]
    assert Path(kept).read_text() == "blacklist nvidia_peermem\n"
    assert node.text("/etc/modprobe.d/site.conf") == ""
    assert run("peermem")["findings"] == []
