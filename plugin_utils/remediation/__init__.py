# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Remediate accused nodes: accusations, plan, rollout, steps (machine), proof, report, and the log of all actions."""
