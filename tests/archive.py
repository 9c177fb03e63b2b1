# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The collection as a file that ansible-galaxy installs: ``make collection-archive``.

The collection's directory is a view of links, which ansible-galaxy drops: it is copied first, with real files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VIEW = Path(__file__).resolve().parent.parent / "collections" / "ansible_collections" / "busbar" / "fabric"


def stage(directory: Path, repository: str = "") -> Path:
    """A copy of the view with real files and a galaxy.yml, below ``directory``; its path.

    repository: where the sources are published. Galaxy's importer demands it.
    """
    copy = directory / "ansible_collections" / "busbar" / "fabric"
    shutil.copytree(VIEW, copy, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "galaxy.yml.in"))
    text = (VIEW / "galaxy.yml.in").read_text()
    kept = [line for line in text.splitlines() if not line.startswith("#")]
    kept += [f"repository: {repository}"] if repository else []
    (copy / "galaxy.yml").write_text("\n".join(kept) + "\n")
    return copy


def build(output: Path, repository: str = "") -> Path:
    """The archive's path. Raises CalledProcessError, with what ansible-galaxy said on standard error."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        copy = stage(Path(scratch), repository)
        command = [sys.executable, "-m", "ansible", "galaxy", "collection", "build", "--force", "--output-path"]
        subprocess.run([*command, str(output.resolve())], cwd=copy, check=True, stdout=subprocess.DEVNULL)
    return max(output.glob("busbar-fabric-*.tar.gz"), key=lambda path: path.stat().st_mtime)


def main() -> None:
    output, repository = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    print(f"{build(output, repository)}: ansible-galaxy collection install installs it")
    if not repository:
        print("Galaxy refuses it without the address of the sources: make collection-archive REPOSITORY=https://...")


if __name__ == "__main__":
    main()
