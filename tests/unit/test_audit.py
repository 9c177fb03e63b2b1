# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The node's side of the audit, as it is sent: one script, steps that answer, fail, hang and die."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import bundle

ROOT = Path(__file__).resolve().parent.parent.parent
HEAD = "from ansible.module_utils.basic import AnsibleModule\n"
SPEC = "    module = AnsibleModule(argument_spec={'a': {'default': 7}}, supports_check_mode=True)\n"
MODULES = {
    "good": f"{HEAD}def main():\n{SPEC}    module.exit_json(a=module.params['a'], check=module.check_mode, diff=[1])\n",
    "bad": f"{HEAD}def main():\n{SPEC}    module.fail_json(msg='no such thing')\n",
    "silent": f"{HEAD}def main():\n    pass\n",
    "hung": f"{HEAD}import time\ndef main():\n    time.sleep(600)\n",
    "dead": f"{HEAD}def main():\n    raise RuntimeError('broken')\n",
    "chatty": f"{HEAD}def main():\n{SPEC}    print('hello')\n    module.exit_json()\n",
}


def source_of(name: str) -> str:
    package, _dot, module = name.rpartition(".")
    if package == bundle.LIBRARY:
        return MODULES[module]
    return (ROOT / "module_utils" / f"{module}.py").read_text()


def audit(*steps: str, limit: float = 20, python: str = sys.executable, **arguments: Any) -> list[dict[str, Any]]:
    names = [f"{bundle.PACKAGE}.audit", *(f"{bundle.LIBRARY}.{step}" for step in steps)]
    sources = {name: bundle.bare(text) for name, text in bundle.closure(names, source_of).items()}
    given = json.dumps([{"module": step, "arguments": arguments} for step in steps])
    main = f"\nfrom {bundle.PACKAGE} import audit\naudit.main(json.loads({given!r}), {limit})\n"
    argv = [python, "-I", "-S", "-"]
    done = subprocess.run(
        argv, input=bundle.script(sources, main), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_each_step_answers_in_check_mode_and_bulk_data_stays() -> None:
    assert audit("good", "good", a=3) == [{"a": 3, "check": True}] * 2
    assert audit("good") == [{"a": 7, "check": True}]


def test_a_step_that_fails_says_why_and_the_others_go_on() -> None:
    failed, good = audit("bad", "good")
    assert (failed["failed"], failed["msg"]) == (True, "no such thing")
    assert good["a"] == 7


def test_an_option_that_a_module_does_not_have_is_no_silence() -> None:
    (failed,) = audit("good", b=1)
    assert failed["msg"] == "there is no option b"


@pytest.mark.parametrize(
    ("broken", "said"), [("dead", "ended without an answer"), ("silent", "ended without an answer")]
)
def test_a_step_that_dies_is_not_ok(broken: str, said: str) -> None:
    first, failed, last = audit("good", broken, "good")
    assert (first["a"], last["a"]) == (7, 7)
    assert failed["failed"]
    assert said in failed["msg"]


def test_a_step_that_hangs_costs_that_step() -> None:
    begin = time.monotonic()
    first, failed, last = audit("good", "hung", "good", limit=1)
    assert time.monotonic() - begin < 60
    assert (first["a"], last["a"]) == (7, 7)
    assert failed == {"failed": True, "msg": "gave no answer within 1 s and was abandoned"}


def test_what_a_module_prints_does_not_get_into_the_answer() -> None:
    assert audit("chatty") == [{}]


def test_the_script_holds_no_documentation() -> None:
    text = bundle.bare(
        '"""Doc."""\nDOCUMENTATION = r"""x"""\nclass A:\n    """Doc."""\n\ndef f():\n    """Doc."""\n    return "a"\n'
    )
    assert "Doc" not in text
    assert "DOCUMENTATION" not in text
    assert 'return "a"' in text
