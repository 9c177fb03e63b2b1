# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Scanner, linter and proof against NVIDIA's own libraries from 2.18 to 2.32."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import trusted
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.grammar import parse
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.grammar import settings as first_definitions
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.library import scan
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.lint import lint
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.lint_values import Use
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.proof import Proof, prove
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.variables import known_names
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.version import parse_version
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.nccl

# In the source of the release, and not in its binary.
NOT_COMPILED = {"NCCL_PROXY_PROFILE": "only builds with profiling read it (until 2.23)"}
# In the binary and no variable: ends of macros, messages and enumerations.
NO_VARIABLES = (
    "_INITIALIZER",
    "NCCL_GIN_CONNECTION_",
    "NCCL_IB_MAX_DEVS_PER_NIC",
    "NCCL_IB_RECV_WR_ID_DUMMY",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_MSG_ID",
)
MEANT = {
    "NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_10",
    "NCCL_SOCKET_IFNAME": "=eth0",
    "NCCL_IB_TC": "106",
    "NCCL_DEBUG": "WARN",
    "NCCL_NET_GDR_LEVEL": "PXB",
    "NCCL_DEBUG_FILE": "/nonexistent/nccl.%h.%p",
}
CANONICAL = "# Rendered by a test.\n" + "".join(
    f"# The reason why {name} stands here.\n{name}={value}\n" for name, value in MEANT.items()
)


def checked(proof: Proof) -> Proof:
    if proof.outcome == "not_provable":
        pytest.fail(f"nothing can be proven here: {proof.message}")
    return proof


def test_the_scan_finds_version_and_every_variable_of_the_table(library: str, version: str) -> None:
    scanned = scan(library)
    assert scanned.version == parse_version(version)
    assert known_names(scanned.version) - scanned.names <= set(NOT_COMPILED)
    surplus = scanned.names - known_names(scanned.version)
    assert [name for name in surplus if not any(part in name for part in NO_VARIABLES)] == []


def test_a_canonical_file_is_clean_and_proven(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Also in a clone below /tmp, where others may put files.
    monkeypatch.setattr(trusted, "doubt", lambda *_path: "")
    assert lint(CANONICAL, Use([scan(library)]), "/etc/nccl.conf") == []
    proof = checked(prove(library, CANONICAL, MEANT))
    assert (proof.outcome, proof.values, proof.rc) == ("proven", MEANT, 0)


@pytest.mark.parametrize(
    ("line", "rule", "names"),
    [
        ("NCCL_IB_HCA = mlx5", "blank", ("'NCCL_IB_HCA'", "'NCCL_IB_HCA '")),
        ("NCCL_DEBUG=WARN ", "blank", ("'NCCL_DEBUG'",)),
        ('NCCL_IB_TIMEOUT="22"', "quotes", ("'NCCL_IB_TIMEOUT'",)),
        ("  # NCCL_IB_SL=3", "indented_comment", ("'  # NCCL_IB_SL'",)),
        ("export NCCL_IB_TC=106", "export", ("'NCCL_IB_TC'", "'export NCCL_IB_TC'")),
        ("NCCL_DEBUG=WARN # quiet", "inline_comment", ("'NCCL_DEBUG'",)),
        ("\ufeffNCCL_IB_TC=106", "bom", ("'NCCL_IB_TC'", "'\\ufeffNCCL_IB_TC'")),
    ],
)
def test_what_the_linter_rejects_is_a_mismatch(library: str, line: str, rule: str, names: tuple[str, ...]) -> None:
    name, _, value = line.strip("\ufeff").split(" #")[0].partition("=")
    meant = {name.replace("export ", "").strip(): value.strip(' "')} if value else {}
    found = {finding.check.rsplit(".", 1)[1] for finding in lint(line + "\n", Use([scan(library)]), "nccl.conf")}
    assert rule in found
    proof = checked(prove(library, line + "\n", meant))
    assert proof.outcome == "mismatch"
    for shown in names:
        assert f"{shown}: " in proof.message


def test_a_wrong_interface_is_seen_in_the_return_code_and_the_file_is_still_proven(library: str) -> None:
    meant = {"NCCL_SOCKET_IFNAME": "=nosuchinterface", "NCCL_DEBUG": "WARN"}
    proof = checked(prove(library, "".join(f"{name}={value}\n" for name, value in meant.items()), meant))
    assert proof.outcome == "proven"
    assert proof.rc not in (0, None)
    assert proof.message == f"ncclGetUniqueId returned {proof.rc}"


def test_a_users_own_file_and_the_environment_are_kept_out(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_IB_TC=96\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / ".nccl.conf"))
    monkeypatch.setenv("NCCL_IB_SL", "5")
    assert checked(prove(library, "NCCL_IB_TC=106\n", {"NCCL_IB_TC": "106"})).outcome == "proven"


PIECES = (
    *("NCCL_A", "NCCL_B", "=", "#", " ", "\t", "\n", "\n", "\r\n", '"', "export ", "1", "x", "\u00e9", "\ufeff", "\0"),
    *("y" * 600, "z" * 4093),
)


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_our_reader_takes_every_file_as_the_library_does(library: str, version: str, text: str) -> None:
    number = parse_version(version)
    # Releases before 2.23 overrun a buffer there.
    assume(number >= (2, 23, 4) or all(len(line.partition("=")[0].encode()) <= 1023 for line in text.split("\n")))
    meant = first_definitions(parse(text, number))
    proof = checked(prove(library, text, meant))
    assert (proof.outcome, proof.values) == ("proven", meant)
