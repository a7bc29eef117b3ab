"""Run the code cells of a notebook in this interpreter, as a Kaggle session without network would.

    python -I run_cells.py NOTEBOOK RESULT.json [NAME=VALUE ...] [/mount=/folder ...]

A plain interpreter instead of a Jupyter kernel: the older environment then needs the packages of
the notebook only. Cells share one namespace and, as in IPython, their __future__ statements.
Values of the parameters cell are replaced by those given; a path given as /mount=/folder replaces
that mount in the text of the cells. RESULT.json gets what the run found.
"""

import ast
import codeop
import json
import socket
import sys


def refuse(*args, **kwargs):
    raise OSError("there is no network")


socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
notebook, target, *given = sys.argv[1:]
given = dict(text.split("=", 1) for text in given)
mounts = {name: given.pop(name) for name in list(given) if name.startswith("/")}
with open(notebook, encoding="utf-8") as stream:
    cells = json.load(stream)["cells"]
compiler, space = codeop.Compile(), {"__name__": "__main__"}
for number, cell in enumerate(cells):
    if cell["cell_type"] != "code":
        continue
    source = "".join(cell["source"])
    for mount, folder in mounts.items():
        source = source.replace(mount, folder)
    exec(compiler(source, f"cell {number}", "exec"), space)
    if "parameters" in cell["metadata"].get("tags", []):
        for name, text in given.items():
            assert name in space, f"no parameter {name}"
            space[name] = ast.literal_eval(text)
found = {
    "results": [vars(result) for result in space["results"]],
    "left_out": space["budget"].left_out,
    "peak_gb": space["peak_gb"](),
    "seconds": space["budget"].seconds - space["budget"].left(),
    "packages": {n: sys.modules[n].__version__ for n in ("numpy", "polars", "xgboost", "sklearn")},
    "ours": sorted(name for name in sys.modules if name.split(".")[0] in ("utils", "papermill")),
}
with open(target, "w", encoding="utf-8") as stream:
    json.dump(found, stream)
