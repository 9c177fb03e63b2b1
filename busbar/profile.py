# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar profile capture``: drafts a site profile from a host, for a person to review and commit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile_doubts
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import FINDINGS, GOOD

from . import ansible_process, private
from .command_line import complain, print_list
from .drift.inventory import InventoryError, require_protected, sources
from .drift.output import require_folder

MODULE = "busbar.fabric.topology_info"
ARGUMENTS = " ".join(
    [
        "draft=true",
        "known_profiles={{ busbar_known_profiles }}",
        "hardware_root={{ busbar_hardware_root | default('/') }}",
        "system_root={{ busbar_system_root | default('/') }}",
    ]
)


def capture(host: str, inventory: Path, output: Path | None) -> int:
    """Print or write the draft and its doubts, which are findings."""
    try:
        require_protected([inventory])
    except InventoryError as error:
        return complain("profile capture", error)
    if output is not None and output.exists():
        return complain(
            "profile capture",
            f"{output} exists; a profile is intent, so it is never overwritten: review the draft, then move it",
        )
    if output is not None:
        require_folder(str(output))
    result = _ask(host, inventory)
    if isinstance(result, str):
        return complain("profile capture", result)
    draft, doubts = result["draft"], result["doubts"]
    for rail in draft["rails"]:
        # JSON has made text of the GPU numbers.
        rail["paths"] = {int(gpu): path for gpu, path in rail["paths"].items()}
    text = render(draft, doubts, host)
    if output is None:
        print(text, end="")
    else:
        with output.open("x", encoding="utf-8") as stream:
            stream.write(text)
        print(f"draft written to {output}")
    if doubts:
        lines = (f"look at this before you commit it: {doubt}" for doubt in doubts)
        print_list(lines, "the lines CHECK of the draft", "doubt")
    return FINDINGS if doubts else GOOD


def shipped() -> dict[str, Any]:
    """The suite's own profiles, one of which may be near the host's. The folder lies in the collection."""
    folder = Path(profile_doubts.__file__).parents[3] / "profiles"
    return {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in folder.glob("*.yml")}


def render(draft: dict[str, Any], doubts: list[str], host: str) -> str:
    """The profile file. What is in doubt stands on top, so that nobody commits it unread."""
    lines = [
        "---",
        f"# Drafted from {printable(host)}. It takes effect once it is committed as profiles/NAME.yml",
        "# beside the inventory and busbar_platform is NAME.",
        "# Whatever was wrong with that host would become the intent: read it first.",
    ]
    lines += [f"# CHECK: {printable(' '.join(doubt.split()))}" for doubt in doubts]
    return "\n".join(lines) + "\n" + yaml.safe_dump(draft, sort_keys=False, default_flow_style=None, width=110)


def _ask(host: str, inventory: Path) -> dict[str, Any] | str:
    """What the module returned on the host, or a sentence that says why there is nothing."""
    if importlib.util.find_spec("ansible_runner") is None:
        return "needs ansible-runner: pip install ansible-runner"
    with private.directory() as folder:
        run = ansible_process.run(
            private_data_dir=str(folder),
            inventory=sources([inventory]),
            # Not Ansible's implicit localhost: a profile of the control node is no use.
            host_pattern=f"{host}:&gpu_nodes",
            module=MODULE,
            module_args=ARGUMENTS,
            extravars={"busbar_known_profiles": shipped()},
        )
        results = {}
        for event in run.events:
            data = event.get("event_data", {})
            if event.get("event", "").startswith("runner_on_") and "res" in data:
                results[data.get("host")] = data["res"]
        if not results:
            return f"no host of gpu_nodes in {inventory} matches {host!r}, or Ansible could not start (rc {run.rc})"
        if len(results) > 1:
            return f"{host!r} matches {len(results)} hosts; a profile is drafted from one"
        result: dict[str, Any] = next(iter(results.values()))
        if run.rc != 0 or "draft" not in result:
            return f"{host}: {' '.join(str(result.get('msg', 'no result')).split())}"
        return result
