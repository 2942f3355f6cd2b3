"""Small models in the formats of other programs: good files, damaged files, wrong files."""

import functools
import json
import os
import shutil
import sys

import numpy as np
import pytest

import keras_elmo
from keras_elmo import BiLMConfig, CharacterTokenizer, ElmoLayer, ScalarMix
from keras_elmo.alphabets import SPECIAL_CHARACTERS, SPECIAL_WORDS, CodePoints
from keras_elmo.cli import main
from keras_elmo.formats.bilm_hdf5 import write_softmax
from keras_elmo.formats.hdf5 import read_arrays, write_arrays
from keras_elmo.presets import convert, open_preset
from tests import foreign_files, reference
from tests.conftest import SENTENCES, make_arrays, make_config, numpy, tokenize, write_preset
from tests.foreign_files import write_training
from tests.test_presets import tarred

MIXES = [((0.1, -0.2, 0.3), 1.5), ((1.0, 0.0, -1.0), 0.5)]
SHAPES = {
    "one_highway": {},
    "three_highways": {"n_highway": 3, "activation": "tanh", "max_characters_per_token": 30},
    "three_layers": {"n_layers": 3, "cell_clip": 0.3, "projection_clip": 0.2},
}
shapes = pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
CHARACTERS = "abcdefghijklmnopqrstuvwxyzTCé나는\u3000!"
WORDS = ["fox", "The", "나는", "pneumonoult"]


def write_hub(folder, config, arrays):
    return foreign_files.write_hub(folder, arrays, "module/")


def write_allennlp(folder, config, arrays, is_zip=True, **kwargs):
    tensors = foreign_files.allennlp_tensors(arrays, **kwargs)
    return foreign_files.write_allennlp(folder, tensors, is_zip)


def write_archive(folder, config, arrays):
    write_allennlp(folder, config, arrays, is_zip=False, prefix="")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return tarred(folder / "model.tar.gz", files)


def many_langs(folder):
    config = make_config()
    foreign_files.write_many_langs(folder, config, make_arrays(config), CHARACTERS, WORDS, 7)
    return folder


# Functions that write files, and the names of the formats.
WRITERS = {
    "checkpoint": (write_training, "bilm-tf checkpoint"),
    "without a prefix": (functools.partial(write_training, prefix=""), "bilm-tf checkpoint"),
    "hub": (write_hub, "TF-Hub module"),
    "allennlp": (write_allennlp, "AllenNLP archive"),
    "archive": (write_archive, "AllenNLP archive"),
}


def check_arrays(preset, arrays, options=None):
    found = open_preset(preset, options).read().bilm_arrays()
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(found[name], array, atol=2e-7, err_msg=name)


@shapes
@pytest.mark.parametrize("write, name", WRITERS.values(), ids=WRITERS)
def test_the_arrays_of_a_format(tmp_path, write, name, changes):
    config = make_config(**changes)
    arrays, options = make_arrays(config), config.to_options()
    source = write(tmp_path / "model", config, arrays)
    check_arrays(source, arrays, options)
    assert open_preset(source, options).name == name


def test_the_layers_of_a_foreign_model(tmp_path):
    config = make_config()
    arrays, options = make_arrays(config), config.to_options()
    (tmp_path / "options.json").write_text(json.dumps(options))
    source = write_allennlp(tmp_path / "model", config, arrays)
    layer = ElmoLayer.from_preset(source, options=tmp_path / "options.json")
    assert layer.config == config
    for row, sentence in zip(numpy(layer(tokenize(SENTENCES, 13))), SENTENCES, strict=True):
        expected = reference.elmo_layers(sentence, options, arrays)
        np.testing.assert_allclose(row[: len(sentence)], expected, atol=1e-5, rtol=1e-5)


def test_the_options_of_the_released_models(tmp_path):
    source = write_allennlp(tmp_path / "model", make_config(), make_arrays(make_config()))
    with pytest.warns(UserWarning, match="of the released models are used: .*cell_clip=3.0, "):
        assert open_preset(source).config == BiLMConfig()
    (source / "a_options.json").write_text("{}")
    with pytest.raises(ValueError, match="Options file .*a_options.json: .* missing keys"):
        open_preset(source).read()


# Checkpoints of bilm-tf.


