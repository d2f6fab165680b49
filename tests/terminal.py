"""A terminal of a given width, for commands that look at theirs."""

import os
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def in_terminal(command: Sequence[str], columns: int, folder: Path, keys: str = "") -> tuple[int, str]:
    """The status of a command in a terminal so wide, with typed keys, and what it showed."""
    import fcntl  # with pty, not on every system
    import pty
    import termios

    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    unasked = {"COLUMNS", "NO_COLOR"}
    environment = {name: value for name, value in os.environ.items() if name not in unasked}
    environment |= {"TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, cwd=folder, env=environment)
    os.close(inside)
    os.write(outside, keys.encode())
    written = b""
    with suppress(OSError):  # how a terminal ends
        while part := os.read(outside, 10_000):
            written += part
    os.close(outside)
    return run.wait(), written.decode().replace("\r\n", "\n")


def without_colours(text: str) -> str:
    return re.sub(r"\033\[[\d;]*m", "", text)
