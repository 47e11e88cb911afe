"""How a process ended, from its pidfd: Linux 6.15 keeps that for whoever holds one, child or not.

So exit codes and signals are known of ranks too, and of processes that an earlier daemon started.
"""

from __future__ import annotations

import fcntl
import os
import struct

# struct pidfd_info of include/uapi/linux/pidfd.h, first version: mask, cgroup id, eleven ids, exit status
_SIZE = 64
_EXIT = 1 << 3
_GET_INFO = (3 << 30) | (_SIZE << 16) | (0xFF << 8) | 11  # _IOWR(0xFF, 11, struct pidfd_info)


def exit_status(fd: int) -> int | None:
    """0…255 or minus the signal, once the process has been collected by its parent; None if not known."""
    info = bytearray(_SIZE)
    struct.pack_into("=Q", info, 0, _EXIT)
    try:
        fcntl.ioctl(fd, _GET_INFO, info)
    except OSError:
        return None
    mask: int = struct.unpack_from("=Q", info)[0]
    status: int = struct.unpack_from("=i", info, 60)[0]
    return os.waitstatus_to_exitcode(status) if mask & _EXIT else None
