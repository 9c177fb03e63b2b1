# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation that modules have in common: options, which module_utils/change/module.py declares, and attributes."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  hardware_root:
    description: Directory that holds C(/sys) and C(/proc).
    type: path
    default: /
  system_root:
    description: Directory that holds the system's own directories, C(/etc) and C(/usr) among them, and the tools.
    type: path
    default: /
notes:
  - Returns, where they apply, C(findings), what is not ok after this run (in check mode, now), as in
    C(docs/findings.md); C(passed), the ids of the checks that are ok; C(commands), what was run, or would be, to change
    something; and C(notes), sentences for the verdict.
  - Also returns C(repaired), the ids of the findings that this run repaired, or would in check mode; C(withheld), the
    ids of those whose repair is blocked by the allowed disruption or because the node is in use; C(reboot_required),
    reasons for a reboot; and C(backup_files), copies of replaced files.
"""

    PROFILE = r"""
options:
  profile:
    description: Platform profile as in C(profiles/NAME.yml).
    type: dict
    required: true
  profile_name:
    description: Name of the profile, for messages.
    type: str
    default: unnamed
  fabric:
    description: The site's fabric; needed where the profile exists with both.
    type: str
    choices: ['', infiniband, ethernet]
    default: ''
"""

    DISRUPTION = r"""
options:
  max_disruption:
    description: Highest disruption that activating a change may cause; changes above it are blocked and reported.
    type: str
    choices: [none, link, driver, reboot]
    default: none
"""

    BACKUP = r"""
options:
  backup:
    description: Keep a dated copy beside every file that is replaced.
    type: bool
    default: true
"""

    READS = r"""
attributes:
  check_mode:
    support: full
    description: Reads only, so check mode and the real run are the same.
  diff_mode:
    support: none
    description: There is nothing to show.
"""

    CONTROL = r"""
attributes:
  check_mode:
    support: full
    description: Changes no node, so check mode and the real run are the same.
  diff_mode:
    support: none
    description: There is nothing to show.
"""

    NO_DIFF = r"""
attributes:
  diff_mode:
    support: none
    description: There is nothing to show.
"""

    CHANGES = r"""
attributes:
  check_mode:
    support: full
    description: Shows files and commands and touches nothing.
  diff_mode:
    support: full
    description: Shows the files; all else that is changed is in C(commands).
"""