def test_checkpoint_with_a_vocabulary_in_another_order(tmp_path):
    config = make_config()
    folder = write_training(tmp_path / "model", config, make_arrays(config))
    kernel = open_preset(folder).read_softmax().arrays["softmax/W"]
    (folder / "vocab.txt").write_text("</S>\n<S>\nthe\n<UNK>\nfox\n")
    softmax = open_preset(folder).read_softmax()
    assert softmax.vocabulary == ["<S>", "</S>", "<UNK>", "the", "fox"]
    np.testing.assert_array_equal(softmax.arrays["softmax/W"], kernel[[1, 0, 3, 2, 4]])
    convert(folder, tmp_path / "out")
    again = open_preset(tmp_path / "out").read_softmax()
    assert again.vocabulary == softmax.vocabulary
    np.testing.assert_array_equal(again.arrays["softmax/b"], softmax.arrays["softmax/b"])


def test_which_checkpoint(tmp_path):
    config = make_config()
    arrays, others = make_arrays(config), make_arrays(config, seed=1)
    folder = write_training(tmp_path, config, others, step=8)
    write_training(tmp_path, config, arrays)
    check_arrays(folder, arrays)  # the file 'checkpoint' names model.ckpt-7
    write_preset(folder, config, arrays)
    for end in ("", ".index"):  # the hdf5 file is next to the checkpoint
        check_arrays(folder / f"model.ckpt-8{end}", others)
    (folder / "weights.hdf5").unlink()
    (folder / "checkpoint").write_text('model_checkpoint_path: "C:\\\\gone\\\\model.ckpt-7"\n')
    check_arrays(folder, arrays)  # a path of Windows
    (folder / "checkpoint").unlink()
    with pytest.raises(ValueError, match=r"one file named \*.index, .* \['model.ckpt-7.index', "):
        open_preset(folder).read()


# Scalar mixes.


@pytest.mark.parametrize(
    "prefix, names",
    [("", ("weights", "scaling")), ("module/", ("elmo_output_ELMo_W", "elmo_output_ELMo_gamma"))],
)
def test_the_mix_of_a_hub_module(tmp_path, prefix, names):
    (scalars, gamma), *_ = MIXES
    values = scalars, [gamma] if prefix else gamma
    mix = dict(zip(names, values, strict=True))
    foreign_files.write_hub(tmp_path, make_arrays(make_config()), prefix, mix)
    mix = ScalarMix.from_preset(tmp_path, dropout=0.5)
    np.testing.assert_allclose(numpy(mix.scalars.value), scalars)
    assert float(mix.gamma.value) == gamma and mix.dropout == 0.5
    x = np.random.default_rng(0).normal(size=(2, 3, 3, 4)).astype("float32")
    np.testing.assert_allclose(numpy(mix(x)), reference.scalar_mix(x, scalars, gamma), atol=1e-6)


def test_the_mixes_of_an_allennlp_archive(tmp_path):
    config = make_config()
    tensors = foreign_files.allennlp_tensors(make_arrays(config), mixes=MIXES)
    model = {"type": "tagger", "elmo": {"do_layer_norm": True}}
    folder = foreign_files.write_allennlp(tmp_path / "model", tensors, model=model)
    (folder / "weights.th").rename(folder / "best.th")  # while the model trains
    for index, (scalars, gamma) in enumerate(MIXES):
        mix = ScalarMix.from_preset(folder, index)
        np.testing.assert_allclose(numpy(mix.scalars.value), scalars)
        assert float(mix.gamma.value) == gamma and mix.layer_norm
        assert not ScalarMix.from_preset(folder, index, layer_norm=False).layer_norm
    with pytest.raises(ValueError, match="one of the 2 mixes of .* Received: index=2. Mixes"):
        ScalarMix.from_preset(folder, 2)
    convert(folder, tmp_path / "out", config.to_options())
    assert open_preset(tmp_path / "out").read_mixes() == open_preset(folder).read_mixes()
    for wrong in ({"scalars": 3, "gamma": 1, "layer_norm": False}, {"scalars": [1.0, 2.0]}, 3):
        (tmp_path / "out" / "scalar_mix.json").write_text(json.dumps([wrong]))
        with pytest.raises(ValueError, match="Scalar mixes .*scalar_mix.json must be a list of o"):
            ScalarMix.from_preset(tmp_path / "out")


# ELMoForManyLangs.


