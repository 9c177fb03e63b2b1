# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL's reader, the linter on top of it, and ``busbar lint``."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.grammar import parse
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.grammar import settings as first_definitions
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.library import Library
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.lint import conflicts, lint
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.variables import known_names
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar import lint as command

V218, V221, V223, V226, V227, V230, V232 = (
    (2, 18, 3),
    (2, 21, 5),
    (2, 23, 4),
    (2, 26, 2),
    (2, 27, 7),
    (2, 30, 7),
    (2, 32, 3),
)
CANONICAL = """\
# Rendered by Busbar.
# Devices of the compute rails, exact names.
NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_10
NCCL_SOCKET_IFNAME==eth0
NCCL_IB_TC=106
NCCL_IB_SL=-1
NCCL_DEBUG=WARN
NCCL_DEBUG_SUBSYS=INIT,ENV
NCCL_DEBUG_FILE=/var/log/nccl.%h.%p
NCCL_NET_GDR_LEVEL=PXB
SHARP_COLL_LOG_LEVEL=3
"""


def library(version: tuple[int, int, int], path: str = "/usr/lib/libnccl.so.2") -> Library:
    return Library(path, version, known_names(version))


def rules(text: str, version: tuple[int, int, int] | None = V227, hcas: tuple[str, ...] = ()) -> dict[str, str]:
    """rule -> severity of one file."""
    libraries = [library(version)] if version else []
    found = lint(text, libraries, None, "nccl.conf", hcas)
    assert all(f.state == "drift" or f.check == "nccl_conf.lint.library" for f in found)
    return {f.check.replace("nccl_conf.lint.", ""): f.severity for f in found}


def only(text: str, version: tuple[int, int, int] | None = V227, hcas: tuple[str, ...] = ()) -> Finding:
    (finding,) = lint(text, [library(version)] if version else [], None, "nccl.conf", hcas)
    return finding


# -- the reader --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("NCCL_X=1", "NCCL_X", "1"),
        ("NCCL_X = 1", "NCCL_X ", " 1"),
        (" NCCL_X=1 ", " NCCL_X", "1 "),
        ('NCCL_X="1"', "NCCL_X", '"1"'),
        ("export NCCL_X=1", "export NCCL_X", "1"),
        ("NCCL_X=1 # c", "NCCL_X", "1 # c"),
        ("NCCL_X==a=b", "NCCL_X", "=a=b"),
        ("NCCL_X=", "NCCL_X", ""),
        ("  # NCCL_X=1", "  # NCCL_X", "1"),
        ("\ufeffNCCL_X=1", "\ufeffNCCL_X", "1"),
        ("NCCL_X=a\0b", "NCCL_X", "a"),
        ("NCCL_X=" + "v" * 2000, "NCCL_X", "v" * 1023),
    ],
)
def test_an_assignment_is_taken_as_it_stands(line: str, name: str, value: str) -> None:
    for version in (V218, V232):
        (parsed,) = parse(line + "\n", version)
        assert (parsed.number, parsed.raw, parsed.kind, parsed.name, parsed.value) == (
            1,
            line,
            "assignment",
            name,
            value,
        )


@pytest.mark.parametrize("line", ["", "NCCL_X", "=1", "  ", "[nccl]"])
def test_a_line_without_name_and_equals_sign_is_ignored(line: str) -> None:
    assert parse("NCCL_A=1\n" + line + "\n")[1].kind == "ignored"


def test_comments_are_known_since_2_26() -> None:
    assert [line.kind for line in parse("# NCCL_X=1\n# x\n", V226)] == ["comment", "comment"]
    assert [line.kind for line in parse("# NCCL_X=1\n# x\n", V223)] == ["assignment", "ignored"]
    assert first_definitions(parse("# NCCL_X=1\n", V223)) == {"# NCCL_X": "1"}


def test_the_carriage_return_is_dropped_since_2_30() -> None:
    assert first_definitions(parse("NCCL_X=1\r\n", V227)) == {"NCCL_X": "1\r"}
    assert first_definitions(parse("NCCL_X=1\r\n", V230)) == {"NCCL_X": "1"}


