"""The collector: tracing, layouts, timing and the files that it writes."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from utils.schema import GRAPH_KEYS, LAYOUT_KEYS, OPCODE_ID, TILE_KEYS
from utils.xla import collect, jaxprs, layouts, record, timing
from utils.xla.jaxprs import Operation, ProgramError

ROOT = Path(__file__).resolve().parents[1]


@jax.custom_jvp
def doubled(x):
    return 2 * x


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2 * tangents[0]))


def block(x, w):
    """Two dots, one of them inside jit, a reshape and a transpose."""
    h = jax.jit(lambda a, b: jnp.tanh(a @ b))(x, w)
    h = doubled(h).reshape(6, 2, -1).transpose(1, 0, 2)
    return jax.checkpoint(lambda a: jnp.einsum("hqd,hkd->hqk", a, a))(h)


ARGS = (
    np.random.default_rng(0).standard_normal((6, 10), dtype=np.float32),
    np.random.default_rng(1).standard_normal((10, 8), dtype=np.float32),
)


def test_trace_inlines_calls_and_lists_configurable_operations():
    program = jaxprs.trace("toy.block", block, ARGS)
    assert program.operations == (
        Operation("dot", (6, 8), (2, 2, 2)),
        Operation("reshape", (6, 2, 4), (3, 2, 0)),
        Operation("dot", (2, 6, 6), (3, 3, 3)),
    )
    assert program.loops == 0


def test_training_step_and_loop():
    def loss(w, x):
        h, _ = lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, length=3)
        return (h.reshape(-1) ** 2).sum() + (x @ w).sum()

    w = np.eye(4, dtype=np.float32)
    program = jaxprs.trace("toy.grad", jax.grad(loss), (w, np.ones((2, 4), np.float32)))
    assert program.loops == 2  # forward and backward scan; their dots are left alone
    opcodes = sorted(o.opcode for o in program.operations)
    assert opcodes == ["dot", "dot", "reshape", "reshape"]  # x @ w and reshape, their gradients


def test_marks_map_equations_to_instructions():
    program = jaxprs.trace("toy.block", block, ARGS)
    module = jaxprs.hlo_module(jaxprs.unconstrained(program), program.args)
    equations, nodes = jaxprs.configurable_nodes(program, module)
    assert equations.tolist() == [0, 1, 2]
    graph = collect.module_graph(module)
    dot, reshape = OPCODE_ID["dot"], OPCODE_ID["reshape"]
    assert graph["node_opcode"][nodes].tolist() == [dot, reshape, dot]


def test_layouts_keep_values_and_reach_the_compiler():
    program = jaxprs.trace("toy.block", block, ARGS)
    rng = np.random.default_rng(0)
    want = block(*ARGS)
    pools = [layouts.layout_pool(o, rng) for o in program.operations]
    for row in layouts.random_configs([len(p) for p in pools], 6, rng):
        columns = np.stack([p[c] for p, c in zip(pools, row)])
        (got,) = jax.jit(jaxprs.constrained(program, columns))(*program.args)
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
    transposed = np.full((3, 18), -1)
    transposed[0, :2] = [0, 1]  # minor to major: dimension 0 is the most minor
    text = jax.jit(jaxprs.constrained(program, transposed)).lower(*program.args).as_text()
    assert text.count("@LayoutConstraint") == 1
    assert "result_layouts = [dense<[0, 1]>" in text


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, w: x + 1, "nothing to configure"),
        (lambda x, w: (), "returns no array"),
        (lambda x, w: x @ w.T.T.T, "raised while traced"),
    ],
)
def test_unusable_programs_are_named(function, reason):
    with pytest.raises(ProgramError, match=f"toy.bad: .*{reason}") as error:
        jaxprs.trace("toy.bad", function, ARGS)
    assert "\n" not in str(error.value)


def test_pool_is_distinct_valid_and_starts_unset():
    pool = layouts.layout_pool(Operation("dot", (2, 3, 4), (3, 3, 2)), np.random.default_rng(3))
    assert len(pool) == len(np.unique(pool, axis=0)) == layouts.POOL
    assert (pool[0] == -1).all()
    for row in pool.reshape(-1, 3, 6):
        for columns, rank in zip(row, (3, 3, 2)):
            used = columns[columns >= 0]
            assert used.tolist() == [] or sorted(used) == list(range(rank))
            assert (columns[len(used) :] == -1).all()
    no_choice = layouts.layout_pool(Operation("dot", (3,), (0, 2, 0)), np.random.default_rng(3))
    assert (no_choice[:, :6] == -1).all() and (no_choice[:, 12:] == -1).all()
    assert len(no_choice) == 3  # unset, {0,1} and {1,0}


def test_random_configs_are_distinct_and_stop_when_all_are_drawn():
    rows = layouts.random_configs([3, 2, 4], 100, np.random.default_rng(0))
    assert len(rows) == len(np.unique(rows, axis=0)) == 3 * 2 * 4
    assert rows[0].tolist() == [0, 0, 0]
    assert (rows < [3, 2, 4]).all()


def test_search_starts_at_default_finds_good_rows_and_repeats():
    sizes, best = [8] * 12, np.arange(12) % 8
    asked = []

    def evaluate(rows):
        asked.extend(map(tuple, rows.tolist()))
        return 100 + (rows != best).sum(axis=1)

    rows = layouts.search_configs(sizes, 200, evaluate, np.random.default_rng(0))
    assert rows[0].tolist() == [0] * 12
    distinct = len(np.unique(rows, axis=0))
    assert distinct == len(asked) == len(set(asked)) == 200
    assert 0 < len(rows) - distinct <= 20
    away = (rows != best).sum(axis=1)
    assert away[-50:].mean() < away[:50].mean() - 2  # clusters near what is fast


def test_search_of_a_tiny_space_ends():
    rows = layouts.search_configs([2, 2], 50, lambda r: r.sum(1), np.random.default_rng(0))
    assert len(np.unique(rows, axis=0)) == 4


def test_blocks_and_runtime_by_hand():
    visits = np.tile(np.arange(8) * 10 + 100, 5)[None].repeat(2, axis=0)
    visits[0, 8:16] += 9000  # one disturbed round a block is trimmed
    blocks = timing.block_runtimes(visits)
    assert blocks.tolist() == [[100, 110, 120, 130, 140, 150, 160, 170]] * 2
    assert timing.robust_runtime(blocks).tolist() == [135, 135]


def test_repeatability_of_halves():
    blocks = np.arange(1, 6)[:, None] * np.array([100, 101] * 4)
    assert timing.repeatability(blocks) == pytest.approx(1)
    blocks[:, 1::2] = blocks[::-1, 1::2]
    assert timing.repeatability(blocks) == pytest.approx(-1)


def test_measure_ranks_by_work():
    x = np.ones((60, 60), np.float32)

    def work(times):
        def call():
            for _ in range(times):
                x @ x

        return call

    calls = [work(t) for t in (40, 5, 160)]
    blocks, rounds = timing.measure(calls, np.random.default_rng(0), seconds=1)
    assert blocks.shape == (3, 8) and blocks.dtype == np.int64 and rounds % 8 == 0
    assert timing.robust_runtime(blocks).argsort().tolist() == [1, 0, 2]


PROGRAMS = '''
import numpy as np
import jax.numpy as jnp
from utils.xla.tiles import Tiling

x = np.ones((6, 10), np.float32)
w = np.ones((10, 8), np.float32)
tall = np.ones((200, 40), np.float32)


def programs():
    yield "toy.dots", lambda x, w: jnp.tanh(x @ w) @ w.T, (x, w)
    yield "toy.sum", lambda x, w: x.sum(), (x, w)
    yield "toy.raises", lambda x, w: x @ x, (x, w)
    yield "held.dots", lambda x, w: (x @ w).reshape(4, 12), (x, w)
    yield "toy.nothing", lambda x, w: None, (x, w)
    yield "toy.short", lambda x: x


def kernels():
    yield "sum.small", lambda x: x.sum(1), (tall,), Tiling("mk->m")
    yield "sum.tiny", lambda x: x.sum(1), (x,), Tiling("mk->m")


SPLIT = {"held": "test"}
SOURCE = {"held": "nlp"}
'''
OPTIONS = ["--configs", "8", "--seconds", "0.5", "--min-tau", "-1", "--jobs", "1"]


def run(folder: Path, *more: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "utils.xla.collect", str(folder / "mine.py")]
    command += ["--out", str(folder / "out"), *OPTIONS, *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collect")
    (folder / "mine.py").write_text(PROGRAMS)
    return folder, run(folder)


def files(folder: Path) -> dict[str, int]:
    out = folder / "out"
    paths = (p for p in out.rglob("*") if p.is_file())
    return {str(p.relative_to(out)): p.stat().st_mtime_ns for p in paths}


def test_bad_programs_are_named_and_the_rest_collected(collected):
    folder, done = collected
    assert done.returncode == 1
    assert done.stdout.startswith("5 graphs of ") and "measurements.json" in done.stdout
    lines = done.stderr.strip().splitlines()
    assert [line.split(": ")[:2] for line in lines[:-1]] == [["error", name] for name in (
        "toy.sum", "toy.raises", "toy.nothing", "toy.short", "sum.tiny",
    )]  # fmt: skip
    names = "toy.sum, toy.raises, toy.nothing, toy.short, sum.tiny"
    assert lines[-1] == f"error: 5 not collected: {names}"
    assert set(files(folder)) == {
        ".lock",
        "layout/xla/default/train/toy.dots.npz",
        "layout/xla/random/train/toy.dots.npz",
        "layout/nlp/default/test/held.dots.npz",
        "layout/nlp/random/test/held.dots.npz",
        "tile/xla/train/sum.small.npz",
        "measurements.json",
        "solution.npz",
    }


def test_collected_files_follow_the_schema(collected):
    out = collected[0] / "out"
    for path in out.glob("*/**/*.npz"):
        arrays = np.load(path, allow_pickle=False)
        keys = TILE_KEYS if "tile" in path.parts else LAYOUT_KEYS
        extra = set() if "test" in path.parts else {"config_runtime_rounds"}
        assert set(arrays) == set(keys) | extra
        for key, (dtype, shape) in keys.items():
            assert arrays[key].dtype == dtype and arrays[key].ndim == len(shape), (path, key)
        assert set(GRAPH_KEYS) <= set(arrays)
    train = np.load(out / "layout/xla/random/train/toy.dots.npz")
    blocks = train["config_runtime_rounds"]
    assert (train["config_runtime"] == timing.robust_runtime(blocks)).all()
    assert (train["node_config_feat"][0] == -1).all()  # the compiler's own choice comes first


def test_test_files_are_unlabelled_and_solved(collected):
    out = collected[0] / "out"
    hidden = np.load(out / "layout/nlp/random/test/held.dots.npz")
    assert not hidden["config_runtime"].any()
    solution = np.load(out / "solution.npz")
    assert set(solution) == {
        f"layout:nlp:{s}:held.dots{r}" for s in ("default", "random") for r in ("", "/rounds")
    }
    runtimes = solution["layout:nlp:random:held.dots"]
    assert runtimes.shape == hidden["config_runtime"].shape and (runtimes > 0).all()


def test_resume_measures_only_what_is_missing(collected):
    folder, _ = collected
    before = files(folder)
    lost = "layout/xla/random/train/toy.dots.npz"
    old = np.load(folder / "out" / lost)
    (folder / "out" / lost).unlink()
    assert run(folder, "--resume").returncode == 1  # the bad programs are still bad
    after = files(folder)
    assert set(after) == set(before)
    kept = [f for f in before if f.endswith(".npz") and f != lost]
    assert all(after[f] == before[f] for f in kept)
    again = np.load(folder / "out" / lost)  # same seed, same configurations
    assert (again["node_config_feat"] == old["node_config_feat"]).all()


def test_noisy_graphs_are_booked_not_written(tmp_path):
    options = collect.parse(["mine.py", "--out", str(tmp_path)])
    graph = {"config_runtime": np.array([1, 2]), "info": {"repeatability": 0.2}}
    record.write(tmp_path, "layout:xla:random", "train", "toy.dots", graph, options)
    books = json.loads((tmp_path / "measurements.json").read_text())
    assert list(books["left_out"]) == ["layout:xla:random:toy.dots"] and not books["graphs"]
    settings = books["left_out"]["layout:xla:random:toy.dots"]["settings"]
    assert settings["seconds_a_graph"] == 12 and settings["quick_compile"] is False
    assert not list(tmp_path.rglob("*.npz"))
    assert record.finished(tmp_path, "layout:xla:random", "toy.dots")


def test_what_the_command_line_asks_for_in_vain_is_named(tmp_path, capsys):
    path = tmp_path / "mine.py"
    command = [str(path), "--out", str(tmp_path), "--collections", ""]
    assert collect.main(command) == 1
    assert capsys.readouterr().err == f"error: {path}: no such file\n"
    path.write_text("def programs():\n    yield 'a.b', abs, (1,)")
    assert collect.main([*command, "--only", "c.*"]) == 1
    wanted = ", ".join(collect.COLLECTIONS)
    said = capsys.readouterr().err
    assert said == f"error: {path}: nothing named c.* to measure for {wanted}\n"
    for words in (["--jobs", "0"], ["--seed", "-1"], ["--seconds", "0"], ["--configs", "1"]):
        with pytest.raises(SystemExit, match="2"):
            collect.main([*command, *words])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1", "defines neither programs() nor kernels()"),
        ("def programs():\n    return []", "nothing to measure for layout:xla:default"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("def programs():\n    yield 'bare', abs, ()", "a name is <family>.<variant>"),
        ("def programs():\n    yield 'a.b', abs, (1,)\n    1 / 0", "programs(): ZeroDivisionError"),
        ("def kernels():\n    return [5]", "kernels(): TypeError"),
        ("SPLIT = {'a': 'dev'}\ndef programs():\n    yield 'a.b', abs, (1,)", "'dev', not one of"),
    ],
)
def test_bad_programs_file(tmp_path, capsys, text, reason):
    path = tmp_path / "mine.py"
    path.write_text(text)
    assert collect.main([str(path), "--out", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err.strip()
    assert message.startswith(f"error: {path}") and reason in message and "\n" not in message
