# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the intent for one host from the inventory, on the control node. Documented in library/intent.py."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ansible import constants
from ansible.template import Templar
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.firmware import wanted as nic_settings
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile
from ansible_collections.busbar.fabric.plugins.plugin_utils import accepted, busbw_bars, intent, nccl_benchmark
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import ControlAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.host_variables import rendered
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain, PlainView
from ansible_collections.busbar.fabric.plugins.plugin_utils.profile_files import BUILT_IN, load, read_yaml, with_planes
from ansible_collections.busbar.fabric.plugins.plugin_utils.run_cache import cached

BARS = Path("roles") / "nccl_benchmark" / "files" / "bars.yml"


class ActionModule(ControlAction):
    SPEC: ClassVar[Spec] = {"fail": {"type": "bool", "default": True}, "together": {"type": "bool", "default": False}}

    def act(self, variables: Values, given: Values) -> Values:
        if given["together"]:
            return _together(variables)
        try:
            return {**of_host(variables, self._templar), "changed": False}
        except ParseError as error:
            # One sentence per mistake, and nothing has been touched yet.
            msg = f"{variables.get('inventory_hostname')}: {error}"
            return {"failed": given["fail"], "msg": msg, "errors": intent.sentences(error)}


def _together(variables: Values) -> Values:
    """Fail once for all hosts whose inventory is wrong; warn of what is doubtful in the others."""
    hosts = variables["ansible_play_hosts_all"]
    read = {host: variables["hostvars"].raw_get(host).get("busbar_intent") or {} for host in hosts}
    wrong = {host: found.get("errors") or ["it was not read"] for host, found in read.items() if "values" not in found}
    msg = f"the inventory is wrong, nothing was changed: {intent.summarise_errors(wrong)}"
    if wrong:
        return {"changed": False, "failed": True, "msg": msg}
    return {"changed": False, "warnings": intent.summarise_doubts({host: of["values"] for host, of in read.items()})}


def of_host(variables: PlainView, templar: Templar) -> Plain:
    """Return the action's result. Hosts with equal variables share it. Raises ParseError."""
    given = {name: rendered(variables[name], templar) for name in variables if intent.mine(name)}
    if accepted.VARIABLE in given:
        given[accepted.VARIABLE] = accepted.plain(given[accepted.VARIABLE])
    site = Path(variables.get("inventory_dir") or ".")
    wanted: Plain = cached(constants.DEFAULT_LOCAL_TMP, [str(site), given], lambda: _read(given, site))
    return wanted


def _read(given: Plain, site: Path) -> Plain:
    values = intent.read(given)
    folder = Path(values["busbar_findings_path"] or "/").parent
    if not folder.is_dir():
        raise ParseError(f"busbar_findings_path: there is no folder {folder}; make it, or name another")
    name = values["busbar_platform"]
    path, data = load(name, [site / "profiles", BUILT_IN])
    profile.parse(data, name)
    data = with_planes(data, values["busbar_planes"])
    parsed = profile.parse(data, name)
    nic_settings.profile_settings(parsed)
    if parsed.rails:
        profile.for_fabric(parsed, values["busbar_fabric"] or None)
    bars = bars_of(site)
    runs = nccl_benchmark.runs(values, parsed, name, bars)
    # Ansible prints and logs a result: secrets stay variables, which only their role's module gets.
    values = intent.printable_values(values)
    wanted = {"values": values, "profile": data, "profile_name": name, "profile_path": str(path)}
    return {**wanted, "benchmark_runs": runs}


def bars_of(site: Path) -> list[tuple[busbw_bars.Bar, ...]]:
    """Return the site's bars, then the suite's. site: directory of the inventory. Raises ParseError."""
    return load_bars([site / "bars.yml", BUILT_IN.parent / BARS])


def load_bars(paths: list[Path]) -> list[tuple[busbw_bars.Bar, ...]]:
    """Return the bars of each file that exists; the site's own comes first. Raises ParseError."""
    return [busbw_bars.parse_bars(read_yaml(path), str(path)) for path in paths if path.exists()]
