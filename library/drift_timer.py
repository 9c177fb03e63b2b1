#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: drift_timer
short_description: Run busbar drift every night on the control node
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Writes C(busbar-drift.service) and C(busbar-drift.timer), with O(measure_schedule) also those of C(busbar-measure),
    creates their user if it is missing, and enables and starts the timers. Reports the result of the last run, and
    which of the paths that the services need are missing.
  - The service itself is never started here.
options:
  state:
    description: With V(absent) the timer is stopped and both units are removed. The user and the history stay.
    type: str
    choices: [present, absent]
    default: present
  schedule:
    description: When it runs, in the format of C(OnCalendar) of systemd.time(7).
    type: str
    default: "02:00"
  delay:
    description: Maximum random delay.
    type: str
    default: 10m
  user:
    description: User that audits the nodes. Created as a system user with home C(/var/lib/busbar-drift) if missing.
    type: str
    default: busbar
  directory:
    description: Working directory of the service. An C(ansible.cfg) in it is used. Needed unless O(state=absent).
    type: path
    default: ""
  command:
    description: Command of busbar, with an absolute path. Needed unless O(state=absent).
    type: list
    elements: str
    default: []
  inventory:
    description: Inventories, relative to O(directory) unless absolute. Needed unless O(state=absent).
    type: list
    elements: str
    default: []
  options:
    description: More options of C(busbar drift).
    type: list
    elements: str
    default: []
  keep_days:
    description: Days that runs are stored in the history, at least 8.
    type: int
    default: 400
  notify:
    description: Program and arguments; it gets a run that differs from the previous one on standard input.
    type: list
    elements: str
    default: []
  webhook_file:
    description: File with the https address to which such a run is posted. O(user) has to be able to read it.
    type: path
    default: ""
  environment:
    description: Variables of the service. No passwords, since everybody can read a unit.
    type: dict
    default: {}
  measure_schedule:
    description:
      - When C(busbar measure) runs, like O(schedule). If empty, its service and timer are removed; if unset, they are
        not judged.
    type: str
  measure_options:
    description: More options of C(busbar measure).
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.changes
"""

EXAMPLES = r"""
- name: Audit the fleet every night
  busbar.fabric.drift_timer:
    directory: /srv/busbar
    command: [/srv/busbar/.venv/bin/busbar]
    inventory: [inventories/site]
    notify: [mail, -s, Busbar drift, ops@example.org]
  register: drift_timer_result
"""

RETURN = r"""
# What every module returns: see the notes.
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.drift_timer import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