@shapes
def test_many_langs(tmp_path, changes):
    word_dim, is_zip = (0, True) if "n_highway" in changes else (7, False)
    words = (*SPECIAL_WORDS, *WORDS) if word_dim else ()
    code_points = CodePoints(
        characters=(*SPECIAL_CHARACTERS, *CHARACTERS), words=words, word_dim=word_dim
    )
    config, sizes = make_config(**changes, code_points=code_points), make_config(**changes)
    arrays, folder = make_arrays(sizes), tmp_path / "model"
    vectors = foreign_files.write_many_langs(
        folder, sizes, arrays, CHARACTERS, WORDS, word_dim, is_zip
    )
    tokenizer = CharacterTokenizer.from_preset(folder)
    layer = ElmoLayer.from_preset(folder)
    assert layer.config == config
    found = numpy(layer(tokenizer(SENTENCES)))
    embedded = keras_elmo.Embedder(folder).embed(SENTENCES)
    room = config.max_characters_per_token - 2
    for row, sentence in enumerate(SENTENCES):
        tokens = ["<bos>", *sentence, "<eos>"]
        rows = [foreign_files.many_langs_row(token, CHARACTERS, room) for token in tokens]
        added = [vectors.get(token[:room], vectors["<oov>"]) for token in tokens] if vectors else 0
        states, _ = reference.bilm(rows, sizes.to_options(), arrays, word_vectors=np.array(added))
        expected = reference.stacked(states, config.n_layers)[1:-1]
        np.testing.assert_allclose(found[row, : len(sentence)], expected, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(np.moveaxis(embedded[row], 0, 1), expected, atol=1e-5, rtol=1e-5)
    convert(folder, tmp_path / "out")
    again = ElmoLayer.from_preset(tmp_path / "out", output="all")
    assert again.fingerprint() == layer.fingerprint() and again.config == config


def test_code_points_inside_models(tmp_path):
    import keras
    import tensorflow as tf

    folder = many_langs(tmp_path / "m")
    layer = ElmoLayer.from_preset(folder, output="top")
    tokenizer = CharacterTokenizer.from_preset(folder)
    sentences = [[*s, "<bos>", "🦊x", "\udcff", "<eos>"] for s in SENTENCES]
    expected = numpy(tokenizer(sentences))
    ragged = tf.ragged.constant([[t.encode("utf-8", "ignore") for t in s] for s in sentences])
    np.testing.assert_array_equal(numpy(tokenizer(ragged)), expected)
    dense = np.array([["fox", "é"], ["나는", ""]])
    np.testing.assert_array_equal(numpy(tokenizer(dense)), numpy(tokenizer(tf.constant(dense))))
    batches = tf.data.Dataset.from_tensor_slices(ragged).ragged_batch(4).map(tokenizer)
    np.testing.assert_array_equal(next(iter(batches)).numpy(), expected)
    model = keras.Sequential([keras.Input((None,), dtype="string"), tokenizer, layer])
    model.save(tmp_path / "model.keras")
    shutil.rmtree(folder)
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(ragged, verbose=0), numpy(layer(expected)), atol=1e-6)
    with pytest.raises(ValueError, match="word ids from 0 to 7. Received: ids from 9 to 9"):
        layer(np.full((1, 1, 14), 9))
    with pytest.raises(ValueError, match="character ids from 0 to 39. Received: ids from 7 to 40"):
        layer(np.array([[[1] + [7] * 12 + [40]]]))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"characters": ["a"]}, "characters to be different texts, .*<bos>.* Rec.*characters=..a"),
        ({"words": ("<bos>", "<eos>", "<oov>", "a", "a"), "word_dim": 1}, "words to be different"),
        ({"word_dim": 3}, "word_dim to be a whole number, .* Received: word_dim=3, 0 words"),
    ],
)
def test_code_points_that_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CodePoints(**{"characters": SPECIAL_CHARACTERS} | settings)


def test_the_architecture_of_many_langs(tmp_path):
    """It is in the folder, is given, or is that of the released models."""
    folder = many_langs(tmp_path / "m")
    expected = open_preset(folder).config
    given = (folder / "cnn.json").rename(tmp_path / "architecture.json")
    assert open_preset(folder, given).config == expected
    assert open_preset(folder, json.loads(given.read_text())).config == expected
    with pytest.warns(UserWarning, match="ELMoForManyLangs .* are used: .*embedding_dim=50"):
        config = open_preset(folder).config
    assert config == BiLMConfig(character_embedding_dim=50, code_points=expected.code_points)
    with pytest.raises(ValueError, match="Received: options=, KeyError: 'token_embedder'"):
        open_preset(folder, {}).read()