def test_an_over_long_line_is_two_lines_since_2_30() -> None:
    text = "A=" + "x" * 4093 + "NCCL_X=1\n"
    assert first_definitions(parse(text, V227)) == {"A": "x" * 1023}
    assert first_definitions(parse(text, V230)) == {"A": "x" * 1023, "NCCL_X": "1"}


def test_the_first_definition_wins() -> None:
    assert first_definitions(parse("NCCL_X=1\nNCCL_X=2\n")) == {"NCCL_X": "1"}


@given(st.text(max_size=300), st.sampled_from([V218, V223, V226, V230]))
@settings(max_examples=100)
def test_every_text_has_a_reading(text: str, version: tuple[int, int, int]) -> None:
    for line in parse(text, version):
        assert line.kind in ("comment", "assignment", "ignored")
        assert (line.kind == "assignment") == bool(line.name)


# -- good files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V218, V221, V223, V226, V227, V230, V232])
def test_a_canonical_file_has_no_findings(version: tuple[int, int, int]) -> None:
    hcas = ("mlx5_0", "mlx5_1", "mlx5_10", "mlx5_11")
    assert lint(CANONICAL, [library(version)], None, "/etc/nccl.conf", hcas) == []
    assert lint(CANONICAL, [], version, "/etc/nccl.conf", hcas) == []


def test_an_empty_file_has_no_findings() -> None:
    assert lint("", [library(V227)], None, "/etc/nccl.conf") == []


@pytest.mark.parametrize(
    "line",
    [
        "NCCL_IB_HCA=mlx5",
        "NCCL_IB_HCA=^=mlx5_bond_0",
        "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1",
        "NCCL_SOCKET_IFNAME=^docker0,lo",
        "NCCL_SOCKET_IFNAME=ens",
        "NCCL_ALGO=^PAT",
        "NCCL_ALGO=allreduce:NVLS,Ring",
        "NCCL_PROTO=^LL128",
        "NCCL_P2P_LEVEL=NVL",
        "NCCL_NET_GDR_LEVEL=P2C",
        "NCCL_IB_TIMEOUT=20",
        "NCCL_IB_TIMEOUT=0x12",
        "NCCL_IB_GID_INDEX=-1",
        "NCCL_NTHREADS=256",
        "NCCL_DEBUG=info",
        "NCCL_SET_THREAD_NAME=1",
        "NCCL_NET_MERGE_LEVEL=PORT",
        "OFI_NCCL_PROTOCOL=RDMA",
        "UCX_TLS=rc",
        "NCCL_IB_ADDR_RANGE=10.0.0.0/8",
    ],
)
def test_a_right_line_has_no_findings(line: str) -> None:
    assert rules(line + "\n") == {}


