"""Whole runs with a node in hostile hands: what it answers reaches neither the control node nor the other nodes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

Play = Callable[..., Any]
# Stands for the node's python3: every module does its work, and something else is answered.
PYTHON = """#!{python}
import json, subprocess, sys
done = subprocess.run([{python!r}, *sys.argv[1:]], capture_output=True, text=True, check=False)
try:
    answer = json.loads(done.stdout)
except ValueError:
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    sys.exit(done.returncode)
TEMPLATE = {template!r}
def templated(value):
    if isinstance(value, dict):
        return {{name: value[name] if name in KEPT else templated(value[name]) for name in value}}
    if isinstance(value, list):
        return [templated(item) for item in value]
    return value + TEMPLATE if isinstance(value, str) else value
KEPT = ("check", "subject", "state", "severity", "aspect", "disruption", "id", "because", "passed")
if "findings" in answer:
    if TEMPLATE:
        answer = templated(answer)
    answer.update({more!r})
else:
    answer.update(ansible_facts={more!r}.get("ansible_facts", {{}}))
print(json.dumps(answer))
"""


def hostile(path: Path, template: str = "", **more: Any) -> str:
    path.write_text(PYTHON.format(python=sys.executable, template=template, more=more))
    path.chmod(0o755)
    return str(path)


def test_facts_of_a_node_set_no_variable_and_templates_stay_text(lab: Path, play: Play, tmp_path: Path) -> None:
    facts = {"busbar_findings_path": str(tmp_path / "evil.json"), "busbar_max_disruption": "reboot"}
    pwned = tmp_path / "pwned"
    template = f"{{{{ lookup('pipe', 'touch {pwned}; echo was-evaluated') }}}}"
    python = hostile(tmp_path / "python", template, ansible_facts=facts)
    hosts = yaml.safe_load((lab / "inventory" / "hosts.yml").read_text())
    first = next(iter(hosts["gpu_nodes"]["hosts"]))
    hosts["gpu_nodes"]["hosts"][first]["ansible_python_interpreter"] = python
    (lab / "inventory" / "hosts.yml").write_text(yaml.safe_dump(hosts))
    # Without the checkout's ansible.cfg, which keeps facts from being variables, as where the collection is installed.
    # The lab's nodes wait for all that a first run does: findings with texts to put a template into.
    done = play("-i", lab / "inventory", "--check", "--tags", "iommu,nccl_conf", "-vv", cwd=tmp_path)
    assert not (tmp_path / "evil.json").exists()
    assert not pwned.exists()
    assert "VERDICT" in done.out
    assert "lookup('pipe', 'touch" in done.out
    assert "was-evaluated\n" not in done.out
