"""Small models in the formats of other programs: good files, damaged files, wrong files."""

import json
import os
import shutil
import sys

import h5py
import numpy as np
import pytest

import keras_elmo
from keras_elmo import CharacterTokenizer, ElmoLayer, ScalarMix, presets
from keras_elmo.alphabets import CodePoints
from keras_elmo.cli import main
from keras_elmo.formats.bilm_hdf5 import BilmHdf5, write_softmax
from keras_elmo.formats.hdf5 import read_arrays, write_arrays
from keras_elmo.presets import Preset, convert
from keras_elmo.pretraining.language_model_files import read_language_model
from tests import foreign_files, reference
from tests.conftest import SENTENCES, make_arrays, make_config, numpy, tokenize
from tests.test_presets import tarred, zipped

MIXES = [((0.1, -0.2, 0.3), 1.5), ((1.0, 0.0, -1.0), 0.5)]
SHAPES = {
    "one_highway": {},
    "three_highways": {"n_highway": 3},
    "tanh": {"activation": "tanh"},
    "thirty_characters": {"max_characters_per_token": 30},
    "other_clips": {"cell_clip": 0.3, "projection_clip": 0.2},
    "three_layers": {"n_layers": 3},
}
shapes = pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)


def write_options(folder, config, n_characters=261):
    options = config.to_options()
    options["char_cnn"]["n_characters"] = n_characters
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "options.json").write_text(json.dumps(options))
    return options


def write_training(folder, config, arrays, prefix="lm/", shards=1, vocabulary=("the", "fox")):
    """Write the files of a training with bilm-tf."""
    write_options(folder, config)
    tokens = ["<S>", "</S>", "<UNK>", *vocabulary]
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in tokens))
    variables = foreign_files.checkpoint_variables(arrays, prefix)
    slots = {f"{name}/Adagrad": np.ones_like(x) for name, x in variables.items()}
    rng = np.random.default_rng(5)
    variables[f"{prefix}softmax/W"] = rng.normal(size=(len(tokens), config.projection_dim))
    variables[f"{prefix}softmax/b"] = rng.normal(size=len(tokens))
    variables = {name: np.asarray(x, "float32") for name, x in variables.items()}
    variables |= slots | {"global_step": np.array(7, "int64"), "note": np.array(b"text")}
    foreign_files.write_checkpoint(folder / "model.ckpt-7", variables, shards)
    (folder / "checkpoint").write_text('model_checkpoint_path: "/gone/model.ckpt-7"\n')
    return folder


def check_arrays(preset, arrays, options=None):
    found = Preset(preset, options).read().bilm_arrays()
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(found[name], array, atol=2e-7, err_msg=name)


def check_layers(preset, config, arrays, **kwargs):
    layer = ElmoLayer.from_preset(preset, **kwargs)
    assert layer.config == config
    found = numpy(layer(tokenize(SENTENCES, config.max_characters_per_token)))
    for row, sentence in enumerate(SENTENCES):
        expected = reference.elmo_layers(sentence, config.to_options(), arrays)
        np.testing.assert_allclose(found[row, : len(sentence)], expected, atol=1e-5, rtol=1e-5)


@shapes
def test_checkpoint(tmp_path, changes):
    config = make_config(**changes)
    prefix, shards = ("", 3) if changes else ("lm/", 1)
    arrays = make_arrays(config)
    folder = write_training(tmp_path / "model", config, arrays, prefix, shards)
    check_arrays(folder, arrays)
    check_arrays(folder / "model.ckpt-7", arrays)
    (folder / "checkpoint").unlink()
    check_arrays(folder, arrays)
    assert Preset(folder).read_config() == config
    assert Preset(folder).read_softmax().arrays["softmax/W"].shape == (5, 6)
    used, left = Preset(folder).format.tensor_names()
    assert f"{prefix}char_embed" in used and f"{prefix}softmax/W" in used
    assert {"global_step", "note", f"{prefix}char_embed/Adagrad"} <= set(left)


