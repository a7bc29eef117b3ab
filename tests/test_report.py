"""The results table says what metrics.json says, and README shows this very table."""

import json
from pathlib import Path

import pytest

from utils import report
from utils.evaluate import RECORD
from utils.files import write_json

ROOT = Path(__file__).resolve().parents[1]


def record(collection, model, score, protocol="valid", seed=0, **more):
    key = report.score_key(collection)
    return dict.fromkeys(RECORD) | {
        "collection": collection, "model": model, "protocol": protocol, "seed": seed,
        "graphs": 7, "ceiling": 0.8, key: score,
    } | more  # fmt: skip


METRICS = [
    record("layout:xla:random", "rank_pairwise", 0.5),
    record("layout:xla:random", "rank_pairwise", 0.6, seed=1),
    record("layout:xla:random", "byte_count", 0.7),
    record("layout:nlp:default", "rank_pairwise", 0.4),
    record("layout:nlp:default", "byte_count", 0.3),
    record("layout:nlp:default", "gnn", 0.35),
    record("layout:nlp:default", "rank_pairwise/no_copies", 0.2),
    record("tile:xla", "rank_pairwise", 0.95, graphs=20, ceiling=0.99),
]


def test_table_by_hand():
    lines = report.results_table(METRICS).splitlines()
    assert lines[2:11] == [
        "| | xla:random | nlp:default | layout mean | tile:xla |",
        "|---|---:|---:|---:|---:|",
        "| `byte_count` | **0.700** | 0.300 | **0.500** |  |",
        "| `rank_pairwise` | 0.550 ± 0.071 | **0.400** | 0.475 | **0.950** |",
        "| `gnn` |  | 0.350 |  |  |",
        "| `rank_pairwise/no_copies` |  | 0.200 |  |  |",
        "| noise ceiling | 0.800 | 0.800 | 0.800 | 0.990 |",
        "| graphs scored | 7 | 7 | 14 | 20 |",
        "",
    ]
    assert report.results_table([]) == "Nothing was scored."


def test_protocols_have_tables_of_their_own():
    both = METRICS + [record("tile:xla", "random", 0.5, "family_cv", fold_assignment=0)]
    text = report.results_table(both)
    assert text.count("| graphs scored |") == 2
    assert report.results_table(both, ("family_cv",)).count("rank_pairwise") == 0


def test_floors_that_are_ahead_are_named():
    said = report.sentences(METRICS)
    assert said[0] == (
        "On the valid split `rank_pairwise` reaches 0.59 of the noise ceiling, mean over 2 layout "
        "collections."
    )
    assert said[1:] == [
        "On the valid split of `layout:xla:random` the untrained `byte_count` (0.700) is ahead of "
        "`rank_pairwise` (0.550)."
    ]
    better = METRICS + [record("layout:xla:random", "gnn", 0.75)]
    assert report.sentences(better)[1].endswith("(0.550); `gnn` has 0.750.")


def test_the_report_says_which_seeds_are_in(tmp_path):
    assert report.seeds_in(METRICS) == "0 (but `rank_pairwise` on layout:xla:random valid: 0, 1)"
    tile = [record("tile:xla", "gnn", 0.9, seed=s) for s in (0, 2)]
    more = [*METRICS[:3], record("tile:xla", "random", 0.5, seed=7), *tile]
    assert report.seeds_in(more) == "0, 1 (but `gnn`: 0, 2)"
    assert report.seeds_in(METRICS[3:]) == "0" and report.seeds_in([]) == "none"
    write_json(tmp_path / "metrics.json", more)
    write_json(tmp_path / "manifest.json", {})
    text = report.write_report(tmp_path).read_text()
    assert "The means are over seeds 0, 1 (but `gnn`: 0, 2); fold assignments: 0." in text
    assert "the parameters of each notebook's last run alone" in text


def test_cost_table_leaves_floors_out():
    costs = {"fit_s": 3.0, "configs_per_s": 1234567.0, "peak_mb": 250.0}
    rows = [record("tile:xla", "hist_gbrt", 0.9, **costs), record("tile:xla", "random", 0.5)]
    assert report.cost_table(rows).splitlines()[2:] == ["| `hist_gbrt` | 3.0 | 1,234,567 | 250 |"]
    assert report.cost_table(METRICS) == ""


def test_readme_is_rewritten_between_its_markers(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"# A\n\n{report.START}\nold\n{report.END}\n\nrest\n")
    report.update_readme(readme, METRICS)
    text = readme.read_text()
    table = report.readme_table(METRICS)
    assert text == f"# A\n\n{report.START}\n\n{table}\n\n{report.END}\n\nrest\n"
    assert "`rank_pairwise`" in text and "no_copies" not in text  # ablations are in the report
    report.update_readme(readme, METRICS)
    assert readme.read_text() == text
    networks = [METRICS[0] | {"model": name} for name in ("gnn/extra", "gnn/wide")]
    table = report.readme_table([*METRICS, *networks])
    assert "`gnn/extra`" in table and "gnn/wide" not in table
    readme.write_text("no markers")
    with pytest.raises(ValueError, match="once each"):
        report.update_readme(readme, METRICS)


def test_report_shows_what_there_is(tmp_path):
    write_json(tmp_path / "metrics.json", METRICS)
    text = report.write_report(tmp_path).read_text()
    assert report.results_table(METRICS) in text and "](figures/" not in text
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "08_scores.png").write_bytes(b"")
    write_json(tmp_path / "tables" / "study_notes.json", ["tile:xla: a note"])
    choice = {"collection": "tile:xla", "model": "byte_count", "reason": "why", "score": None}
    write_json(tmp_path / "tables" / "submission_models.json", [choice])
    text = report.write_report(tmp_path).read_text()
    assert "(figures/08_scores.png)" in text and "- tile:xla: a note" in text
    assert "| tile:xla | `byte_count` | why |  |" in text
    levels = [len(line.split()[0]) for line in text.splitlines() if line.startswith("#")]
    assert levels == [1, 2, 2, 2]


def test_readme_table_is_the_committed_run():
    readme, metrics = ROOT / "README.md", ROOT / "outputs" / "sample_run" / "metrics.json"
    if not (readme.exists() and metrics.exists()):
        pytest.skip("no README or no committed run yet")
    text = readme.read_text(encoding="utf-8")
    shown = text.split(report.START)[1].split(report.END)[0].strip()
    assert shown == report.readme_table(json.loads(metrics.read_text(encoding="utf-8")))
