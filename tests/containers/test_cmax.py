# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The buyer's own audit on a lab's node, and the sheet that answers what it has found. Installs it: needs a network."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils.certify import criteria, sheet

from lab import image

from .conftest import run

pytestmark = pytest.mark.long

VERSION = "0.2.1"
NODE = "node01"
TOP = "/opt/cmax"
RESULTS = "/root/.clustermax/audit"
# The simulated machine where cmax looks, in a mount namespace of its own. pciutils wants two more files of each device,
# and the lab's nvidia-smi has two fields less than the driver's.
AUDIT = r"""set -eu
mount -t tmpfs tmpfs /mnt
cp -a /srv/busbar-lab/hw /mnt
for device in /mnt/hw/sys/bus/pci/devices/*; do
    echo 0 > $device/irq
    : > $device/resource
done
for folder in sys/bus sys/class sys/devices sys/module sys/kernel proc/driver proc/cmdline; do
    mount --bind /mnt/hw/$folder /$folder
done
mkdir /mnt/bin
cat > /mnt/bin/nvidia-smi <<'END'
#!/bin/sh
case "$*" in
*temperature.gpu* | *power.draw*) /usr/bin/nvidia-smi --query-gpu=index --format=csv,noheader | sed 's/.*/40/' ;;
*) exec /usr/bin/nvidia-smi "$@" ;;
esac
END
printf '#!/bin/sh\nexec cut -d " " -f 1-3 /mnt/hw/proc/modules\n' > /mnt/bin/lsmod
chmod +x /mnt/bin/*
cd /root
HOME=/root PATH=/mnt/bin:$PATH PYTHONPATH=/opt/cmax exec python3 /opt/cmax/bin/cmax audit --standalone --yes
"""
Done = subprocess.CompletedProcess[str]


def unpack(lab: Path, archive: Path, *arguments: str) -> None:
    """Extract an archive of this machine on the node."""
    command = ["ssh", "-F", str(lab / "ssh_config"), NODE, "tar", "-x", *arguments]
    with archive.open("rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def package(_lab: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where cmax was installed here; the node has it, too, with the jq that it runs."""
    folder = tmp_path_factory.mktemp("cmax")
    here, archive = folder / "package", folder / "archive.tar"
    wanted = f"clustermax=={VERSION}"
    done = run(sys.executable, "-m", "pip", "install", "--quiet", "--target", here, wanted)
    assert done.returncode == 0, f"pip cannot install {wanted}, without which nothing is tested:\n{done.stderr}"
    assert run("tar", "-C", here, "-cf", archive, ".").returncode == 0
    run("ssh", "-F", _lab / "ssh_config", NODE, "mkdir", "-p", TOP)
    unpack(_lab, archive, "-C", TOP)
    done = run("mmdebstrap", "--quiet", "--variant=extract", "--include=jq", image.wanted(), archive)
    assert done.returncode == 0, f"mmdebstrap cannot get jq, without which cmax does not run:\n{done.stderr}"
    wildcards = "'./usr/bin/jq' './usr/lib/*/libjq.so*' './usr/lib/*/libonig.so*'"
    unpack(_lab, archive, "-C", "/", "--wildcards", wildcards)
    return here


@dataclass(frozen=True)
class Audit:
    """said: check -> FAIL, WARNING, PASS or SKIPPED.   values: audit.values.json."""

    said: dict[str, str]
    values: Path


@pytest.fixture
def audit(package: Path, lab: Path, on: Callable[..., Done], tmp_path: Path) -> Audit:
    script = tmp_path / "audit.tar"
    (tmp_path / "audit.sh").write_text(AUDIT)
    assert run("tar", "-C", tmp_path, "-cf", script, "audit.sh").returncode == 0
    unpack(lab, script, "-C", TOP)
    on(NODE, "rm", "-rf", RESULTS)
    out = on(NODE, "unshare", "-m", "sh", f"{TOP}/audit.sh").stdout
    values = tmp_path / "audit.values.json"
    values.write_text(on(NODE, f"cat {RESULTS}/*/audit.values.json").stdout)
    found = re.findall(r"^(FAIL|WARNING|PASS|SKIPPED) .*\[([\w.-]+)\]$", out, re.MULTILINE)
    assert found, out
    return Audit({check: said for said, check in found}, values)


def test_every_check_of_the_audit_is_read_and_answered(package: Path, audit: Audit, lab: Path, tmp_path: Path) -> None:
    shown = run("env", f"PYTHONPATH={package}", sys.executable, package / "bin" / "cmax", "audit", "--show").stdout
    every = set(re.findall(r"^  ([\w.-]+): ", shown, re.MULTILINE))
    assert {one.key for one in criteria.CRITERIA if one.kind == criteria.AUDIT} == every == set(audit.said)

    findings, out = tmp_path / "findings.json", tmp_path / "sheet.json"
    extra = json.dumps({"busbar_findings_path": str(findings), "nccl_benchmark_results_path": str(tmp_path / "none")})
    done = run("ansible-playbook", "site.yml", "-i", lab / "inventory", "--limit", NODE, "--check", "-e", extra)
    assert findings.is_file(), done.stdout + done.stderr
    done = run("busbar", "certify", findings, "--answers", audit.values, "--json", out)
    assert done.returncode == 2, done.stderr
    rows: dict[str, dict[str, Any]] = {row["key"]: row for row in json.loads(out.read_text())["rows"]}
    rows = {key: rows[key] for key in every}
    # An answer is a value that was read, or says what there is to do and who does it.
    assert not [key for key, row in rows.items() if not row["evidence" if row["answer"] == sheet.PASS else "todo"]]
    judged = {key for key, said in audit.said.items() if said != "SKIPPED"}
    assert not [key for key in judged if rows[key]["tool"] == "not collected"]
    assert not [
        key for key, said in audit.said.items() if said == "FAIL" and not rows[key]["tool"].startswith("failed")
    ]
