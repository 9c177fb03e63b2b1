# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a container of a job sees of NCCL's files, and GDRCopy, which is judged only where something switches it on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import gdrcopy, lint, plan
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.environment import Environment, Setting
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.lint_values import Use
from hypothesis import given
from hypothesis import strategies as st

from busbar import cli
from busbar.preflight import containers
from tests.trees import put, put_all, tool

CONF, TOPO = "/etc/nccl.conf", "/opt/cloud/topo.xml"
NODES = ("n1", "n2")


@pytest.mark.parametrize("runtime", ["enroot", "docker", "kubernetes"])
@pytest.mark.parametrize(("topo", "times"), [(TOPO, 2), ("", 0), ("/not/there.xml", 0), ("/a b\nc", 0)])
def test_containers_get_the_topology_file_that_is_there(tmp_path: Path, runtime: str, topo: str, times: int) -> None:
    put_all(tmp_path, {TOPO: "<system/>", "/a b\nc": ""})
    [change] = plan.plan_container(Host(str(tmp_path), str(tmp_path)), runtime, CONF, topo).changes
    text = change.after or ""
    assert (text.count(TOPO), "\nc" in text, CONF in text) == (times, False, True)


# The node's own view, then that in a container: what cksum prints of each file on both nodes.
SAME, OTHER = "4038471504 75", "1 75"
STEP = """
inside=
for word in "$@"; do case $word in --container-image=*) inside=.inside ;; esac; done
cat "$0.said$inside"
"""


def views(tmp_path: Path, here: str, inside: str) -> None:
    """A Slurm whose job has two nodes, of which every step prints this."""
    tool(tmp_path, "srun", STEP)
    tool(tmp_path, "scontrol", 'case "$2" in hostnames) echo n1 n2 ;; *) exit 1 ;; esac')
    put(tmp_path, "srun.said", here)
    put(tmp_path, "srun.said.inside", inside)


def printed(first: str, second: str) -> str:
    return "".join(
        f"{task}: busbar-node {node}\n{task}: {one}\n"
        for task, (node, one) in enumerate(zip(NODES, (first, second), strict=True))
    )


GOOD = printed(f"{SAME} {CONF}", f"{SAME} {CONF}")


@pytest.mark.parametrize(
    ("here", "inside", "word", "code", "states"),
    [
        (GOOD, GOOD, "ok", 0, [None, None]),
        (GOOD, printed(f"{SAME} {CONF}", f"{OTHER} {CONF}"), "bad", 2, [None, "drift"]),
        (
            GOOD,
            printed(f"{SAME} {CONF}", f"cksum: {CONF}: No such file or directory"),
            "bad",
            2,
            [None, "drift"],
        ),
        (GOOD, "srun: unrecognized option\n", "unknown", 3, ["unknown", "unknown"]),
        (printed("", f"{SAME} {CONF}"), GOOD, "unknown", 3, ["unknown", None]),
        # A name that two tasks claim proves nothing of it.
        (GOOD, GOOD.replace("busbar-node n2", "busbar-node n1"), "unknown", 3, ["unknown", "unknown"]),
    ],
)
def test_a_containers_view_is_compared_on_every_node(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    here: str,
    inside: str,
    word: str,
    code: int,
    states: list[str | None],
) -> None:
    views(tmp_path, here, inside)
    for name, value in (("PATH", f"{tmp_path}:/usr/bin:/bin"), ("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-2]")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(containers, "files", lambda *_given: [CONF])
    file = tmp_path / "findings.json"
    assert cli.main(["preflight", "--container-image", "site/train", "--findings", str(file)]) == code
    assert capsys.readouterr().out == f"PREFLIGHT={word}\n"
    hosts = json.loads(file.read_text())["hosts"]
    found = [next((one["state"] for one in hosts[node]["findings"]), None) for node in NODES]
    assert found == states
    assert cli.main(["certify", str(file), "--json", str(tmp_path / "sheet.json")]) == 2
    rows = {row["key"]: row["answer"] for row in json.loads((tmp_path / "sheet.json").read_text())["rows"]}
    assert rows["nccl_topo_file.status"] == ("pass" if code == 0 else "open")


def test_the_files_are_those_that_the_job_reads(tmp_path: Path) -> None:
    host = Host(str(tmp_path), str(tmp_path))
    assert containers.files(host, {}) == [CONF]
    put(tmp_path, CONF, f"NCCL_TOPO_FILE={TOPO}\n")
    assert containers.files(host, {}) == [CONF, TOPO]
    assert containers.files(host, {"NCCL_TOPO_FILE": "/mine.xml"}) == [CONF, "/mine.xml"]
    assert containers.files(host, {"NCCL_TOPO_FILE": "mine.xml"}) == [CONF]


@given(st.lists(st.sampled_from([*GOOD.splitlines(), "2: busbar-node n1", "0: ", "\x1b", "0: busbar-node n9"])))
def test_any_output_is_of_the_jobs_nodes_alone(lines: list[str]) -> None:
    assert set(containers.parse("\n".join(lines), NODES)) <= set(NODES)


# -- GDRCopy -----------------------------------------------------------------------------------------------------------

ON = Environment((Setting("NCCL_GDRCOPY_ENABLE", "1", "/etc/environment", 1, "jobs"),))
DRIVER = {gdrcopy.MODULE + "/x": "", gdrcopy.DEVICE: ""}


@pytest.mark.parametrize(
    ("files", "environment", "meant", "state"),
    [
        ({}, Environment(), {}, None),
        (DRIVER, Environment(), {"NCCL_GDRCOPY_ENABLE": "0"}, None),
        ({}, ON, {}, "drift"),
        ({}, Environment(), {"NCCL_GDRCOPY_ENABLE": "1"}, "drift"),
        ({gdrcopy.MODULE + "/x": ""}, ON, {}, "drift"),
        (DRIVER, ON, {}, "unknown"),
        ({**DRIVER, "/usr/lib64/libgdrapi.so": ""}, ON, {}, "ok"),
    ],
)
def test_gdrcopy_is_judged_where_something_switches_it_on(
    tmp_path: Path, files: dict[str, str], environment: Environment, meant: dict[str, str], state: str | None
) -> None:
    put_all(tmp_path, files)
    found = gdrcopy.judge(Host(str(tmp_path), str(tmp_path)), meant, environment)
    assert (found and found.state) == state


def test_lint_knows_a_gpu_node_without_gdrcopys_driver() -> None:
    use = Use(version=(2, 27, 7), without_gdrcopy="there is no /dev/gdrdrv")
    text = "NCCL_GDRCOPY_ENABLE=%s\n"
    found = [one for value in "10" for one in lint.lint(text % value, use, "x")]
    assert [(one.check, one.severity) for one in found] == [("nccl_conf.lint.gdrcopy", "minor")]
    assert "/dev/gdrdrv" in found[0].why
    assert lint.lint(text % 1, use._replace(without_gdrcopy=""), "x") == []
