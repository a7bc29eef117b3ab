"""One look for all figures: a colour per model and per collection, safe for the colour-blind."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import seaborn as sns

from utils.files import atomic_path
from utils.notebook import Run
from utils.schema import COLLECTIONS, SPLITS

PALETTE = sns.color_palette("colorblind", 10).as_hex()
# Untrained floors and the noise ceiling are greys; trained models have a hue.
MODEL_COLOURS = {
    "random": "#c8c8c8",
    "config_frequency": "#a8a8a8",
    "choice_frequency": "#888888",
    "byte_count": "#686868",
    "loop_bytes": "#484848",
    "hist_gbrt": PALETTE[1],
    "rank_pairwise": PALETTE[0],
    "cost_tables": PALETTE[2],
    "gnn": PALETTE[4],
    "ceiling": "#222222",
}
COLLECTION_COLOURS = dict(zip(COLLECTIONS, [PALETTE[i] for i in (0, 9, 3, 1, 2)]))
SPLIT_COLOURS = dict(zip(SPLITS, [PALETTE[i] for i in (0, 1, 7)]))


def use_style() -> None:
    """Set seaborn's theme: light grid, colour-blind palette, 900 pixels wide."""
    sns.set_theme(context="notebook", style="whitegrid", palette="colorblind", font_scale=0.95)
    matplotlib.rcParams.update(
        {
            "figure.figsize": (9, 4.5),
            "figure.dpi": 100,
            "savefig.dpi": 100,
            "figure.constrained_layout.use": True,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
        }
    )


def model_colour(model: str) -> str:
    """Colour of a model; an ablation such as 'rank_pairwise/no_copies' has its model's colour."""
    return MODEL_COLOURS.get(model.split("/")[0], PALETTE[5])


def save_figure(run: Run, name: str, figure: plt.Figure | None = None) -> Path:
    """Write a figure (the current one unless given) to out/figures/<name>.png."""
    path = run.out / "figures" / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        (figure or plt.gcf()).savefig(temporary, format="png")
    return path
