"""Makes the collection importable under its one name, ``ansible_collections.busbar.fabric``."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "collections"))
sys.path.insert(0, str(ROOT))
# The width of what is printed, read when a module is imported, does not depend on the terminal that runs the tests.
os.environ["COLUMNS"] = "120"
# A script that runs the tests in its background has them ignore the signal that some of them send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from lab import store  # noqa: E402
from tests import session  # noqa: E402

# Tests that read what a run prints read Ansible's own output, where they do not say otherwise.
ANSIBLES_OUTPUT = {"ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"}
os.environ.update(ANSIBLES_OUTPUT)
# What is started keeps what Ansible would compile again for each task: a quarter of what a playbook costs.
COMPILED = str(ROOT / "lab" / "compiled")
if COMPILED not in os.environ.get("PYTHONPATH", ""):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [COMPILED, os.environ.get("PYTHONPATH")]))
# pyenv's python3 is a shell script that looks for the version first: most of what a simulated tool's answer costs.
found = shutil.which("python3")
if found and Path(found).read_bytes().startswith(b"#!"):
    os.environ["PATH"] = os.pathsep.join([os.path.join(sys.base_prefix, "bin"), os.environ["PATH"]])


# The machines that run this are shared: a slow example says nothing.
settings.register_profile("busbar", deadline=None)
settings.register_profile("short", deadline=None, max_examples=25)
settings.load_profile("busbar")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(session.plugin(config))


@pytest.fixture(scope="session")
def oldest_python() -> str:
    """Path of the oldest Python that nodes may have: on PATH, or as pyenv keeps it."""
    candidates = [shutil.which("python3.8"), *Path.home().glob(".pyenv/versions/3.8*/bin/python3.8")]
    for candidate in map(str, filter(None, candidates)):
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip("no Python 3.8 on this machine; the node code's syntax is checked for it by ast")


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A lab of trees with the standard nodes, fresh and of this test alone."""
    directory = tmp_path / "lab"
    store.create(directory)
    return directory


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, for all whose runs reach no node."""
    directory = tmp_path_factory.mktemp("untouched") / "lab"
    store.create(directory)
    return directory
