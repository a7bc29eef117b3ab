"""What the commands of this package have in common: how they end, what they say of mistakes.

Exit status: 0 all is done; 1 something could not be done, and a line ``error: <file>: <what>`` on
standard error says why; 2 the command line is wrong; 130 interrupted. Needs the standard library
only: `utils.options` reads it before anything is installed.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

FAILED, WRONG, INTERRUPTED = 1, 2, 130
BROKEN_PIPE = 128 + 13  # as of a program that SIGPIPE ends


def run_command(main: Callable[[], int | None], advice: str = "") -> NoReturn:
    """Exit with what `main` returns. SIGTERM ends it like Ctrl-C, so that files half written and
    processes that it started go; then `advice` is given in the last line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted" + (f"; {advice}" if advice else ""), file=sys.stderr)
        status = INTERRUPTED
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = BROKEN_PIPE
    except OSError as error:  # such as a full disk
        if error.filename is None:
            raise
        status = fail(error)
    sys.exit(status)


def fail(problem: Exception | str, status: int = FAILED) -> int:
    """Say in one line on standard error what is wrong; returns the exit status."""
    if isinstance(problem, OSError) and problem.filename is not None:
        problem = f"{problem.filename}: {problem.strerror}"
    print(f"error: {problem}", file=sys.stderr)
    return status


def shown(path: Path) -> str:
    """A path as a reader wants to see it: from the current folder where it lies inside."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


# --- types of arguments, for argparse ---


def at_least(least: int) -> Callable[[str], int]:
    """Whole numbers from `least` on."""

    def whole(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return number

    return whole


def folder_path(text: str) -> Path:
    """A folder, there or to be made."""
    if not text:
        raise ArgumentTypeError("it is empty")
    path = Path(text).expanduser()
    there = next((p for p in (path, *path.parents) if p.exists()), path)
    if there.exists() and not there.is_dir():
        raise ArgumentTypeError(f"{there} is a file, not a folder")
    return Path(text)