def test_checkpoint_with_a_vocabulary_in_another_order(tmp_path):
    config = make_config()
    folder = write_training(tmp_path / "model", config, make_arrays(config))
    kernel = Preset(folder).read_softmax().arrays["softmax/W"]
    (folder / "vocab.txt").rename(folder / "vocab-2016-09-10.txt")
    (folder / "vocab-2016-09-10.txt").write_text("</S>\n<S>\nthe\n<UNK>\nfox\n")
    softmax = Preset(folder).read_softmax()
    assert softmax.vocabulary == ["<S>", "</S>", "<UNK>", "the", "fox"]
    np.testing.assert_array_equal(softmax.arrays["softmax/W"], kernel[[1, 0, 3, 2, 4]])
    convert(folder, tmp_path / "out")
    again = Preset(tmp_path / "out").read_softmax()
    assert again.vocabulary == softmax.vocabulary
    np.testing.assert_array_equal(again.arrays["softmax/b"], softmax.arrays["softmax/b"])


def test_checkpoint_of_one_layer(tmp_path):
    config = make_config(n_layers=1)
    arrays = make_arrays(config)
    check_arrays(write_training(tmp_path / "a", config, arrays), arrays)
    flat = {name.replace("MultiRNNCell/Cell0/", ""): x for name, x in arrays.items()}
    check_layers(write_training(tmp_path / "b", config, flat), config, arrays)


@pytest.mark.parametrize("filters", [((1, 3), (2, 5)), ((1, 2), (2, 4))])
def test_checkpoint_without_options(tmp_path, filters):
    config = make_config(max_characters_per_token=50, filters=filters)
    assert config.has_projection == (config.n_filters == 8)
    folder = write_training(tmp_path, config, make_arrays(config))
    (folder / "options.json").unlink()
    with pytest.warns(UserWarning, match="released models are used: .* cell_clip=3.0, proj"):
        check_layers(folder, config, make_arrays(config))


def test_which_checkpoint(tmp_path):
    config = make_config()
    arrays, others = make_arrays(config), make_arrays(config, seed=1)
    folder = write_training(tmp_path, config, arrays)
    foreign_files.write_checkpoint(
        folder / "model.ckpt-8", foreign_files.checkpoint_variables(others)
    )
    check_arrays(folder, arrays)  # the file 'checkpoint' names model.ckpt-7
    check_arrays(folder / "model.ckpt-8", others)
    for end in ("index", "data-00000-of-00001"):
        check_arrays(folder / f"model.ckpt-8.{end}", others)
    (folder / "checkpoint").write_text('model_checkpoint_path: "C:\\\\gone\\\\model.ckpt-7"\n')
    check_arrays(folder, arrays)  # a path of Windows
    (folder / "checkpoint").unlink()
    with pytest.raises(ValueError, match=r"one file named \*.index, .* \['model.ckpt-7.index', "):
        Preset(folder).read()


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_hdf5_with_a_checkpoint(tmp_path, tiny_preset, pack):
    config = make_config()
    folder = write_training(tmp_path / "model", config, make_arrays(config))
    (folder / "model.hdf5").write_bytes((tiny_preset / "weights.hdf5").read_bytes())
    path = pack(tmp_path / "packed", {p.name: p.read_bytes() for p in folder.iterdir()})
    for preset in (folder, path):
        assert Preset(preset).format.name == "bilm-tf hdf5"
        assert read_language_model(preset)[1] == ["<S>", "</S>", "<UNK>", "the", "fox"]
    facts = convert(path, tmp_path / "out")
    assert facts["files"] == ["options.json", "weights.hdf5", "vocab.txt", "softmax.hdf5"]
    expected, _ = read_language_model(folder)
    found, _ = read_language_model(tmp_path / "out")
    for one, two in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("prefix", ["", "module/"])
