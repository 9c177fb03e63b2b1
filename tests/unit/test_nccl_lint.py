# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL's reader, the table of its variables, the linter on top of both, and ``busbar lint``."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.grammar import parse
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.grammar import settings as first_definitions
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.library import Library
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.lint import lint
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.lint_values import Use
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.variables import NEVER, VARIABLES, known_names
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.version import NEWEST, OLDEST, Version
from hypothesis import given
from hypothesis import strategies as st

from busbar import lint as command
from tests import goldens

V218, V221, V223, V226 = (2, 18, 3), (2, 21, 5), (2, 23, 4), (2, 26, 2)
V227, V230, V232 = (2, 27, 7), (2, 30, 7), (2, 32, 3)
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
    found = lint(text, Use(libraries, None, hcas), "nccl.conf")
    assert all(f.state == "drift" or f.check == "nccl_conf.lint.library" for f in found)
    return {f.check.replace("nccl_conf.lint.", ""): f.severity for f in found}


# -- the reader --------------------------------------------------------------------------------------------------


LONG = "A=" + "x" * 4093 + "NCCL_X=1\n"


@pytest.mark.parametrize(
    ("text", "version", "definitions"),
    [
        ("NCCL_X=1\nNCCL_X=2\n", V232, {"NCCL_X": "1"}),
        ("# NCCL_X=1\n# x\n", V223, {"# NCCL_X": "1"}),
        ("# NCCL_X=1\n# x\n", V226, {}),
        ("NCCL_X=1\r\n", V227, {"NCCL_X": "1\r"}),
        ("NCCL_X=1\r\n", V230, {"NCCL_X": "1"}),
        # A line that is too long is two.
        (LONG, V227, {"A": "x" * 1023}),
        (LONG, V230, {"A": "x" * 1023, "NCCL_X": "1"}),
    ],
)
def test_the_first_definition_counts_as_each_release_reads_it(
    text: str, version: tuple[int, int, int], definitions: dict[str, str]
) -> None:
    assert first_definitions(parse(text, version)) == definitions


@given(st.text(max_size=300), st.sampled_from([V218, V223, V226, V230]))
def test_every_text_has_a_reading(text: str, version: tuple[int, int, int]) -> None:
    for line in parse(text, version):
        assert line.kind in ("comment", "assignment", "ignored")
        assert (line.kind == "assignment") == bool(line.name)


# -- the table of variables ----------------------------------------------------------------------------------------


# Counted in the sources of the releases.
@pytest.mark.parametrize(
    ("version", "count"),
    [((2, 19, 3), 112), ((2, 24, 3), 148), ((2, 26, 2), 155), ((2, 27, 7), 170), ((2, 30, 7), 245)],
)
def test_the_number_of_names_is_that_of_the_release(version: tuple[int, int, int], count: int) -> None:
    assert len(known_names(version)) == count


@pytest.mark.parametrize(
    ("name", "unknown", "known"),
    [
        ("NCCL_ALGO", (2, 4, 2), (2, 5, 6)),
        ("NCCL_TREE_THRESHOLD", (2, 5, 6), (2, 4, 2)),
        ("NCCL_CONF_FILE", (2, 22, 3), (2, 23, 4)),
        ("NCCL_MNNVL", (2, 21, 5), (2, 20, 5)),
        ("NCCL_IB_RAIL_POLICY", (2, 31, 2), (2, 32, 3)),
    ],
)
def test_a_name_is_known_from_its_first_release_to_its_last(name: str, unknown: Version, known: Version) -> None:
    assert name not in known_names(unknown)
    assert name in known_names(known)


def test_the_table_agrees_with_itself() -> None:
    for name, variable in VARIABLES.items():
        assert variable.name == name
        assert variable.kind in ("int", "bool", "float", "string", "level", "unknown")
        if variable.reader == "library":
            assert variable.since is not None
            assert variable.since <= NEWEST
            assert variable.removed is None or variable.since < variable.removed <= NEWEST
        else:
            assert (variable.since, variable.removed) == (None, None)
    assert not set(NEVER) & set(VARIABLES)
    assert known_names((2, 0, 0)) == frozenset()
    assert not known_names((2, 27, 7)) & {"NCCL_SHARP_DISABLE", "NCCL_TESTS_MIN_BW"}
    assert OLDEST < NEWEST


# -- rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V218, V221, V223, V226, V227, V230, V232])
def test_a_canonical_file_and_an_empty_one_have_no_findings(version: tuple[int, int, int]) -> None:
    hcas = ("mlx5_0", "mlx5_1", "mlx5_10", "mlx5_11")
    for text in (CANONICAL, ""):
        assert lint(text, Use([library(version)], None, hcas), "/etc/nccl.conf") == []
        assert lint(text, Use([], version, hcas), "/etc/nccl.conf") == []


def _lines() -> Iterator[tuple[str, str, str]]:
    """Release and HCAs, findings, and lines between two comments, which are written as in Python's literals."""
    for part in (Path(__file__).parent / "nccl_conf_lines.txt").read_text().split("#== ")[1:]:
        head, *rows = part.splitlines()
        for row in rows:
            expected, _bar, line = row.partition(" | ")
            yield head, expected, line.encode().decode("unicode_escape")


