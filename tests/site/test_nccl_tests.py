"""The role nccl_tests over several simulated nodes: one build for all that are equal, brought to the others."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.marker import MARKER

from tests.lab.test_nccl_tests_build import left, make_node
from tests.trees import put

Play = Callable[..., Any]
NAMES = ("node01", "node02", "node03")
BOOK = Path(__file__).with_name("nccl_tests.yml")


class Site:
    """Nodes that are equal until a test changes one."""

    def __init__(self, directory: Path, play: Play) -> None:
        self.directory, self.play = directory, play
        self.hosts: dict[str, dict[str, Any]] = {}
        (directory / "results").mkdir()
        shutil.copy(BOOK, directory / "book.yml")

    def add(self, name: str, healthy: Path) -> None:
        shutil.copytree(healthy, self.root(name), symlinks=True)
        (self.directory / name / "hw").mkdir()
        self.hosts[name] = {
            "busbar_platform": "hgx-h100",
            "busbar_fabric": "infiniband",
            "busbar_hardware_root": str(self.directory / name / "hw"),
            "busbar_system_root": str(self.root(name)),
            "nccl_tests_commit": "a" * 40,
            "nccl_tests_distribute": True,
            "nccl_tests_tarball": "/nccl-tests.tgz",
            "nccl_tests_sha256": hashlib.sha256((healthy / "nccl-tests.tgz").read_bytes()).hexdigest(),
            "ansible_connection": "local",
            "ansible_python_interpreter": "{{ ansible_playbook_python }}",
        }

    def root(self, name: str) -> Path:
        return self.directory / name / "sys"

    def build(self, name: str) -> Path:
        return self.root(name) / "opt/nccl-tests"

    def run(self, *arguments: str) -> dict[str, Any]:
        """Plays the role; gives each host's nccl_tests_result, and the output as "out"."""
        inventory = self.directory / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"gpu_nodes": {"hosts": self.hosts}}))
        for path in (self.directory / "results").iterdir():
            path.unlink()
        book = str(self.directory / "book.yml")
        done = self.play("-i", inventory, "-e", f"results={self.directory}/results", *arguments, playbook=book)
        found = {path.stem: json.loads(path.read_text()) for path in (self.directory / "results").iterdir()}
        assert set(found) == set(self.hosts), done.out
        return {**found, "out": done.out}

    def compilers(self) -> dict[str, int]:
        """How often each node has compiled; nodes that never have are left out."""
        asked = {name: self.root(name) / "usr/local/cuda-12.9/bin/asked" for name in self.hosts}
        return {name: len(path.read_text().splitlines()) for name, path in asked.items() if path.exists()}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("healthy")
    make_node(root)
    return root


@pytest.fixture
def site(healthy: Path, tmp_path: Path, play: Play) -> Site:
    made = Site(tmp_path, play)
    for name in NAMES:
        made.add(name, healthy)
    return made


def origins(results: dict[str, Any]) -> list[str]:
    return [results[name]["origin"] for name in sorted(results) if name != "out"]


def changed(results: dict[str, Any], name: str) -> int:
    line = next(line for line in results["out"].splitlines() if line.startswith(f"{name} ") and "changed=" in line)
    return int(line.split("changed=")[1].split()[0])


def test_check_mode_says_who_builds_and_who_copies_and_the_run_does_just_that(site: Site) -> None:
    del site.hosts["node03"]
    names = [*site.hosts]
    predicted = site.run("--check", "--diff")
    assert origins(predicted) == ["built", "copied from node01"]
    assert [left(site.root(name)) for name in names] == [set()] * 2
    done = site.run()
    for name in names:
        for key in ("changed", "diff", "commands", "repaired", "origin", "class_id"):
            assert predicted[name][key] == done[name][key], (name, key)
        assert done[name]["findings"] == []
        assert done[name]["path"] == "/opt/nccl-tests"
        assert done[name]["build"] == json.loads((site.build(name) / MARKER).read_text())
        assert left(site.root(name)) == {"nccl-tests", ".nccl-tests.lock"}
        assert changed(done, name) == 1
        programs = list(site.build(name).glob("*_perf"))
        assert {path.stat().st_mode & 0o777 for path in programs} == {0o755}
        assert "sendrecv_perf" in {path.name for path in programs}
    assert "own.yml" in done["out"]
    assert done["node02"]["commands"] == ["unpack the build of node01"]
    assert site.compilers() == {"node01": 1}
    again = site.run()
    assert origins(again) == ["unchanged"] * 2
    assert [changed(again, name) for name in names] == [0, 0]
    assert all(again[name]["current"] and not again[name]["findings"] for name in names)
    assert "own.yml" not in again["out"]
    assert site.compilers() == {"node01": 1}


