import dataclasses
import filecmp
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import tracemalloc

import h5py
import numpy as np
import pytest

from keras_elmo import ElmoLayer, Embedder
from keras_elmo.cli import main
from keras_elmo.embed import embed_file
from keras_elmo.utils.files import locked
from tests.embed.conftest import MANY, STORED, read


@pytest.mark.parametrize("layers", ["all", "top", [0.2, 0.5, 0.3]], ids=str)
@pytest.mark.parametrize("float16, compression", [(False, None), (True, "gzip")])
def test_embed_file(embedder, text, tmp_path, layers, float16, compression):
    output = tmp_path / "out.hdf5"
    counts = embedder.embed_file(
        text, output, layers, float16=float16, compression=compression, progress=False
    )
    assert counts["tokens"] == sum(map(len, STORED)) and counts["sentences"] == len(MANY)
    found = read(output)
    assert [line.decode() for line in found.pop("sentences")] == [" ".join(s) for s in STORED]
    assert len(found) == len(STORED)
    for i, array in enumerate(embedder.embed(STORED, layers)):
        assert found[str(i)].dtype == ("float16" if float16 else "float32")
        np.testing.assert_allclose(found[str(i)], array, atol=5e-3 if float16 else 1e-5)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".out.hdf5.lock",
        "out.hdf5",
        "sentences.txt",
    ]


