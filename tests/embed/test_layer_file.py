import dataclasses
import errno
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
from keras_elmo.embed import layer_file
from keras_elmo.text_input import read_sentences
from keras_elmo.utils import file_lock
from keras_elmo.utils.file_lock import locked
from tests.conftest import room_for
from tests.embed.conftest import MANY, lines, read
from tests.embed.test_threads import run_all


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


def test_a_full_disk(embedder, text, tmp_path):
    """No room for the settings, for the first part, for the merged file."""
    whole, output = tmp_path / "whole.hdf5", tmp_path / "out.hdf5"
    embedder.embed_file(text, whole, progress=False)
    parts = tmp_path / "out.hdf5.parts"
    for room, path, left in [
        (0, "_settings.json", []),
        (3000, "00000000.hdf5", []),
        (whole.stat().st_size - 1, "merged.hdf5", [parts]),
    ]:
        with room_for(room):
            with pytest.raises(OSError, match=f"File too large: .*{path}"):
                embedder.embed_file(text, output, progress=False)
        assert {*tmp_path.iterdir()} == {text, whole, *left}
    assert {path.suffix for path in parts.iterdir()} == {".json", ".hdf5", ".sha256"}
    embedder.embed_file(text, output, resume=True, progress=False)
    assert read(output).keys() == read(whole).keys() and not parts.exists()


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
    with pytest.raises(ValueError, match="contains the files of an earlier run. Continue that run"):
        embedder.embed_file(text, output, progress=False)
    with pytest.raises(
        ValueError, match="a run with other settings. Expected: .*'all'}. Received: .*'top'}. Use"
    ):
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
    with pytest.raises(ValueError, match="was made from other lines. Was the input changed"):
        embedder.embed_file(text, output, resume=True, progress=False)
    text.write_bytes(original)
    counts = embedder.embed_file(text, output, resume=True, progress=False)
    assert counts["resumed_tokens"] == sum(len(s) for s in map(str.split, lines(text)[:6]))
    assert filecmp.cmp(output, whole, shallow=False)


KILLED = """
import os, signal, sys
import keras
from keras_elmo.cli import main
from keras_elmo.embed import layer_file
from tests.forks import run_in_fork

layer_file.SENTENCES_IN_A_PART = 1000
parts, *command = sys.argv[1:]
for number, kills in enumerate((True, True, False)):
    part = f"{parts}/{number:08}.sha256"
    is_due = (lambda: os.path.exists(part)) if kills else None
    status = run_in_fork(lambda: main(command), is_due, linger=0.1)
    if status != (-signal.SIGKILL if kills else 0):
        sys.exit(f"status {status}")
"""


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
    monkeypatch.setattr(layer_file, "SENTENCES_IN_A_PART", 1000)
    embedder.embed_file(text, tmp_path / "whole.hdf5", progress=False)
    assert process.wait() == 0, (tmp_path / "errors").read_text()
    assert filecmp.cmp(output, tmp_path / "whole.hdf5", shallow=False)
    expected = ["errors", "in.txt", "out.hdf5", "whole.hdf5"]
    assert sorted(path.name for path in tmp_path.iterdir()) == expected


def test_a_part_is_bounded_by_tokens(embedder, tmp_path, monkeypatch):
    monkeypatch.setattr(layer_file, "TOKENS_IN_A_PART", 50)
    lengths = [20, 20, 20, 0, 70, 5, 46]
    text = "\n".join(" ".join(["a"] * n) for n in lengths)
    written, write = [], layer_file.LayerFileWriter.write

    def spy(self, part, arrays):
        written.append([len(sentence) for sentence in part.sentences])
        write(self, part, arrays)

    monkeypatch.setattr(layer_file.LayerFileWriter, "write", spy)
    counts = embedder.embed_file(io.StringIO(text), tmp_path / "out.hdf5", progress=False)
    assert written == [[20, 20], [20, 0], [70], [5], [46]]
    assert counts["tokens"] == sum(lengths) and counts["sentences"] == 7
    found = read(tmp_path / "out.hdf5")
    assert [found[str(i)].shape[1] for i in range(7)] == lengths