# -- rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # grammar
        ("NCCL_IB_TC =106", {"blank": "major"}),
        (" NCCL_IB_TC=106", {"blank": "major"}),
        ("NCCL_IB_TC=106 ", {"blank": "minor"}),
        ("NCCL_DEBUG=WARN ", {"blank": "major"}),
        ("NCCL_SOCKET_IFNAME==eth0 ", {"blank": "critical"}),
        ('NCCL_IB_TC="106"', {"quotes": "major"}),
        ("NCCL_IB_TIMEOUT='20'", {"quotes": "critical"}),
        ('NCCL_DEBUG="WARN"', {"quotes": "major"}),
        ('NCCL_SOCKET_IFNAME="=eth0"', {"quotes": "critical"}),
        ("export NCCL_IB_TC=106", {"export": "major"}),
        ("export NCCL_IB_TC = 106", {"export": "major", "blank": "minor"}),
        ("  # a comment", {"indented_comment": "minor"}),
        ("\t# NCCL_IB_TC=1", {"indented_comment": "minor"}),
        ("NCCL_IB_TC=106 # DSCP 26", {"inline_comment": "minor"}),
        ("NCCL_DEBUG=WARN # quiet", {"inline_comment": "major"}),
        ("NCCL_IB_TC", {"no_assignment": "major"}),
        ("=1", {"no_assignment": "major"}),
        ("NCCL_IB_TC=", {"empty_value": "minor"}),
        ("# caf\u00e9", {"character": "minor"}),
        ("NCCL_TOPO_FILE=/x/caf\u00e9", {"character": "major"}),
        ("NCCL_TOPO_FILE=/x\x1b[31m", {"character": "major"}),
        ("NCCL_TOPO_FILE=/" + "x" * 1010, {"too_long": "minor"}),
        ("NCCL_TOPO_FILE=/" + "x" * 1030, {"too_long": "major"}),
        # names
        ("NCCL_SHARP_ENABLE=1", {"never_existed": "major"}),
        ("NCCL_TIMEOUT=60", {"never_existed": "major"}),
        ("NCCL_TREE_THRESHOLD=0", {"dead_variable": "major"}),
        ("NCCL_IB_QPS_PER_CONECTION=4", {"unknown_variable": "major"}),
        ("NCCL_IB_RAIL_POLICY=1", {"unknown_variable": "major"}),
        ("nccl_ib_tc=106", {"unknown_variable": "major"}),
        ("NCLL_IB_TIMEOUT=22", {"unknown_variable": "major"}),
        ("LD_PRELOAD=/x.so", {"foreign_variable": "minor"}),
        ("NCCL_COMM_ID=10.0.0.1:5000", {"wrong_place": "critical"}),
        ("NCCL_CONF_FILE=/x", {"wrong_place": "major"}),
        ("NCCL_GRAPH_DUMP_FILE=/x", {"wrong_place": "minor"}),
        ("NCCL_TOPO_DUMP_FILE=/x", {"wrong_place": "minor"}),
        ("NCCL_DEBUG=TRACE", {"wrong_place": "minor"}),
        ("NCCL_TESTS_MIN_BW=1", {"wrong_place": "minor"}),
        # values
        ("NCCL_CROSS_NIC=on", {"bad_value": "major"}),
        ("NCCL_BUFFSIZE=4M", {"bad_value": "major"}),
        ("NCCL_IB_SL=026", {"bad_value": "major"}),
        ("NCCL_IB_SL=16", {"bad_value": "major"}),
        ("NCCL_IB_TC=99999999999999999999", {"bad_value": "major"}),
        ("NCCL_IB_TIMEOUT=0", {"bad_value": "critical"}),
        ("NCCL_IB_TIMEOUT=32", {"bad_value": "critical"}),
        ("NCCL_IB_PKEY=0x8001", {"bad_value": "major"}),
        ("NCCL_NTHREADS=1000", {"bad_value": "major"}),
        ("NCCL_SET_THREAD_NAME=yes", {"bad_value": "major"}),
        ("NCCL_NET_GDR_LEVEL=NODE", {"bad_value": "major"}),
        ("NCCL_NET_GDR_LEVEL=sys", {"bad_value": "major"}),
        ("NCCL_NET_GDR_LEVEL=2", {"legacy_level": "minor"}),
        ("NCCL_NET_GDR_LEVEL=0", {"gdr_off": "major"}),
        ("NCCL_NET_GDR_LEVEL=LOC", {"gdr_off": "major"}),
        ("NCCL_IB_HCA=mlx5_1", {"prefix_match": "major"}),
        ("NCCL_IB_HCA=^mlx5_1", {"prefix_match": "major"}),
        ("NCCL_IB_HCA==^mlx5_1", {"bad_value": "critical"}),
        ("NCCL_IB_HCA=^", {"bad_value": "critical"}),
        ("NCCL_IB_HCA==mlx5_0, mlx5_1", {"bad_value": "critical"}),
        ("NCCL_IB_HCA==mlx5_0:one", {"bad_value": "critical"}),
        ("NCCL_IB_HCA==mlx5_0:1:0", {"bad_value": "major"}),
        ("NCCL_IB_HCA==" + ",".join("m%d" % i for i in range(33)), {"bad_value": "major"}),
        ("NCCL_SOCKET_IFNAME=eth1", {"prefix_match": "minor"}),
        ("NCCL_IB_HCA=mlx5_0,mlx5_3,mlx5_1", {"prefix_match": "major"}),
        ("NCCL_IB_HCA=mlx5_0,mlx5_3", {"prefix_match": "minor"}),
        ("NCCL_SOCKET_IFNAME==^eth0", {"bad_value": "critical"}),
        ("NCCL_SOCKET_IFNAME=e", {"bad_value": "major"}),
        ("NCCL_SOCKET_FAMILY=ipv4", {"bad_value": "critical"}),
        ("NCCL_IB_ADDR_RANGE=10.0.0.0", {"bad_value": "major"}),
        ("NCCL_NET_MERGE_LEVEL=port", {"bad_value": "major"}),
        ("NCCL_DEBUG=VERBOSE", {"bad_value": "major"}),
        ("NCCL_DEBUG_SUBSYS=INIT,FOO", {"bad_value": "minor"}),
        ("NCCL_DEBUG_FILE=/var/log/nccl.%d", {"bad_value": "major"}),
        ("NCCL_DEBUG_FILE=/var/log/nccl.log", {"bad_value": "minor"}),
        ("NCCL_ALGO=Tree", {"bad_value": "critical"}),
        ("NCCL_ALGO=^Ring", {"bad_value": "critical"}),
        ("NCCL_ALGO=CollNet", {"bad_value": "critical"}),
        ("NCCL_ALGO=Ring, Tree", {"bad_value": "critical"}),
        ("NCCL_ALGO=all:Ring", {"bad_value": "critical"}),
        ("NCCL_ALGO=Ring;Tree", {"bad_value": "critical"}),
        ("NCCL_PROTO=LL256", {"bad_value": "critical"}),
        ("NCCL_IB_GID_INDEX=3", {"gid_index": "major"}),
        # advice
        ("NCCL_PXN_DISABLE=1", {"advice": "minor"}),
        ("NCCL_BUFFSIZE=16777216", {"advice": "minor"}),
        ("NCCL_P2P_LEVEL=SYS", {"advice": "minor"}),
        ("NCCL_P2P_LEVEL=LOC", {"advice": "major"}),
        ("NCCL_PROTO=Simple", {"advice": "minor"}),
        ("NCCL_PROTO=LL128", {"advice": "major"}),
        ("NCCL_IB_DISABLE=0", {"advice": "minor"}),
        ("NCCL_IB_DISABLE=1", {"advice": "critical"}),
        ("NCCL_NET=Socket", {"advice": "critical"}),
        ("NCCL_P2P_DISABLE=1", {"advice": "major"}),
        ("NCCL_NTHREADS=512", {"advice": "minor"}),
        ("NCCL_SHM_DISABLE=1", {"advice": "major"}),
        ("NCCL_NVLS_ENABLE=0", {"advice": "major"}),
        ("NCCL_DMABUF_ENABLE=0", {"advice": "major"}),
        ("NCCL_NET_GDR_READ=0", {"advice": "major"}),
        ("NCCL_IB_TIMEOUT=22", {"advice": "minor"}),
        ("NCCL_IB_TIMEOUT=0x16", {"advice": "minor"}),
        ("NCCL_MIN_NCHANNELS=16", {"advice": "minor"}),
        ("NCCL_MAX_NCHANNELS=32", {"advice": "minor"}),
        ("NCCL_DEBUG_SUBSYS=ALL", {"advice": "minor"}),
        ("NCCL_ALGO=Ring,Tree;allgather:Ring", {"advice": "major"}),
    ],
)
def test_a_wrong_line_has_exactly_its_finding(line: str, expected: dict[str, str]) -> None:
    assert rules("# before\n" + line + "\n# after\n") == expected


