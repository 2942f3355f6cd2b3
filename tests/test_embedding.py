import filecmp
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time

import h5py
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_elmo import ElmoLayer, Embedder, LayerDataset, ScalarMix, layer_file
from keras_elmo.cli import main
from keras_elmo.embedding import length_batches
from tests import reference
from tests.conftest import (
    GOLDEN,
    SENTENCES,
    SHARED,
    make_arrays,
    make_config,
    numpy,
    tokenize,
)

RANDOM = random.Random(0)
MANY = SENTENCES + [
    ["".join(RANDOM.choices("abcdefgé", k=RANDOM.randint(0, 12))) for _ in range(length)]
    for length in [7, 1, 30, 2, 2, 11]
]


@pytest.fixture(scope="module")
def embedder(tiny_preset):
    return Embedder(tiny_preset)


def expected(sentence):
    return reference.elmo_layers(sentence, make_config().to_options(), make_arrays(make_config()))


def test_agrees_with_the_specification(embedder):
    for array, sentence in zip(embedder.embed(MANY), MANY, strict=True):
        assert array.dtype == "float32" and array.shape == (3, len(sentence), 12)
        np.testing.assert_allclose(np.moveaxis(array, 0, 1), expected(sentence), atol=1e-5)


@pytest.mark.parametrize("layers", ["all", "top", "average"])
def test_batched_and_single_cached_and_not_are_the_same(tiny_preset, layers):
    """And the same as ElmoLayer."""
    output = {"all": "layers"}.get(layers, layers)
    layer = ElmoLayer.from_preset(tiny_preset, output=output)
    together = Embedder(tiny_preset).embed(MANY, layers)
    uncached = Embedder(tiny_preset, cache=1, batch_tokens=40)
    for array, again, sentence in zip(together, uncached.embed(MANY, layers), MANY, strict=True):
        alone = uncached.embed([sentence], layers)[0]
        inside = numpy(layer(tokenize([sentence], 13)))[0]
        inside = np.moveaxis(inside, 1, 0) if layers == "all" else inside
        for other in (again, alone, inside):
            np.testing.assert_allclose(array, other, atol=1e-5)


def test_golden():
    facts = json.loads((GOLDEN / "f_clip" / "golden.json").read_text())
    arrays = np.load(GOLDEN / "f_clip" / "golden.npz")["mixed.activations"]
    found = Embedder(GOLDEN / "f_clip").embed(facts["batches"]["mixed"])
    for row, array in enumerate(found):
        np.testing.assert_allclose(array, arrays[:, row, 1 : array.shape[1] + 1], atol=1e-5)


def test_tokens_and_means(embedder):
    words = ["fox", "", "fox", "<S>", "x" * 30]
    rows = [reference.character_row(word, 13) for word in words]
    options, arrays = make_config().to_options(), make_arrays(make_config())
    tokens = reference.bilm(rows, options, arrays)[0]["token"]
    np.testing.assert_allclose(embedder.embed_tokens(words), tokens, atol=1e-5)
    assert embedder.embed_tokens([]).shape == (0, 6)
    means = embedder.embed_means(SENTENCES)
    assert means.shape == (4, 12) and not means[3].any()
    np.testing.assert_allclose(means[0], expected(SENTENCES[0]).mean((0, 1)), atol=1e-5)
    assert embedder.embed_means(SENTENCES, "all").shape == (4, 3, 12)


def test_arrays_are_padded_and_lists_are_not(embedder):
    padded = np.array([["Two", "tokens", ""], ["One", "", ""]])
    for array, sentence in zip(embedder.embed(padded), (["Two", "tokens"], ["One"]), strict=True):
        np.testing.assert_allclose(array, embedder.embed([sentence])[0], atol=1e-5)
    assert embedder.embed([["One", ""]])[0].shape == (3, 2, 12)


def test_nothing_in_nothing_out(embedder):
    assert embedder.embed([]) == []
    assert [a.shape for a in embedder.embed([[], []], "top")] == [(0, 12), (0, 12)]