LINES = [
    *_lines(),
    ("2.27.7", "too_long minor", "NCCL_TOPO_FILE=/" + "x" * 1010),
    ("2.27.7", "too_long major", "NCCL_TOPO_FILE=/" + "x" * 1030),
    ("2.21.5", "too_long critical, unknown_variable major", "NCCL_" + "X" * 1030 + "=1"),
    ("2.23.4", "too_long major, unknown_variable major", "NCCL_" + "X" * 1030 + "=1"),
    ("2.27.7", "bad_value major", "NCCL_IB_HCA==" + ",".join("m%d" % i for i in range(33))),
]


@pytest.mark.parametrize(("node", "expected", "line"), LINES)
def test_a_line_has_exactly_its_findings(node: str, expected: str, line: str) -> None:
    version, *hcas = node.split()
    major, minor, patch = map(int, version.split("."))
    found = rules("# before\n" + line + "\n# after\n", (major, minor, patch), tuple(hcas))
    assert ", ".join(f"{rule} {severity}" for rule, severity in found.items()) == expected.replace("right", "")


HCAS = ("mlx5_0", "mlx5_1", "mlx5_10", "mlx5_11")
HERE = (library(V227),)
# Text, libraries, release, devices.
FILES: dict[str, tuple[str, tuple[Library, ...], Version | None, tuple[str, ...]]] = {
    "twice": ("NCCL_IB_TC=106\n\nNCCL_IB_TC=96\n", HERE, None, ()),
    "twice the same": ("NCCL_IB_TC=106\nNCCL_IB_TC=106\n", HERE, None, ()),
    "byte order mark": ("\ufeffNCCL_IB_TC=106\n", HERE, None, ()),
    "carriage returns": (CANONICAL.replace("\n", "\r\n"), HERE, None, ()),
    "carriage returns, 2.30.7": (CANONICAL.replace("\n", "\r\n"), (library(V230),), None, ()),
    "prefix of another device": ("NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_10\n", HERE, None, HCAS),
    "typo": ("NCCL_IB_QPS_PER_CONECTION=4\n", HERE, None, ()),
    "name of a later release": ("NCCL_IB_RAIL_POLICY=1\n", HERE, None, ()),
    "name that never was": ("NCCL_SHARP_ENABLE=1\n", HERE, None, ()),
    # Named is the library that does not read it.
    "two libraries": ("NCCL_IB_DATA_DIRECT=1\n", (library(V221), library(V227, "/venv/libnccl.so.2")), None, ()),
    "nothing known": ("NCCL_IB_TC = 1\nNCCL_TREE_THRESHOLD=1\nNCCL_MNNVL=1\nNCCL_ZZ=1\n", (), None, ()),
    "release beyond the table": ("NCCL_BRAND_NEW=1\n", (), (2, 40, 1), ()),
    "hostile": ("NCCL_\x1b[2J\x07\u202e=\x1b]0;x\x07\n" + "A" * 5000 + "=1\n", HERE, None, ()),
}


@pytest.mark.golden
def test_what_is_said_of_a_file() -> None:
    parts = []
    for name, (text, libraries, version, hcas) in FILES.items():
        parts.append(f"== {name}")
        for one in lint(text, Use(libraries, version, hcas), "nccl.conf"):
            said = (one.have, one.want, one.why, one.fix)
            assert all(len(words or "") < 600 and (words or "").isascii() for words in said)
            parts += [f"{one.id}: {one.state}, {one.severity}, {one.disruption}", *(f"  {words}" for words in said)]
    written = "\n".join(parts) + "\n"
    assert all(line.isprintable() for line in written.splitlines())
    goldens.text("nccl_lint", written)


NAMES = ("NCCL_IB_HCA", "NCCL_ALGO", "NCCL_PROTO", "NCCL_IB_TC", "NCCL_P2P_LEVEL", "NCCL_DEBUG", "NCCL_DEBUG_FILE")
LINE = st.sampled_from([*NAMES, "#", "X"])


@given(
    st.lists(st.tuples(LINE, st.sampled_from(["=", " = ", "==", "", "=^"]), st.text(max_size=12)), max_size=8),
    st.sampled_from([V218, V223, V227, V230, None]),
)
def test_any_text_is_linted_and_no_two_findings_have_one_id(
    lines: list[tuple[str, str, str]], version: tuple[int, int, int] | None
) -> None:
    text = "\n".join("".join(parts) for parts in lines)
    found = lint(text, Use([library(version)] if version else [], None, ("mlx5_0", "mlx5_1")), "nccl.conf")
    assert len({f.id for f in found}) == len(found)


# -- busbar lint -------------------------------------------------------------------------------------------------


def test_the_command_prints_findings_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "nccl.conf"
    for text, code, begin, end in (
        (CANONICAL, 0, "", "0 findings in 1 file\n"),
        ("# empty\n", 0, "", "0 findings in 1 file (no variable of NCCL in 1)\n"),
        ("# ok\nNCCL_IB_TIMEOUT='20'\n", 2, ":2: critical: NCCL_IB_TIMEOUT='20' [quotes]\n", "1 file: 1 critical\n"),
        ("NCCL_TIMEOUT=1\r\n", 2, ":1: major: NCCL_TIMEOUT=1 [never_existed]\n", ""),
    ):
        path.write_text(text)
        assert command.run([str(path)], [], "2.27.7") == code
        out = capsys.readouterr().out
        assert f"{path}{begin}" in out if begin else str(path) not in out
        assert out.endswith(end)
        assert "\033" not in out
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert command.run(["-"], [], "2.27.7") == code
        assert capsys.readouterr().out == out.replace(str(path), "<stdin>")


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
