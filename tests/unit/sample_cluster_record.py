"""A record of a benchmark between nodes, with every field; test_record_file.py reads and writes it."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_record

GIB = 1 << 30
RECORD = cluster_record.read(Path(__file__).parent / "cases/records/cluster.json")
[JOB] = RECORD.jobs