def test_one_line_can_have_two_independent_causes() -> None:
    assert rules("NCCL_SHARP_ENABLE = 1\n") == {"blank": "major", "never_existed": "major"}


def test_a_duplicate_says_where_the_first_is() -> None:
    finding = only("NCCL_IB_TC=106\n\nNCCL_IB_TC=96\n")
    assert (finding.subject, finding.source, finding.severity) == ("nccl.conf:3 NCCL_IB_TC", "nccl.conf:3", "major")
    assert "in line 1" in finding.why
    assert only("NCCL_IB_TC=106\nNCCL_IB_TC=106\n").severity == "minor"


def test_a_byte_order_mark_is_one_finding() -> None:
    assert rules("\ufeffNCCL_IB_TC=106\n") == {"bom": "major"}


def test_carriage_returns_are_one_finding_for_the_file() -> None:
    text = CANONICAL.replace("\n", "\r\n")
    finding = only(text, V227)
    assert (finding.check, finding.severity, finding.have) == (
        "nccl_conf.lint.carriage_return",
        "critical",
        "11 lines end in a carriage return",
    )
    assert only(text, V230).severity == "minor"
    assert only("NCCL_IB_TC=106\r\n", V227).severity == "minor"


def test_a_comment_with_an_equals_sign_matters_only_before_2_26() -> None:
    assert rules("# NCCL_X=1\n", V223) == {"comment_assignment": "minor"}
    assert rules("# NCCL_X=1\n", V226) == {}