@pytest.mark.parametrize("names", [("weights", "scaling"), ("elmo_output_ELMo_W", None)])
def test_hub_module(tmp_path, prefix, names):
    config = make_config(max_characters_per_token=50)
    arrays = make_arrays(config)
    variables = foreign_files.hub_variables(arrays, f"{prefix}bilm/")
    (scalars, gamma), *_ = MIXES
    variables[f"{prefix}aggregation/{names[0]}"] = np.array(scalars, "float32")
    if names[1]:
        variables[f"{prefix}aggregation/{names[1]}"] = np.array(gamma, "float32")
    else:
        variables[f"{prefix}aggregation/elmo_output_ELMo_gamma"] = np.array([gamma], "float32")
    module = tmp_path / "cache" / "0f1e"
    foreign_files.write_checkpoint(module / "variables" / "variables", variables, shards=2)
    (module / "saved_model.pb").write_bytes(b"")
    (tmp_path / "cache" / "0f1e.descriptor.txt").write_text("Module: google/elmo/3")
    with pytest.warns(UserWarning, match="TF-Hub module .* does not contain all options"):
        check_layers(module, config, arrays)
    options = make_config(cell_clip=0.2).to_options()
    check_layers(tmp_path / "cache", make_config(cell_clip=0.2), arrays, options=options)
    mix = ScalarMix.from_preset(module, dropout=0.5)
    np.testing.assert_allclose(numpy(mix.scalars.value), scalars)
    assert float(mix.gamma.value) == gamma and mix.dropout == 0.5
    x = np.random.default_rng(0).normal(size=(2, 3, 3, 4)).astype("float32")
    np.testing.assert_allclose(numpy(mix(x)), reference.scalar_mix(x, scalars, gamma), atol=1e-6)


@shapes
@pytest.mark.parametrize("is_zip", [True, False])
def test_allennlp(tmp_path, changes, is_zip):
    config = make_config(**changes)
    prefix = "text_field_embedder.token_embedder_elmo._elmo." if is_zip else ""
    arrays = make_arrays(config)
    tensors = foreign_files.allennlp_tensors(arrays, prefix, MIXES if config.n_layers == 2 else ())
    folder = foreign_files.write_allennlp(tmp_path / "model", tensors, is_zip)
    check_arrays(folder, arrays, config.to_options())
    archive = tarred(tmp_path / "m.tar.gz", {p.name: p.read_bytes() for p in folder.iterdir()})
    (tmp_path / "options.json").write_text(json.dumps(config.to_options()))
    if not changes:
        check_layers(archive, config, arrays, options=tmp_path / "options.json")
    used, left = Preset(archive, config.to_options()).format.tensor_names()
    assert left == ["tag_projection_layer.bias"] and len(used) == len(tensors) - 1
    if (weights := folder / "weights.th").exists():
        weights.rename(folder / "best.th")  # while the model trains
        check_arrays(folder, arrays, config.to_options())


def test_allennlp_mixes_and_archived_options(tmp_path):
    config = make_config()
    tensors = foreign_files.allennlp_tensors(make_arrays(config), mixes=MIXES)
    settings = {"model": {"type": "tagger", "elmo": {"do_layer_norm": True}}}
    foreign_files.write_allennlp(tmp_path / "model", tensors, config=settings)
    members = {p.name: p.read_bytes() for p in (tmp_path / "model").iterdir()}
    members["fta/model.elmo.options_file"] = json.dumps(config.to_options()).encode()
    archive = tarred(tmp_path / "model.tar.gz", members)
    assert Preset(archive).read_config() == config
    (tmp_path / "model" / "fta").mkdir()
    for name, content in members.items():
        (tmp_path / "model" / name).write_bytes(content)
    unpacked = Preset(tmp_path / "model")
    assert unpacked.format.options_file().name == "fta/model.elmo.options_file"
    assert unpacked.read_config() == config
    for index, (scalars, gamma) in enumerate(MIXES):
        mix = ScalarMix.from_preset(archive, index)
        np.testing.assert_allclose(numpy(mix.scalars.value), scalars)
        assert float(mix.gamma.value) == gamma and mix.layer_norm
        assert not ScalarMix.from_preset(archive, index, layer_norm=False).layer_norm
    with pytest.raises(ValueError, match="one of the 2 mixes of .* Received: index=2. Mixes"):
        ScalarMix.from_preset(archive, 2)
    convert(archive, tmp_path / "out")
    assert Preset(tmp_path / "out").read_mixes() == Preset(archive).read_mixes()
    for wrong in ({"scalars": 3, "gamma": 1, "layer_norm": False}, {"scalars": [1.0, 2.0]}, 3):
        (tmp_path / "out" / "scalar_mix.json").write_text(json.dumps([wrong]))
        with pytest.raises(ValueError, match="Scalar mixes .*scalar_mix.json must be a list of o"):
            ScalarMix.from_preset(tmp_path / "out")