def test_memory_is_bounded_by_a_batch(embedder, tmp_path):
    """The arrays of the part would take 29 MB, and those of a batch take 10 MB."""
    ours = Embedder(embedder.elmo)
    ours._engine.contextualize = lambda tokens, mask, layers: np.ones(
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
    sentences = [line.split(" ") for line in lines(text)]
    parts = [sentences[i : i + 3] for i in range(0, len(sentences), 3)]
    distinct = [{token for sentence in part for token in sentence if token} for part in parts]
    assert sum(rows) == sum(len(tokens) + 2 for tokens in distinct)


def test_a_finished_file_is_recognised(embedder, text, tmp_path, monkeypatch):
    output = tmp_path / "out.hdf5"
    embedder.embed_file(text, output, progress=False)
    before = output.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(embedder._engine, "represent", None)
        counts = embedder.embed_file(text, output, resume=True, progress=False)
    assert counts["tokens"] == 0 and counts["sentences"] == len(MANY)
    assert counts["resumed_tokens"] == sum(len(line.split()) for line in lines(text))
    assert output.read_bytes() == before
    original = text.read_bytes()
    fewer = original[: original.rindex(b"\n", 0, -1) + 1]
    for changed in (b"x" + original, original + b"more\n", fewer):
        text.write_bytes(changed)
        with pytest.raises(
            ValueError, match="out.hdf5 is finished and contains other lines. .* Remo"
        ):
            embedder.embed_file(text, output, resume=True, progress=False)
    text.write_bytes(original)
    with pytest.raises(
        ValueError, match="out.hdf5 exists and was made with other settings. .* Received: .*'top'"
    ):
        embedder.embed_file(text, output, "top", resume=True, progress=False)
    # The same weights under other options are another biLM.
    options = {"activation": "tanh", "cell_clip": 0.01}
    other = ElmoLayer(dataclasses.replace(embedder.config, **options))
    other.build((None, None, embedder.config.max_characters_per_token))
    other.set_weights(embedder.elmo.get_weights())
    assert other.fingerprint() == embedder.elmo.fingerprint()
    with pytest.raises(ValueError, match="out.hdf5 exists and was made .* Received: .*'options'"):
        Embedder(other).embed_file(text, output, resume=True, progress=False)
    assert output.read_bytes() == before
    output.write_bytes(before[: len(before) // 2])
    with pytest.raises(OSError, match="out.hdf5 is damaged or not an hdf5 file .* Remove it, or"):
        embedder.embed_file(text, output, resume=True, progress=False)
    with pytest.raises(ValueError, match="new file. Received: .*out.hdf5, which exists. .*--force"):
        embedder.embed_file(text, output, progress=False)
    embedder.embed_file(text, output, progress=False, overwrite=True)
    assert output.read_bytes() == before
    assert not output.with_name("out.hdf5.lock").exists()


def test_lines_of_raw_text(tmp_path):
    embedder = Embedder("elmo_mini_en")
    lines = "He didn't pay.\n\n“Fine,” she said.\n\f\n\u3000\n"
    embedder.embed_file(io.StringIO(lines), tmp_path / "o", "top", raw=True, progress=False)
    with h5py.File(tmp_path / "o") as file:
        assert file["sentences"].asstr()[:].tolist() == [
            "He did n't pay .",
            "",
            '" Fine , " she said .',
            "",
            "",
        ]


def test_two_runs_on_one_output(embedder, text, tmp_path):
    output, lock = tmp_path / "out.hdf5", tmp_path / "out.hdf5.lock"
    code = (  # The module alone: the package would import TensorFlow.
        "import runpy, sys, time\n"
        "with runpy.run_path(sys.argv[1])['locked'](sys.argv[2], 'writes'):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, file_lock.__file__, lock]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        message = f"Process {other.pid} writes .*out.hdf5 already. Received: its lock .* Wait for"
        with pytest.raises(OSError, match=message):
            embedder.embed_file(text, output, progress=False)
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    assert lock.exists()
    embedder.embed_file(text, output, progress=False)
    assert output.exists() and not lock.exists()
    with locked(lock, "writes"):  # As another thread would.
        with pytest.raises(OSError, match=f"Process {os.getpid()} writes"):
            embedder.embed_file(text, output, progress=False, overwrite=True)


def test_the_lock_under_contention(tmp_path):
    """Only one thread at a time holds the lock, although each removes the lock file."""
    inside, most, refused = [], [], []

    def work(_):
        for _ in range(200):
            try:
                with locked(tmp_path / "lock", "writes"):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except OSError:
                refused.append(1)

    assert not run_all(work, range(4))
    assert set(most) == {1} and len(most) + len(refused) == 800


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_lock_does_not_stay_with_a_child(tmp_path):
    read_end, write_end = os.pipe()
    with locked(tmp_path / "lock", "writes"):
        pid = os.fork()
        if not pid:
            os.close(write_end)
            os.read(read_end, 1)
            os._exit(0)
        os.close(read_end)
        again = os.open(tmp_path / "lock", os.O_RDWR)
    try:
        file_lock._lock(again)  # free, although the child has a copy of the handle
    finally:
        os.close(again)
        os.close(write_end)
        os.waitpid(pid, 0)


def test_the_lock_file_is_removed_before_it_is_free(tmp_path, monkeypatch):
    unlock, existed = file_lock._unlock, []

    def spy(handle):
        existed.append((tmp_path / "lock").exists())
        unlock(handle)

    monkeypatch.setattr(file_lock, "_unlock", spy)
    with locked(tmp_path / "lock", "writes"):
        pass
    assert existed == [False]


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "lock", "writes"):
        assert (tmp_path / "lock").read_text() == str(os.getpid())
    assert not (tmp_path / "lock").exists()


def test_spaces_separate_tokens(embedder, tmp_path):
    sentences = [["10\u00a0km", "a\u3000b"], ["\x85", "\x1c", "x\u2028y", "\x0b\x0c"], ["last"]]
    text = tmp_path / "in.txt"
    ends = ["\r\n", "\n", ""]
    joined = [" ".join(sentence) + end for sentence, end in zip(sentences, ends, strict=True)]
    text.write_bytes(("\ufeff" + "".join(joined)).encode())
    embedder.embed_file(text, tmp_path / "out.hdf5", progress=False)
    found = read(tmp_path / "out.hdf5")
    assert [line.decode() for line in found["sentences"]] == [" ".join(s) for s in sentences]
    for i, array in enumerate(embedder.embed(sentences)):
        np.testing.assert_allclose(found[str(i)], array, atol=1e-6)
    assert read_sentences(text) == sentences


def interrupt(embedder, text, output, monkeypatch, **settings):
    """Interrupt a run after two parts; return the folder of the parts."""
    write, count = layer_file.LayerFileWriter.write, []

    def stop(self, part, arrays):
        if len(count) == 2:
            raise RuntimeError("power cut")
        count.append(1)
        write(self, part, arrays)

    with monkeypatch.context() as patch:
        patch.setattr(layer_file.LayerFileWriter, "write", stop)
        with pytest.raises(RuntimeError, match="power cut"):
            embedder.embed_file(text, output, progress=False, **settings)
    return output.with_name(output.name + ".parts")


def test_a_finished_file_is_right_for_other_batches(embedder, text, tmp_path):
    """They change only the rounding, as another engine or backend does."""
    output = tmp_path / "out.hdf5"
    embedder.embed_file(text, output, progress=False)
    before = output.read_bytes()
    other = Embedder(embedder.elmo, batch_tokens=512)
    assert other.embed_file(text, output, progress=False, resume=True)["tokens"] == 0
    other._engine.settings = {"dtype": "float32", "engine": "another"}
    assert other.embed_file(text, output, progress=False, resume=True)["tokens"] == 0
    assert output.read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_a_link_is_kept(embedder, text, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out.hdf5").symlink_to(tmp_path / "disk" / "real.hdf5")
    for overwrite in (False, True):
        embedder.embed_file(text, tmp_path / "out.hdf5", progress=False, overwrite=overwrite)
        assert (tmp_path / "out.hdf5").is_symlink()
        assert sorted(path.name for path in tmp_path.rglob("*.hdf5")) == ["out.hdf5", "real.hdf5"]


def test_a_run_that_replaces_a_file_is_resumed(embedder, text, tmp_path, monkeypatch):
    output = tmp_path / "out.hdf5"
    embedder.embed_file(io.StringIO("other lines\n"), output, progress=False)
    interrupt(embedder, text, output, monkeypatch, overwrite=True)
    with pytest.raises(ValueError, match="other settings. Expected: .*None}. Received: .*'gzip'}"):
        embedder.embed_file(text, output, compression="gzip", resume=True, progress=False)
    counts = embedder.embed_file(text, output, progress=False, resume=True)
    assert counts["resumed_tokens"] > 0 and len(read(output)) == len(MANY) + 1


def test_a_finished_file_that_lacks_a_sentence(embedder, text, tmp_path):
    output = tmp_path / "out.hdf5"
    embedder.embed_file(text, output, progress=False)
    with h5py.File(output, "a") as file:
        del file["2"]
    message = f"out.hdf5 is damaged. Expected: {len(MANY)} sentences. Received: {len(MANY) - 1}. Re"
    with pytest.raises(ValueError, match=message):
        embedder.embed_file(text, output, resume=True, progress=False)


def test_the_output_is_the_input_under_another_path(embedder, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("a b\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="a new file. Received: output_file='in.txt', the input"):
        embedder.embed_file(tmp_path / "in.txt", "in.txt", progress=False, overwrite=True)
    assert (tmp_path / "in.txt").read_text() == "a b\n"


def test_damaged_parts(embedder, text, tmp_path, monkeypatch):
    """Every error names the damaged file and says what to do."""
    output, whole = tmp_path / "out.hdf5", tmp_path / "whole.hdf5"
    embedder.embed_file(text, whole, progress=False)
    parts = interrupt(embedder, text, output, monkeypatch)
    files = sorted(parts.iterdir())
    assert [file.suffix for file in files] == [".hdf5", ".sha256", ".hdf5", ".sha256", ".json"]
    generator = random.Random(0)
    for number in range(150):
        file = files[number % len(files)]
        original = file.read_bytes()
        damaged = bytearray(original)
        kind = generator.choice(["cut", "garbage", "bytes", "empty", "nested"])
        if kind == "cut":
            del damaged[generator.randrange(len(damaged)) :]
        elif kind == "garbage":
            damaged[:] = generator.randbytes(len(damaged))
        elif kind == "bytes":
            for place in generator.sample(range(len(damaged)), 3):
                damaged[place] ^= generator.randrange(1, 256)
        else:
            damaged[:] = b"" if kind == "empty" else b"[" * 100_000
        file.write_bytes(damaged)
        with pytest.raises((OSError, ValueError), match="Remove ") as error:
            embedder.embed_file(text, output, resume=True, progress=False)
        assert parts.name in str(error.value) and type(error.value) in (OSError, ValueError)
        file.write_bytes(original)
    files[0].unlink()  # As the error advises.
    counts = embedder.embed_file(text, output, resume=True, progress=False)
    assert counts["resumed_tokens"] == sum(len(line.split()) for line in lines(text)[3:6])
    assert filecmp.cmp(output, whole, shallow=False)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_other_files_is_left_alone(embedder, text, tmp_path, resume):
    (tmp_path / "out.hdf5.parts").mkdir()
    mine = tmp_path / "out.hdf5.parts" / "mine.txt"
    mine.write_text("mine")
    for _ in range(2):
        with pytest.raises(
            ValueError, match="parts, which this run would write to, contains other files"
        ):
            embedder.embed_file(text, tmp_path / "out.hdf5", resume=resume, progress=False)
    assert mine.read_text() == "mine" and os.listdir(mine.parent) == ["mine.txt"]
    mine.rename(mine.with_name("_settings.json.0.tmp"))  # The run was killed at once.
    embedder.embed_file(text, tmp_path / "out.hdf5", resume=resume, progress=False)
    assert not mine.parent.exists()


@pytest.mark.parametrize("line, shown", [("a\0b", r"'.x00'"), ("a\ud800", r"'.ud800'")])
def test_lines_that_hdf5_cannot_hold(embedder, tmp_path, line, shown):
    with pytest.raises(
        ValueError, match=f"NUL characters or lone surrogates. Received: {shown} in line 2"
    ):
        embedder.embed_file(io.StringIO(f"a\n{line}\n"), tmp_path / "out.hdf5", progress=False)


def test_command_line(tiny_preset, embedder, text, tmp_path, capsys, monkeypatch):
    output = tmp_path / "out.hdf5"
    arguments = [str(tiny_preset), str(text), str(output)]
    assert main(["embed", *arguments, "--quiet", "--json", "--layers", "average"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["sentences"] == len(MANY)
    first = read(output)
    with open(text, encoding="latin-1") as file:  # The locale must not matter.
        monkeypatch.setattr(sys, "stdin", file)
        arguments[1] = "-"
        assert main(["embed", *arguments, "--layers", "average", "--force"]) == 0
    out, err = capsys.readouterr()
    assert f"sentences       {len(MANY)}" in out and "tokens/s" in err
    assert read(output).keys() == first.keys()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(text.read_bytes(),), daemon=True)
    writer.start()
    piped = tmp_path / "piped.hdf5"
    assert embedder.embed_file(pipe, piped, "average", progress=False)["sentences"] == len(MANY)
    writer.join()
    assert read(piped).keys() == first.keys()
    arguments = [str(tiny_preset), str(text), str(output), "--force", "--layers"]
    assert main(["embed", *arguments, "-2", "--quiet"]) == 0
    assert read(output)["0"].shape == (5, 12)
    assert main(["embed", *arguments, "bottom"]) == 1
    assert "Received: layers='bottom'" in capsys.readouterr().err
    assert main(["embed", *arguments, "top", "--ray-cpus", "2"]) == 1
    assert "--ray-gpus need --ray. Received: no --ray" in capsys.readouterr().err
    assert main(["embed", "no_such_preset", str(text), str(output)]) == 1
    assert "keras-elmo embed: from_preset expects" in capsys.readouterr().err
