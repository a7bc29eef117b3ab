"""Generated layout files of any size, in the release's shape, to measure speed and memory on."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from utils.dataset import GraphFile
from utils.files import atomic_path
from utils.synthetic import layout_graph

DRAWN = 32  # configurations that are made node by node; the others mix their choices
BLOCK = 24 << 20  # bytes of configurations that are written at once
NODES_OF_A_LAYER = 7  # of `synthetic`'s chains of dots and reshapes


def write_graph(
    folder: Path, nodes: int, configs: int, config_nodes: int | None = None, seed: int = 0
) -> GraphFile:
    """Write one unlabelled file (runtimes 0, as in a test split) and say where it is.

    About `nodes` nodes; of those that could be configured, `config_nodes` are, evenly spread (None:
    one in 14 nodes, as in the largest graphs of the release). Every configurable node takes one of
    a handful of layouts in each of the `configs` configurations. Written in blocks: memory stays
    small whatever the size. The same arguments give the same arrays.
    """
    source, search = "nlp", "random"
    layers = max(2, round(nodes / NODES_OF_A_LAYER))
    arrays, _ = layout_graph(seed, source, search, layers, DRAWN, rounds=0)
    there = len(arrays["node_config_ids"])
    wanted = min(there, config_nodes or max(2, len(arrays["node_opcode"]) // 14))
    kept = np.unique(np.linspace(0, there - 1, wanted).round().astype(int))
    made = arrays.pop("node_config_feat")[:, kept]
    arrays["node_config_ids"] = arrays["node_config_ids"][kept]
    arrays["config_runtime"] = np.zeros(configs, np.int64)
    name = f"mlp.n{len(arrays['node_opcode'])}c{configs}"
    path = Path(folder) / "layout" / source / search / "test" / f"{name}.npz"
    with atomic_path(path) as temporary:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for key, values in arrays.items():
                with archive.open(f"{key}.npy", "w") as stream:
                    npy.write_array(stream, np.ascontiguousarray(values), allow_pickle=False)
            with archive.open("node_config_feat.npy", "w", force_zip64=True) as stream:
                _write_configs(stream, made, configs, np.random.default_rng([seed, nodes]))
    return GraphFile(f"layout:{source}:{search}", "test", name, path, ours=True)


def _write_configs(stream, made: np.ndarray, configs: int, rng: np.random.Generator) -> None:
    """float32 [configs, nc, 18]: each node's choice is that of one of the configurations made."""
    shape = (configs, *made.shape[1:])
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(stream, header)
    step = max(1, BLOCK // max(1, 4 * made[0].size))
    nodes = np.arange(made.shape[1])
    for start in range(0, configs, step):
        pick = rng.integers(len(made), size=(min(step, configs - start), len(nodes)))
        stream.write(np.ascontiguousarray(made[pick, nodes], "<f4").tobytes())
