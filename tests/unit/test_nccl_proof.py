# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The proof's outer behaviour: what cannot be proven, and that nothing is left behind.

What real libraries make of a file is proven in tests/nccl. Here small shared objects stand for libraries that hang,
crash or talk too much.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import parser_probe as nccl_reader
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import proof as nccl_proof
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.proof import Proof

# Libraries that stand for NCCL: what reads_etc.c does beside, FILES says.
READS_ETC = (Path(__file__).parent / "cases/nccl_proof/reads_etc.c").read_text()


def _mounted() -> list[str]:
    """Where a proof mounts. Elsewhere containers of other tests may come and go meanwhile."""
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [point for point in points if point == "/etc" or point.startswith("/etc/") or point.endswith(".nccl.conf")]


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """There is no temporary file at all; no mount, no child process, no open file remains, whatever the outcome."""
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    mounts = _mounted()
    children = set(Path("/proc/thread-self/children").read_text().split())
    files = len(os.listdir("/proc/self/fd"))
    yield
    assert _mounted() == mounts
    assert len(os.listdir("/proc/self/fd")) == files
    # Those that an earlier test left unreaped may go meanwhile.
    assert set(Path("/proc/thread-self/children").read_text().split()) <= children


def prove(library: str, text: str, meant: dict[str, str], timeout: float = 30.0) -> Proof:
    """Of a library that is trusted: its own directory stands for the root."""
    return nccl_proof.prove(library, text, meant, timeout, base=os.path.dirname(library))


@pytest.fixture
def build(tmp_path: Path) -> Callable[[str], str]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build a stand-in library with")

    def make(source: str) -> str:
        code, library = tmp_path / "stand_in.c", tmp_path / "libnccl.so.2"
        code.write_text(source)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(code)], check=True)
        return str(library)

    return make


def proven_or_namespaces_refused(proof: Proof) -> Proof:
    if proof.outcome == "not_provable" and "user namespaces" in proof.message:
        pytest.skip(proof.message)
    return proof


ON_LOAD = (
    "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n__attribute__((constructor)) static void run(void)"
)
NOISE = r'{ for (int i = 0; i < 300000; i++) fprintf(stderr, "noise\n"); fprintf(stderr, "gone\033[2J\n"); exit(0); }'
# A library's source or its own text, the file's text, and what is said: "..." stands for anything.
NOT_PROVABLE = {
    "missing": (None, "", "LIBRARY: there is no such library..."),
    "no library": ("not ELF", "", "LIBRARY cannot be loaded as a NCCL library..."),
    "without the function": ("int something_else;", "", "LIBRARY cannot be loaded...ncclGetUniqueId..."),
    "text that no file can hold": ("int something_else;", "NCCL_X=\ud800", "the proof could not be set up..."),
    "hangs": (ON_LOAD + "{ for (;;) pause(); }", "", "LIBRARY: the library did not respond within 0.3 s"),
    "never stops talking": (
        ON_LOAD + '{ for (;;) puts("more"); }',
        "",
        "LIBRARY: the library did not respond within 0.3 s",
    ),
    "crashes": (ON_LOAD + "{ abort(); }", "", "LIBRARY: the library ended the process with signal 6"),
    "exits": (ON_LOAD + NOISE, "", "LIBRARY: the library ended the process without a result"),
}


@pytest.mark.parametrize("name", NOT_PROVABLE)
def test_what_cannot_be_proven_says_why_in_time(build: Callable[[str], str], tmp_path: Path, name: str) -> None:
    source, text, said = NOT_PROVABLE[name]
    library = str(tmp_path / "libnccl.so.2")
    if source == "not ELF":
        Path(library).write_text(source)
    elif source is not None:
        build(source)
    start = time.monotonic()
    proof = prove(library, text, {}, timeout=0.3 if "within 0.3 s" in said else 30.0)
    assert time.monotonic() - start < 30  # not for ever
    assert proof == Proof("not_provable", message=proof.message)
    pattern = ".*".join(map(re.escape, said.replace("LIBRARY", library).split("...")))
    assert re.fullmatch(pattern, proof.message), proof.message


def test_only_the_candidate_is_read_and_the_environment_is_empty(
    build: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_IB_TC", "from the environment")
    library = build(READS_ETC.replace("FILES", 'if (getenv("PATH") || fopen("/etc/passwd", "r")) return 8;'))
    proof = proven_or_namespaces_refused(prove(library, "NCCL_IB_TC=106\n", {"NCCL_IB_TC": "106"}))
    assert proof == Proof("proven", {"NCCL_IB_TC": "106"}, 0, "")
    assert not Path("/etc/nccl.conf").exists() or "NCCL_IB_TC=106" not in Path("/etc/nccl.conf").read_text()


def test_each_difference_is_named(build: Callable[[str], str]) -> None:
    library = build(READS_ETC.replace("FILES", ""))
    meant = {"NCCL_A": "1", "NCCL_B": "2", "NCCL_C": "3"}
    proof = proven_or_namespaces_refused(prove(library, "NCCL_A=1\nNCCL_B=x\nNCCL_D=4\n", meant))
    assert proof.outcome == "mismatch"
    assert proof.values == {"NCCL_A": "1", "NCCL_B": "x", "NCCL_D": "4"}
    assert proof.message == (
        "'NCCL_B': meant '2', the library has 'x'; 'NCCL_C': meant '3', the library has nothing; "
        "'NCCL_D': meant nothing, the library has '4'"
    )


def test_a_return_code_does_not_spoil_the_proof(build: Callable[[str], str]) -> None:
    library = build(READS_ETC.replace("FILES", 'printf("no socket interface found\\n"); fflush(stdout); return 5;'))
    proof = proven_or_namespaces_refused(prove(library, "NCCL_A=1\n", {"NCCL_A": "1"}))
    assert (proof.outcome, proof.rc) == ("proven", 5)
    assert proof.message == "ncclGetUniqueId returned 5"


def test_variables_with_side_effects_are_read_but_not_obeyed(build: Callable[[str], str], tmp_path: Path) -> None:
    library = build(READS_ETC.replace("FILES", 'if (getenv("NCCL_DEBUG_FILE")) fopen(getenv("NCCL_DEBUG_FILE"), "w");'))
    log = tmp_path / "nccl.log"
    meant = {"NCCL_DEBUG_FILE": str(log), "NCCL_ENV_PLUGIN": "mine"}
    text = "".join(f"{name}={value}\n" for name, value in meant.items())
    proof = proven_or_namespaces_refused(prove(library, text, meant))
    assert (proof.outcome, proof.values) == ("proven", meant)
    assert not log.exists()


def test_a_library_of_somebody_else_is_not_loaded(build: Callable[[str], str], tmp_path: Path) -> None:
    mark = tmp_path / "loaded"
    library = build(ON_LOAD + f'{{ fclose(fopen("{mark}", "w")); }}')
    os.chmod(library, 0o777)
    proof = prove(library, "", {})
    assert (proof.outcome, proof.doubt) == ("not_provable", "/libnccl.so.2 is writable by everybody")
    assert proof.message == f"not loaded, because {proof.doubt}"
    assert not mark.exists()


def test_who_may_make_a_mount_namespace_needs_no_user_namespace() -> None:
    results = iter([0])
    libc: Any = SimpleNamespace(unshare=lambda _flags: next(results))
    nccl_reader._enter_namespace(libc)
