# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build the gate's program and its intent on the control node (module_utils/gate/program.py).

The gate makes the queries of the roles in a smaller form: only roles with a critical check, since nothing else keeps a
node out, and without second sources.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.change import written
from ansible_collections.busbar.fabric.plugins.module_utils.core import bundle
from ansible_collections.busbar.fabric.plugins.module_utils.gate import read as gate
from ansible_collections.busbar.fabric.plugins.module_utils.machine import minimum_versions
from ansible_collections.busbar.fabric.plugins.plugin_utils import suite

# Roles with critical checks of a node alone, and whether a job may wait for them: sysfs and nvidia-smi.
ROLES = {
    # First: its findings keep a node out more often than all others. Where it hangs, the others still run.
    "node_health": False,
    "platform": True,
    "mofed": False,
    "host_limits": False,
    "nvidia_peermem": True,
    "nccl_conf": False,
}
# Arguments in place of the role's.
_INSTEAD: dict[str, dict[str, Any]] = {
    "platform": {"cross_checks": [], "nccl_topo_file": "", "compare": False},
    # Growth, and the record of it, are the nightly check's.
    "node_health": {"states_only": True, "record": False},
    # The gate loads no library: one that a user may write can run, or wait, for ever.
    "nccl_conf": {"prove": False},
}
_HEAD = """\
#!/usr/bin/python3 -IS
# Written by Busbar (role gate): checks this node between two jobs.
# Python modules of the collection busbar.fabric without their comments.
"""
_MAIN = f"""
from {bundle.PACKAGE}.gate import program
program.main(sys.argv[1:])
"""
_LAUNCHER = """\
#!/bin/sh
# Written by Busbar (role gate): slurm.conf names it as {parameter}.
{python} -I -S {program} {stage}
case $? in
0) exit 0 ;;
{keep_out}) exit 1 ;;
esac
# Without the program nothing was checked, nor the nodes out of service counted: so no node is drained.
said="busbar gate: {program} {stage} gave no verdict; the node stays in service"
echo "$said" >&2
[ ! -x /usr/bin/logger ] || /usr/bin/logger -t busbar-gate -p daemon.err "$said"
exit 0
"""
_NHC = f"""\
#!/bin/sh
# Written by Busbar (role gate): runs the gate's health check for programs that look for nhc.
exec {gate.LAUNCHERS["health"]}
"""
# Arguments of the role that the program reads, too.
_SETTINGS = ("scontrol", "budget", "fail", "max_share", "ignore", "hardware_root", "system_root")


def names() -> list[str]:
    """Return the names of all modules in the program."""
    modules = [suite.AUDITED[role].module for role in ROLES]
    return [f"{bundle.PACKAGE}.gate.program", *(f"{bundle.LIBRARY}.{module}" for module in modules)]


def program(source_of: Callable[[str], str] = bundle.source_of) -> str:
    """Return the text of gate.PROGRAM, the same on every control node."""
    return _HEAD + bundle.plain_script(bundle.closure(names(), source_of), _MAIN)


def intent(arguments: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], node: str) -> str:
    """Return the text of gate.INTENT. arguments: of the role's module. steps: role, module, arguments of each."""
    asked = [{"module": step["module"], "arguments": _arguments(step), "quick": ROLES[step["role"]]} for step in steps]
    settings = {name: arguments[name] for name in _SETTINGS}
    return gate.intent_text({**settings, "node": node, "steps": asked})


def _arguments(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step's arguments without those of the run and without defaults, which differ between releases."""
    options = importlib.import_module(f"{bundle.LIBRARY}.{step['module']}").SPEC
    given = {**step["arguments"], **_INSTEAD.get(step["role"], {})}
    if "site" in given:
        # What is minor keeps no node out, and tools would be run for it.
        given["site"] = {name: value for name, value in given["site"].items() if name != minimum_versions.VARIABLE}
    return {
        name: value
        for name, value in given.items()
        if name not in ("profile_name", "max_disruption", "backup") and value != options[name].get("default")
    }


def launcher(stage: str) -> str:
    """Return the text of a file that slurm.conf names."""
    return _LAUNCHER.format(
        python=gate.PYTHON,
        program=gate.PROGRAM,
        stage=stage,
        parameter=gate.PARAMETERS[stage],
        keep_out=gate.KEEP_OUT,
    )


def texts(program_text: str, intent_text: str, stages: Sequence[str], nhc: bool = False) -> dict[str, str]:
    """Return path -> text of all files that the role writes. nhc: with the wrapper of that name."""
    launchers = {gate.LAUNCHERS[stage]: launcher(stage) for stage in stages} | ({gate.NHC: _NHC} if nhc else {})
    programs = {gate.PROGRAM: program_text, **launchers}
    return {gate.INTENT: intent_text, **{path: written.seal(path, text, "") for path, text in programs.items()}}


def sums(of: Mapping[str, str]) -> dict[str, str]:
    """Return path -> checksum of the texts, for a node that is only audited."""
    return {path: gate.total(path, text) for path, text in of.items()}