def test_half_precision_is_near(tiny_preset, embedder):
    half = Embedder(tiny_preset, dtype="bfloat16")
    for a, b in zip(half.embed(MANY), embedder.embed(MANY), strict=True):
        assert a.dtype == "float32"
        np.testing.assert_allclose(a, b, atol=0.1)


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 200))
def test_length_batches(lengths, budget):
    batches = length_batches(lengths, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[i] for i in batch) + 2
        assert len(batch) == 1 or len(batch) * longest <= budget


def test_padding_is_a_few_percent():
    lengths = np.random.default_rng(0).poisson(19, 2210)
    batches = length_batches(lengths.tolist(), 2048)
    computed = sum(len(batch) * (max(lengths[i] for i in batch) + 2) for batch in batches)
    assert (lengths.sum() + 2 * len(lengths)) / computed > 0.95


def test_token_cache(tiny_preset, tmp_path, embedder):
    files = tmp_path / "vocab.txt", tmp_path / "tokens.hdf5"
    embedder.write_token_cache(["<S>", "</S>", "The", "quick"], *files)
    with h5py.File(files[1]) as file:
        assert file["embedding"].shape == (4, 6)
    cached = Embedder(tiny_preset, token_cache=files)
    for a, b in zip(cached.embed(MANY), embedder.embed(MANY), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    with h5py.File(files[1], "a") as file:
        file["embedding"][2] = 0
    tampered = Embedder(tiny_preset, token_cache=files)
    assert not tampered.embed_tokens(["The"]).any()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the peers' fixtures are not here")
def test_token_cache_of_a_peer():
    folder = SHARED / "fixtures" / "allennlp"
    files = folder / "vocab_test.txt", folder / "elmo_token_embeddings.hdf5"
    layer = ElmoLayer.from_hdf5(folder / "options.json", folder / "lm_weights.hdf5")
    words = files[0].read_text().split("\n")[:100]
    with h5py.File(files[1]) as file:
        recorded = file["embedding"][:100]
    computed = Embedder(layer)
    np.testing.assert_allclose(computed.embed_tokens(words), recorded, atol=5e-6)
    cached = Embedder(layer, token_cache=files)
    np.testing.assert_array_equal(cached.embed_tokens(words), recorded)
    sentences = [words[3:20], [*words[20:24], "unheard-of"]]
    for ours, other in zip(cached.embed(sentences), computed.embed(sentences), strict=True):
        np.testing.assert_allclose(ours, other, atol=1e-5)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"cache": 0}, "cache to be a whole number, 1 or more. Received: cache=0"),
        ({"batch_tokens": 0.5}, "batch_tokens to be a whole number"),
    ],
)
def test_bad_arguments(tiny_preset, arguments, message):
    with pytest.raises(ValueError, match=message):
        Embedder(tiny_preset, **arguments)


def test_bad_calls(embedder, tmp_path):
    with pytest.raises(ValueError, match="layers to be one of .* Received: layers='bottom'"):
        embedder.embed(SENTENCES, "bottom")
    for call in (embedder.embed, embedder.embed_means):
        with pytest.raises(ValueError, match="every sentence to be a list of tokens"):
            call(["a", "flat", "list"])
    with pytest.raises(ValueError, match="every sentence to be a list of tokens"):
        embedder.embed_tokens("word")
    with pytest.raises(ValueError, match="every token to be a str or UTF-8 bytes"):
        embedder.embed([[["nested"]]])
    with pytest.raises(ValueError, match="ElmoLayer has no weights before it is built"):
        Embedder(ElmoLayer(make_config()))
    with pytest.raises(ValueError, match="compression to be None, 'gzip' or 'lzf'"):
        embedder.embed_file("in", "out", compression="zip")
    with pytest.raises(FileNotFoundError, match="no_such_input"):
        embedder.embed_file("no_such_input", tmp_path / "out.hdf5", progress=False)
    (tmp_path / "in.txt").write_text("a b\n")
    with pytest.raises(FileNotFoundError, match="no folder .*nowhere for the output"):
        embedder.embed_file(tmp_path / "in.txt", tmp_path / "nowhere" / "o.hdf5", progress=False)
    for output in (tmp_path, tmp_path / "in.txt"):
        with pytest.raises(ValueError, match="expects an output file of its own. Received: output"):
            embedder.embed_file(tmp_path / "in.txt", output, progress=False)
    (tmp_path / "latin.txt").write_bytes("plain\ncafé\n".encode("latin-1"))
    with pytest.raises(ValueError, match="UTF-8 text. Received: line 2 of .*latin.txt, with bytes"):
        embedder.embed_file(tmp_path / "latin.txt", tmp_path / "out.hdf5", progress=False)


