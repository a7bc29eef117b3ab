"""Catches a process in the middle of writing a file."""

import subprocess
import time
from pathlib import Path


def half_written(folder: Path, process: subprocess.Popen) -> list[Path]:
    """Waits until there is a file in writing."""
    until = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < until:
        if found := list(folder.rglob(".writing-*")):
            return found
        time.sleep(0.02)
    process.kill()
    raise AssertionError(process.communicate())
