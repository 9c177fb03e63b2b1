# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs a module in a child of the test's process, which can be killed before any of its writes.

Every open for writing, rename, link, chmod and removal raises an audit event, whoever calls it.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args

FORK = multiprocessing.get_context("fork")
# Of an audit event and its arguments: whether the child is killed before one of these.
IsWrite = Callable[[str, tuple[Any, ...]], bool]


class Child:
    """main: of a module.   kill_at: before which write it is killed, 0 for none.   prepare: called in it first."""

    def __init__(
        self,
        main: Callable[[], None],
        arguments: Mapping[str, Any],
        kill_at: int = 0,
        is_write: IsWrite = lambda event, of: False,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._output, output = os.pipe()

        def run() -> None:
            os.close(self._output)
            sys.stdout = os.fdopen(output, "w")
            AnsibleModule.log = lambda *_, **__: None
            prepare()
            numbers = itertools.count(1)

            def count(event: str, of: tuple[Any, ...]) -> None:
                # The kill is an event, too.
                if is_write(event, of) and next(numbers) == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(count)
            with patch_module_args(dict(arguments)):
                main()

        self.process = FORK.Process(target=run)
        self.process.start()
        os.close(output)

    def wait(self) -> tuple[int | None, str]:
        """Return its exit code, or signal, and what it has printed."""
        with os.fdopen(self._output) as stream:
            text = stream.read()
        self.process.join()
        return self.process.exitcode, text

    def answer(self) -> dict[str, Any]:
        return dict(json.loads(self.wait()[1]))
