from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import bundle
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ReadError

from tests import goldens

ROOT = Path(__file__).parents[2]
MAIN = """
from ansible_collections.busbar.fabric.plugins.module_utils.core import host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import topology
import ast
import json
found = topology.read(host.Host({root!r}, {root!r}))
print(json.dumps([len(found.gpus), [str(problem) for problem in found.problems]]))
"""


def full(*names: str) -> list[str]:
    return [f"{bundle.PACKAGE}.{name}" for name in names]


def run(script: str, python: str = sys.executable) -> str:
    done = subprocess.run(
        [python, "-I", "-S", "-"], input=script, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_closure_takes_in_what_the_topology_needs_and_no_more() -> None:
    sources = bundle.closure(full("machine.topology"), bundle.source_of)
    nouns = ("topology", "pci", "rdma", "netdev", "gpu", "virtualization")
    assert {*full("core.host", *(f"machine.{noun}" for noun in nouns))} <= set(sources)
    assert not set(full("machine.profile", "machine.platform", "nccl_conf.plan")) & set(sources)


def test_the_topology_reader_runs_as_one_script_without_site_packages(tmp_path: Path) -> None:
    script = bundle.script(bundle.closure(full("machine.topology"), bundle.source_of), MAIN.format(root=str(tmp_path)))
    gpus, problems = json.loads(run(script))
    assert gpus == 0
    assert problems  # an empty tree cannot say whether it is a virtual machine


def test_what_a_function_imports_by_itself_is_not_sent() -> None:
    a = 'from . import (  # all\n    core as c,\n)\nT = """\nfrom . import d\n"""\ndef f():\n    from . import d\n'
    sources = {"a": f"from json import dumps\n{a}", "core": f"from {bundle.PACKAGE}.b import x\n", "b": "x = 1\n"}
    names = {f"{bundle.PACKAGE}.{name}": text for name, text in sources.items()}
    assert set(bundle.closure(full("a"), lambda name: names.get(name, ""))) == set(full("a", "core", "b"))


def test_every_import_of_a_module_is_followed() -> None:
    modules = {f"{bundle.LIBRARY}.{path.stem}" for path in (ROOT / "library").glob("*.py")}
    sources = bundle.closure(sorted(modules), _text)
    for name, source in sources.items():
        for node in ast.parse(_text(name)).body:
            if isinstance(node, ast.ImportFrom):
                package = name.rsplit(".", node.level)[0] + "." if node.level else ""
                module = f"{package}{node.module or ''}".rstrip(".")
                named = {module, *(f"{module}.{alias.name}" for alias in node.names)}
                assert not module.startswith(bundle.PACKAGE) or named & set(sources), (name, module)
        assert "DOCUMENTATION = " not in source


def test_a_module_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ReadError, match="no_such_module"):
        bundle.closure(full("no_such_module"), bundle.source_of)


def test_a_plain_script_runs_too_and_can_be_read(tmp_path: Path) -> None:
    main = f"from {bundle.PACKAGE}.core import plan\nprint(plan.Plan().changed)\n"
    script = bundle.plain_script(bundle.closure(full("core.plan"), bundle.source_of), main)
    assert run(script) == "False\n"
    assert '\n  "    def changed(self) -> bool:",\n' in script


SOURCE = ROOT / "tests/unit/cases/bundle/source.txt"


@pytest.mark.golden
def test_a_stripped_source_is_a_fixed_point() -> None:
    bare = stripped(SOURCE.read_text())
    goldens.text("bare", bare)
    assert stripped(bare) == bare


def test_every_module_can_be_stripped_and_stays_what_it_is() -> None:
    for path in sorted((ROOT / "module_utils").rglob("*.py")):
        text = stripped(path.read_text())
        assert stripped(text) == text, path.name
        assert _code(text) == _code(path.read_text()), path.name


def _text(name: str) -> str:
    path = ROOT / name.removeprefix("ansible_collections.busbar.fabric.plugins.").replace(".", "/").replace(
        "modules/", "library/"
    )
    return "" if path.is_dir() else path.with_suffix(".py").read_text()


def stripped(source: str) -> str:
    return bundle.strip_source(source)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _code(source: str) -> str:
    """Without docstrings, and the strings that describe a declaration."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [one for one in node.body if not _is_text(one)] or [ast.Pass()]
    return ast.dump(tree)
