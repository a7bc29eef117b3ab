"""Commands end alike: a mistake is one line and a status, and nothing stays half written."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from half_written import half_written

from utils import benchmark, benchmark_read, command, miniature, repeatability, synthetic

ROOT = Path(__file__).resolve().parent.parent
WITHOUT = {"benchmark_worker", "options"}  # they belong to others
COMMANDS = [
    path
    for path in sorted((ROOT / "utils").rglob("*.py"))
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", COMMANDS, ids=[path.stem for path in COMMANDS])
def test_a_command_ends_cleanly(path):
    last = path.read_text(encoding="utf-8").split('if __name__ == "__main__":')[1]
    assert ("run_command(main" in last) != (path.stem in WITHOUT)


def test_a_terminated_command_leaves_nothing_half_written(tmp_path):
    command = [sys.executable, "-m", "utils.benchmark_read", "--keep", tmp_path / "large.npz"]
    command += ["--nodes", "20", "--graph-nodes", "100", "--configs", "5000000"]
    process = subprocess.Popen(command, cwd=ROOT, text=True, stderr=subprocess.PIPE)
    assert half_written(tmp_path, process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (130, "interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line_and_other_errors_are_not_hidden(monkeypatch, capsys):
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)

    def end(problem):
        def main():
            raise problem

        with pytest.raises(SystemExit) as ended:
            command.run_command(main, "go on")
        return ended.value.code, capsys.readouterr().err

    assert end(OSError(28, "No space left", "a/b")) == (1, "error: a/b: No space left\n")
    assert end(KeyboardInterrupt()) == (130, "interrupted; go on\n")
    with pytest.raises(OSError, match="nothing of a file"):
        end(OSError("nothing of a file"))
    with pytest.raises(ValueError, match="a mistake"):
        end(ValueError("a mistake of ours"))


def test_a_reader_that_has_seen_enough_gets_no_traceback():
    code = "from utils.command import run_command; run_command(lambda: print('line\\n' * 10**6))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait() == 141


def test_data_that_cannot_be_used_is_one_line(tmp_path, capsys):
    file, tiles = tmp_path / "notes.md", tmp_path / "tiles"
    file.write_text("no graph")
    synthetic.write_data(tiles, graphs={"train": 1}, configs=5, collections=("tile:xla",))
    for main, words, what in (
        (repeatability.main, [tmp_path / "none"], f"{tmp_path}/none: no such folder"),
        (repeatability.main, [file], f"{file}: a file, not a folder"),
        (repeatability.main, [tiles], f"{tiles}: no layout graph with runtimes"),
        (benchmark.main, ["--out", tmp_path], f"{tmp_path}: no saved model of"),
        (benchmark_read.main, ["--keep", file], f"{file}: damaged or not an npz file"),
    ):
        assert main([str(word) for word in words]) == 1
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1
        assert printed.err.startswith(f"error: {what}")


@pytest.mark.parametrize(
    ("main", "words", "what"),
    [
        (repeatability.main, ["a", "b"], "unrecognized arguments: b"),
        (repeatability.main, ["--fast"], "unrecognized arguments: --fast"),
        (benchmark.main, ["--sizes", "5"], "--sizes: '5' is not NODESxCONFIGURATIONS"),
        (benchmark.main, ["--threads", "0"], "'0' is not a whole number of at least 1"),
        (benchmark.main, ["--collection", "nlp"], "invalid choice: 'nlp'"),
        (benchmark_read.main, ["--repeats", "0"], "'0' is not a whole number of at least 1"),
        (miniature.main, [__file__], f"{__file__} is a file, not a folder"),
    ],
)
def test_wrong_words_are_refused_before_anything_starts(capsys, main, words, what):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert what in capsys.readouterr().err
