#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_tests_build
short_description: Build nccl-tests at a pinned commit for the host's own GPUs, CUDA, NCCL and MPI
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Builds with the CUDA toolkit, NCCL and MPI of the host, for the compute capability of its GPUs. Builds again only if
    one of these or the commit has changed, or if a program was modified.
  - The build is made beside O(path). Each program is checked to be linked with NCCL (and MPI), and the directory is
    renamed into place. If a build fails, is killed or takes too long, the old one stays.
  - Never replaces a directory that it did not make.
attributes:
  check_mode:
    support: full
    description: Reads the same, and returns as C(commands) what a run would execute.
  diff_mode:
    support: full
    description: What the build is made from, before and after.
options:
  path: {type: path, default: /opt/nccl-tests, description: Directory of the build.}
  commit:
    description: The commit, as 40 hex digits. If it is empty, nothing is checked or built.
    type: str
    required: true
  repository:
    description: Repository that git clones if O(tarball) is empty.
    type: str
    default: https://github.com/NVIDIA/nccl-tests.git
  tarball:
    description: Archive of the sources on the node, for sites without access to O(repository).
    type: path
    default: ""
  sha256: {type: str, default: '', description: SHA-256 of O(tarball).}
  cuda_home:
    description: Directory of the CUDA toolkit. If empty, the usual places are searched.
    type: path
    default: ""
  libraries:
    description:
      - Every libnccl.so.2 that jobs on this host use. The first with its nccl.h is built with.
      - If none is listed, the install paths of packages and wheels are searched.
    type: list
    elements: path
    default: []
  mpi:
    description: Build with MPI if it is installed, always, or never.
    type: str
    choices: [auto, required, "off"]
    default: auto
  mpi_home:
    description: Directory of the MPI with C(include) and C(lib). If empty, mpicc and the usual places are searched.
    type: path
    default: ""
  build_timeout: {type: int, default: 1800, description: Seconds for fetching and building.}
extends_documentation_fragment:
  - busbar.fabric.node
"""

EXAMPLES = r"""
- name: Build nccl-tests 2.19.6 from an archive that is on the node
  busbar.fabric.nccl_tests_build:
    commit: a0b82b2260cf5152b9f8c061bbf7eaf0ba096432
    tarball: /srv/sources/nccl-tests-a0b82b2.tar.gz
    sha256: "{{ nccl_tests_sha256 }}"
    mpi: required
  register: nccl_tests_result
"""

RETURN = r"""
# What every module returns: see the notes.
build:
  description: The marker of the build that is there now, see C(module_utils/nccl_tests/marker.py); null for none.
  type: dict
  returned: success
path: {type: str, returned: success, description: Directory of the build.}
argv: {type: list, elements: str, returned: failure of a command, description: The command that failed.}
log:
  description: File with all that the commands printed. That of a successful build is C(build.log) in its directory.
  type: str
  returned: failure of a command
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
