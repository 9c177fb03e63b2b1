# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The proof's outer behaviour: what cannot be proven, and that nothing is left behind.

What real libraries make of a file is proven in tests/nccl. Here small shared objects stand for libraries that hang,
crash or talk too much.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_proof import Proof, prove

READS_ETC = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int ncclGetUniqueId(void *id) {
    char line[256];
    FILE *file = fopen("/etc/nccl.conf", "r");
    if (!file) return 9;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\\n")] = 0;
        char *equals = strchr(line, '=');
        if (equals) { *equals = 0; setenv(line, equals + 1, 0); }
    }
    FILES
    return 0;
}
"""


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """There is no temporary file at all; no mount, no child process, no open file remains, whatever the outcome."""
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    mounts = Path("/proc/self/mounts").read_text()
    children = Path("/proc/thread-self/children").read_text()
    files = len(os.listdir("/proc/self/fd"))
    yield
    assert Path("/proc/self/mounts").read_text() == mounts
    assert len(os.listdir("/proc/self/fd")) == files
    assert Path("/proc/thread-self/children").read_text() == children


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


def test_a_missing_library_is_named() -> None:
    proof = prove("/nonexistent/libnccl.so.2", "", {})
    assert proof.outcome == "not_provable"
    assert proof.message.startswith("/nonexistent/libnccl.so.2: there is no such library")


def test_a_file_that_is_no_library_is_not_provable(tmp_path: Path) -> None:
    path = tmp_path / "libnccl.so.2"
    path.write_text("not ELF")
    proof = prove(str(path), "", {})
    assert proof.outcome == "not_provable"
    assert "cannot be loaded as a NCCL library" in proof.message


def test_a_library_without_the_function_is_not_provable(build: Callable[[str], str]) -> None:
    proof = prove(build("int something_else;"), "", {})
    assert proof.outcome == "not_provable"
    assert "ncclGetUniqueId" in proof.message


def test_text_that_no_file_can_hold_is_not_provable(build: Callable[[str], str]) -> None:
    proof = prove(build("int something_else;"), "NCCL_X=\ud800", {})
    assert proof.outcome == "not_provable"
    assert "could not be set up" in proof.message


def test_a_library_that_hangs_is_killed_in_time(build: Callable[[str], str]) -> None:
    library = build("#include <unistd.h>\n__attribute__((constructor)) static void hang(void) { for (;;) pause(); }")
    start = time.monotonic()
    proof = prove(library, "", {}, timeout=0.3)
    assert time.monotonic() - start < 30  # not for ever
    assert proof == Proof("not_provable", message=f"{library}: the library gave no answer within 0.3 s")


def test_a_library_that_never_stops_talking_is_killed_in_time(build: Callable[[str], str]) -> None:
    library = build(
        '#include <stdio.h>\n__attribute__((constructor)) static void talk(void) { for (;;) puts("more"); }'
    )
    proof = prove(library, "", {}, timeout=0.3)
    assert proof.message.startswith(f"{library}: the library gave no answer within 0.3 s (it printed: more")


def test_a_library_that_crashes_is_not_provable(build: Callable[[str], str]) -> None:
    library = build("#include <stdlib.h>\n__attribute__((constructor)) static void crash(void) { abort(); }")
    proof = prove(library, "", {})
    assert proof == Proof("not_provable", message=f"{library}: the library ended the process with signal 6")


def test_a_library_that_exits_is_not_provable_and_its_last_words_are_kept(build: Callable[[str], str]) -> None:
    library = build(
        "#include <stdio.h>\n#include <stdlib.h>\n__attribute__((constructor)) static void leave(void)"
        '{ for (int i = 0; i < 300000; i++) fprintf(stderr, "noise\\n"); fprintf(stderr, "gone\\033[2J\\n"); exit(0); }'
    )
    proof = prove(library, "", {})
    assert proof.outcome == "not_provable"
    assert proof.message.startswith(f"{library}: the library ended the process without an answer")
    assert proof.message.endswith("noise | gone?[2J)")


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
        "'NCCL_B': meant '2', the library has 'x'; 'NCCL_C': meant '3', not set by the library; "
        "'NCCL_D': set to '4' by the library, not meant"
    )


def test_a_return_code_does_not_spoil_the_proof(build: Callable[[str], str]) -> None:
    library = build(READS_ETC.replace("FILES", 'printf("no socket interface found\\n"); fflush(stdout); return 5;'))
    proof = proven_or_namespaces_refused(prove(library, "NCCL_A=1\n", {"NCCL_A": "1"}))
    assert (proof.outcome, proof.rc) == ("proven", 5)
    assert proof.message == "ncclGetUniqueId returned 5 (it printed: no socket interface found)"


def test_variables_with_side_effects_are_read_but_not_obeyed(build: Callable[[str], str], tmp_path: Path) -> None:
    library = build(READS_ETC.replace("FILES", 'if (getenv("NCCL_DEBUG_FILE")) fopen(getenv("NCCL_DEBUG_FILE"), "w");'))
    log = tmp_path / "nccl.log"
    meant = {"NCCL_DEBUG_FILE": str(log), "NCCL_ENV_PLUGIN": "mine"}
    text = "".join(f"{name}={value}\n" for name, value in meant.items())
    proof = proven_or_namespaces_refused(prove(library, text, meant))
    assert (proof.outcome, proof.values) == ("proven", meant)
    assert not log.exists()
