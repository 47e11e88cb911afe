"""Becomes the engine: reads an order file, removes it, enters a cgroup if told to, and executes what it says.

Run as a script of its own with nothing imported from us: `python -I -S enter.py FILE`. So arguments and environment
reach the engine byte for byte (no shell, no unit-file quoting), never show up in a unit's public properties, and no
process of a launch ever runs outside its cgroup. Pid and start time stay the same through the exec.

The file: fields that end with NUL: the gate, the cgroup.procs to enter or nothing, the working directory, the number
of arguments, the arguments, then NAME=value for each variable. The gate is a FIFO that whoever ordered us reads: its
end closes with the exec, after the reason if that failed. Nobody reading means that they are gone: then we go too.
"""

import os
import sys


def encode(gate: str, procs: str, cwd: str, argv: list[str], env: dict[str, str]) -> bytes:
    """An order. Raises ValueError for a NUL inside a field, which no process could be given either."""
    fields = [gate, procs, cwd, str(len(argv)), *argv, *(f"{name}={value}" for name, value in env.items())]
    if any("\0" in one for one in fields):
        raise ValueError("an argument or a variable holds a NUL")
    return b"".join(os.fsencode(one) + b"\0" for one in fields)


def main(path: str) -> None:
    with open(path, "rb") as order:
        fields = order.read().split(b"\0")[:-1]
    os.unlink(path)
    gate = os.open(fields[0], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    procs, cwd, count = fields[1], fields[2], int(fields[3])
    argv = fields[4 : 4 + count]
    try:
        if procs:
            with open(procs, "wb", buffering=0) as entry:
                entry.write(b"0")
        os.chdir(cwd)
        os.execvpe(argv[0], argv, dict(one.split(b"=", 1) for one in fields[4 + count :]))
    except OSError as error:
        os.write(gate, str(error).encode())
        raise


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except OSError as error:
        sys.stderr.write(f"infctl: the engine cannot be started: {error}\n")
        sys.exit(127)
