# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What of a cloud image's own nccl.conf stays, what does not, and who else writes the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import derive as conf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.derive import HEADER, Image, Want
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.lint_values import Use
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trees import put_all

NEW = (2, 27, 7)
AZURE = "NCCL_IB_PCI_RELAXED_ORDERING=1\nNCCL_IGNORE_CPU_AFFINITY=1\n"
KEPT = {"NCCL_IB_PCI_RELAXED_ORDERING": "1", "NCCL_IGNORE_CPU_AFFINITY": "1"}


def read(text: str | None, cloud: str = "Azure") -> Image:
    return conf.read_image(text, cloud, Use(version=NEW))


def rendered(topology: Topology, profile: Profile, want: Want) -> str:
    return conf.render(conf.derive(topology, profile, want, [NEW]).variables)


def test_what_nobody_declares_stays_run_after_run(infiniband: Topology, hgx_h100: Profile) -> None:
    image = read(AZURE)
    assert (image.kept, image.dropped) == (KEPT, {})
    text = rendered(infiniband, hgx_h100, Want(image=image))
    assert "Retained from the nccl.conf of the image (Azure)." in text
    assert {f"{name}={value}" for name, value in KEPT.items()} <= {*text.splitlines()}
    again = read(text)
    assert again.kept == KEPT
    assert rendered(infiniband, hgx_h100, Want(image=again)) == text
    # What the inventory declares is its own from then on.
    declared = Want(extra={"NCCL_IGNORE_CPU_AFFINITY": "0"}, image=again)
    mine = rendered(infiniband, hgx_h100, declared)
    assert "NCCL_IGNORE_CPU_AFFINITY=0" in mine
    assert read(mine).kept == {"NCCL_IB_PCI_RELAXED_ORDERING": "1"}


def test_what_the_profile_derives_is_not_the_images_to_say(infiniband: Topology, hgx_h100: Profile) -> None:
    image = read(AZURE + "NCCL_SOCKET_IFNAME=docker0\nNCCL_IB_HCA==mlx5_0\n")
    found = conf.derive(infiniband, hgx_h100, Want(image=image), [NEW]).expected
    assert found["NCCL_SOCKET_IFNAME"] == "=eno1"
    assert len(found["NCCL_IB_HCA"].split(",")) == 8


@pytest.mark.parametrize(
    ("text", "cloud"), [*((text, "Azure") for text in (None, "", "# nothing\n", "  \n")), (AZURE, "")]
)
def test_nothing_is_kept_of_an_empty_file_and_of_what_is_no_clouds(text: str | None, cloud: str) -> None:
    assert (read(text, cloud).kept, read(text, cloud).dropped) == ({}, {})


def test_an_edit_of_the_suites_own_file_does_not_become_the_images(infiniband: Topology, hgx_h100: Profile) -> None:
    text = rendered(infiniband, hgx_h100, Want(image=read(AZURE)))
    for edit in ("NCCL_DEBUG=INFO\n", "# Kept by me\nNCCL_DEBUG=INFO\n"):
        assert read(text + edit).kept == KEPT
        assert read(text.replace(HEADER[1], HEADER[1] + "\n" + edit.strip())).kept == KEPT


@pytest.mark.parametrize(
    "line",
    [
        *("NCCL_P2P_DISABLE=1", "NCCL_NET_GDR_LEVEL=LOC", "NCCL_IB_DISABEL=1", "NCCL_IB_TC=twelve"),
        *("export NCCL_DEBUG=INFO", "NCCL_DEBUG_FILE=/x\x1b[31m"),
    ],
)
def test_what_the_linter_speaks_against_is_named_and_goes(line: str) -> None:
    name = line.partition("=")[0]
    image = read(f"{line}\n{AZURE}")
    assert image.kept == KEPT
    assert list(image.dropped) == [name]
    (said, gone) = conf.image_notes(image, {}, KEPT)
    assert (
        "retains these lines of the image (Azure): NCCL_IB_PCI_RELAXED_ORDERING=1, NCCL_IGNORE_CPU_AFFINITY=1;" in said
    )
    assert gone.startswith(f"nccl.conf does not keep {name}, which the image (Azure) sets: ")
    assert conf.image_notes(replace(image, dropped={}), KEPT, KEPT) == []


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet='NCCL_AB=1#\n\x00\x1b \u00e4"', max_size=60), st.booleans())
def test_any_file_keeps_only_what_can_be_written_again(text: str, ours: bool) -> None:
    image = read(f"{HEADER[0]}\n# {conf.MARK}\n{text}" if ours else text)
    assert conf.extra_errors(image.kept) == []
    variables = [conf.Variable(name, value, image.reason) for name, value in sorted(image.kept.items())]
    assert read(conf.render(variables)).kept == image.kept


def test_a_service_that_writes_the_file_at_boot_is_named(tmp_path: Path) -> None:
    unit, wants = "sku-customizations.service", "/etc/systemd/system/multi-user.target.wants"
    host = Host(str(tmp_path), str(tmp_path))
    assert [f.state for f in conf.judge_owner(host, "/etc/nccl.conf", "Azure")] == ["ok"]
    put_all(tmp_path, {f"/usr/lib/systemd/system/{unit}": "[Service]\n"})
    assert [f.state for f in conf.judge_owner(host, "/etc/nccl.conf", "Azure")] == ["ok"]
    put_all(tmp_path, {f"{wants}/{unit}": "[Service]\n"})
    (found,) = conf.judge_owner(host, "/etc/nccl.conf", "Azure")
    assert (found.state, found.severity, found.aspect) == ("not_owned", "minor", "persisted")
    assert f"systemctl disable {unit}" in found.fix
    for path, cloud in (("/etc/nccl.conf", ""), ("/opt/nccl.conf", "Azure")):
        assert conf.judge_owner(host, path, cloud) == ()
    (tmp_path / f"usr/lib/systemd/system/{unit}").write_bytes(b"\xff")
    assert [f.state for f in conf.judge_owner(host, "/etc/nccl.conf", "Azure")] == ["unknown"]
