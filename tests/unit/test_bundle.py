from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import bundle
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ReadError

MAIN = """
from ansible_collections.busbar.fabric.plugins.module_utils.core import host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import topology
import ast
import json
print(json.dumps(topology.to_dict(topology.read(host.Host({root!r}, {root!r})))))
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
    assert set(
        full(
            "core.host", *(f"machine.{noun}" for noun in ("topology", "pci", "rdma", "netdev", "gpu", "virtualization"))
        )
    ) <= set(sources)
    assert not set(full("machine.profile", "machine.platform", "nccl.conf")) & set(sources)


def test_the_topology_reader_runs_as_one_script_without_site_packages(tmp_path: Path) -> None:
    script = bundle.script(bundle.closure(full("machine.topology"), bundle.source_of), MAIN.format(root=str(tmp_path)))
    answer = json.loads(run(script))
    assert answer["gpus"] == []
    assert answer["problems"]  # an empty tree cannot say whether it is a virtual machine


@pytest.mark.parametrize(("name", "function"), [("machine.platform", "plan"), ("nccl.conf", "plan"), ("iommu", "plan")])
def test_every_planner_can_be_bundled(name: str, function: str) -> None:
    main = f"\nfrom {bundle.PACKAGE}.{name} import {function}\nprint({function})"
    assert "function" in run(bundle.script(bundle.closure(full(name), bundle.source_of), main))


def test_a_module_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ReadError, match="no_such_module"):
        bundle.closure(full("no_such_module"), bundle.source_of)


def test_a_plain_script_runs_too_and_can_be_read(tmp_path: Path) -> None:
    main = f"from {bundle.PACKAGE}.core import plan\nprint(plan.Plan().changed)\n"
    script = bundle.plain(bundle.closure(full("core.plan"), bundle.source_of), main)
    assert run(script) == "False\n"
    assert '\n  "    def changed(self) -> bool:",\n' in script


SOURCE = '''\
"""What it is."""
# A comment.
import os

DOCUMENTATION = r"""
module: x
"""
TEXT = """\\
# No comment,

   nor a blank line that counts for nothing.
"""


class Empty(Exception):
    """Only text."""


def f(a: int) -> str:
    """What it gives.

    More of it.
    """
    # Why.
    return f"""{a}
# {a}
"""  # kept


def g() -> None: ...
'''
BARE = '''\
# bare
import os
TEXT = """\\
# No comment,

   nor a blank line that counts for nothing.
"""
class Empty(Exception):
    pass
def f(a: int) -> str:
    return f"""{a}
# {a}
"""  # kept
def g() -> None: ...
'''


def test_a_bare_source_is_the_code_alone_and_its_own_bare_source() -> None:
    assert bare(SOURCE) == BARE
    assert bare(without_mark(BARE)) == bare(BARE) == BARE


def test_every_module_can_be_made_bare_and_stays_what_it_is() -> None:
    for path in sorted((Path(__file__).parents[2] / "module_utils").rglob("*.py")):
        text = bare(path.read_text())
        assert bare(without_mark(text)) == text, path.name
        assert _code(text) == _code(path.read_text()), path.name


def bare(source: str) -> str:
    return bundle.bare(source, ast.parse(source))


def without_mark(text: str) -> str:
    return text.partition("\n")[2]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _code(source: str) -> str:
    """Without docstrings, wherever it stands in the file."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            # Those below a declaration, too.
            node.body = [one for one in node.body if not _is_text(one)] or [ast.Pass()]
    return ast.dump(tree)
