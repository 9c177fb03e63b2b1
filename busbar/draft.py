# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar check --write DIR``: drafts an inventory from what was recognised, for a person to review and commit.

A shipped profile is taken whole: a part that is missing stays missing. A profile of the machine's own is only drafted
where nothing is wrong with the machine; the platform custom requests one, and doubts are at its top. Decisions of the
site are commented lines.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, profile_doubts
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import PlainView
from ansible_collections.busbar.fabric.plugins.plugin_utils.site_values import VALUES, meanings

HOSTS, VARIABLES = Path("hosts.yml"), Path("group_vars", "gpu_nodes.yml")
_WHO = ("busbar_platform", "busbar_fabric", "busbar_hardware_root", "busbar_system_root")
_LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
# Platform whose profile is always the site's own.
CUSTOM = "custom"
_HARDWARE = ("platform.", "node_health.", "pcie_path.", "run.")


def write(
    folder: Path, hosts: Mapping[str, PlainView], inventory: Sequence[str] | None, platform: str | None = None
) -> tuple[str, bool]:
    """Return what to do with the files of the draft, and whether there are doubts about them.

    hosts: of the verdict.   inventory: None for this machine.   platform: CUSTOM for a profile of the machine's own.
    Raises ParseError where a draft would make a fault the intent, OSError where a file is there or cannot be written.
    """
    texts: dict[Path, str] = {}
    names = {host: _platform(host, data, texts, platform == CUSTOM) for host, data in hosts.items()}
    lines = ["---", "# Drafted by busbar check. Commit it once it is reviewed.", "gpu_nodes:", "  hosts:"]
    for host, data in hosts.items():
        known = data["recognised"]
        doubt = f"; to decide: {known['undecided']}" if known["platform"] and known["undecided"] else ""
        lines += [f"    {json.dumps(host)}:", f"      # {printable(known['reason'] + doubt)}"]
        given = dict(_LOCAL) if inventory is None else {}
        given |= {name: data["values"][name] for name in _WHO if name in data["values"]}
        given["busbar_platform"] = names[host]
        lines += [f"      {name}: {json.dumps(value)}" for name, value in given.items()]
    texts[HOSTS] = "\n".join(lines) + "\n"
    texts[VARIABLES] = "\n".join(_variables(hosts)) + "\n"
    there = [str(folder / path) for path in texts if (folder / path).exists()]
    if there:
        raise ParseError(f"--write: {', '.join(there)} exists; a draft overwrites nothing")
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (folder / path).open("x", encoding="utf-8") as stream:
            stream.write(text)
    # Connection variables stay in the host's inventory.
    sources = [str(folder), *(word for word in inventory or () if "," not in word)]
    command = shlex.join(["busbar", "check", *(word for source in sources for word in ("-i", source))])
    doubts = sum(text.count("\n# CHECK: ") for text in texts.values())
    look = f"look at the {doubts} doubt{'s' * (doubts > 1)} on top of the profile, " if doubts else ""
    files = ", ".join(map(str, texts))
    return f"written to {folder}: {files}\nnext: {look}decide the lines of {VARIABLES}, then: {command}", bool(doubts)


def _platform(host: str, data: PlainView, texts: dict[Path, str], custom: bool) -> str:
    """Return the platform's name; a profile of the machine's own is added to the texts. Raises ParseError."""
    if "recognised" not in data or not data["machine"]["gpus"]:
        raise ParseError(f"--write: {host}: {data['recognised']['reason'] if 'recognised' in data else 'no result'}")
    if data["recognised"]["platform"] and not custom:
        return str(data["recognised"]["platform"])
    faults = [f"{one['check']} ({one['subject']})" for one in data["findings"] if one["check"].startswith(_HARDWARE)]
    # The user of a drafted profile decides on differences from other machines, and on numbers of parts.
    wrong = [doubt for doubt in data["doubts"] if not custom or profile_doubts.OWN_PARTS in doubt] + faults
    if wrong:
        raise ParseError(
            f"--write: a draft would make what is wrong with {host} the intent: {'; '.join(wrong[:3])}"
            f"{f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''}; repair it, or name its --platform"
        )
    # The host's result is not trusted.
    profile.parse(data["draft"], f"of {host}")
    draft = {**data["draft"], "rails": [{**rail} for rail in data["draft"]["rails"]]}
    for rail in draft["rails"]:
        # JSON has made text of the GPU numbers.
        rail["paths"] = {int(gpu): path for gpu, path in rail["paths"].items()}
    model = re.sub("[^a-z0-9]+", "-", " ".join(draft["gpus"]["models"]).lower()).strip("-")
    name = CUSTOM if custom else f"{draft['gpus']['count']}x-{model}-{len(draft['rails'])}-rails"
    lines = ["---", "# Drafted by busbar check. Review it: whatever is wrong with the host would become the intent."]
    lines += [f"# CHECK: {printable(' '.join(doubt.split()))}" for doubt in data["doubts"]]
    body = yaml.safe_dump(draft, sort_keys=False, default_flow_style=None, width=110)
    path, text = Path("profiles", f"{name}.yml"), "\n".join([*lines, body])
    if texts.setdefault(path, text) != text:
        raise ParseError(f"--write: {host} has the parts of another host in other places: write a draft of each")
    return name


def _variables(hosts: Mapping[str, PlainView]) -> Iterator[str]:
    """Yield the lines of the decisions. Values that all hosts have are quoted."""
    yield from ("---", "# Drafted by busbar check. Each line that is a comment is a decision: remove the # to set it.")
    fabrics = {data["values"].get("busbar_fabric") for data in hosts.values()}
    texts = meanings()
    for name, value in VALUES.items():
        seen = {json.dumps(data["values"].get(name)) for data in hosts.values()} - {"null"}
        roce = "RoCE" in texts[name]
        if name in _WHO or not (seen or value.decision) or (roce and "ethernet" not in fabrics):
            continue
        text = texts[name] + (f" Unset: {value.decision.without}." if value.decision else "")
        choices = [str(choice) for choice in value.choices if choice != ""]
        text += f" Choices: {', '.join(choices)}." if choices else ""
        text += f" Seen: {', '.join(sorted(seen))}." if seen else ""
        yield ""
        yield from textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ")
        yield f"# {name}: {min(seen) if len(seen) == 1 else json.dumps(value.default)}"
