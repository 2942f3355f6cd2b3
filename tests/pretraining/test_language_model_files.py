"""Language models as presets: all files, small, and back again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as numpy_arrays

from keras_elmo.formats.bilm_hdf5 import to_eight_bits
from keras_elmo.formats.hdf5 import read_arrays, write_arrays
from keras_elmo.formats.vocabulary import read_vocabulary
from keras_elmo.presets import convert
from keras_elmo.pretraining.language_model_files import (
    read_language_model,
    rounded,
    write_language_model,
)
from keras_elmo.pretraining.scores import Scorer
from tests.conftest import numpy
from tests.pretraining.test_language_model import SENTENCES, VOCABULARY, make_model


@pytest.fixture
def preset(tmp_path):
    write_language_model(tmp_path / "preset", make_model(), VOCABULARY, "# A card")
    return tmp_path / "preset"


def test_round_trip(preset):
    model, (again, vocabulary) = make_model(), read_language_model(preset)
    assert vocabulary == VOCABULARY
    names = ["README.md", "options.json", "softmax.hdf5", "vocab.txt", "weights.hdf5"]
    assert sorted(path.name for path in preset.iterdir()) == names
    assert (preset / "README.md").read_text() == "# A card\n"
    for ours, theirs in zip(again.bilm.weights, model.bilm.weights, strict=True):
        expected = rounded(numpy(theirs.value), 16)
        if ours.path.endswith("char_cnn/embeddings"):
            expected[0] = 0  # of padding, which files leave out
        np.testing.assert_array_equal(numpy(ours.value), expected)
    numbers, scale = to_eight_bits(numpy(model.softmax_kernel))
    np.testing.assert_array_equal(numpy(again.softmax_kernel), numbers * scale[:, None])
    before, after = (Scorer(m, VOCABULARY).perplexity(SENTENCES) for m in (model, again))
    assert 0 < abs(after["perplexity"] / before["perplexity"] - 1) < 1e-3
    # What is rounded already does not change any more.
    write_language_model(preset.parent / "again", again, vocabulary, "# A card")
    for name in ("options.json", "vocab.txt"):
        assert (preset / name).read_bytes() == (preset.parent / "again" / name).read_bytes()
    for name in ("weights.hdf5", "softmax.hdf5"):
        one, two = (read_arrays(x / name, kinds="fi") for x in (preset, preset.parent / "again"))
        assert one.keys() == two.keys()
        for key, array in one.items():
            np.testing.assert_array_equal(array, two[key], err_msg=key)


def test_a_preset_replaces_one_with_more_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    directory = f"~/{tmp_path.name}"
    (tmp_path / "scalar_mix.json").touch()  # of another biLM
    for tokenizer in ("penn", None):
        write_language_model(directory, make_model(), VOCABULARY, tokenizer=tokenizer)
        assert (tmp_path / "tokenizer.json").exists() == bool(tokenizer)
    assert not (tmp_path / "scalar_mix.json").exists()


def test_too_many_bits(tmp_path):
    with pytest.raises(ValueError, match="bits from 2 to 23. Received: bits=24"):
        write_language_model(tmp_path / "preset", make_model(), VOCABULARY, bits=24)
    assert not (tmp_path / "preset").exists()


@given(
    numpy_arrays("float32", st.integers(1, 20), elements=st.floats(-(2.0**99), 2.0**99, width=32)),
    st.integers(2, 23),
)
def test_rounding(x, bits):
    y = rounded(x, bits)
    assert y.dtype == "float32" and (y.view("uint32") % (1 << (24 - bits)) == 0).all()
    normal = np.abs(x) > 1e-30
    assert (np.abs(y - x)[normal] <= 2.0**-bits * np.abs(x[normal])).all()
    np.testing.assert_array_equal(rounded(y, bits), y)


def test_another_vocabulary(preset):
    mine = ["<S>", "</S>", "<UNK>", "fox", "new", "other"]
    model, vocabulary = read_language_model(preset, mine)
    old, _ = read_language_model(preset)
    assert vocabulary == mine
    kernel, old_kernel = numpy(model.softmax_kernel.value), numpy(old.softmax_kernel.value)
    bias, old_bias = numpy(model.softmax_bias.value), numpy(old.softmax_bias.value)
    np.testing.assert_array_equal(kernel, old_kernel[[0, 1, 2, 4, 2, 2]])
    np.testing.assert_array_equal(bias[[0, 1, 3]], old_bias[[0, 1, 4]])
    # <UNK> and the two new tokens share what <UNK> had.
    np.testing.assert_allclose(np.logaddexp.reduce(bias[[2, 4, 5]]), old_bias[2], rtol=1e-5)


# Layouts of the same vocabulary: the order of its rows, and the text of a file.
LAYOUTS = {
    "anywhere": ([3, 2, 4, 5, 1, 6, 0], "\n".join),
    "maxtermid": ([1, 0, 2, 3, 4, 5, 6], lambda t: "\n".join([*t, "!!!MAXTERMID"])),
    "windows": ([1, 0, *range(2, 7)], lambda t: "\ufeff" + "\r\n".join([*t, ""])),
}


@pytest.mark.parametrize("order, layout", LAYOUTS.values(), ids=LAYOUTS)
def test_vocabularies_of_other_programs(preset, tmp_path, order, layout):
    expected, _ = read_language_model(preset)
    content = layout([VOCABULARY[row] for row in order]).encode()
    (preset / "vocab.txt").write_bytes(content)
    softmax = read_arrays(preset / "softmax.hdf5", kinds="fi")
    write_arrays(preset / "softmax.hdf5", {key: x[list(order)] for key, x in softmax.items()})
    assert read_vocabulary(preset / "vocab.txt") == VOCABULARY
    convert(preset, tmp_path / "converted")
    assert (tmp_path / "converted" / "vocab.txt").read_text() == "".join(
        token + "\n" for token in VOCABULARY
    )
    for path in (preset, tmp_path / "converted"):
        model, vocabulary = read_language_model(path)
        assert vocabulary == VOCABULARY
        for ours, theirs in zip(model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "content, message",
    [
        ("<s>\n</s>\n<unk>\na\n", "4 lines without <S>, </S>, <UNK>, which start .*<s>"),
        ("a\n<S>\n</S>\n", "3 lines without <UNK>, which start with .'a', '<S>'"),
        ("<S> 9\n</S> 9\n<UNK> 3\na 3\n", "with .'<S> 9', .*remove other columns"),
    ],
)
def test_vocabularies_that_are_refused(preset, tmp_path, content, message):
    """They are refused by every reader, and nothing is converted."""
    (preset / "vocab.txt").write_text(content)
    readers = (
        read_language_model,
        lambda path: read_vocabulary(path / "vocab.txt"),
        lambda path: convert(path, tmp_path / "never"),
    )
    for read in readers:
        with pytest.raises(ValueError, match=f"Vocabulary .*{message}"):
            read(preset)
    assert not (tmp_path / "never").exists()


def test_errors(preset):
    (preset / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
    with pytest.raises(ValueError, match=r"Softmax of .* does not fit.*\(7, 6\)"):
        read_language_model(preset)
    (preset / "softmax.hdf5").unlink()
    for wanted in (None, VOCABULARY):
        with pytest.raises(FileNotFoundError, match="a preset with softmax.hdf5 and vocab.txt"):
            read_language_model(preset, wanted)
