"""Every example runs to its end, on its own data and on files in the standard formats."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.conftest import make_arrays, make_config, write_preset

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def run(script, *arguments):
    finished = subprocess.run(
        [sys.executable, EXAMPLES / script, *map(str, arguments)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


@pytest.fixture
def preset(tmp_path):
    config = make_config(max_characters_per_token=50)
    write_preset(tmp_path / "preset", config, make_arrays(config))
    return tmp_path / "preset"


def test_quickstart(tmp_path, preset):
    pytest.importorskip("nltk")
    out = run("quickstart.py", "--epochs", 2)
    assert "layer weights" in out and "classes of two new sentences" in out
    trees = tmp_path / "trees.txt"
    trees.write_text("(3 (2 Good) (2 fun))\n\n(1 (2 Not) (1 (2 that) (2 good)))\n(0 (2 Bad))\n")
    out = run("quickstart.py", "--data", trees, "--limit", 2, "--preset", preset, "--epochs", 1)
    assert "on 2 sentences" in out


def test_input_and_output(tmp_path, preset):
    out = run("input_and_output.py")
    before, after = (float(x) for x in out.splitlines()[0].removeprefix("loss ").split(" -> "))
    assert after < before / 2
    assert "at_input" in out and "at_output" in out and "Ada/NAME" in out
    columns = tmp_path / "train.conll"
    columns.write_text("EU NNP B-ORG\nrejects VBZ O\n \n\nPeter NNP B-PER\n")
    run("input_and_output.py", "--data", columns, "--preset", preset, "--epochs", 1)


def test_random_bilm(tmp_path):
    run("random_bilm.py", tmp_path / "bilm")
    assert sorted(p.name for p in (tmp_path / "bilm").iterdir()) == ["options.json", "weights.hdf5"]
