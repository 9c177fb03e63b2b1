# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""CPU seconds that the health of GPUs, ports and firmware adds to the whole audit of a simulated node.

Each tool answers once; then a shell says the same again in its place: a tool costs its start, not the lab's emulation.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import bundle
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import TOOL_PATH, Host, Output, ReadError

from lab import store
from tests.bench.conftest import Show
from tests.lab.audited import ARGV, script
from tests.lab.conftest import _lab, lab, on_node, run_module  # noqa: F401
from tests.lab.test_faults import MODULES
from tests.trees import tool

PAIRS = int(os.environ.get("BUSBAR_BENCH_ROUNDS", "15"))
TARGET = 0.15
HEALTH = ("node_health", "nic_firmware")


class Tools:
    """Keeps what a node's tools say, so that they need not be asked again."""

    def __init__(self) -> None:
        self.told: dict[str, dict[str, Any]] = {}
        self._ask = Host.run

    def run(self, host: Host, argv: Iterable[str], timeout: float | None = None) -> Output:
        """In place of Host.run."""
        words = list(argv)
        key = json.dumps([words, host.timeout if timeout is None else timeout])
        if "rc" not in self.told.get(key, {}):
            try:
                self.told[key] = dict(self._ask(host, words, timeout).__dict__)
            except ReadError as error:
                self.told[key] = {"raised": type(error).__name__}
                raise
        return Output(**self.told[key])


def of_children() -> float:
    """CPU seconds of all children that have ended, and of theirs."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


@contextmanager
def replayed(root: Path, told: dict[str, dict[str, Any]], answers: Path) -> Iterator[None]:
    """In place of each tool that was asked, one that prints what it said."""
    cases: dict[str, list[str]] = {}
    for number, (key, said) in enumerate(told.items()):
        argv = json.loads(key)[0]
        if "raised" in said:
            continue
        for stream in ("stdout", "stderr"):
            (answers / f"{number}.{stream}").write_text(said[stream])
        printing = f"cat {shlex.quote(str(answers / f'{number}.stdout'))}"
        if said["stderr"]:
            printing += f"; cat {shlex.quote(str(answers / f'{number}.stderr'))} >&2"
        cases.setdefault(argv[0], []).append(f"{shlex.quote(' '.join(argv[1:]))}) {printing}; exit {said['rc']};;\n")
    aside: list[Path] = []
    unheard = answers / "unheard"
    for name, lines in cases.items():
        for directory in TOOL_PATH:
            path = root / f"{directory}/{name}".lstrip("/")
            if path.exists():
                aside.append(path.rename(path.with_name(f"{name}.aside")))
                tool(path.parent, name, f'case "$*" in\n{"".join(lines)}esac\necho "{name} $*" >>{unheard}')
    try:
        yield
    finally:
        for path in aside:
            path.replace(path.with_suffix(""))
    assert not unheard.exists(), unheard.read_text()


def starts(root: Path, told: list[str]) -> float:
    """What the shells cost that stand for tools: a real tool's own cost is its vendor's."""
    before = of_children()
    for key in told:
        [name, *options] = json.loads(key)[0]
        path = next(path for path in (root / f"{one}/{name}".lstrip("/") for one in TOOL_PATH) if path.exists())
        subprocess.run([path, *options], capture_output=True, timeout=1800, check=False)
    return of_children() - before


def spent(text: str) -> float:
    before = of_children()
    done = subprocess.run([*ARGV, "-"], input=text, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    assert [one["msg"] for one in json.loads(done.stdout) if one.get("failed")] == []
    return of_children() - before


@pytest.mark.parametrize("node", store.STANDARD)
def test_health_beside_the_whole_audit(
    lab: Path,  # noqa: F811
    on_node: Callable[..., dict[str, Any]],  # noqa: F811
    node: str,
    show: Show,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools = Tools()
    steps: list[dict[str, Any]] = []
    asked: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(Host, "run", lambda *given: tools.run(*given))
        for module in MODULES:
            more = {"record": True} if module == "node_health" else {}
            known = set(tools.told)
            given = on_node(module, node, check_mode=True, **more)["invocation"]["module_args"]
            steps.append({"module": module, "arguments": given})
            if module in HEALTH:
                asked += [key for key, said in tools.told.items() if key not in known and "raised" not in said]
    whole = script(steps)
    without = script(step for step in steps if step["module"] not in HEALTH)
    with replayed(Path(steps[0]["arguments"]["system_root"]), tools.told, tmp_path):
        spent(whole)
        pairs = [(spent(whole), spent(without)) for _ in range(PAIRS)]
        shells = statistics.median(starts(Path(steps[0]["arguments"]["system_root"]), asked) for _ in range(PAIRS))
    with_health, else_ = (statistics.median(column) for column in zip(*pairs, strict=True))
    more_than = statistics.median(one - other for one, other in pairs)
    show(f"{node}: whole audit {with_health:.3f} s CPU, without {', '.join(HEALTH)} {else_:.3f} s, simulated node")
    show(f"{node}: median of {PAIRS} differences {more_than:.3f} s CPU, of which {len(asked)} shells in place of tools")
    show(f"{node}: {shells:.3f} s, without them {more_than - shells:.3f} s (target < {TARGET} s)")
    size, smaller = (len(bundle.compressed(text)) // 1000 for text in (whole, without))
    show(f"{node}: script {size} KB, without {smaller} KB")
