"""Write notebooks/kaggle_kernel.ipynb: the needed parts of utils and the job in one notebook.

    python -m utils.kernel            writes it
    python -m utils.kernel --check    fails if it isn't what would be written
"""

from __future__ import annotations

import argparse
from pathlib import Path

import nbformat

from utils.command import fail, run_command
from utils.flatten import Flattener
from utils.source import FlattenError

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "notebooks" / "kaggle_kernel.ipynb"

# Where the names in JOB are defined.
STARTS = {
    "find_data": "dataset", "index": "dataset", "Budget": "budget", "peak_gb": "budget",
    "rank_all": "kernel_job",
}  # fmt: skip

# Title, what a reader finds there, modules in order. Others that are needed come where they are.
SECTIONS = (
    ("The files", "Names and columns of TpuGraphs files, reading them without trusting them, and "
     "coded graphs: a configuration is a list of small row numbers.",
     "schema progress npz checks key_table coding dataset files"),
    ("Metrics and the noise ceiling", "Scores of a ranking, and the score that an oracle would "
     "get against noisy measurements.", "metrics noise ceiling evaluate"),
    ("The graph", "What every node is and costs, closed-form statistics of a graph, and two "
     "rounds of message passing without parameters.",
     "tensors contraction node_costs opcode_groups structure graph_stats message_passing "
     "vector_tables"),
    ("Features of a configuration", "One row of numbers for each configuration: sums of "
     "quantities that are looked up by layout; for tiles what a tile reads and wastes.",
     "roles layout_rows layout_edges recompute layout_tables orders program layout_spread "
     "loop_reads loops layout_features tile_features feature_tables"),
    ("The rankers", "`fit` and `predict` are the ranker on rows of features; cost tables follow.",
     "study ranking joint_sum cost_rows cost_tables cost_study"),
    ("Budget and job", "What fits into the time and the memory, and the way from files to a "
     "submission.", "cost budget submission kernel_learn kernel_job"),
)  # fmt: skip

TITLE = """\
# Fast or slow? Rank the configurations of a program without running it

Which layout or tile configuration makes a program fast? This notebook ranks them by closed-form \
features and boosted trees, on CPUs, without internet. It reads the files of the competition \
"Google - Fast or Slow? Predict AI Model Runtime" (add it as input), trains one ranker a \
collection, prints its score on the validation split beside the score that the noise of the \
measurements allows, and writes `submission.csv`.

Everything that it needs is in its cells: {sections}. The last section runs. The code is that of \
a repository, put here by a program (`python -m utils.kernel`): change it there."""

PARAMETERS = """\
DATA_DIR = ""  # folder with layout/ and tile/, or a parent of it; empty: where Kaggle mounts it
OUT_DIR = "."  # where submission.csv goes
COLLECTIONS = ""  # comma separated, such as "layout:xla:random,tile:xla"; empty: all
SEED = 0  # of the trees and of everything that is drawn
CONFIGS = 1000  # configurations of one graph that are trained on; 0: as many as fit
THREADS = 4  # of the tree library; the same number gives the same trees
HOURS = 11.0  # time to use at most; Kaggle ends a session after 12
MEMORY_GB = 26.0  # memory to use at most; Kaggle has 30"""

CLOCK = "import time\n\nSTART = time.monotonic()  # the time budget counts from here"

JOB = (
    ("markdown", "## Run\n\nFirst the files."),
    ("code", """\
data = find_data(DATA_DIR or None, Path.cwd())
chosen = [name.strip() for name in COLLECTIONS.split(",") if name.strip()]
found = index(data, chosen)
for name in dict.fromkeys(file.collection for file in found):
    splits = [file.split for file in found if file.collection == name]
    print(name, {split: splits.count(split) for split in dict.fromkeys(splits)})"""),
    ("markdown", "Then one collection after the other: train, score the validation split, rank "
     "the test split. Kendall's tau for layouts, 1 - slowdown of the best of five for tiles."),
    ("code", """\
budget = Budget(HOURS * 3600, MEMORY_GB * 2**30, START)
submission = Path(OUT_DIR) / "submission.csv"
results = rank_all(found, submission, budget, SEED, THREADS, CONFIGS)"""),
    ("markdown", "Scores beside the untrained byte count and the noise ceiling, and what was "
     "left out to stay inside the budget."),
    ("code", """\
table = [
    {"collection": r.collection, **r.scores, "noise ceiling": r.ceiling, "chosen": r.chosen}
    for r in results
]
print(pl.DataFrame(table, infer_schema_length=None))
print("left out:", *(budget.left_out or ["nothing"]), sep="\\n  ")
minutes = (budget.clock() - START) / 60
print(f"{minutes:.1f} min of {60 * HOURS:.1f}, {peak_gb() or 0:.2f} GB of {MEMORY_GB:.2f}")
print(sum(file.split == "test" for file in found), "rows in", submission)"""),
)  # fmt: skip


def build(folder: Path = ROOT / "utils") -> str:
    """The notebook as text. Raises FlattenError if the modules can't share one namespace."""
    order = [module for _, _, modules in SECTIONS for module in modules.split()]
    flattener = Flattener(folder, order)
    for name, module in STARTS.items():
        flattener.reach(module, name)
    taken = [line.split()[0] for line in (PARAMETERS + "\n" + CLOCK).splitlines() if " = " in line]
    flat = flattener.finish(taken, "\n".join(text for kind, text in JOB if kind == "code"))
    imports = flat.imports.replace("import time\n", "")  # it is in CLOCK
    titles = ", ".join(f"*{title.lower()}*" for title, _, _ in SECTIONS)
    cells = [
        ("markdown", TITLE.format(sections=titles)),
        ("parameters", PARAMETERS),
        ("code", f"from __future__ import annotations\n\n{CLOCK}"),
        *(("code", part) for part in imports.split("\n\n")),  # of Python's own, of packages
    ]
    waiting = list(flat.parts)
    for title, about, modules in SECTIONS:
        cells.append(("markdown", f"## {title}\n\n{about}"))
        while any(module in waiting for module in modules.split()):
            module = waiting.pop(0)
            cells.append(("markdown", f"### {module}\n\n{flat.docs[module]}"))
            cells.append(("code", flat.parts[module]))
    return _as_notebook([*cells, *JOB])


def _as_notebook(cells: list[tuple[str, str]]) -> str:
    content = nbformat.v4.new_notebook()
    content.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for i, (kind, text) in enumerate(cells):
        make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
        tags = {"tags": ["parameters"]} if kind == "parameters" else {}
        content.cells.append(make(text.strip("\n"), id=f"cell-{i:02}", metadata=tags))
    return nbformat.writes(content, version=4) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Command line; 1 when the notebook can't be made or is stale."""
    parser = argparse.ArgumentParser(
        "python -m utils.kernel", description="Write notebooks/kaggle_kernel.ipynb from utils."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it is stale")
    options = parser.parse_args(argv)
    try:
        text = build()
    except FlattenError as error:
        return fail(error)
    if options.check:
        fresh = TARGET.exists() and TARGET.read_text(encoding="utf-8") == text
        return 0 if fresh else fail(f"{TARGET}: stale, run python -m utils.kernel")
    TARGET.write_text(text, encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}: {len(text) / 1024:.0f} KB")
    return 0


if __name__ == "__main__":
    run_command(main)
