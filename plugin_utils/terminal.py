# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How wide what is printed may be."""

from __future__ import annotations

import shutil

# Asked when a plugin is loaded, before the fork: a worker has no terminal. 120 where nobody has one.
WIDTH = max(60, shutil.get_terminal_size((120, 40)).columns)
