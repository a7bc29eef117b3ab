"""Several modules become one namespace: small made-up modules, and what must not pass silently."""

from pathlib import Path

import pytest

from utils.flatten import Flattener
from utils.source import FlattenError

FIRST = '''\
"""First module."""

from __future__ import annotations

import numpy as np

# Kept with what it is about.
LIMIT = 3  # so is this
UNUSED = 4


def fit(x):
    """Doc."""
    return np.minimum(x, LIMIT)  # a reason


def lonely():
    return UNUSED
'''
SECOND = '''\
"""Second module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from utils import first
from utils.third import helper

if TYPE_CHECKING:
    from utils.nowhere import Hint

LIMIT = 5


def fit(x: Hint):
    from utils.third import late

    return first.fit(x) + helper(late(x), key=LIMIT)
'''
THIRD = '''\
"""Third module."""

import math


def helper(x, key=0):
    return math.sqrt(x) + key


def late(x):
    return x
'''
FLAT = {
    "first": '''\
# Kept with what it is about.
LIMIT = 3  # so is this


def fit(x):
    """Doc."""
    return np.minimum(x, LIMIT)  # a reason''',
    "third": '''\
def helper(x, key=0):
    return math.sqrt(x) + key


def late(x):
    return x''',
    "second": '''\
SECOND_LIMIT = 5


def second_fit(x: Hint):
    return fit(x) + helper(late(x), key=SECOND_LIMIT)''',
}


def flatten(folder: Path, start: str = "fit", **texts: str):
    texts = {"first": FIRST, "second": SECOND, "third": THIRD} | texts
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    flattener = Flattener(folder, ["first", "second"])
    flattener.reach("second", start)
    return flattener.finish(taken=["SEED"], program=f"answer = second_fit({9.0})")


def test_what_is_reached_is_written_down_and_nothing_else(tmp_path):
    flat = flatten(tmp_path)
    assert flat.parts == FLAT and list(flat.parts) == ["first", "third", "second"]
    assert flat.imports == "import math\n\nimport numpy as np"
    assert flat.docs["third"] == "Third module."
    assert flat.names["second", "fit"] == "second_fit" and flat.names["first", "fit"] == "fit"


def test_the_one_namespace_computes_what_the_modules_do(tmp_path):
    flat = flatten(tmp_path)
    space: dict = {}
    head = "from __future__ import annotations\n" + flat.imports
    exec("\n".join([head, *flat.parts.values(), "answer = second_fit(9.0)"]), space)
    assert space["answer"] == 3.0 + 3.0 + 5


@pytest.mark.parametrize(
    "change, message",
    [
        ({"second": SECOND.replace("from utils import first", "from utils import first as f")},
         "of our own"),
        ({"second": SECOND.replace("return first.fit(x)", "return f'{first.fit(x)}'")},
         "first.fit can't become fit here"),
        ({"second": SECOND.replace("late\n\n", "late\n\n    inner = lambda LIMIT: LIMIT\n")},
         "LIMIT can't become SECOND_LIMIT here"),
        ({"second": SECOND.replace("fit(x: Hint)", "fit(x, first=None)")},
         "first.fit can't become fit here"),
        ({"first": FIRST.replace("LIMIT)", "LIMITS)")}, "LIMITS is not defined"),
        ({"first": FIRST.replace("def fit(x)", "def fit(x=BEFORE)") + "\n\nBEFORE = 1\n"},
         "needs BEFORE before it is there"),
        ({"first": FIRST + "\n\nfor i in range(3):\n    pass\n"}, "defines no name"),
        ({"third": THIRD.replace("import math", "import cmath as math"),
          "second": SECOND.replace("from utils import", "import math\nfrom utils import")
          .replace("late(x),", "math.pi,")}, "imported differently"),
        ({"third": THIRD.replace("late", "math")}, "no definition of late|nothing named"),
    ],
)  # fmt: skip
def test_doubtful_cases_are_errors(tmp_path, change, message):
    with pytest.raises(FlattenError, match=message):
        flatten(tmp_path, **change)


def test_a_name_that_the_notebook_takes_is_not_given_away(tmp_path):
    flat = flatten(tmp_path, first=FIRST.replace("LIMIT", "SEED"))
    assert flat.names["first", "SEED"] == "FIRST_SEED"
    assert "np.minimum(x, FIRST_SEED)" in flat.parts["first"]
