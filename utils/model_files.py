"""Boosted trees on disk: `stem`.ubj in XGBoost's own format, `stem`.json with what they read."""

from __future__ import annotations

import json
from pathlib import Path

import xgboost

from utils.dataset import DataError
from utils.files import atomic_path, write_json

VERSION = "feature_version"


def model_stem(out: Path | str, collection: str, model: str) -> Path:
    """Where a run keeps a model, without the endings."""
    return Path(out) / "models" / collection.replace(":", "_") / model


def save_trees(stem: Path | str, trees: xgboost.Booster, version: int, **about) -> None:
    """Write both files. `version`: of the features that the trees read."""
    with atomic_path(f"{stem}.ubj") as temporary:
        temporary.write_bytes(trees.save_raw("ubj"))
    write_json(f"{stem}.json", {VERSION: version} | about)


def load_trees(stem: Path | str, version: int) -> tuple[xgboost.Booster, dict]:
    """The trees and what `save_trees` was told about them.

    Raises DataError for features of another version.
    """
    path = Path(f"{stem}.json")
    about = json.loads(path.read_text(encoding="utf-8"))
    if about.get(VERSION) != version:
        found = about.get(VERSION)
        raise DataError(
            f"{path}: made for feature version {found}, this is version {version}: "
            "train again (./run_all.sh), or name another model"
        )
    return xgboost.Booster(model_file=f"{stem}.ubj"), about


def is_saved(stem: Path | str) -> bool:
    """Are both files there?"""
    return all(Path(f"{stem}{end}").exists() for end in (".ubj", ".json"))
