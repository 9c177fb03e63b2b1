# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar lint`` of what starts a job: which variables it finds, where, and what it says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar import job_variables, lint

SBATCH = """\
#!/bin/bash
#SBATCH --nodes=2 --export=ALL,NCCL_IB_DISABLE=1
export NCCL_DEBUG=WARN NCCL_SHM_DISABLE=1
NCCL_P2P_DISABLE=1
srun --export=ALL,NCCL_NET=Socket env NCCL_SHARP_ENABLE=1 python train.py
NCCL_IB_TIMEOUT=22 mpirun -x NCCL_ALGO=TREE -x NCCL_SOCKET_IFNAME -x NCCL_MAX_NCHANNELS=32 \\
  --mca mca_base_env_list "NCCL_DEBUG_SUBSYS=ALL;NCCL_IB_DISABLE=0" ./run
docker run --rm -e NCCL_NET_GDR_LEVEL=NODE image
export NCCL_IB_HCA=$(site-hcas)
"""
DOCKERFILE = """\
FROM nvcr.io/x
# ENV NCCL_NET=IB
ENV NCCL_IB_DISABLE=1 \\
    # theirs
    NCCL_DEBUG="WARN" NCCL_SHM_DISABLE=1
env NCCL_P2P_DISABLE 1
RUN export NCCL_NET=Socket && make
CMD ["mpirun", "-x", "NCCL_SHARP_ENABLE=1", "./run"]
"""
MANIFEST = """\
apiVersion: v1
kind: Pod
spec:
  containers:
    - name: train
      env:
        - {name: NCCL_IB_DISABLE, value: "1"}
        - name: NCCL_DEBUG
          value: WARN
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
      command: ["mpirun", "-x", "NCCL_SHM_DISABLE=1", "./run"]
      args:
        - |
          export NCCL_P2P_DISABLE=1
          ./run
---
kind: ConfigMap
data:
  NCCL_NET: Socket
"""
COMPOSE = (
    "services:\n  a:\n    environment:\n      - NCCL_IB_DISABLE=1\n  b:\n    environment:\n      NCCL_NET: Socket\n"
)
PYTHON = """\
import os
os.environ["NCCL_IB_DISABLE"] = "1"
os.environ.setdefault("NCCL_SHM_DISABLE", "1")
subprocess.run(x, env={**os.environ, "NCCL_NET": "Socket", "NCCL_DEBUG": level})
"""
# name, text, kind, what is said: line, variable, rule
SCRIPTS = [
    (
        "job.sbatch",
        SBATCH,
        "script",
        {
            "2 NCCL_IB_DISABLE advice",
            "3 NCCL_SHM_DISABLE advice",
            "4 NCCL_P2P_DISABLE not_exported",
            "5 NCCL_NET advice",
            "5 NCCL_SHARP_ENABLE never_existed",
            "6 NCCL_IB_TIMEOUT advice",
            "6 NCCL_ALGO bad_value",
            "6 NCCL_MAX_NCHANNELS advice",
            "7 NCCL_DEBUG_SUBSYS advice",
            "7 NCCL_IB_DISABLE advice",
            "8 NCCL_NET_GDR_LEVEL bad_value",
        },
    ),
    (
        "Dockerfile.train",
        DOCKERFILE,
        "dockerfile",
        {
            "3 NCCL_IB_DISABLE advice",
            "5 NCCL_SHM_DISABLE advice",
            "6 NCCL_P2P_DISABLE advice",
            "8 NCCL_SHARP_ENABLE never_existed",
        },
    ),
    (
        "pod.yaml",
        MANIFEST,
        "yaml",
        {
            "7 NCCL_IB_DISABLE advice",
            "12 NCCL_SHM_DISABLE advice",
            "15 NCCL_P2P_DISABLE advice",
            "20 NCCL_NET advice",
        },
    ),
    ("compose.yml", COMPOSE, "yaml", {"4 NCCL_IB_DISABLE advice", "7 NCCL_NET advice"}),
    ("train.py", PYTHON, "python", {"2 NCCL_IB_DISABLE advice", "3 NCCL_SHM_DISABLE advice", "4 NCCL_NET advice"}),
]


