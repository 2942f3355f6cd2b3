import io
import json
import os
import re
import subprocess
import sys
import types

import h5py
import numpy as np
import pytest

import keras_elmo
from keras_elmo.cli import main, make_parser
from keras_elmo.formats.hdf5 import read_arrays
from keras_elmo.pretraining.language_model_files import rounded
from tests.conftest import make_config, numpy, only_tensorflow


def test_info(tiny_preset, capsys):
    assert main(["info", str(tiny_preset), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    layer = keras_elmo.ElmoLayer.from_preset(tiny_preset)
    assert facts["parameters"] == sum(numpy(w.value).size for w in layer.weights)
    assert (facts["layers"], facts["width"], facts["max_characters"]) == (3, 12, 13)
    assert facts["fingerprint"] == layer.fingerprint()
    assert facts["options"] == json.loads(json.dumps(make_config().to_options()))
    assert main(["info", str(tiny_preset)]) == 0
    assert f"parameters      {facts['parameters']}" in capsys.readouterr().out


def test_a_reader_that_ends_early(capsys, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["presets"]) == 141
        assert capsys.readouterr().err == ""


def test_errors_are_one_line(capsys):
    assert main(["info", "no_such_preset"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("keras-elmo info: from_preset expects") and error.count("\n") == 1


@pytest.mark.parametrize("command", [["prepare", "raw.txt", "corpus"], ["export", "run", "preset"]])
def test_a_second_heldout_adds_to_the_first(command):
    given = make_parser().parse_args([*command, "--heldout", "a", "b", "--heldout", "c"])
    assert given.heldout == ["a", "b", "c"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--version"], f"keras-elmo {keras_elmo.__version__}"),
        (["--help"], "embed Write the layer representations of sentences to a file."),
        (["pretrain", "--help"], "--init-from NAME Preset to start from"),
        (["pretrain", "--help"], '--decay-shape NAME "linear", or "1-sqrt": one minus the'),
        (["pretrain", "--help"], "Highest learning rate. Default: 0.002."),
        (["perplexity", "--help"], "predicted as <UNK>"),
        (["export-onnx", "--help"], "--int8 Store the kernels of LSTMs"),
        (["prepare", "--help"], "--heldout-share FLOAT Share of the lines of every input to hold"),
        (["embed", "--help"], ".tsv (a line is a row, a quote is text)"),
        (["embed", "--help"], "--float16 Store float16, half the size."),
    ],
)
def test_help(arguments, words, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    assert words in " ".join(capsys.readouterr().out.split())


def test_arguments_are_read_before_keras_is_imported():
    code = (
        "import sys; sys.argv[:] = ['/bin/keras-elmo', 'pretrain', '--no-such-flag']\n"
        "from keras_elmo.cli import main\n"
        "try: main()\n"
        "finally: assert not {'keras', 'tensorflow'} & {*sys.modules}"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 2 and "error: the following arguments are required" in run.stderr


def test_a_backend_that_is_missing():
    code = (
        "import sys; sys.argv[:] = ['/bin/keras-elmo']; sys.modules['jax'] = None\n"
        "from keras_elmo.cli import main; sys.exit(main(['pretrain', 'a', 'b']))"
    )
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.count("\n") == 1
    assert "Received: no module jax. Install it in the folder of keras-elmo: pip" in run.stderr


@only_tensorflow
def test_from_raw_text_to_a_preset(tmp_path, capsys, eager):
    lines = [" ".join("abcdefgh"[(i + 3 * k) % 8] for k in range(3 + i % 4)) for i in range(1200)]
    (tmp_path / "raw.txt").write_text("\n".join(lines))
    corpus, run, preset = (str(tmp_path / name) for name in ("corpus", "run", "preset"))

    def call(*arguments):
        assert main([str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out

    def error_of(*arguments):
        assert main([str(argument) for argument in arguments]) == 1
        return capsys.readouterr().err

    def settings():
        content = json.loads((tmp_path / "run" / "run.json").read_text())
        names = ("steps", "epochs", "warmup", "negatives")
        return content["options"]["lstm"]["dim"], [content["recipe"][name] for name in names]

    plain = ("--sentences", "lines", "--tokenizer", "penn", "--heldout-share", "0.5")
    counts = json.loads(call("prepare", tmp_path / "raw.txt", corpus, *plain, "--quiet", "--json"))
    assert counts["tokens"] + counts["heldout_tokens"] == sum(len(x.split()) for x in lines)
    assert counts["oov_share"] == 0
    sizes = ("--lstm-dim", 10, "--projection-dim", 6, "--filters", "1:4,3:8", "--n-highway", 1)
    recipe = ("--steps", 12, "--warmup", 2, "--negatives", 5, "--batch-tokens", 256)
    recipe += ("--learning-rate", 0.02, "--save-every", 6)
    ends = json.loads(call("pretrain", corpus, run, *sizes, *recipe, "--quiet", "--json"))
    assert ends["step"] == 12 and ends["tokens"] > 0 and 1 < ends["perplexity"] < 12
    assert settings() == (10, [12, None, 2, 5])
    assert "expects a folder without a run" in error_of("pretrain", corpus, run, *sizes, "--quiet")
    # A resumed run keeps what is not given. Steps and epochs replace each other.
    again = ("pretrain", corpus, run, "--resume", "--quiet", "--json")
    assert json.loads(call(*again, "--steps", 14))["step"] == 14
    assert settings() == (10, [14, None, 2, 5])
    call(*again, "--epochs", "0.1")
    assert settings() == (10, [None, 0.1, 2, 5])
    assert "another value of filters, lstm_dim, p" in error_of(*again, "--size", "mini")

    heldout = tmp_path / "corpus" / "heldout-raw.txt"
    (tmp_path / "data.md").write_text("Letters.")
    (tmp_path / "latin.md").write_bytes(b"\xe9")
    export = ("export", run, preset, "--license", "mit")
    assert "Expected UTF-8 text" in error_of(*export, "--data", tmp_path / "latin.md")
    assert not (tmp_path / "preset").exists()
    flags = ("--heldout", heldout, "--data", tmp_path / "data.md", "--bits", 14)
    call(*export, *flags)
    expected = f"export expects a directory that is new or empty. Received: {preset}, which cont"
    assert expected in error_of(*export)
    call(*export, *flags, "--force")
    card = (tmp_path / "preset" / "README.md").read_text("utf-8")
    for part in ("license: mit", "# preset", "Letters.", "| heldout-raw.txt |"):
        assert part in card
    assert keras_elmo.Embedder(preset).tokenize("aa bb.") == ["aa", "bb", "."]
    for array in read_arrays(tmp_path / "preset" / "weights.hdf5").values():
        np.testing.assert_array_equal(array, rounded(array, 14))
    scores = json.loads(call("perplexity", preset, heldout, "--json"))
    assert set(scores) >= {"forward", "backward", "perplexity", "tokens", "oov_share"}
    assert scores["perplexity"] == pytest.approx(ends["perplexity"], rel=0.2)
    assert scores["tokens"] == counts["heldout_tokens"] and scores["oov_share"] == 0
    of_run = json.loads(call("perplexity", run, heldout, "--json"))
    assert of_run["perplexity"] == pytest.approx(scores["perplexity"], rel=0.01)
    assert json.loads(call("info", preset, "--json"))["width"] == 12


def test_embed_says_what_it_made(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("text,label\nThe bank lent money.,1\n")
    table, output = str(tmp_path / "t.csv"), str(tmp_path / "out.hdf5")
    command = ["embed", "elmo_mini_en", table, output, "--raw", "--column", "text", "--quiet"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    [line] = [x for x in printed.splitlines() if x.startswith("read with")]
    assert eval(line.removeprefix("read with").strip(), {"h5py": h5py}).shape == (3, 5, 256)
    assert re.search(r"tokens_per_s +[\d.]{1,8}$", printed, re.MULTILINE)
    assert main(command) == 1 and "exists. Pass overwrite=True (--force)" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0
    capsys.readouterr()
    assert main(["embed", "elmo_mini_en", str(tmp_path / "none.txt"), output + "2"]) == 1
    assert capsys.readouterr().err.count("\n") == 1  # no progress bar
    assert main(["embed", "elmo_mini_en", table, output + "2"]) == 1
    assert "column=None, and the columns text, label. Choose one" in capsys.readouterr().err
    (tmp_path / "empty.txt").touch()
    empty = ["embed", "elmo_mini_en", str(tmp_path / "empty.txt"), str(tmp_path / "empty.hdf5")]
    assert main([*empty, "--quiet"]) == 0 and "sentences       0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["pretrain", "corpus", "run", "--filters", "1:32,"], "invalid filters value: '1:32,'"),
        (["prepare", "raw.txt", "corpus", "--weight", "news"], "invalid weight value: 'news'"),
        (["pretrain", "corpus", "run", "--size", "tiny"], "invalid choice: 'tiny'"),
    ],
)
def test_wrong_values_of_flags(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


def test_substitutes(capsys):
    command = ["substitutes", "elmo_mini_en", "The president signed the [bill] on Monday."]
    assert main([*command, "--json", "--top", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: len(pairs) for name, pairs in found.items()} == dict.fromkeys(found, 3)
    assert list(found) == ["forward", "backward", "joint"]
    assert main([*command, "--top", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[0] == found["forward"][0][0]
    assert main(["substitutes", "elmo_mini_en", "No brackets."]) == 1
    assert "one word in brackets, as in 'Out of [order].'" in capsys.readouterr().err


def test_stdout_is_utf8_in_every_locale(tmp_path, monkeypatch):
    (tmp_path / "in").write_text("배 ô\n", "utf-8")
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="cp1252"))
    assert main(["tokenize", str(tmp_path / "in"), "-", "--tokenizer", "whitespace"]) == 0
    assert printed.getvalue() == "배 ô\n".encode()


@pytest.mark.parametrize("path", ["elmo_mini_en", "run"])
def test_substitutes_reads_the_context_as_a_part_of_the_sentence(path, tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tokenizer.json").write_text('{"name": "penn"}')
    monkeypatch.chdir(tmp_path)
    read = []
    scorer = types.SimpleNamespace(substitutes=lambda *given: read.append(given) or {})
    monkeypatch.setattr("keras_elmo.cli._scorer", lambda *given: scorer)
    for sentence in ("Hi. I met Mr. [Smith] today.", '"[No]."', "[Stop]"):
        assert main(["substitutes", path, sentence, "--json"]) == 0
    assert read == [
        (["Hi", ".", "I", "met", "Mr.", "Smith", "today", "."], 5, 10),
        (['"', "No", ".", '"'], 1, 10),
        (["Stop"], 0, 10),
    ]


@pytest.mark.filterwarnings("always::UserWarning")
def test_raw_text_without_raw(tmp_path, capsys):
    (tmp_path / "raw.txt").write_text("She works at Google.\nHe didn't pay.\nThe end.\n")
    arguments = [str(tmp_path / "raw.txt"), str(tmp_path / "o.hdf5"), "--quiet"]
    assert main(["embed", "elmo_mini_en", *arguments]) == 0
    assert re.match(
        r"keras-elmo embed: warning: .* a last token with the full stop. .*--raw.*\n$",
        capsys.readouterr().err,
    )
    assert main(["embed", "elmo_mini_en", *arguments, "--raw", "--force"]) == 0
    assert capsys.readouterr().err == ""
