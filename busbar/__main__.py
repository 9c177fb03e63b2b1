# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Entry point of ``python -m busbar``."""

from __future__ import annotations

import sys

from .cli import main

sys.exit(main())