def test_an_over_long_name_ends_the_job_before_2_23() -> None:
    text = "NCCL_" + "X" * 1030 + "=1\n"
    assert rules(text, V221) == {"too_long": "critical", "unknown_variable": "major"}
    assert rules(text, V223) == {"too_long": "major", "unknown_variable": "major"}


def test_releases_decide_which_levels_are_known() -> None:
    assert rules("NCCL_P2P_LEVEL=C2C\n", V223) == {"bad_value": "major"}
    assert rules("NCCL_P2P_LEVEL=C2C\n", V226) == {}
    assert rules("NCCL_NET_GDR_LEVEL=P2C\n", V226) == {"bad_value": "major"}


def test_releases_decide_what_an_algorithm_list_means() -> None:
    assert rules("NCCL_ALGO=Tree\n", V223) == {"advice": "major"}
    assert rules("NCCL_ALGO=allreduce:Tree\n", V223) == {"bad_value": "major"}
    assert rules("NCCL_ALGO=CollNet\n", V223) == {"bad_value": "major"}
    assert rules("NCCL_ALGO=Ring,PAT\n", V221) == {"bad_value": "major"}


def test_a_fixed_gid_index_is_right_before_2_21() -> None:
    assert rules("NCCL_IB_GID_INDEX=3\n", V218) == {}


def test_limits_follow_the_release() -> None:
    assert rules("NCCL_MAX_CTAS=64\n", V223) == {"bad_value": "major"}
    assert rules("NCCL_MAX_CTAS=64\n", V227) == {}
    assert rules("NCCL_DEBUG=ATTN\n", V230) == {"bad_value": "major"}
    assert rules("NCCL_DEBUG=ATTN\n", V232) == {}
    assert rules("NCCL_SET_THREAD_NAME=true\n", V227) == {"bad_value": "major"}
    assert rules("NCCL_SET_THREAD_NAME=true\n", V230) == {}


def test_socket_threads_are_judged_together() -> None:
    assert rules("NCCL_SOCKET_NTHREADS=16\nNCCL_NSOCKS_PERTHREAD=8\n") == {"bad_value": "major"}
    assert rules("NCCL_SOCKET_NTHREADS=8\nNCCL_NSOCKS_PERTHREAD=8\n") == {}


def test_known_devices_say_what_a_prefix_takes_in() -> None:
    hcas = ("mlx5_0", "mlx5_1", "mlx5_10", "mlx5_11")
    finding = only("NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_10\n", hcas=hcas)
    assert finding.check == "nccl_conf.lint.prefix_match"
    assert "mlx5_1 also takes in mlx5_11." in finding.why
    assert finding.want == "=mlx5_0,mlx5_1,mlx5_10"
    assert rules("NCCL_IB_HCA=mlx5_0\n", hcas=hcas) == {}
    assert rules("NCCL_IB_HCA=mlx5\n", hcas=hcas) == {}


