"""Autotuning: the pasted source, the search, the comparison, the command line."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_graphs import random_graph

from utils import cost_tables, saved_models
from utils.cost_rows import cost_rows, terms
from utils.dataset import DataError
from utils.xla import autotune, compare, jaxprs, relayout, search, source
from utils.xla.jaxprs import Operation

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = '''
import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)
X = rng.standard_normal((4, 6, 8), dtype=np.float32)
W = rng.standard_normal((8, 10), dtype=np.float32)


def mixed(x, w):
    """Dots, a reshape, a transpose, a tuple inside a dict, and a whole number."""
    h = jax.jit(lambda a: jnp.tanh(a @ w["first"]))(x)
    h = h.reshape(4, 6, 2, 5).transpose(0, 2, 1, 3)
    scores = jnp.einsum("bhsc,bhtc->bhst", h, h)
    return {"scores": (scores, scores.sum(-1)), "most": scores.argmax()}


def programs():
    yield "toy.mixed", mixed, (X, {"first": W})
    yield "toy.none", lambda x: x + 1, (X,)
'''
OPERATIONS = [("dot_general", (4, 6, 10)), ("reshape", (4, 6, 2, 5)), ("dot_general", (4, 2, 6, 6))]
LAYOUTS = {
    0: (*OPERATIONS[0], (0, 2, 1), None, None),
    2: (*OPERATIONS[2], None, (3, 2, 1, 0), (0, 1, 3, 2)),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune") / "mine.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def mixed(programs):
    return next(autotune.load_programs(programs).programs())


def test_relaid_keeps_values_and_structure_and_reaches_the_compiler(mixed):
    _, function, args = mixed
    faster = relayout.relaid(function, LAYOUTS)
    assert compare.differs(jax.jit(faster)(*args), jax.jit(function)(*args)) is None
    assert compare.differs(faster(*args), function(*args)) is None  # without jit too
    text = jax.jit(faster).lower(*args).as_text()
    assert text.count("@LayoutConstraint") == 3
    for order in ("[1, 2, 0]", "[0, 1, 2, 3]", "[2, 3, 1, 0]"):  # minor to major
        assert f"result_layouts = [dense<{order}>" in text


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        ({1: ("dot_general", (4, 6, 2, 5), None, None, None)}, "operation 1 is .*reshape"),
        ({0: ("dot_general", (9, 9), (1, 0), None, None)}, r"\(4, 6, 10\)"),
        ({7: ("reshape", (4,), None, None, None)}, "no operation 7"),
    ],
)
def test_another_program_is_refused(mixed, layouts, message):
    _, function, args = mixed
    with pytest.raises(ValueError, match=f"{message}.*another program"):
        relayout.relaid(function, layouts)(*args)


def test_orders_are_those_of_the_layout_columns(mixed):
    program = jaxprs.trace(*mixed)
    columns = np.full((3, 18), -1)
    columns[0, :3] = [1, 2, 0]
    columns[2, 6:10], columns[2, 12:16] = [0, 1, 2, 3], [2, 3, 1, 0]
    assert jaxprs.orders(program, columns) == LAYOUTS
    (got, *_), want = jaxprs.constrained(program, columns)(*program.args), mixed[1](*mixed[2])
    assert compare.differs(got, want["most"]) is None


def test_written_source_gives_the_same_values_in_a_process_without_utils(mixed, tmp_path):
    path = source.write_source(tmp_path / "tuned", "toy.mixed", LAYOUTS, (1.25, 1.2, 1.3))
    assert path.name == "toy_mixed.py"
    (tmp_path / "paste.py").write_text(
        PROGRAM + path.read_text() + '''
got, want = jax.jit(tuned(mixed))(X, {"first": W}), jax.jit(mixed)(X, {"first": W})
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, want)
assert "utils" not in __import__("sys").modules
print(jax.jit(tuned(mixed)).lower(X, {"first": W}).as_text().count("@LayoutConstraint"))
''')  # fmt: skip
    command = [sys.executable, "-P", "paste.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "3\n", done.stderr
    module = source.load_source(path)
    assert (module.NAME, module.SPEEDUP, module.LAYOUTS) == ("toy.mixed", (1.25, 1.2, 1.3), LAYOUTS)
    assert "1.25 times as fast [1.20, 1.30]" in module.__doc__


def test_other_files_are_no_sources(tmp_path):
    path = tmp_path / "other.py"
    for text, reason in (("NAME = 'a.b'", "SPEEDUP is not there"), ("1 / 0", "ZeroDivisionError")):
        path.write_text(text)
        with pytest.raises(DataError, match=reason):
            source.load_source(path)
    with pytest.raises(DataError, match="not a Python file"):
        source.load_source(tmp_path / "none.py")


def test_equal_code_is_known_and_other_code_is_not(mixed):
    _, function, args = mixed

    def code(layouts):
        return compare.compile_code(relayout.relaid(function, layouts), args)[1]

    assert code({}) == compare.compile_code(function, args)[1]
    assert code(LAYOUTS) != code({})


def test_names_and_places_are_no_code():
    text = """HloModule jit_{0}, is_scheduled=true