def _files() -> Iterator[tuple[str, str, set[tuple[str, str]]]]:
    """Name, text, and the line and rule of each finding that is right, decided before the file was first read."""
    for part in (Path(__file__).parent / "job_files.txt").read_text().split("#== ")[1:]:
        head, _newline, text = part.partition("\n")
        name, _colon, expected = head.partition(":")
        yield name, text, {(entry.split()[0], entry.split()[2]) for entry in expected.split(",") if entry.strip()}


FILES = list(_files())


@pytest.mark.parametrize(("name", "text", "expected"), FILES, ids=[name for name, *_rest in FILES])
def test_a_job_file_has_its_faults_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, expected: set[tuple[str, str]]
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert lint.run([str(path)], [], None, verbose=True) == (2 if expected else 0)
    out = capsys.readouterr().out
    assert set(re.findall(rf"(?m)^{re.escape(str(path))}:(\d+).*\[(\w+)\]$", out)) == expected


def test_what_is_not_yaml_costs_its_lines_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("kind: Pod\nenv:\n  - {name: NCCL_NET, value: Socket}\nbad: x: y\n")
    assert lint.run([str(path)], [], None, verbose=True) == 2
    told = capsys.readouterr()
    assert "[advice]" in told.out
    assert "x.yaml: line 4" in told.err


@pytest.mark.parametrize(("name", "text", "kind", "said"), SCRIPTS, ids=[name for name, *_rest in SCRIPTS])
def test_each_kind_is_known_and_each_variable_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, kind: str, said: set[str]
) -> None:
    assert job_variables.kind_of(name, text) == kind
    # By its content, too, as on standard input.
    assert job_variables.kind_of("<stdin>", text) == (kind if kind != "python" else "conf")
    path = tmp_path / name
    path.write_text(text)
    for of_file in (None, kind):
        assert lint.run([str(path)], [], "2.27.7", of_file, verbose=True) == 2
        rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith(str(path))]
        found = set()
        for row in rows:
            place, _severity, rest = row.split(": ", 2)
            found.add(f"{place.rpartition(':')[2]} {rest.partition('=')[0].split()[0]} {rest.rpartition('[')[2][:-1]}")
        assert found == said


def test_sharp_is_why_tree_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said to be required for SHARP, it switches SHARP off, whatever the release."""
    path = tmp_path / "job.sh"
    path.write_text("export NCCL_ALGO=TREE NCCL_COLLNET_ENABLE=1\n")
    for version in (None, "2.21.5", "2.27.7"):
        assert lint.run([str(path)], [], version) == 2
        assert "SHARP" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["nccl.conf", "job.sh", "Dockerfile", "pod.yml", "x.py", "other"])
def test_a_good_file_ends_with_0_and_advice_is_of_this_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    good = {"job.sh": "export NCCL_DEBUG=WARN\n", "Dockerfile": "FROM x\nENV NCCL_DEBUG=WARN\n", "x.py": "x = 1\n"}
    path = tmp_path / name
    path.write_text(good.get(name, "NCCL_DEBUG: WARN\n" if name == "pod.yml" else "# good\nNCCL_DEBUG=WARN\n"))
    assert lint.run([str(path)], [], None) == 0
    out = capsys.readouterr().out
    assert out.startswith("0 findings in 1 file\n")
    assert "--library" in out
    assert "busbar_" not in out


@pytest.mark.parametrize(
    ("name", "text", "code", "says"),
    [
        ("x.yaml", "a: [\n", 1, "no YAML"),
        ("x.py", "def\n", 1, "line 1: no Python"),
        ("x.yaml", "{{ helm }}: {{ x\n", 3, "line"),
    ],
)
def test_what_is_not_of_its_kind_cannot_be_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, code: int, says: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert lint.run([str(path)], [], "2.27.7") == code
    assert says in capsys.readouterr().err


@settings(max_examples=100, deadline=None)
@given(
    st.text(st.sampled_from("ENV NCCL_A=1\n#\\\"'[]{}:-|,$ "), max_size=80), st.sampled_from(job_variables.KINDS[1:])
)
def test_any_text_is_read_or_refused(text: str, kind: str) -> None:
    try:
        job_variables.read(text, kind)
    except ParseError:
        assert kind in ("yaml", "python")