def interrupt(embedder, text, output, monkeypatch, **settings):
    """Interrupt a run after two parts; return the folder of the parts."""
    write, count = embed_file._LayerFile.write, []

    def stop(self, *arguments):
        if len(count) == 2:
            raise RuntimeError("power cut")
        count.append(1)
        write(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(embed_file._LayerFile, "write", stop)
        with pytest.raises(RuntimeError, match="power cut"):
            embedder.embed_file(text, output, progress=False, **settings)
    return output.with_name(output.name + ".parts")


def test_resume_after_a_failure(embedder, text, tmp_path, monkeypatch):
    whole, output = tmp_path / "whole.hdf5", tmp_path / "out.hdf5"
    embedder.embed_file(text, whole, progress=False)
    parts = interrupt(embedder, text, output, monkeypatch)
    assert not output.exists() and len(list(parts.iterdir())) == 2
    with pytest.raises(ValueError, match="to continue an unfinished run. Received: .*out.hdf5.par"):
        embedder.embed_file(text, output, progress=False)
    message = "has the settings .*all.* in place of .*top.*. Pass overwrite=True"
    with pytest.raises(ValueError, match=message):
        embedder.embed_file(text, output, "top", resume=True, progress=False)
    for other_input in (io.StringIO("x\n"), STORED[:2], STORED[:3]):  # and the start of the input
        with pytest.raises(ValueError, match="earlier run. Received: .*which has other sentences"):
            embedder.embed_file(other_input, output, resume=True, progress=False)
    second = parts / "00000001.hdf5"
    second.write_bytes(second.read_bytes()[:5000])
    with pytest.raises(OSError, match="00000001.hdf5 is damaged .*Remove it and resume"):
        embedder.embed_file(text, output, resume=True, progress=False)
    second.unlink()
    (parts / "unfinished.hdf5").write_text("of a kill")
    counts = embedder.embed_file(text, output, resume=True, progress=False)
    assert counts["resumed_tokens"] == sum(map(len, STORED[:3]))
    assert filecmp.cmp(output, whole, shallow=False) and not parts.exists()


def test_overwrite_begins_anew(embedder, text, tmp_path, monkeypatch):
    output = tmp_path / "out.hdf5"
    embedder.embed_file(io.StringIO("other\n"), output, progress=False)
    with pytest.raises(ValueError, match="out.hdf5, which exists. .*--force"):
        embedder.embed_file(text, output, progress=False)
    with pytest.raises(ValueError, match="which is also an input"):
        embedder.embed_file(text, text, progress=False, overwrite=True)
    parts = interrupt(embedder, text, output, monkeypatch, overwrite=True)
    assert len(read(output)) == 2  # the old file is there until the new one is complete
    with pytest.raises(ValueError, match="overwrite .--force. or resume .--resume.. Rec.*both"):
        embedder.embed_file(text, output, resume=True, overwrite=True)
    (parts / "mine.txt").write_text("mine")
    counts = embedder.embed_file(text, output, "top", overwrite=True, progress=False)
    assert counts["resumed_tokens"] == 0 and len(read(output)) == len(MANY) + 1
    assert os.listdir(parts) == ["mine.txt"]


KILLED = """
import os, signal, sys
import keras
from keras_elmo.cli import main
from keras_elmo.embed import embed_file
from tests.forks import run_in_fork

embed_file.SENTENCES_IN_A_PART = 1000
parts, *command = sys.argv[1:]
for number, kills in enumerate((True, True, False)):
    part = f"{parts}/{number:08}.hdf5"
    is_due = (lambda: os.path.exists(part)) if kills else None
    status = run_in_fork(lambda: main(command), is_due, linger=0.1)
    if status != (-signal.SIGKILL if kills else 0):
        sys.exit(f"status {status}")
"""


@pytest.mark.extended
def test_killed_and_resumed(tiny_preset, embedder, tmp_path, monkeypatch):
    """Kill the process once in each part: the file equals that of an uninterrupted run.

    The lock of a killed process does not block the next one.
    """
    text, output = tmp_path / "in.txt", tmp_path / "out.hdf5"
    generator = random.Random(1)
    words = ["".join(generator.choices("abcdefgh", k=generator.randint(1, 9))) for _ in range(900)]
    with open(text, "w") as file:
        for _ in range(3000):
            file.write(" ".join(generator.choices(words, k=generator.randint(0, 9))) + "\n")
    parts = output.with_name("out.hdf5.parts")
    command = [sys.executable, "-c", KILLED, parts, "embed", tiny_preset, text, output, "--resume"]
    command += ["--engine", "keras"]
    with open(tmp_path / "errors", "w") as errors:  # not a pipe, which could fill up
        process = subprocess.Popen(command, cwd=pathlib.Path(__file__).parents[2], stderr=errors)
    monkeypatch.setattr(embed_file, "SENTENCES_IN_A_PART", 1000)
    embedder.embed_file(text, tmp_path / "whole.hdf5", progress=False)
    assert process.wait() == 0, (tmp_path / "errors").read_text()
    assert filecmp.cmp(output, tmp_path / "whole.hdf5", shallow=False)
    expected = [".out.hdf5.lock", ".whole.hdf5.lock", "errors", "in.txt", "out.hdf5", "whole.hdf5"]
    assert sorted(path.name for path in tmp_path.iterdir()) == expected


def test_a_finished_file_is_recognised(embedder, layers, text, monkeypatch):
    before = layers.read_bytes()
    other = Embedder(embedder.elmo, batch_tokens=512)  # only the rounding differs
    other._engine.represent = None
    counts = other.embed_file(text, layers, resume=True, progress=False)
    assert counts["tokens"] == 0 and counts["resumed_tokens"] == sum(map(len, STORED))
    lines = text.read_bytes()
    fewer = lines[: lines.rindex(b"\n", 0, -1) + 1]
    for changed in (b"x" + lines, lines + b"more\n", fewer):
        with pytest.raises(ValueError, match="layers.hdf5, which has other sentences"):
            embedder.embed_file(io.BytesIO(changed), layers, resume=True, progress=False)
    with pytest.raises(ValueError, match="layers.hdf5, which has the settings .* of .*top"):
        embedder.embed_file(text, layers, "top", resume=True, progress=False)
    # The same weights under other options are another biLM.
    options = {"activation": "tanh", "cell_clip": 0.01}
    layer = ElmoLayer(dataclasses.replace(embedder.config, **options))
    layer.build((None, None, embedder.config.max_characters_per_token))
    layer.set_weights(embedder.elmo.get_weights())
    with pytest.raises(ValueError, match="layers.hdf5, which has the settings .*options"):
        Embedder(layer).embed_file(text, layers, resume=True, progress=False)
    assert layers.read_bytes() == before
    layers.write_bytes(before[: len(before) // 2])
    with pytest.raises(OSError, match="layers.hdf5 is damaged or not an hdf5 file .* Remove it"):
        embedder.embed_file(text, layers, resume=True, progress=False)


def test_a_part_is_bounded_by_tokens(embedder, tmp_path, monkeypatch):
    monkeypatch.setattr(embed_file, "TOKENS_IN_A_PART", 50)
    lengths = [20, 20, 20, 0, 70, 5, 46]
    text = "\n".join(" ".join(["a"] * n) for n in lengths)
    written, write = [], embed_file._LayerFile.write

    def spy(self, start, lines, arrays):
        written.append([len(line.split()) for line in lines])
        write(self, start, lines, arrays)

    monkeypatch.setattr(embed_file._LayerFile, "write", spy)
    embedder.embed_file(io.StringIO(text), tmp_path / "out.hdf5", progress=False)
    assert written == [[20, 20], [20, 0], [70], [5], [46]]
    found = read(tmp_path / "out.hdf5")
    assert [found[str(i)].shape[1] for i in range(7)] == lengths


def test_memory_is_bounded_by_a_batch(embedder, tmp_path):
    """The arrays of the part would take 29 MB, and those of a batch take 10 MB."""
    ours = Embedder(embedder.elmo)
    ours._engine.contextualize = lambda tokens, mask, choice: np.ones(
        (len(mask), mask.shape[1] - 2, 3, 400), "float32"
    )
    text = io.StringIO(f"{' '.join(['word'] * 20)}\n" * 300)
    tracemalloc.start()
    ours.embed_file(text, tmp_path / "out.hdf5", progress=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


def test_every_part_computes_its_tokens_anew(embedder, text, tmp_path):
    """The last bit of a token can depend on its batch, but not on whether a run was resumed."""
    ours = Embedder(embedder.elmo)
    ours.embed(MANY)
    represent, rows = ours._engine.represent, []
    ours._engine.represent = lambda ids: rows.append(len(ids)) or represent(ids)
    ours.embed_file(text, tmp_path / "out.hdf5", progress=False)
    parts = [STORED[i : i + 3] for i in range(0, len(STORED), 3)]
    distinct = [{token for sentence in part for token in sentence} for part in parts]
    assert sum(rows) == sum(len(tokens) + 2 for tokens in distinct)


def test_lines_of_raw_text(tmp_path):
    embedder = Embedder("elmo_mini_en")
    lines = "He didn't pay.\n\n“Fine,” she said.\n\f\n\u3000\n"
    embedder.embed_file(io.StringIO(lines), tmp_path / "o", "top", raw=True, progress=False)
    with h5py.File(tmp_path / "o") as file:
        stored = file["sentences"].asstr()[:].tolist()
    assert stored == ["He did n't pay .", "", '" Fine , " she said .', "", ""]


def test_two_runs_on_one_output(embedder, text, tmp_path):
    with locked(tmp_path / ".out.hdf5.lock", "writes"):
        with pytest.raises(OSError, match="Another process writes .*out.hdf5 already"):
            embedder.embed_file(text, tmp_path / "out.hdf5", progress=False)
    embedder.embed_file(text, tmp_path / "out.hdf5", progress=False)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_a_link_is_kept(embedder, text, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out.hdf5").symlink_to(tmp_path / "disk" / "real.hdf5")
    for overwrite in (False, True):
        embedder.embed_file(text, tmp_path / "out.hdf5", progress=False, overwrite=overwrite)
        assert (tmp_path / "out.hdf5").is_symlink()
        assert sorted(path.name for path in tmp_path.rglob("*.hdf5")) == ["out.hdf5", "real.hdf5"]


def test_bad_calls(tiny_preset, tmp_path):
    embedder = Embedder(tiny_preset)
    with pytest.raises(ValueError, match="compression to be None, 'gzip' or 'lzf'"):
        embedder.embed_file("in", "out", compression="zip")
    with pytest.raises(FileNotFoundError, match="no_such_input"):
        embedder.embed_file("no_such_input", tmp_path / "out.hdf5", progress=False)
    for output, message in ((tmp_path, "is not a file"), (embedder.preset_files[0], "an input")):
        with pytest.raises(ValueError, match=f"Expected the path of a new file.* {message}"):
            embedder.embed_file(io.StringIO("a"), output, progress=False, overwrite=True)
    for wrong in (["a b"], ["a\n"], [""], [b"a"], ["a\0b"], ["a\ud800"], "a b"):
        message = "Expected lists of tokens.* Received: .* in sentence 1. Split a text first"
        with pytest.raises(ValueError, match=message):
            embedder.embed_file([["a"], wrong], tmp_path / "out.hdf5", progress=False)
    assert not any(tmp_path.iterdir())


def test_command_line(tiny_preset, embedder, text, tmp_path, capsys, monkeypatch):
    output = tmp_path / "out.hdf5"
    arguments = [str(tiny_preset), str(text), str(output)]
    assert main(["embed", *arguments, "--quiet", "--json", "--layers", "0.2,0.5,0.3"]) == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == len(MANY)
    expected = embedder.embed(STORED[:1], [0.2, 0.5, 0.3])[0]
    np.testing.assert_allclose(read(output)["0"], expected, atol=1e-5)
    with open(text, encoding="latin-1") as file:  # The locale must not matter.
        monkeypatch.setattr(sys, "stdin", file)
        assert main(["embed", arguments[0], "-", arguments[2], "--layers", "-2", "--force"]) == 0
    out, err = capsys.readouterr()
    assert f"sentences       {len(MANY)}" in out and "tokens/s" in err
    assert read(output)["0"].shape == (5, 12)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(text.read_bytes(),), daemon=True)
    writer.start()
    piped = embedder.embed_file(pipe, tmp_path / "piped.hdf5", "average", progress=False)
    assert piped["sentences"] == len(MANY)
    writer.join()
    assert main(["embed", *arguments, "--force", "--layers", "bottom"]) == 1
    assert "Received: layers='bottom'" in capsys.readouterr().err
