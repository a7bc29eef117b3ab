"""Numbers for keys as they are met: the distinct (node, layouts) rows while a file is read."""

from __future__ import annotations

import numpy as np


class KeyTable:
    """The distinct keys met so far, and a hash table that finds most of them in one look.

    Where two keys want the same place of the table the first has it; the other, like a key that
    is new, is searched for among all.
    """

    def __init__(self, nodes: int, keys: int) -> None:
        self.keys = keys  # that a node can have: key // keys is its node
        self.known = np.empty(0, np.int64)  # ascending, so by node
        self.code = np.empty(0, np.int32)  # of each: its number at its node, by first appearance
        self.count = np.zeros(nodes, np.int64)  # keys of each node
        self.bits = max(10, (8 * nodes).bit_length())
        self._fill(self.known, self.code)

    def codes_of(self, keys: np.ndarray) -> np.ndarray:
        """int32 [k]: the codes of keys, int64 [k]; new ones are taken in."""
        place = self._place(keys)
        codes = self.table_code[place]
        missed = np.flatnonzero(self.table_key[place] != keys)
        if len(missed):
            codes[missed] = self._search(keys[missed])
        return codes

    def _search(self, keys: np.ndarray) -> np.ndarray:
        at = np.searchsorted(self.known, keys)
        new = np.ones(len(keys), bool)
        if len(self.known):
            new = self.known.take(at, mode="clip") != keys
        if new.any():
            self._add(np.unique(keys[new]))
            at = np.searchsorted(self.known, keys)
        return self.code[at]

    def _add(self, fresh: np.ndarray) -> None:
        node = fresh // self.keys
        code = self.count[node] + np.arange(len(fresh)) - np.searchsorted(node, node)
        self.count += np.bincount(node, minlength=len(self.count))
        place = np.searchsorted(self.known, fresh)
        self.known = np.insert(self.known, place, fresh)
        self.code = np.insert(self.code, place, code)
        if 4 * len(self.known) > 1 << self.bits:
            self.bits += 2
            self._fill(self.known, self.code)
        else:
            self._put(fresh, code)

    def _fill(self, keys: np.ndarray, codes: np.ndarray) -> None:
        self.table_key = np.full(1 << self.bits, -1, np.int64)
        self.table_code = np.zeros(1 << self.bits, np.int32)
        self._put(keys, codes)

    def _put(self, keys: np.ndarray, codes: np.ndarray) -> None:
        place, first = np.unique(self._place(keys), return_index=True)
        free = self.table_key[place] < 0
        self.table_key[place[free]] = keys[first[free]]
        self.table_code[place[free]] = codes[first[free]]

    def _place(self, keys: np.ndarray) -> np.ndarray:
        """Multiplicative hashing: the leading bits of a product with 2**64 / golden ratio."""
        mixed = keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return (mixed >> np.uint64(64 - self.bits)).view(np.int64)