def test_known_devices_say_which_name_matches_nothing() -> None:
    hcas = ("mlx5_0", "mlx5_1")
    assert rules("NCCL_IB_HCA==mlx5_0,mlx5_7\n", hcas=hcas) == {"unknown_hca": "major"}
    assert rules("NCCL_IB_HCA==ibp1,ibp2\n", hcas=hcas) == {"unknown_hca": "critical"}
    assert rules("NCCL_IB_HCA=^mlx5\n", hcas=hcas) == {"unknown_hca": "critical"}
    assert rules("NCCL_IB_HCA=^=mlx5_bond_0\n", hcas=hcas) == {}


# -- libraries and versions --------------------------------------------------------------------------------------


def test_a_typo_is_answered_with_the_nearest_name_of_the_library() -> None:
    finding = only("NCCL_IB_QPS_PER_CONECTION=4\n")
    assert finding.want == "NCCL_IB_QPS_PER_CONNECTION"
    assert "/usr/lib/libnccl.so.2 (2.27.7)" in finding.why


def test_a_name_of_a_later_release_names_that_release() -> None:
    assert "The first release that reads it is 2.32.3." in only("NCCL_IB_RAIL_POLICY=1\n").why


def test_each_library_that_does_not_read_a_name_is_named() -> None:
    both = [library(V221, "/usr/lib/libnccl.so.2"), library(V227, "/venv/libnccl.so.2")]
    (finding,) = lint("NCCL_IB_DATA_DIRECT=1\n", both, None, "nccl.conf")
    assert finding.severity == "minor"
    assert "/usr/lib/libnccl.so.2 (2.21.5)" in finding.why
    assert "/venv" not in finding.why


def test_without_library_and_version_the_rest_is_still_checked() -> None:
    found = lint("NCCL_IB_TC = 1\nNCCL_TREE_THRESHOLD=1\nNCCL_MNNVL=1\nNCCL_ZZ=1\n", [], None, "/etc/nccl.conf")
    assert [(f.check.rsplit(".", 1)[1], f.state) for f in found] == [
        ("library", "unknown"),
        ("blank", "drift"),
        ("dead_variable", "drift"),
        ("unknown_variable", "drift"),
    ]
    assert "busbar_nccl_libraries" in found[0].fix
    assert "busbar_nccl_version" in found[0].fix


def test_a_release_beyond_the_table_makes_unheard_names_unknown() -> None:
    (finding,) = lint("NCCL_BRAND_NEW=1\n", [], (2, 40, 1), "nccl.conf")
    assert (finding.state, finding.severity) == ("unknown", "major")


def test_findings_are_about_what_is_read_at_the_next_start_and_cost_nothing_to_mend() -> None:
    finding = only("NCCL_SHARP_ENABLE=1\n")
    assert finding.id == "nccl_conf.lint.never_existed[persisted]@nccl.conf:1 NCCL_SHARP_ENABLE"
    assert finding.disruption == "none"


def test_hostile_lines_are_shown_without_control_characters() -> None:
    found = lint("NCCL_\x1b[2J\x07\u202e=\x1b]0;x\x07\n" + "A" * 5000 + "=1\n", [library(V227)], None, "nccl.conf")
    for finding in found:
        for text in (finding.subject, finding.have, finding.want, finding.why, finding.fix):
            assert (text or "").isprintable()
            assert (text or "").isascii()
            assert len(text or "") < 600


LINE = st.sampled_from(
    [
        "NCCL_IB_HCA",
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_IB_TC",
        "NCCL_P2P_LEVEL",
        "NCCL_DEBUG",
        "NCCL_DEBUG_FILE",
        "#",
        "X",
    ]
)


