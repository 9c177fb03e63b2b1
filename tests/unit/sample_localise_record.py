"""A record of a search for who is slow, with every field; test_record_file.py reads and writes it."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise_record

RECORD = localise_record.read(Path(__file__).parent / "cases/records/localise.json")
PAIR = RECORD.tests[0]