# Files.


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setattr(layer_file, "SENTENCES_IN_A_PART", 3)
    path = tmp_path / "sentences.txt"
    path.write_text("".join(" ".join(s) + "\n" for s in MANY), encoding="utf-8")
    return path


def read(path):
    with h5py.File(path) as file:
        return {name: file[name][()] for name in file}


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
    embed, calls = embedder.embed, []

    def fail_at_the_third(sentences, layers="all"):
        calls.append(sentences)
        if len(calls) == 4:  # the first is the check of the arguments
            raise RuntimeError("power cut")
        return embed(sentences, layers)

    with monkeypatch.context() as patch:
        patch.setattr(embedder, "embed", fail_at_the_third)
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


def lines(text):
    return text.read_text(encoding="utf-8").split("\n")[:-1]


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
        "cwd": pathlib.Path(__file__).parents[1],
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


def test_training_on_a_layer_file(embedder, text, tmp_path):
    """Cached layers behind a ScalarMix give what the biLM inside the model gives."""
    embedder.embed_file(text, tmp_path / "layers.hdf5", progress=False)
    sentences = [line.split() for line in lines(text)]
    tags = [[len(token) % 3 for token in sentence] for sentence in sentences]
    data = LayerDataset(tmp_path / "layers.hdf5", tags, batch_size=4)
    assert len(data) == 3
    inputs, targets = data[1]
    assert inputs["layers"].shape == (4, *targets.shape[1:], 3, 12)
    np.testing.assert_array_equal(inputs["mask"].sum(1), [len(s) for s in sentences[4:8]])

    layers = keras.Input((None, 3, 12), name="layers")
    mask = keras.Input((None,), dtype="bool", name="mask")
    mixed = ScalarMix(layer_norm=True)(layers, mask=mask)
    tagged = keras.layers.Dense(3, activation="softmax")(mixed)
    model = keras.Model({"layers": layers, "mask": mask}, tagged)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(data, epochs=2, verbose=0)

    ids = tokenize(sentences[4:8], 13)
    inside = ElmoLayer.from_hdf5(*embedder_files(embedder, tmp_path))(ids)
    mix = next(layer for layer in model.layers if isinstance(layer, ScalarMix))
    found = numpy(model.layers[-1](mix(inside)))
    expected = numpy(model(inputs))
    real = inputs["mask"]
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)


def embedder_files(embedder, folder):
    embedder.elmo.save_hdf5(folder / "preset")
    return folder / "preset" / "options.json", folder / "preset" / "weights.hdf5"


def test_layer_dataset(embedder, text, tmp_path):
    path = tmp_path / "layers.hdf5"
    embedder.embed_file(text, path, progress=False)
    count = len(lines(text))
    shuffled = LayerDataset(path, list(range(count)), batch_size=count, shuffle=True, seed=1)
    first = shuffled[0][1]
    shuffled.on_epoch_end()
    second = shuffled[0][1]
    assert first.tolist() != second.tolist() and sorted(first) == sorted(second)
    assert set(LayerDataset(path)[0]) == {"layers", "mask"}
    with pytest.raises(ValueError, match=f"a label for each of the {count} sentences.*: 1 labels"):
        LayerDataset(path, [0])
    with pytest.raises(ValueError, match="expects 5 labels for sentence 0, one a token"):
        LayerDataset(path, [[0]] * count)[0]
    embedder.embed_file(text, tmp_path / "top.hdf5", "top", progress=False)
    with pytest.raises(
        ValueError, match=r"a file with all layers.* holds 10 lines of shape \(5, 12"
    ):
        LayerDataset(tmp_path / "top.hdf5")