@given(
    st.lists(st.tuples(LINE, st.sampled_from(["=", " = ", "==", "", "=^"]), st.text(max_size=12)), max_size=8),
    st.sampled_from([V218, V223, V227, V230, None]),
)
@settings(max_examples=100, deadline=None)
def test_any_text_is_linted_and_no_two_findings_have_one_id(
    lines: list[tuple[str, str, str]], version: tuple[int, int, int] | None
) -> None:
    text = "\n".join("".join(parts) for parts in lines)
    found = lint(text, [library(version)] if version else [], None, "nccl.conf", ("mlx5_0", "mlx5_1"))
    assert len({f.id for f in found}) == len(found)


def test_a_large_file_is_linted_whole() -> None:
    text = "".join("NCCL_UNHEARD_OF_%d=%d\n" % (i, i) for i in range(300))
    start = time.monotonic()
    assert len(lint(text, [library(V227)], None, "nccl.conf")) == 300
    print("300 unknown names: %.3f s" % (time.monotonic() - start))


# -- files that are read earlier ---------------------------------------------------------------------------------


def test_an_earlier_file_with_another_value_is_a_conflict() -> None:
    meant = {"NCCL_IB_TC": "106", "NCCL_IB_HCA": "=mlx5_0", "NCCL_DEBUG": "WARN"}
    other = {"NCCL_IB_TC": "96", "NCCL_IB_HCA": "mlx5", "NCCL_DEBUG": "WARN", "NCCL_IB_SL": "3"}
    found = conflicts(meant, other, "/root/.nccl.conf")
    assert [(f.subject, f.severity, f.want, f.have) for f in found] == [
        ("/root/.nccl.conf NCCL_IB_HCA", "critical", "=mlx5_0", "mlx5"),
        ("/root/.nccl.conf NCCL_IB_TC", "major", "106", "96"),
    ]
    assert {f.check for f in found} == {"nccl_conf.conflict"}
    assert {f.source for f in found} == {"/root/.nccl.conf"}


# -- busbar lint -------------------------------------------------------------------------------------------------


def test_the_command_prints_findings_with_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nccl.conf"
    path.write_text("# ok\nNCCL_IB_TIMEOUT='20'\n")
    assert command.run([str(path)], [], "2.27.7") == 2
    out = capsys.readouterr().out
    assert out.startswith(f"{path}:2: critical: NCCL_IB_TIMEOUT='20' [quotes]\n")
    assert out.endswith("1 finding in 1 file: 1 critical\n")
    assert "\033" not in out


def test_the_command_is_content_with_a_canonical_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nccl.conf"
    path.write_text(CANONICAL)
    assert command.run([str(path)], [], "2.27.7") == 0
    assert capsys.readouterr().out == "0 findings in 1 file\n"


def test_the_command_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"NCCL_TIMEOUT=1\r\n")))
    assert command.run(["-"], [], "2.27.7") == 2
    out = capsys.readouterr().out
    assert "<stdin>:1: major: NCCL_TIMEOUT=1 [never_existed]" in out
    assert "[carriage_return]" in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        ("directory", "Is a directory"),
        (b"\xff\xfe\x00", "is not text"),
        (b"NCCL_X=\0", "it holds a zero byte"),
        (b"#" * (4 * 1024 * 1024 + 1), "is larger than 4 MiB"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_findings_decide(
    content: bytes | str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.conf"
    if content == "directory":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    good = tmp_path / "good.conf"
    good.write_text("NCCL_TIMEOUT=1\n")
    assert command.run([str(path), str(good)], [], "2.27.7") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"busbar lint: {path}: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out.endswith("1 finding in 1 file: 1 major\n")
    good.write_text(CANONICAL)
    assert command.run([str(path), str(good)], [], "2.27.7") == 3
    assert command.run([str(path)], [], "2.27.7") == 1


def test_a_bad_version_or_library_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run([], [], "latest") == 1
    assert "'latest' is not a NCCL version" in capsys.readouterr().err
    assert command.run([], [str(tmp_path / "libnccl.so.2")], None) == 1
    assert "libnccl.so.2: cannot be read: No such file" in capsys.readouterr().err
