"""Planner, parsers and readers of nccl_tests_build, on values and small files made here."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests import marker, plan
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.marker import (
    PROGRAMS,
    Cuda,
    Inputs,
    Marker,
    Mpi,
    Nccl,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.plan import Have, Want
from hypothesis import given
from hypothesis import strategies as st

from tests import goldens
from tests.trees import link, put, put_all, tool

COMMIT = "a0b82b2260cf5152b9f8c061bbf7eaf0ba096432"
OTHER = "b" * 40
CUDA = Cuda("/usr/local/cuda-12.9", "/usr/local/cuda-12.9/lib64/libcudart.so", "12.9.88")
NCCL = Nccl("/usr/include", "/usr/lib/x86_64-linux-gnu/libnccl.so.2.27.7", "2.27.7")
MPI = Mpi("/usr/lib/openmpi/include", "/usr/lib/libmpi.so.40.30.4", "Open MPI 4.1.4")
MADE_FROM = Inputs(CUDA, NCCL, MPI, ("9.0",))
MARKER = Marker(COMMIT, None, MADE_FROM, ("make", "-j2"), {f"{name}_perf": "0" * 64 for name in PROGRAMS})
WANT = Want("/opt/nccl-tests", COMMIT, repository="https://git.example.org/nccl-tests.git")
TARBALL = replace(WANT, tarball="/srv/nccl-tests.tgz", sha256="1" * 64)
BUILT = Have(marker=MARKER, cuda=CUDA, nccl=NCCL, mpi=MPI, arch=("9.0",))
BARE = replace(BUILT, marker=None)
GONE = Problem("nvidia-smi", "did not respond within 20 s and was abandoned")


def judged(have: Have, want: Want = WANT) -> dict[str, tuple[str, str | None]]:
    """What is not ok: check -> (state, have)."""
    return {f.check[11:]: (f.state, f.have) for f in plan.plan(have, want).findings if not f.ok}


# -- the plan --------------------------------------------------------------------------------------------------------


def without(have: Have, name: str, problems: dict[str, Problem]) -> Have:
    values: dict[str, Any] = {name: None, "problems": problems}
    return replace(have, **values)


NO_MAKE = replace(BARE, missing_tools=("make",))
NO_MPI = replace(BUILT, mpi=None, marker=replace(MARKER, inputs=replace(MADE_FROM, mpi=None)))
NEW_CUDA = replace(CUDA, version="13.0.88")
FROM_ARCHIVE, FROM_ANOTHER = (replace(MARKER, archive_sha256=digit * 64) for digit in "12")
ALTERED = {"reduce_perf": "altered"}
LOST = Problem("/opt/nccl-tests/busbar-build.json", "is not text")
# Case -> what there is, and what is wanted.
PLANS: dict[str, tuple[Have, Want]] = {
    "built": (BUILT, WANT),
    "nothing built": (BARE, WANT),
    "another commit": (BUILT, replace(WANT, commit=OTHER)),
    "newer CUDA": (replace(BUILT, cuda=NEW_CUDA), WANT),
    "other library of CUDA": (replace(BUILT, cuda=replace(CUDA, library="/opt/cuda/lib/libcudart.so")), WANT),
    "newer NCCL": (replace(BUILT, nccl=replace(NCCL, version="2.28.9")), WANT),
    "another MPI": (replace(BUILT, mpi=replace(MPI, version="MPICH 4.0.2")), WANT),
    "MPI removed": (replace(BUILT, mpi=None), WANT),
    "MPI switched off": (replace(BUILT, mpi=None), replace(WANT, mpi="off")),
    "another GPU": (replace(BUILT, arch=("9.0", "10.0")), WANT),
    "a program is missing": (replace(BUILT, wrong={"reduce_perf": "missing"}), WANT),
    "a program is altered": (replace(BUILT, wrong=ALTERED), WANT),
    "newer CUDA and another GPU": (replace(BUILT, cuda=NEW_CUDA, arch=("10.0",)), WANT),
    # A missing or unknown input is the cause, and nothing is built.
    **{
        f"{name} {'unknown' if problems else 'missing'}, {'built' if have.marker else 'nothing built'}": (
            without(have, name, dict.fromkeys([name] if problems else [], GONE)), WANT
        )
        for name in ("cuda", "nccl", "arch")
        for problems in (True, False)
        for have in (BUILT, BARE)
    },
    "without MPI": (NO_MPI, WANT),
    "without MPI, which is off": (NO_MPI, replace(WANT, mpi="off")),
    "without MPI, which is required": (NO_MPI, replace(WANT, mpi="required")),
    "without MPI, which is in a folder": (NO_MPI, replace(WANT, mpi_home="/opt/ompi")),
    "without MPI, which is there now": (replace(NO_MPI, mpi=MPI), WANT),
    # A half-installed MPI is not taken for none: the build would silently lose it.
    "MPI half installed": (replace(BUILT, mpi=None, problems={"mpi": Problem("mpicc", "no mpi.h")}), WANT),
    # The archive is judged only when it is needed.
    "from an archive, altered since": (replace(BUILT, marker=FROM_ARCHIVE, archive="2" * 64), TARBALL),
    "another archive": (replace(BARE, archive="2" * 64), TARBALL),
    "archive unreadable": (
        replace(BARE, problems={"source": Problem("/srv/nccl-tests.tgz", "cannot be read")}), TARBALL
    ),
    "an archive": (replace(BARE, archive="1" * 64), TARBALL),
    "from an archive, altered since, as a program": (
        replace(BUILT, marker=FROM_ARCHIVE, archive="2" * 64, wrong=ALTERED), TARBALL
    ),
    # Another archive is another source, and the same commit from git is not.
    "an archive of the commit": (replace(BUILT, archive="1" * 64), TARBALL),
    "from another archive": (replace(BUILT, archive="1" * 64, marker=FROM_ANOTHER), TARBALL),
    "from another archive, git is wanted": (replace(BUILT, archive="1" * 64, marker=FROM_ANOTHER), WANT),
    # Tools are missed only by a build.
    "built, no make": (replace(BUILT, missing_tools=("make",)), WANT),
    "nothing built, no make": (NO_MAKE, WANT),
    "nothing built, no make and git": (replace(BARE, missing_tools=("make", "git")), WANT),
    # What is not Busbar's is neither built over nor hidden.
    "another's directory": (replace(BARE, occupied="a directory that Busbar did not make, with src"), WANT),
    "marker unreadable": (replace(BARE, problems={"build": LOST}), WANT),
}  # fmt: skip


@pytest.mark.golden
@pytest.mark.parametrize("name", PLANS)
def test_what_is_planned(name: str) -> None:
    have, want = PLANS[name]
    planned = plan.plan(have, want)
    rows = [
        [f.check.partition(".")[2], f.state, f.severity, f.have, f.because and f.because.partition("[")[0]]
        for f in planned.findings
        if not f.ok
    ]
    ok = " ".join(f.check.partition(".")[2] for f in planned.findings if f.ok)
    head = {"ok": ok, "changes": [change.path for change in planned.changes]}
    goldens.check("nccl_tests", name, [head, *rows])


def test_a_damaged_marker_is_built_over_and_said_to_be_damaged(tmp_path: Path) -> None:
    host = Host(str(tmp_path), str(tmp_path))
    folder = tmp_path / "opt/nccl-tests"
    folder.mkdir(parents=True)
    assert plan.read(host, WANT).occupied == ""
    for content, damage in ((bytes(100), "the marker is not text"), (b"{}", "the marker has format None")):
        (folder / marker.MARKER).write_bytes(content)
        have = plan.read(host, WANT)
        assert (have.marker, have.occupied) == (None, "")
        assert have.damage.startswith(damage)
        assert judged(replace(BARE, damage=have.damage)) == {"build": ("drift", have.damage)}
        assert plan.plan(replace(BARE, damage=have.damage), WANT).changed
    (folder / marker.MARKER).unlink()
    (folder / "src").mkdir()
    assert plan.read(host, WANT).occupied == "a directory that Busbar did not make, with src"


# -- parsers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        *({"format": 2}, {"commit": None}, {"arch": "9.0"}, {"arch": [9.0]}, {"cuda": {"home": "/"}}, {"more": 1}),
        *({"mpi": []}, {"argv": None}, {"library_path": ["/tmp"]}, {"binaries": {}}),
        {"cuda": {"home": 1, "library": "/x/y", "version": "12"}},
        {"binaries": {"all_reduce_perf": "0" * 64}},
        {"binaries": {**MARKER.binaries, "../../etc/passwd": "0" * 64}},
        {"binaries": {**MARKER.binaries, "all_reduce_perf": 0}},
        {"binaries": list(MARKER.binaries)},
    ],
)
def test_a_marker_with_anything_else_in_it_is_refused(change: dict[str, Any]) -> None:
    data = json.loads(marker.render_marker(MARKER))
    with pytest.raises(ParseError):
        marker.parse_marker(json.dumps({**data, **change}))


JSON = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


def test_a_marker_is_read_as_it_was_written() -> None:
    text = marker.render_marker(MARKER)
    assert marker.parse_marker(text) == MARKER
    # An earlier release stored the host's runtime, too.
    assert marker.parse_marker(json.dumps({**json.loads(text), "runtime": {"machine": "x86_64"}})) == MARKER


@given(JSON)
def test_any_json_in_any_place_of_a_marker_is_a_marker_or_a_parse_error(value: Any) -> None:
    data = json.loads(marker.render_marker(MARKER))
    for key in data:
        with suppress(ParseError):
            marker.parse_marker(json.dumps({**data, key: value}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"commit": "v2.19.6"}, "expected 40 lower-case hex digits"),
        ({"commit": COMMIT + "\n"}, "expected 40"),
        ({"path": "/opt/nccl tests"}, "path is '/opt/nccl tests'"),
        ({"path": "/opt/../etc"}, "without '..'"),
        ({"path": "/"}, "path is '/'"),
        ({"path": "opt"}, "path is 'opt'"),
        ({"path": ""}, "path is ''"),
        ({"cuda_home": "/usr/local/$(id)"}, "cuda_home is"),
        ({"libraries": ("lib.so",)}, "libraries is 'lib.so'"),
        ({"tarball": "/srv/x.tgz"}, "sha256 is ''"),
        ({"repository": ""}, "there is no tarball"),
        ({"repository": "https://x\n"}, "repository is"),
        ({"repository": "https://user:secret@git.example.org/x.git"}, "repository holds a password"),
        ({"mpi": "off", "mpi_home": "/opt/ompi"}, "mpi is off"),
    ],
)
def test_a_want_that_make_or_git_would_misread_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ParseError, match=message.replace("$", r"\$").replace("(", r"\(")):
        replace(WANT, **change)


# -- reading ---------------------------------------------------------------------------------------------------------


def test_an_empty_machine_has_nothing_and_no_traceback(tmp_path: Path) -> None:
    host = Host(str(tmp_path), str(tmp_path))
    have = plan.read(host, WANT)
    assert (have.marker, have.cuda, have.nccl, have.mpi, have.arch) == (None, None, None, None, None)
    assert set(have.problems) == {"arch"}
    assert have.missing_tools == ("make", "g++", "git")
    assert not plan.plan(have, WANT).changed


def test_a_link_that_leaves_the_system_root_is_unknown(tmp_path: Path) -> None:
    root = tmp_path / "sys"
    for name in ("bin/nvcc", "include/cuda_runtime.h", "lib64/libcudart.so"):
        put(tmp_path / "cuda", name, "", 0o755)
    link(root / "usr/local/cuda", tmp_path / "cuda")
    problem = plan.read(Host(str(tmp_path), str(root)), WANT).problems["cuda"]
    assert problem.message == f"is a link that leaves the system root {root}"


def test_of_several_toolkits_the_newest_is_found_unless_one_is_named(tmp_path: Path) -> None:
    for version in ("9.2", "12.9", "13.0"):
        home = tmp_path / f"usr/local/cuda-{version}"
        put_all(home, {"include/cuda_runtime.h": "", "lib64/libcudart.so": ""})
        tool(home, "bin/nvcc", f"echo 'Cuda compilation tools, release {version}, V{version}.1'")
    host = Host(str(tmp_path), str(tmp_path))
    found = plan.read(host, WANT).cuda
    assert found == Cuda("/usr/local/cuda-13.0", "/usr/local/cuda-13.0/lib64/libcudart.so", "13.0.1")
    named = plan.read(host, replace(WANT, cuda_home="/usr/local/cuda-9.2")).cuda
    assert named is not None
    assert named.version == "9.2.1"
    absent = plan.read(host, replace(WANT, cuda_home="/usr/local/cuda-11"))
    assert (absent.cuda, absent.problems["cuda"].source) == (None, "/usr/local/cuda-11/bin/nvcc")