FileNames
1 "{0}.py"

%{0} (x.{1}: f32[2]) -> f32[2] {{
  %x.{1} = f32[2]{{0}} parameter(0), metadata={{op_name="{0}" stack_frame_id={1}}}
  ROOT %y.{1} = f32[2]{{0}} tanh(%x.{1})
}}
"""
    code = compare.code_of(text.format("a", 1))
    assert code == compare.code_of(text.format("b", 2))
    assert code.startswith("%0 (%1: f32[2]) -> f32[2] {\n  %1 = f32[2]{0} parameter(0)\n")
    assert code != compare.code_of(text.format("a", 1).replace("tanh", "exp"))


def test_differs_says_what():
    x = np.array([[1.0, -2.0], [np.nan, np.inf]], np.float32)
    assert compare.differs(x, x + np.float32(1e-5)) is None
    assert compare.differs(x, x + np.float32(1e-2)) == "result 0: 2 of 4 values differ"
    assert compare.differs(np.abs(x), x) == "result 0: 1 of 4 values differ"
    assert compare.differs((x, x), (x,)) == "another structure"
    assert compare.differs(x[0], x) == "result 0 is float32[2], not float32[2, 2]"
    assert compare.differs(np.array([1, 2]), np.array([1, 3])) == "result 0: 1 of 2 values differ"
    half = jnp.array([100.0, 1.0], jnp.bfloat16)
    assert compare.differs(half, half * jnp.bfloat16(1.01)) is None
    assert compare.differs(half, half * jnp.bfloat16(1.1)) is not None


def test_bootstrap_of_blocks():
    default = np.array([[200, 202, 198, 200, 201, 199, 200, 200]] * 2)
    times = compare.bootstrap(default, default // 2, np.random.default_rng(0))
    assert [round(t.mid) for t in times] == [200, 100, 2]
    assert all(t.low <= t.mid <= t.high for t in times)
    assert times[2].low > 1.95 and times[2].high < 2.05
    drift = np.linspace(100, 200, 8)[None]  # drift hits both alike: the ratio does not notice
    assert compare.bootstrap(drift, drift, np.random.default_rng(0))[2] == (1, 1, 1)


def test_choices_are_all_layouts_or_a_part_that_sets_single_slots():
    rng = np.random.default_rng(0)
    small = search.choices(Operation("dot", (4, 5), (2, 2, 2)), rng)
    assert len(small) == len(np.unique(small, axis=0)) == 27 and (small[0] == -1).all()
    large = search.choices(Operation("reshape", (2,) * 5, (5, 4, 0)), rng)
    assert len(large) == len(np.unique(large, axis=0)) == search.ROWS and (large[0] == -1).all()
    one = (large[:, 0] >= 0) != (large[:, 6] >= 0)
    assert one.sum() == 24 + 24 and (large[:, 12:] == -1).all()


def test_search_finds_the_best_of_every_number_of_changes():
    rng = np.random.default_rng(3)
    tables = [np.concatenate([[0.0], rng.standard_normal(30)]) for _ in range(12)]
    joint = rng.standard_normal((31, 31)) * (np.arange(31) > 0)

    def score(codes):
        return sum(t[c] for t, c in zip(tables, codes.T)) + joint[codes[:, 0], codes[:, 1]]

    codes, found = search.search([31] * 12, score, np.random.default_rng(0))
    assert len(codes) == len(np.unique(codes, axis=0)) > 4000 and not codes[0].any()
    np.testing.assert_allclose(found, score(codes))
    order = search.ranked(codes, found)
    assert (found[order] < found[0]).all() and len(set(order)) == len(order)
    changed = (codes != 0).sum(1)
    single = score(np.concatenate([np.eye(12, dtype=int) * k for k in range(31)]))
    assert changed[order[0]] == 1 and found[order[0]] == pytest.approx(single.min())
    lowest = np.sort([t.min() for t in tables[2:]])
    assert changed[order[2]] <= 4 and found[order[2]] <= lowest[:4].sum() + 1e-9
    first, second = np.meshgrid(tables[0], tables[1], indexing="ij")
    ideal = (first + second + joint).min() + lowest.sum()  # all twelve, and the dear pair avoided
    assert ideal - 1e-9 <= found[order[3]] <= ideal + 1 and found[order[3]] == found.min()


def test_equal_scores_come_with_the_fewest_changes():
    codes = np.array([[0, 0], [1, 1], [0, 1], [1, 0], [2, 2]])
    order = search.ranked(codes, np.array([0.0, -1.0, -1.0, 0.5, 0.0]))
    assert order.tolist() == [2, 1]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    graph = random_graph(folder, 3)
    rows = cost_rows(graph)
    upside_down = graph.target.max() + graph.target.min() - graph.target  # odd layouts are fast
    fitted = cost_tables.fit([rows], [terms(graph, rows)], [upside_down], trees=10, threads=1)
    cost_tables.save_model(fitted, folder / "cost_tables", collection="layout:xla:random")
    return folder / "cost_tables"


def test_a_model_that_cannot_tune_gives_one_line(programs, model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(autotune.timing, "single_thread", lambda: None)
    monkeypatch.setattr(saved_models, "ROOT", tmp_path)  # so that no run is found

    def said(*options):
        assert autotune.main([str(programs), *map(str, options)]) == 1
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1
        return printed.err

    hint = "run ./run_all.sh or name one by --model"
    runs = "outputs/sample or outputs/sample_run"
    assert said() == f"error: no cost_tables of layout:xla:random in {runs}: {hint}\n"
    assert said("--model", tmp_path) == (
        f"error: no cost_tables of layout:xla:random in {tmp_path}: {hint}\n"
    )
    assert "nothing: no such model, expected" in said("--model", tmp_path / "nothing")
    bad = tmp_path / "bad.json"
    bad.with_suffix(".ubj").write_bytes(model.with_suffix(".ubj").read_bytes()[:500])
    about = json.loads(model.with_suffix(".json").read_text())
    for facts, problem in (
        ({"model": "rank_pairwise"}, "no cost tables (it says rank_pairwise)"),
        ({"feature_version": 0}, "made for feature version 0, this is version"),
        ({}, "damaged model"),
    ):
        bad.write_text(json.dumps(about | facts))
        assert problem in said("--model", bad)


def test_the_folder_of_a_run_is_searched_for_cost_tables(model, tmp_path):
    place = tmp_path / "models" / "layout_xla_random"
    place.mkdir(parents=True)
    for end in (".ubj", ".json"):
        shutil.copy(model.with_suffix(end), place)
        (place / f"rank_pairwise{end}").touch()
    found = saved_models.find_model(tmp_path, "layout:xla:random", (autotune.MODEL,))
    assert found == place / "cost_tables"
    assert saved_models.load_tables(found).names == cost_tables.load_model(model).names


def test_a_run_that_finds_nothing_removes_the_source_of_an_earlier_one(tmp_path):
    interval = autotune.Interval(1.25, 1.2, 1.3)
    found = autotune.Tuned("toy.mixed", 9, 0.1, 2, 0, 0, 2, *[interval] * 3, LAYOUTS)
    path = tmp_path / "toy_mixed.py"
    assert autotune.keep(found, tmp_path) == f"source: {path}" and path.exists()
    assert autotune.report(found, f"source: {path}").endswith(f"other layouts; source: {path}")
    other = source.write_source(tmp_path, "toy.other", LAYOUTS, interval)
    slower = replace(found, speedup=autotune.Interval(1.1, 0.9, 1.3))
    said = autotune.keep(slower, tmp_path)
    assert said == f"removed {path} of an earlier run" and not path.exists()
    assert autotune.report(slower, said).endswith(f"the compiler's own choice; {said}")
    assert autotune.keep(replace(slower, speedup=None), tmp_path) == "" and other.exists()
    assert autotune.report(slower).endswith("  nothing beats the compiler's own choice")


def test_candidates_come_without_a_clock(mixed, model):
    tables = cost_tables.load_model(model)
    first, again = (
        autotune.candidates(jaxprs.trace(*mixed), tables, np.random.default_rng(0))
        for _ in range(2)
    )
    assert first[1] == again[1] > 2000
    layouts = list(first[0])
    assert layouts == list(again[0]) and len(layouts) > 10
    flattened = ("reshape", (288,))  # by argmax
    operations = dict(enumerate([*OPERATIONS, flattened]))
    for chosen in layouts[:3]:
        assert chosen and all(operations[k] == named[:2] for k, named in chosen.items())


def run(programs: Path, *more: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "utils.xla.autotune", str(programs), *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_command_measures_and_says_what_it_found(programs, model, tmp_path):
    options = ["--budget", "3", "--top", "2", "--jobs", "1", "--out", str(tmp_path)]
    done = run(programs, "--model", str(model), *options)
    assert done.returncode == 1  # toy.none can't be tuned, the other is
    assert done.stderr.strip() == (
        "error: toy.none: nothing to configure (no dot, convolution or reshape)"
    )
    first, *lines = done.stdout.strip().splitlines()
    assert first == f"model for layout:xla:random: {model}, trained on layout:xla:random"
    assert lines[0].startswith("toy.mixed: ") and "configurations looked at" in lines[0]
    if len(lines) == 5:
        written = list(tmp_path.glob("*.py"))
        better = "source: " in lines[4]
        assert better == bool(written)
        assert better or lines[4] == "  nothing beats the compiler's own choice"
    else:  # the clock let nothing be compiled
        assert lines[1].startswith("  nothing to measure")


def test_check_measures_a_written_file_again(programs, tmp_path):
    path = source.write_source(tmp_path, "toy.mixed", LAYOUTS, (1.25, 1.2, 1.3))
    other = source.write_source(tmp_path, "toy.other", LAYOUTS, (1.25, 1.2, 1.3))
    done = run(programs, "--budget", "1", "--check", str(path), str(other))
    assert done.returncode == 1
    assert done.stderr == f"error: {other}: its program 'toy.other' is not in the programs file\n"
    lines = done.stdout.splitlines()
    assert lines[0] == "toy.mixed: the same values"
    assert "times as fast, 95% interval [" in lines[3]
    assert lines[4] == "  when it was written: 1.250 [1.200, 1.300]"


def test_the_programs_may_come_after_the_files_to_check(programs, capsys):
    for words in (["mine.py", "--check", "a", "b"], ["--check", "a", "b", "mine.py"],
                  ["--budget", "3", "mine.py", "--check", "a", "b"],
                  ["--check", "a", "b", "--top", "2", "mine.py"]):  # fmt: skip
        chosen = autotune.parse(words)
        assert (chosen.programs, chosen.check) == (Path("mine.py"), [Path("a"), Path("b")])
    for words in ([], ["--check", "a"], ["mine.py", "other.py"], ["mine.py", "--jobs", "0"],
                  ["mine.py", "--budget", "nan"], ["mine.py", "--out", str(programs)]):
        with pytest.raises(SystemExit, match="2"):
            autotune.parse(words)
    assert f"--out: {programs} is a file, not a folder" in capsys.readouterr().err