CHARACTERS = "abcdefghijklmnopqrstuvwxyzTCé나는\u3000!"
WORDS = ["fox", "The", "나는", "pneumonoult"]


@shapes
def test_many_langs(tmp_path, changes):
    word_dim, is_zip = (0, True) if "n_highway" in changes else (7, False)
    code_points = {
        "characters": ("<bos>", "<eos>", "<bow>", "<eow>", "<pad>", "<oov>", *CHARACTERS)
    }
    if word_dim:
        code_points |= {"words": ("<bos>", "<eos>", "<oov>", *WORDS), "word_dim": word_dim}
    config = make_config(**changes, code_points=CodePoints(**code_points))
    shapes = make_config(**changes)
    arrays = make_arrays(shapes)
    arrays["char_embed"] = arrays["char_embed"][: len(CHARACTERS) + 6]
    vectors = foreign_files.write_many_langs(
        tmp_path / "model", shapes, arrays, CHARACTERS, WORDS, word_dim, is_zip
    )
    (tmp_path / "model" / "config.json").write_text('{"config_path": "C:\\\\gone\\\\cnn.json"}')
    tokenizer = CharacterTokenizer.from_preset(tmp_path / "model")
    layer = ElmoLayer.from_preset(tmp_path / "model")
    assert layer.config == config
    found = numpy(layer(tokenizer(SENTENCES)))
    embedded = keras_elmo.Embedder(tmp_path / "model").embed(SENTENCES)
    room = config.max_characters_per_token - 2
    options = {**shapes.to_options()}
    for row, sentence in enumerate(SENTENCES):
        tokens = ["<bos>", *sentence, "<eos>"]
        rows = [foreign_files.many_langs_row(token, CHARACTERS, room) for token in tokens]
        added = [vectors.get(token[:room], vectors["<oov>"]) for token in tokens] if vectors else 0
        states, _ = reference.bilm(rows, options, arrays, word_vectors=np.array(added))
        expected = reference.stacked(states, config.n_layers)[1:-1]
        np.testing.assert_allclose(found[row, : len(sentence)], expected, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(np.moveaxis(embedded[row], 0, 1), expected, atol=1e-5, rtol=1e-5)
    convert(tmp_path / "model", tmp_path / "out")
    again = ElmoLayer.from_preset(tmp_path / "out", output="all")
    assert again.fingerprint() == layer.fingerprint() and again.config == config
    assert CharacterTokenizer.from_preset(tmp_path / "out").get_config() | {"name": 0} == (
        tokenizer.get_config() | {"name": 0}
    )


def test_code_points_inside_models(tmp_path):
    import keras
    import tensorflow as tf

    arrays = make_arrays(make_config())
    arrays["char_embed"] = arrays["char_embed"][: len(CHARACTERS) + 6]
    foreign_files.write_many_langs(tmp_path / "m", make_config(), arrays, CHARACTERS, WORDS, 7)
    layer = ElmoLayer.from_preset(tmp_path / "m", output="top")
    tokenizer = CharacterTokenizer.from_preset(tmp_path / "m")
    same = keras_elmo.CodePointTokenizer.from_preset(tmp_path / "m", name=tokenizer.name)
    assert same.get_config() == tokenizer.get_config()
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
    shutil.rmtree(tmp_path / "m")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(ragged, verbose=0), numpy(layer(expected)), atol=1e-6)
    with pytest.raises(ValueError, match="word ids from 0 to 7. Received: ids from 9 to 9"):
        layer(np.full((1, 1, 14), 9))
    with pytest.raises(ValueError, match="character ids from 0 to 39. Received: ids from 7 to 40"):
        layer(np.array([[[1] + [7] * 12 + [40]]]))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"characters": ["a"]}, "characters to start with .*<bos>.* Received: characters="),
        ({"characters": 3}, "characters to be a list of text. Received: characters=3"),
        (
            {"words": ("<bos>", "<eos>", "<oov>", "a", "a"), "word_dim": 1},
            "words to differ from each other",
        ),
        ({"word_dim": 3}, "word_dim to be a whole number, .* Received: word_dim=3, 0 words"),
    ],
)
def test_code_points_that_are_refused(settings, message):
    good = {"characters": ("<bos>", "<eos>", "<bow>", "<eow>", "<pad>", "<oov>", "a")}
    with pytest.raises(ValueError, match=message):
        CodePoints(**good | settings)


