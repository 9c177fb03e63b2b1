# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the readers of a node's health make of tools and files, and of those that do not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.health import (
    kernel_log,
    service,
    smi,
    system,
    xid,
)
from hypothesis import given
from hypothesis import strategies as st

from tests import smi_answers
from tests.trees import line, put, tool

PCI = "0000:9b:00.0"


def test_more_gpus_than_any_node_has_are_refused() -> None:
    with pytest.raises(ParseError, match="lists 65 GPUs"):
        smi.parse(smi_answers.xml([f"0000:{n:02x}:00.0" for n in range(65)]))


@given(st.dictionaries(st.sampled_from(sorted(smi_answers.HEALTHY)), st.text("0123456789 NAY/ues.-WC", max_size=30)))
def test_no_value_of_a_gpu_breaks_the_reader(change: dict[str, Any]) -> None:
    (gpu,) = smi.parse(smi_answers.xml([PCI], {0: change}))
    assert gpu.pci == PCI


LOG = """\
[    0.000000] Linux version 6.8.0-60-generic
[   12.500000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05
[  100.000000][ T1234] NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[  101.000000] mlx5_core 0000:1b:00.0: something else
[  102.000000] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 46 something
"""


def node(root: Path, log: str, uptime: float = 7300.0, journal: str | None = None, until: int = 300) -> Host:
    put(root, "var/log/ring", log)
    tool(root, "usr/bin/dmesg", f"cat {root}/var/log/ring")
    line(root / "proc/uptime", f"{uptime:.2f} 1.00")
    if journal is not None:
        put(root, "var/log/journal", journal)
        file = f"{root}/var/log/journal"
        words = f"*-k*grep*) grep Xid {file};; *reverse*--until=@{until}) head -n 1 {file};;"
        tool(root, "usr/bin/journalctl", f'case "$*" in {words} esac')
    return Host(str(root), str(root))


def test_xids_of_the_ring(tmp_path: Path) -> None:
    log = kernel_log.read(node(tmp_path, LOG), since=0.0, now=1e9)
    assert (log.problem, log.source, len(log.series), log.total) == (None, "dmesg", 3, 5)
    lost, switch = kernel_log.events(log)
    assert (lost.pci, lost.number, lost.age, lost.switch) == (PCI, 79, 7200.0, False)
    assert (switch.pci, switch.number, switch.switch, switch.action) == ("0000:c1:00.0", 22013, True, xid.RESET)
    # Within the last hour was none; and a driver that was loaded anew knows of none before.
    assert kernel_log.read(node(tmp_path, LOG), since=1e9 - 3600.0, now=1e9).series == ()
    again = node(tmp_path / "b", LOG + "[  200.000000] NVRM: loading NVIDIA UNIX\n")
    assert kernel_log.events(kernel_log.read(again, since=0.0, now=1e9)) == ()


def test_a_ring_that_lost_its_beginning_is_made_up_for_by_the_journal(tmp_path: Path) -> None:
    late = LOG.replace("[    0.000000] Linux version 6.8.0-60-generic\n", "").replace("[   12.5", "[ 6000.5")
    journal = "[    0.000000] n kernel: Linux version\n[  100.000000] n kernel: NVRM: Xid (PCI:0000:9b:00): 79, x\n"
    log = kernel_log.read(node(tmp_path / "a", late, journal=journal), since=0.0, now=7300.0)
    assert (log.problem, [event.number for event in kernel_log.events(log)]) == (None, [79])
    # It need not go back further than what is asked for.
    recent = kernel_log.read(node(tmp_path / "b", late), since=7300.0 - 600.0, now=7300.0)
    assert recent.problem is None
    # Nothing from before, and nobody who knows: the log is incomplete, and what is left of it counts.
    log = kernel_log.read(node(tmp_path / "c", late), since=0.0, now=7300.0)
    assert log.series
    assert log.problem is not None
    assert "journalctl" in log.problem.message
    # Nor does a journal that was rotated since, and has nothing from before.
    for text, until in (("", 300), (journal, 0)):
        host = node(tmp_path / f"until {until}", late, journal=text, until=until)
        log = kernel_log.read(host, since=0.0, now=7300.0)
        assert log.problem is not None


def test_a_log_without_times_counts_as_of_now(tmp_path: Path) -> None:
    text = "Linux version\nNVRM: Xid (PCI:0000:9b:00): 79, x\n"
    log = kernel_log.read(node(tmp_path, text), since=0.0, now=7300.0)
    assert [(event.number, event.age) for event in kernel_log.events(log)] == [(79, None)]
    # Nor does it prove that it is complete, as little as one that was cleared.
    for number, ring in enumerate((text, "")):
        assert kernel_log.read(node(tmp_path / str(number), ring), since=0.0, now=7300.0).problem is not None


def test_what_follows_from_another_gpu() -> None:
    """Hours apart they are two faults."""
    first, second = "0000:01:00.0", "0000:02:00.0"
    for age, cause in ((100.0, first), (9000.0, None)):
        troubles = xid.troubles((xid.Event(first, 149, "", age), xid.Event(second, 145, "", 99.0)))
        assert [(trouble.pci, trouble.because) for trouble in troubles] == [(first, None), (second, cause)]


def test_the_table_names_actions_that_there_are() -> None:
    assert {action for _text, action in xid.TABLE.values()} <= set(xid.ACTIONS)
    assert all(number in xid.TABLE for number in xid.FOLLOWS)
    # One that follows from each of two, which follow from each other, would have no root.
    assert not [n for n, after in xid.FOLLOWS.items() for m in after if n in xid.FOLLOWS.get(m, ())]


def test_aer_of_functions_that_count(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices" / PCI
    put(tmp_path, f"sys/bus/pci/devices/{PCI}/aer_dev_correctable", "RxErr 3\nBadTLP 4\nTOTAL_ERR_COR 7\n")
    line(folder / "aer_dev_fatal", "TOTAL_ERR_FATAL 0")
    host = Host(str(tmp_path), str(tmp_path))
    problems: list[Problem] = []
    found = system.read_errors(host, [PCI, "0000:01:00.0"], problems)
    assert (found, problems) == ({PCI: {"correctable": 7, "fatal": 0}}, [])
    line(folder / "aer_dev_fatal", "what")
    assert (system.read_errors(host, [PCI], problems), len(problems)) == ({PCI: {"correctable": 7}}, 1)


def test_the_fabric_manager_and_its_version(tmp_path: Path) -> None:
    """Whether it runs is read from its control group; where that is empty or elsewhere, from systemd."""
    host = Host(str(tmp_path), str(tmp_path))
    assert service.read_fabric_manager(host).installed is False
    put(tmp_path, f"usr/lib/systemd/system/{service.FABRIC_MANAGER_UNIT}", "[Service]\n")
    there = service.read_fabric_manager(host)
    assert (there.installed, there.active, there.enabled, there.version) == (True, False, False, None)
    assert there.problem is not None
    tool(tmp_path, "usr/bin/systemctl", "printf 'ActiveState=failed\\nSubState=failed\\n'")
    put(tmp_path, f"sys/fs/cgroup/system.slice/{service.FABRIC_MANAGER_UNIT}/cgroup.procs", "")
    there = service.read_fabric_manager(host)
    assert (there.active, there.state) == (False, "failed (failed)")
    tool(tmp_path, "usr/bin/nv-fabricmanager", "printf '\\n\\tFabric Manager version is : 580.95.05\\n\\n'; exit 1")
    assert service.read_fabric_manager(host).version == "580.95.05"
