"""How a command of this package ends: the same way when it is terminated as by Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED = 130  # exit status, as of ./run_all.sh


def run_command(main: Callable[[], int | None], advice: str = "") -> NoReturn:
    """Exit with what `main` returns. SIGTERM ends it like Ctrl-C, so that files half written and
    processes that it started go; then `advice` is given in the last line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted" + (f"; {advice}" if advice else ""), file=sys.stderr)
        sys.exit(INTERRUPTED)