def test_dictionaries_with_several_blank_characters(tmp_path):
    """ELMoForManyLangs strips them, and then uses the row of the last one for U+3000."""
    folder = many_langs(tmp_path / "m")
    text = (folder / "char.dic").read_text("utf-8").removesuffix("\n")
    row_of = {line[0]: int(line[2:]) for line in text.split("\n") if line[1:2] == "\t"}
    text = text.replace("!\t", "\xa0\t").replace("C\t", " \t")
    (folder / "char.dic").write_text(text, "utf-8", newline="\r\n")
    bilm = open_preset(folder).read()
    tokenizer = CharacterTokenizer.from_preset(folder)
    ids = numpy(tokenizer([["\u3000"], ["\xa0"], ["C"], ["a"]]))[:, 0, 2]
    assert ids[1] == ids[2] == bilm.config.alphabet.OOV
    characters = bilm.bilm_arrays()["char_embed"]
    theirs = make_arrays(make_config())["char_embed"]
    for place, row in ((0, row_of["!"]), (3, row_of["a"])):
        np.testing.assert_array_equal(characters[ids[place] - 1], theirs[row])


# Files that do not load.


def refuses(error, message, source, tmp_path, **kwargs):
    """Check that the layer refuses the source, and that convert writes nothing."""
    with pytest.raises(error, match=message):
        ElmoLayer.from_preset(source, **kwargs)
    with pytest.raises(error, match=message):
        convert(source, tmp_path / "never", **kwargs)
    assert not (tmp_path / "never").exists()


