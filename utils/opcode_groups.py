"""Opcodes in eight groups, for shares, one-hot columns and colours."""

from __future__ import annotations

import numpy as np

from utils.schema import OPCODE_ID, OPCODES

# Every opcode that is named nowhere below is element-wise.
OPCODE_GROUPS: dict[str, str] = {
    "contraction": "convolution dot",
    "reduction": (
        "batch-norm-grad batch-norm-inference batch-norm-training cholesky fft reduce "
        "reduce-window scatter select-and-scatter sort triangular-solve"
    ),
    "elementwise": "",
    "movement": (
        "bitcast bitcast-convert broadcast concatenate copy copy-done copy-start "
        "dynamic-reshape dynamic-slice dynamic-update-slice gather pad reshape reverse slice "
        "transpose"
    ),
    "source": (
        "constant infeed iota parameter partition-id recv recv-done replica-id rng "
        "rng-bit-generator rng-get-and-update-state"
    ),
    "tuple": (
        "add-dependency after-all domain get-dimension-size get-tuple-element opt-barrier outfeed "
        "send send-done set-dimension-size trace tuple tuple-select"
    ),
    "call": "async-done async-start async-update call conditional custom-call fusion unknown while",
    "collective": (
        "all-gather all-gather-done all-gather-start all-reduce all-reduce-done all-reduce-start "
        "all-to-all collective-permute collective-permute-done collective-permute-start "
        "reduce-scatter"
    ),
}
GROUPS: tuple[str, ...] = tuple(OPCODE_GROUPS)


def _group_of_opcode() -> np.ndarray:
    group = np.full(256, GROUPS.index("call"), dtype=np.int64)  # numbers outside the list
    group[: len(OPCODES)] = GROUPS.index("elementwise")
    for i, names in enumerate(OPCODE_GROUPS.values()):
        group[[OPCODE_ID[name] for name in names.split()]] = i
    return group


_GROUP = _group_of_opcode()


def opcode_group(opcode: np.ndarray) -> np.ndarray:
    """Index into ``GROUPS`` of every opcode, int64, same shape."""
    return _GROUP[opcode]