# Files that do not load.


def many_langs(folder):
    arrays = make_arrays(make_config())
    arrays["char_embed"] = arrays["char_embed"][: len(CHARACTERS) + 6]
    foreign_files.write_many_langs(folder, make_config(), arrays, CHARACTERS, WORDS, 7)
    return folder


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
    contents = {path: path.read_bytes() for path in (index, data)}
    for path, content in [
        (data, contents[data][: len(contents[data]) // 2]),
        (data, bytes(len(contents[data]))),
        (index, contents[index][:-1]),
        (index, contents[index][:20] + b"?" + contents[index][21:]),
        (index, b""),
    ]:
        path.write_bytes(content)
        refuses(OSError, message, folder, tmp_path)
        path.write_bytes(contents[path])
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    refuses(ImportError, r"needs TensorFlow. .* pip install -e", folder, tmp_path)
    monkeypatch.undo()
    data.unlink()
    refuses(OSError, message, folder, tmp_path)


def test_checkpoints_that_do_not_fit(tmp_path):
    config = make_config()
    arrays = make_arrays(config)
    folder = write_training(tmp_path / "model", config, arrays)
    write_options(folder, make_config(lstm_dim=11))
    message = r"'lm/RNN_0/.*/bias' has shape \(40,\), expected \(44,\)"
    refuses(ValueError, message, folder, tmp_path)
    write_options(folder, make_config(n_layers=1))
    message = "'lm/RNN_0/rnn/multi_rnn_cell/cell_1/lstm_cell/kernel' is not expected"
    refuses(ValueError, message, folder, tmp_path)
    write_options(folder, config, n_characters=267)
    refuses(ValueError, "another alphabet is not supported", folder, tmp_path)
    write_options(folder, config)
    (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
    with pytest.raises(ValueError, match=r"does not fit the options and vocabulary.*\(5, 6\)"):
        convert(folder, tmp_path / "never")
    nothing = {"lm/CNN/W_cnn_0": np.zeros(3, "float32")}
    foreign_files.write_checkpoint(tmp_path / "other" / "model", nothing)
    refuses(
        ValueError, "must contain the tensor 'char_embed' of one biLM", tmp_path / "other", tmp_path
    )
    nan = make_arrays(config)
    nan["char_embed"][3] = np.nan
    folder = write_training(tmp_path / "nan", config, nan)
    refuses(ValueError, "'lm/char_embed' contains NaN or infinite", folder, tmp_path)


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


def test_torch_files_with_other_content(tmp_path, monkeypatch):
    config = make_config()
    options = config.to_options()
    tensors = foreign_files.allennlp_tensors(make_arrays(config))
    folder = foreign_files.write_allennlp(tmp_path / "model", tensors)
    path = folder / "weights.th"
    good = path.read_bytes()
    refuse = lambda error, message: refuses(error, message, folder, tmp_path, options=options)  # noqa: E731
    import torch

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
    path.write_bytes(good)
    monkeypatch.setitem(sys.modules, "torch", None)
    refuse(ImportError, r"Reading .*weights.th needs PyTorch. .* pip install -e .\.\[torch\]")


@pytest.mark.parametrize(
    "tensors, settings, message",
    [
        (
            ["_text_field_embedder.x", "_contextualizer.y"],
            {"type": "language_model"},
            "language_mo",
        ),
        (["transformer_model.x"], {"type": "pretrained_transformer"}, "pretrained_transformer"),
    ],
)
def test_other_models_of_allennlp(tmp_path, tensors, settings, message):
    tensors = {name: np.zeros(3, "float32") for name in tensors}
    folder = foreign_files.write_allennlp(tmp_path / "m", tensors, config={"model": settings})
    message = f"a biLM of bilm-tf's kind, .* the types .'{message}.*are other models"
    refuses(ValueError, message, folder, tmp_path)


def test_two_bilms_in_an_archive(tmp_path):
    arrays = make_arrays(make_config())
    tensors = foreign_files.allennlp_tensors(arrays, "a._elmo.") | foreign_files.allennlp_tensors(
        arrays, "b."
    )
    folder = foreign_files.write_allennlp(tmp_path / "m", tensors)
    refuses(ValueError, r"must contain one biLM. Received: \['a._elmo._elmo_lstm", folder, tmp_path)


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


def test_an_architecture_in_a_dict(tmp_path):
    folder = many_langs(tmp_path / "m")
    given = json.loads((folder / "cnn.json").read_text())
    assert Preset(folder, given).read_config() == Preset(folder).read_config()
    with pytest.raises(ValueError, match="Received: in options=, without 'token_embedder'"):
        Preset(folder, {}).read_config()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: "\ufeff" + t,
        lambda t: t.replace("\n", "\r\n"),
        lambda t: "\ufeff" + t.replace("\n", "\r\n").removesuffix("\r\n"),
    ],
)
def test_dictionaries_of_other_editors(tmp_path, change):
    folder = many_langs(tmp_path / "m")
    expected = Preset(folder).read()
    for name in ("char.dic", "word.dic"):
        text = (folder / name).read_text("utf-8")
        (folder / name).write_bytes(change(text).encode())
    found = Preset(folder).read()
    assert found.config == expected.config and found.fingerprint() == expected.fingerprint()


def test_dictionaries_with_several_blank_characters(tmp_path):
    """ELMoForManyLangs strips them, and then uses the row of the last one for U+3000."""
    folder = many_langs(tmp_path / "m")
    rows = Preset(folder).read().bilm_arrays()["char_embed"]
    text = (folder / "char.dic").read_text("utf-8")
    row_of = {line[0]: int(line[2:]) for line in text.split("\n") if line[1:2] == "\t"}
    (folder / "char.dic").write_text(text.replace("!\t", "\xa0\t").replace("C\t", " \t"), "utf-8")
    bilm = Preset(folder).read()
    np.testing.assert_array_equal(np.sort(bilm.bilm_arrays()["char_embed"], 0), np.sort(rows, 0))
    alphabet = bilm.config.alphabet
    tokenizer = CharacterTokenizer.from_preset(folder)
    ids = numpy(tokenizer([["\u3000"], ["\xa0"], ["C"], ["a"]]))[:, 0, 2]
    assert ids[1] == ids[2] == alphabet.OOV
    characters = bilm.bilm_arrays()["char_embed"]
    theirs = make_arrays(make_config())["char_embed"]
    for place, row in ((0, row_of["!"]), (3, row_of["a"])):
        np.testing.assert_array_equal(characters[ids[place] - 1], theirs[row])


def test_a_byte_order_mark_that_is_a_character(tmp_path):
    folder = many_langs(tmp_path / "m")
    text = (folder / "char.dic").read_text("utf-8")
    (folder / "char.dic").write_text("\ufeff" + text[1:], "utf-8")
    assert "\ufeff" in Preset(folder).read_config().code_points.characters


def test_many_langs_with_a_dead_path_take_options(tmp_path):
    folder = many_langs(tmp_path / "m")
    given = (folder / "cnn.json").rename(tmp_path / "architecture.json")
    with pytest.warns(UserWarning, match="ELMoForManyLangs .* max_characters_per_token=50, cell"):
        assert Preset(folder).read_config().max_characters_per_token == 50
    assert Preset(folder, given).read_config().max_characters_per_token == 13
    (folder / "encoder.pkl").write_bytes((folder / "token_embedder.pkl").read_bytes())
    with pytest.raises(ValueError, match="token_embedder.pkl and encoder.pkl of .* must contain"):
        ElmoLayer.from_preset(folder, options=given)


def test_convert_command(tmp_path, capsys):
    config = make_config()
    folder = write_training(tmp_path / "model", config, make_arrays(config))
    assert main(["convert", str(folder), str(tmp_path / "a"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["recognised"] == "bilm-tf checkpoint" and "lm/char_embed" in facts["used"]
    assert "global_step" in facts["left"]
    assert sorted(facts["files"]) == sorted(p.name for p in (tmp_path / "a").iterdir())
    assert main(["convert", str(folder), str(tmp_path / "a")]) == 1
    assert "convert expects a directory that is new or empty" in capsys.readouterr().err
    (tmp_path / "o.json").write_text(json.dumps(make_config(cell_clip=9).to_options()))
    given = ["--options", str(tmp_path / "o.json")]
    assert main(["convert", str(folder), str(tmp_path / "c"), *given]) == 0
    assert Preset(tmp_path / "c").read_config().cell_clip == 9


class InOneFile(BilmHdf5):
    """A format for the test: one file, with the options in an attribute."""

    @classmethod
    def recognises(cls, folder):
        return bool(folder.named("bilm.hdf5"))

    def read_options(self):
        with h5py.File(self.folder.pick("bilm.hdf5")) as file:
            return json.loads(file.attrs["options"]), "in bilm.hdf5"


def test_a_new_format_needs_no_private_name(tmp_path, monkeypatch):
    config = make_config()
    arrays = make_arrays(config)
    write_arrays(tmp_path / "bilm.hdf5", arrays, {"options": json.dumps(config.to_options())})
    monkeypatch.setattr(presets, "FORMATS", [InOneFile, *presets.FORMATS])
    check_layers(tmp_path, config, arrays)
    check_layers(
        tmp_path, make_config(cell_clip=9), arrays, options=make_config(cell_clip=9).to_options()
    )


def test_allennlp_in_bfloat16(tmp_path):
    import torch

    config = make_config()
    arrays = make_arrays(config)
    tensors = foreign_files.allennlp_tensors(arrays)
    folder = foreign_files.write_allennlp(tmp_path / "model", tensors)
    half = {name: torch.tensor(np.array(x)).bfloat16() for name, x in tensors.items()}
    torch.save(half, folder / "weights.th")
    found = Preset(folder, config.to_options()).read().bilm_arrays()
    for name, array in arrays.items():
        assert found[name].dtype == "float32"
        np.testing.assert_allclose(found[name], array, atol=0.02, err_msg=name)


def test_the_softmax_file_goes_before_a_checkpoint(tmp_path, tiny_preset):
    config = make_config()
    folder = write_training(tmp_path / "model", config, make_arrays(config))
    (folder / "model.hdf5").write_bytes((tiny_preset / "weights.hdf5").read_bytes())
    own = {"softmax/W": np.full((5, 6), 7, "float32"), "softmax/b": np.ones(5, "float32")}
    write_arrays(folder / "softmax.hdf5", own)
    found = Preset(folder).read_softmax().arrays
    np.testing.assert_array_equal(found["softmax/W"], own["softmax/W"])


def test_a_softmax_in_eight_bits(tmp_path, tiny_preset):
    """A row of zeros stays zero. Numbers move by half a step at most, and once only."""
    folder = shutil.copytree(tiny_preset, tmp_path / "preset")
    (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nthe\nfox\n")
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(5, 6)).astype("float32") * np.array([[1], [9], [0], [1e-3], [1]], "f")
    bias = rng.normal(size=5).astype("float32")
    found = kernel
    for _ in range(2):
        before = found
        write_softmax(folder / "softmax.hdf5", before, bias)
        arrays = Preset(folder).read_softmax().arrays
        found = arrays["softmax/W"]
        assert found.dtype == "float32"
        np.testing.assert_array_equal(arrays["softmax/b"], bias)
    np.testing.assert_array_equal(found, before)
    assert (np.abs(found - kernel) <= np.abs(kernel).max(1, keepdims=True) / 253).all()
    convert(folder, tmp_path / "out")
    again = Preset(tmp_path / "out").read_softmax().arrays["softmax/W"]
    np.testing.assert_array_equal(again, found)
    arrays = read_arrays(folder / "softmax.hdf5", kinds="fi")
    write_arrays(folder / "softmax.hdf5", {**arrays, "softmax/W_scale": bias[:4]})
    with pytest.raises(ValueError, match="Softmax file .* must contain floats, found dtype int8"):
        Preset(folder).read_softmax()