def test_damaged_checkpoints(tmp_path, monkeypatch):
    config = make_config()
    folder = write_training(tmp_path / "model", config, make_arrays(config))
    index = folder / "model.ckpt-7.index"
    data = folder / "model.ckpt-7.data-00000-of-00001"
    message = "Checkpoint .*model.ckpt-7.index is damaged, incomplete, or not a TensorFlow checkp"
    for path in (index, data):
        content = path.read_bytes()
        for damaged in (content[: len(content) // 2], content[:20] + b"?" + content[21:]):
            path.write_bytes(damaged)
            refuses(OSError, message, folder, tmp_path)
        path.write_bytes(content)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    refuses(ImportError, r"needs TensorFlow. .* pip install -e", folder, tmp_path)
    monkeypatch.undo()
    data.unlink()
    refuses(OSError, message, folder, tmp_path)


def test_checkpoints_that_do_not_fit(tmp_path):
    config = make_config()
    folder = write_training(tmp_path / "model", config, make_arrays(config))
    for changes, message in (
        ({"lstm_dim": 11}, r"'lm/RNN_0/.*/bias' has shape \(40,\), expected \(44,\)"),
        ({"n_layers": 1}, "'lm/RNN_0/rnn/multi_rnn_cell/cell_1/.*/kernel' is not expected"),
    ):
        refuses(ValueError, message, folder, tmp_path, options=make_config(**changes).to_options())
    options = config.to_options()
    options["char_cnn"]["n_characters"] = 267
    refuses(ValueError, "n_characters to be 261 or 262", folder, tmp_path, options=options)
    (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
    with pytest.raises(ValueError, match=r"Softmax of .* does not fit.*\(5, 6\)"):
        convert(folder, tmp_path / "never")
    (folder / "options.json").unlink()
    refuses(ValueError, r"one file named .*, or options= \(--options\)", folder, tmp_path)
    foreign_files.write_variables(folder / "model.ckpt-7", {"lm/CNN/W_cnn_0": np.zeros(3, "f")})
    message, options = "must contain the tensor 'char_embed' of one biLM", config.to_options()
    refuses(ValueError, message, folder, tmp_path, options=options)
    nan = make_arrays(config)
    nan["char_embed"][3] = np.nan
    folder = write_training(tmp_path / "nan", config, nan)
    refuses(ValueError, "'lm/char_embed' contains NaN, infinity, or", folder, tmp_path)


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


def test_torch_files_with_other_content(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    config = make_config()
    tensors = foreign_files.allennlp_tensors(make_arrays(config))
    folder = foreign_files.write_allennlp(tmp_path / "model", tensors)
    path, options = folder / "weights.th", config.to_options()
    refuse = functools.partial(refuses, source=folder, tmp_path=tmp_path, options=options)
    message = (
        "PyTorch file .*weights.th is damaged, or contains something else than tensors by name"
    )
    for is_zip in (True, False):
        torch.save({"x": Evil()}, path, _use_new_zipfile_serialization=is_zip)
        refuse(OSError, message)
        foreign_files.save_torch(path, tensors, is_zip)
        path.write_bytes(path.read_bytes()[:-100])
        refuse(OSError, message)
    for other in ([torch.zeros(3)], {"x": torch.zeros(3).to_sparse()}):
        torch.save(other, path)
        refuse(OSError, message)
    few = {name: x for name, x in tensors.items() if "backward_layer_1" not in name}
    foreign_files.save_torch(path, few)
    refuse(ValueError, "'.*backward_layer_1.state_linearity.bias' is missing")
    monkeypatch.setitem(sys.modules, "torch", None)
    refuse(ImportError, r"Reading .*weights.th needs PyTorch. .* pip install -e .\.\[torch\]")


def test_archives_without_one_bilm(tmp_path):
    arrays, options = make_arrays(make_config()), make_config().to_options()
    one, two = (foreign_files.allennlp_tensors(arrays, prefix) for prefix in ("a._elmo.", "b."))
    other = {"_contextualizer.y": np.zeros(3, "float32")}
    for tensors, message in (
        (other, r"'_elmo_lstm.* Received: \[\], among \['_contextualizer.y'\]. Transformers"),
        (one | two, r"of one biLM over characters. Received: \['a._elmo._elmo_lstm"),
    ):
        model = {"type": "language_model"}
        folder = foreign_files.write_allennlp(tmp_path / "m", tensors, model=model)
        refuses(ValueError, message, folder, tmp_path, options=options)


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("char.dic", lambda t: t + "й\t45\n", "must number the 39 rows of .* Received: 40 tokens"),
        ("word.dic", lambda t: t.replace("\t2\n", "\t3\n"), "must number the 7 rows of"),
        ("word.dic", lambda t: "a b c\n", "Received: 'a b c' in line 1"),
        ("char.dic", lambda t: t.replace("<pad>", "+"), "Received: a file without .'<pad>'"),
        ("cnn.json", lambda t: "{}", "its architecture, a JSON .* Received: .*cnn.json"),
        ("cnn.json", lambda t: t.replace('"relu"', '"gelu"'), "activation to be 'relu'"),
    ],
)
def test_many_langs_that_do_not_fit(tmp_path, name, change, message):
    folder = many_langs(tmp_path / "m")
    text = (folder / name).read_text("utf-8")
    assert change(text) != text
    (folder / name).write_text(change(text), "utf-8")
    refuses(ValueError, message, folder, tmp_path)


def test_convert_command(tmp_path, capsys):
    config = make_config()
    folder = write_training(tmp_path / "model", config, make_arrays(config))
    (tmp_path / "o.json").write_text(json.dumps(make_config(cell_clip=9).to_options()))
    command = ["convert", str(folder), str(tmp_path / "a"), "--options", str(tmp_path / "o.json")]
    assert main([*command, "--json"]) == 0
    files = ["options.json", "weights.hdf5", "vocab.txt", "softmax.hdf5"]
    facts = {"recognised": "bilm-tf checkpoint", "files": files}
    assert json.loads(capsys.readouterr().out) == facts
    assert open_preset(tmp_path / "a").config.cell_clip == 9
    assert main(command) == 1
    assert "convert expects a directory that is new or empty" in capsys.readouterr().err


def test_a_softmax_in_eight_bits(tmp_path, tiny_preset):
    """A row of zeros stays zero. Numbers move by half a step at most."""
    folder = shutil.copytree(tiny_preset, tmp_path / "preset")
    (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nthe\nfox\n")
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(5, 6)).astype("float32") * np.array([[1], [9], [0], [1e-3], [1]], "f")
    bias = rng.normal(size=5).astype("float32")
    write_softmax(folder / "softmax.hdf5", kernel, bias)
    arrays = open_preset(folder).read_softmax().arrays
    np.testing.assert_array_equal(arrays["softmax/b"], bias)
    assert arrays["softmax/W"].dtype == "float32"
    steps = np.abs(kernel).max(1, keepdims=True) / 253
    assert (np.abs(arrays["softmax/W"] - kernel) <= steps).all()
    arrays = read_arrays(folder / "softmax.hdf5", kinds="fi")
    write_arrays(folder / "softmax.hdf5", {**arrays, "softmax/W_scale": bias[:4]})
    with pytest.raises(ValueError, match="Softmax of .* must contain floats, found dtype int8"):
        open_preset(folder).read_softmax()
