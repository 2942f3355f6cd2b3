import filecmp
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from keras_elmo import Embedder
from keras_elmo.cli import main
from tests.embedding.conftest import MANY, lines, read


@pytest.mark.parametrize("layers", ["all", "top"])
@pytest.mark.parametrize("float16, compression", [(False, None), (True, "gzip")])
def test_embed_file(embedder, text, tmp_path, layers, float16, compression):
    output = tmp_path / "out.hdf5"
    counts = embedder.embed_file(
        text, output, layers, float16=float16, compression=compression, progress=False
    )
    lines = [line.split() for line in text.read_text(encoding="utf-8").split("\n")[:-1]]
    assert counts["tokens"] == sum(map(len, lines)) and counts["sentences"] == len(MANY)
    found = read(output)
    stored = [line.decode().split() for line in found.pop("sentences")]
    assert stored == lines and len(found) == len(lines)
    for i, array in enumerate(embedder.embed(lines, layers)):
        assert found[str(i)].dtype == ("float16" if float16 else "float32")
        np.testing.assert_allclose(found[str(i)], array, atol=5e-3 if float16 else 1e-5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.hdf5", "sentences.txt"]


def test_resume_after_a_failure(embedder, text, tmp_path, monkeypatch):
    whole, output = tmp_path / "whole.hdf5", tmp_path / "out.hdf5"
    embedder.embed_file(text, whole, progress=False)
    contextualize, calls = embedder._engine.contextualize, []

    def fail_at_the_third(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise RuntimeError("power cut")
        return contextualize(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(embedder._engine, "contextualize", fail_at_the_third)
        with pytest.raises(RuntimeError, match="power cut"):
            embedder.embed_file(text, output, progress=False)
    assert not output.exists()
    with pytest.raises(ValueError, match="holds the parts of a run that did not finish. Resume it"):
        embedder.embed_file(text, output, progress=False)
    with pytest.raises(ValueError, match="a run with other settings. Expected: .*'all'.*'top'"):
        embedder.embed_file(text, output, "top", resume=True, progress=False)
    other = Embedder(embedder.elmo, batch_tokens=512)
    with pytest.raises(ValueError, match="other settings. Expected: .*2048.* Received: .*512"):
        other.embed_file(text, output, resume=True, progress=False)
    files = tmp_path / "vocab.txt", tmp_path / "tokens.hdf5"
    embedder.write_token_cache(["The", "fox"], *files)
    other = Embedder(embedder.elmo, token_cache=files)
    with pytest.raises(ValueError, match="a run with other settings"):
        other.embed_file(text, output, resume=True, progress=False)
    original = text.read_bytes()
    text.write_bytes(b"x" + original)
    with pytest.raises(
        ValueError, match="holds other lines or settings than these. Was the input changed"
    ):
        embedder.embed_file(text, output, resume=True, progress=False)
    text.write_bytes(original)
    counts = embedder.embed_file(text, output, resume=True, progress=False)
    assert counts["resumed_tokens"] == sum(len(s) for s in map(str.split, lines(text)[:6]))
    assert filecmp.cmp(output, whole, shallow=False)


def test_killed_at_random_and_resumed(tiny_preset, tmp_path):
    """SIGKILL, five times; the file is byte for byte that of an uninterrupted run."""
    text = tmp_path / "in.txt"
    generator = random.Random(1)
    words = ["".join(generator.choices("abcdefgh", k=generator.randint(1, 9))) for _ in range(900)]
    with open(text, "w") as file:
        for _ in range(9000):
            file.write(" ".join(generator.choices(words, k=generator.randint(0, 40))) + "\n")
    command = [sys.executable, "-m", "keras_elmo.cli", "embed", tiny_preset, text]
    options = {
        "cwd": pathlib.Path(__file__).parents[2],
        "env": {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        "stderr": subprocess.DEVNULL,
    }
    start = time.monotonic()
    subprocess.run([*command, tmp_path / "whole.hdf5"], check=True, **options)
    duration = time.monotonic() - start
    killed, seconds = 0, duration
    while killed < 5:
        process = subprocess.Popen([*command, tmp_path / "out.hdf5", "--resume"], **options)
        try:
            process.wait(seconds * generator.uniform(0.4, 0.9))
            (tmp_path / "out.hdf5").unlink()  # too late: it was done
            seconds *= 0.8
        except subprocess.TimeoutExpired:
            process.kill()
            killed += process.wait() == -9
    subprocess.run([*command, tmp_path / "out.hdf5", "--resume"], check=True, **options)
    assert filecmp.cmp(tmp_path / "out.hdf5", tmp_path / "whole.hdf5", shallow=False)
    assert not (tmp_path / "out.hdf5.parts").exists()


def test_command_line(tiny_preset, embedder, text, tmp_path, capsys, monkeypatch):
    output = tmp_path / "out.hdf5"
    arguments = [str(tiny_preset), str(text), str(output)]
    assert main(["embed", *arguments, "--quiet", "--json", "--layers", "average"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["sentences"] == len(MANY)
    first = read(output)
    with open(text, encoding="latin-1") as file:  # whatever the locale says
        monkeypatch.setattr(sys, "stdin", file)
        arguments[1] = "-"
        assert main(["embed", *arguments, "--layers", "average"]) == 0
    out, err = capsys.readouterr()
    assert f"sentences       {len(MANY)}" in out and "tokens/s" in err
    assert read(output).keys() == first.keys()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(text.read_bytes()))
    writer.start()
    assert embedder.embed_file(pipe, output, "average", progress=False)["sentences"] == len(MANY)
    writer.join()
    assert read(output).keys() == first.keys()
    assert main(["embed", "no_such_preset", str(text), str(output)]) == 1
    assert "keras-elmo embed: from_preset expects" in capsys.readouterr().err
