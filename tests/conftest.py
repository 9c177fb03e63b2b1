"""Makes the collection importable under its one name, ``ansible_collections.busbar.fabric``."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "collections"))
sys.path.insert(0, str(ROOT))
