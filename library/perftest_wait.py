#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: perftest_wait
short_description: (internal) Report the progress of a perftest in the background
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Like M(ansible.builtin.async_status); it also checks that the result is one of
    M(busbar.fabric.perftest).
extends_documentation_fragment:
  - busbar.fabric.node.background
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Wait for the test
  busbar.fabric.perftest_wait:
    jid: "{{ started.ansible_job_id }}"
  register: done
  until: done is finished
"""

RETURN = r"""
sessions:
  description: As M(busbar.fabric.perftest) returns them, with all else that it does, once it has ended.
  type: list
  elements: dict
  returned: when it has ended
"""
