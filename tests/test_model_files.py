import json

import numpy as np
import pytest
import xgboost

from utils.dataset import DataError
from utils.model_files import is_saved, load_trees, model_stem, save_trees


def test_trees_come_back_and_refuse_another_version(tmp_path):
    x = np.arange(40.0).reshape(20, 2)
    trees = xgboost.train({"nthread": 1}, xgboost.DMatrix(x, label=x[:, 0]), 3)
    stem = model_stem(tmp_path, "layout:xla:random", "some.model")
    assert stem == tmp_path / "models" / "layout_xla_random" / "some.model"
    assert not is_saved(stem)
    save_trees(stem, trees, 4, columns=("a", "b"))
    assert is_saved(stem) and json.loads((stem.parent / "some.model.json").read_text()) == {
        "feature_version": 4, "columns": ["a", "b"],
    }  # fmt: skip
    again, about = load_trees(stem, 4)
    assert about["columns"] == ["a", "b"]
    assert (again.inplace_predict(x) == trees.inplace_predict(x)).all()
    with pytest.raises(DataError, match=r"some.model.json: made for feature version 4, this is version 5"):
        load_trees(stem, 5)
    (stem.parent / "some.model.json").unlink()
    assert not is_saved(stem)