@pytest.mark.long
def test_an_altered_build_is_mended_from_an_equal_host_and_not_by_building(site: Site) -> None:
    site.run()
    (site.build("node01") / "reduce_perf").write_bytes(b"\x7fELF")
    done = site.run()
    assert origins(done) == ["copied from node02", "unchanged", "unchanged"]
    assert done["node01"]["repaired"] == ["nccl_tests.build[persisted]@/opt/nccl-tests"]
    assert (site.build("node01") / "reduce_perf").read_bytes() == (site.build("node03") / "reduce_perf").read_bytes()
    assert [changed(done, name) for name in NAMES] == [1, 0, 0]
    assert site.compilers() == {"node01": 1}
    assert left(site.root("node02")) == {"nccl-tests", ".nccl-tests.lock"}


@pytest.mark.long
def test_where_the_builder_fails_the_others_build_for_themselves(site: Site) -> None:
    put(
        site.root("node01"),
        "usr/include/nccl.h",
        (site.root("node02") / "usr/include/nccl.h").read_text() + "#error\n",
    )
    done = site.run()
    assert done["node01"]["failed"]
    assert "ended with 2" in done["node01"]["msg"]
    assert [done[name]["origin"] for name in NAMES[1:]] == ["built", "built"]
    assert all(done[name]["findings"] == [] for name in NAMES[1:])
    assert left(site.root("node01")) == {".nccl-tests.lock", "nccl-tests.failed.log"}
    # The next run has hosts to copy from, and the broken one is not asked to build.
    again = site.run()
    assert origins(again) == ["copied from node02", "unchanged", "unchanged"]


@pytest.mark.long
def test_where_nothing_can_be_packed_the_others_build_for_themselves_and_it_is_said(site: Site) -> None:
    put(site.root("node01"), "var/lib/busbar/nccl-tests.pack/somebody's", "")
    done = site.run()
    assert origins(done) == ["built"] * 3
    assert "nccl-tests could not be packed" in done["node01"]["notes"][0]
    assert "nccl-tests.pack: Is a directory" in done["node01"]["notes"][0]
    assert (site.root("node01") / "var/lib/busbar/nccl-tests.pack/somebody's").exists()


@pytest.mark.long
def test_a_lost_host_is_no_builder(site: Site) -> None:
    # A port on loopback that nobody listens on.
    gone = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
    site.hosts["node01"].update(gone)
    done = site.run()
    assert done["node01"]["unreachable"]
    assert [done[name]["origin"] for name in NAMES[1:]] == ["built", "copied from node02"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("lost", "of_builder"),
    [
        ("__nccl_tests_shared is defined", ("unreachable", True)),
        ("nccl_tests_result.packed | d(0)", ("origin", "built")),
    ],
    ids=["before it builds", "before it hands over"],
)
def test_where_the_builder_is_lost_the_others_build_for_themselves(
    site: Site, lost: str, of_builder: tuple[str, object]
) -> None:
    connection = f"{{{{ 'ssh' if {lost} else 'local' }}}}"
    site.hosts["node01"].update(ansible_connection=connection, ansible_host="127.0.0.1", ansible_port=9)
    done = site.run()
    assert done["node01"].get(of_builder[0]) == of_builder[1]
    for name in NAMES[1:]:
        assert (done[name]["origin"], done[name]["findings"]) == ("built", [])
        assert left(site.root(name)) == {"nccl-tests", ".nccl-tests.lock"}


@pytest.mark.long
def test_unless_the_site_opts_in_every_host_builds_and_nothing_is_transferred(site: Site) -> None:
    for host in site.hosts.values():
        del host["nccl_tests_distribute"]
    done = site.run()
    assert origins(done) == ["built"] * 3
    assert site.compilers() == dict.fromkeys(NAMES, 1)
    assert "Fetch the build" not in done["out"]
    assert origins(site.run()) == ["unchanged"] * 3


@pytest.mark.long
def test_the_nodes_oldest_python_carries_a_build_over(site: Site, oldest_python: str) -> None:
    for host in site.hosts.values():
        host["ansible_python_interpreter"] = oldest_python
    assert origins(site.run()) == ["built", "copied from node01", "copied from node01"]


@pytest.mark.long
def test_in_batches_each_batch_builds_once(site: Site) -> None:
    [play] = yaml.safe_load(BOOK.read_text())
    (site.directory / "book.yml").write_text(yaml.safe_dump([{**play, "serial": [1, 2]}]))
    assert origins(site.run()) == ["built", "built", "copied from node02"]