def test_layer_dataset_of_batches_that_begin_alike(embedder, tmp_path):
    sentences = [["a"] * length for length in (3, 1, 3, 2, 5)]
    path = tmp_path / "layers.hdf5"
    embedder.embed_file(io.StringIO("\n".join(map(" ".join, sentences))), path, progress=False)
    tags = [[1] * len(sentence) for sentence in sentences]
    data = LayerDataset(path, tags, batch_size=2)
    assert [batch[1].shape[1] for batch in data] == [3, 4, 5]
    assert data[1][0]["layers"].shape[1] == 4 and not data[1][0]["layers"][:, 3:].any()
    assert data[1][0]["mask"].sum(axis=1).tolist() == [3, 2] and not data[1][1][:, 3:].any()
    assert data.gather([2, 3])[1].shape[1] == 3
    inputs = {
        "layers": keras.Input((None, *data[0][0]["layers"].shape[2:]), name="layers"),
        "mask": keras.Input((None,), dtype="bool", name="mask"),
    }
    mixed = ScalarMix()(inputs["layers"], mask=inputs["mask"])
    model = keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(mixed))
    model.compile("sgd", "sparse_categorical_crossentropy")
    assert np.isfinite(model.fit(data, verbose=0).history["loss"][0])
    half = LayerDataset(path, [[0] * len(x) for x in sentences[:-1]] + [[0.5] * 5], batch_size=5)
    assert half[0][1].max() == 0.5
    with pytest.raises(IndexError, match="LayerDataset has batches 0 to 2. Received: 3"):
        data[3]


def test_gathering_chosen_sentences(embedder, text, tmp_path):
    path = tmp_path / "layers.hdf5"
    embedder.embed_file(text, path, progress=False)
    sentences = [line.split() for line in lines(text)]
    count = len(sentences)
    data = LayerDataset(path, list(range(count)))
    inputs, labels = data.gather([2, 0, 2])
    assert labels.tolist() == [2, 0, 2]
    for row, i in enumerate([2, 0, 2]):
        expected = np.moveaxis(embedder.embed([sentences[i]])[0], 0, 1)
        length = len(sentences[i])
        assert inputs["mask"][row].sum() == length
        np.testing.assert_allclose(inputs["layers"][row, :length], expected, atol=1e-5)
        assert not inputs["layers"][row, length:].any()
    for wrong in ([], [count], [-1]):
        with pytest.raises(ValueError, match=f"gather expects indices of 0 to {count - 1}, one"):
            data.gather(wrong)


def test_layer_dataset_as_tf_data(embedder, text, tmp_path):
    pytest.importorskip("tensorflow")
    path = tmp_path / "layers.hdf5"
    embedder.embed_file(text, path, progress=False)
    data = LayerDataset(path, list(range(len(lines(text)))), batch_size=4)
    batches = list(data.to_tf_dataset())
    assert len(batches) == 3
    for (inputs, labels), (expected, numbers) in zip(batches, (data[i] for i in range(3))):
        np.testing.assert_array_equal(inputs["layers"].numpy(), expected["layers"])
        np.testing.assert_array_equal(inputs["mask"].numpy(), expected["mask"])
        np.testing.assert_array_equal(labels.numpy(), numbers)
    shuffled = LayerDataset(path, list(range(len(lines(text)))), batch_size=4, shuffle=True)
    feed = shuffled.to_tf_dataset()
    epochs = [np.concatenate([labels for _, labels in feed]).tolist() for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] and len({*map(frozenset, epochs)}) == 1
