# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar lint`` of what starts a job: which variables it finds, where, and what it says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from hypothesis import given
from hypothesis import strategies as st

from busbar import job_variables, lint


class File(NamedTuple):
    """kind: of a file that is judged by NCCL 2.27.7, by its name and by this; None for one without either.

    expected: line, variable if it is of one, and rule of each finding that is right, decided before it was first read.
    """

    name: str
    kind: str | None
    text: str
    expected: set[tuple[str, str, str]]


def _files() -> Iterator[File]:
    for part in (Path(__file__).parent / "job_files.txt").read_text().split("#== ")[1:]:
        head, _newline, text = part.partition("\n")
        name, _colon, expected = head.partition(":")
        name, _space, kind = name.partition(" ")
        rows = [entry.split() for entry in expected.split(",") if entry.strip()]
        found = {(line, what if what.startswith("NCCL_") else "", rule) for line, what, rule in rows}
        yield File(name, kind or None, text, found)


FILES = {file.name: file for file in _files()}


@pytest.mark.parametrize("name", FILES)
def test_a_job_file_has_its_faults_and_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    file = FILES[name]
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file.text)
    for kind in {None, file.kind}:
        assert lint.run([str(path)], [], file.kind and "2.27.7", kind, verbose=True) == (2 if file.expected else 0)
        out = capsys.readouterr().out
        row = rf"(?m)^{re.escape(str(path))}:(\d+): \w+: (NCCL_\w+)?.*\[(\w+)\]$"
        assert set(re.findall(row, out)) == file.expected


@pytest.mark.parametrize("name", [file.name for file in FILES.values() if file.kind])
def test_each_kind_is_known_by_its_name_and_by_its_content_as_on_standard_input(name: str) -> None:
    kind, text = FILES[name].kind, FILES[name].text
    assert job_variables.kind_of(name, text) == kind
    assert job_variables.kind_of("<stdin>", text) == kind


@pytest.mark.parametrize("name", ["nccl.conf", "job.sh", "pod.yml", "other"])
def test_a_good_file_ends_with_0_and_advice_is_of_this_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    good = {"job.sh": "export NCCL_DEBUG=WARN\n", "pod.yml": "NCCL_DEBUG: WARN\n"}
    path = tmp_path / name
    path.write_text(good.get(name, "# good\nNCCL_DEBUG=WARN\n"))
    assert lint.run([str(path)], [], None) == 0
    out = capsys.readouterr().out
    assert out.startswith("0 findings in 1 file\n")
    assert "--library" in out
    assert "busbar_" not in out


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.yaml", "a: [\n", "line 2: no YAML: "),
        ("x.json", "[" * 9999, "line 1: no YAML: "),
        ("chart.yaml", "a: b\nbad: {{ x }}: y\n", "line 2: no YAML: "),
        ("compose.yaml", "services: {}\n", "busbar lint reads "),
        ("Dockerfile", "ENV NCCL_NET=Socket\n", "busbar lint reads "),
        ("train.sh.j2", "export NCCL_NET={{ net }}\n", "busbar lint reads "),
        ("train", "#!/usr/bin/env python3\n", "busbar lint reads "),
        ("train", 'environ["NCCL_NET"] = "Socket"\n', "busbar lint reads "),
        ("values", "a: b\nNCCL_NET: Socket\n", "busbar lint reads "),
    ],
)
def test_what_is_not_read_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, says: str
) -> None:
    (tmp_path / name).write_text(text)
    assert lint.run([str(tmp_path / name)], [], "2.27.7") == 1
    assert f"{name}: {says}" in capsys.readouterr().err


@given(
    st.text(st.sampled_from("ENV NCCL_A=1\n#\\\"'[]{}:-|,$ "), max_size=80), st.sampled_from(job_variables.KINDS[1:])
)
def test_any_text_is_read_or_refused(text: str, kind: str) -> None:
    try:
        job_variables.read(text, kind)
    except ParseError:
        assert kind == "yaml"
