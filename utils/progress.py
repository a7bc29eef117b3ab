"""A progress bar for long work that stays quiet in logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")


def progress(iterable: Iterable[Item], **options) -> Iterator[Item]:
    """``tqdm(iterable, **options)``; silent when stderr is no terminal or ``CI`` is set."""
    quiet = bool(os.environ.get("CI")) or not sys.stderr.isatty()
    return tqdm(iterable, disable=quiet, **({"dynamic_ncols": True} | options))
