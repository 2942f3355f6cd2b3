"""Make the files of the demo page that are not committed.

    python docs/demo/build.py
    python docs/demo/build.py FOLDER

The files are the biLM as ONNX in eight bits, ONNX Runtime Web from npm, the rules of the tokenizer,
the frequent words with their softmax, and the vectors of the senses. FOLDER is docs/demo/files by
default. Without npm the script leaves ONNX Runtime Web out; the page then shows only the senses.
"""

import json
import pathlib
import runpy
import sys

import keras
import numpy as np

from keras_elmo import CharacterTokenizer, ElmoLayer, Embedder
from keras_elmo.onnx.export import export_onnx
from keras_elmo.presets import open_preset
from keras_elmo.tokenizers.penn import SENTENCE_RULES, TOKEN_RULES
from keras_elmo.tokenizers.text_tokens import QUOTES

HERE = pathlib.Path(__file__).parent
read_package = runpy.run_path(str(HERE.parent / "npm.py"))["read_package"]
PRESET, KOREAN_PRESET = "elmo_mini_en", "elmo_small_ko"
N_WORDS, N_SPECIAL = 5000, 3  # a vocabulary starts with <S> </S> <UNK>
RUNTIME = "onnxruntime-web@1.20.1"
RUNTIME_SHA512 = (
    "TePF6XVpLL1rWVMIl5Y9ACBQcyCNFThZON/jgElNd9Txb73CIEGlklhYR3UEr1cp5r0rbGI6nDwwrs79g7WjoA=="
)
RUNTIME_FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
# The Korean sentences are in this order, and equally many for each sense.
KOREAN_SENSES = ("ship", "pear", "belly")


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")), "utf-8")


def write_runtime(folder):
    """Download ONNX Runtime Web, and return whether it worked."""
    names = [f"dist/{name}" for name in RUNTIME_FILES]
    try:
        contents = read_package(RUNTIME, RUNTIME_SHA512, names)
    except RuntimeError as error:
        print(f"{error}. The page will show only the senses. Mend this and run the script again")
        return False
    for name, content in zip(RUNTIME_FILES, contents, strict=True):
        (folder / name).write_bytes(content)
    return True


def write_tokenizer(folder):
    """Write the regular expressions of the Penn tokenizer, with the flags of JavaScript."""

    def rule(pattern, rewrite):
        lines = pattern.removeprefix("(?m)")
        return [lines, "g" if lines == pattern else "gm", rewrite.replace("\\", "$")]

    quotes = [(f"[{typographic}]", plain) for plain, typographic in QUOTES.items()]
    penn = [(pattern.pattern, rewrite) for pattern, rewrite in SENTENCE_RULES + TOKEN_RULES]
    rules = [rule(*pair) for pair in quotes + penn]
    write_json(folder / "tokenizer.json", rules)


def write_words(folder):
    """Write the frequent words, and their softmax in eight bits with a scale for each word.

    Two states follow the softmax: the forward state after <S> and the backward state after </S>.
    They are the same in every sentence, and the graph does not return them.
    """
    softmax = open_preset(PRESET).read_softmax()
    rows = slice(N_SPECIAL, N_SPECIAL + N_WORDS)
    kernel, bias = (softmax.arrays[f"softmax/{name}"][rows].astype("float32") for name in "Wb")
    scale = np.abs(kernel).max(axis=1, keepdims=True) / 127
    elmo = ElmoLayer.from_preset(PRESET, output="top", keep_boundaries=True)
    [top] = keras.ops.convert_to_numpy(elmo(CharacterTokenizer()([["A"]])))
    width = kernel.shape[1]
    states = np.concatenate([top[0, :width], top[-1, width:]])
    parts = (np.round(kernel / scale).astype("int8"), scale, bias, states)
    (folder / "words.bin").write_bytes(b"".join(part.tobytes() for part in parts))
    write_json(folder / "words.json", softmax.vocabulary[rows])


def read_senses(embedder):
    """Return for each word its preset and a list of sense, tokens."""
    words = {}
    for word, senses in json.loads((HERE / "senses.json").read_text("utf-8")).items():
        pairs = [(sense, text) for sense, texts in senses.items() for text in texts]
        tokens = embedder.tokenize([text for _, text in pairs])
        words[word] = [(sense, found) for (sense, _), found in zip(pairs, tokens, strict=True)]
    word = "배"
    text = (HERE.parents[1] / "examples" / "words_in_context_ko.txt").read_text("utf-8")
    text = [line.split() for line in text.splitlines() if word in line.split()]
    each = len(text) // len(KOREAN_SENSES)
    words[word] = [(KOREAN_SENSES[i // each], tokens) for i, tokens in enumerate(text)]
    return words


def write_senses(folder, embedder):
    """Write the sentences, and their vectors with the plane of each word and layer.

    The binary file has for each word and each layer: the vectors of the sentences, their mean, and
    the first two principal components.
    """
    index, parts = {}, []
    for word, examples in read_senses(embedder).items():
        is_korean = not word.isascii()
        model = Embedder(KOREAN_PRESET, engine="keras") if is_korean else embedder
        layers = model.embed([tokens for _, tokens in examples])
        vectors = np.stack(
            [x[:, tokens.index(word)] for x, (_, tokens) in zip(layers, examples, strict=True)]
        )
        for layer in vectors.swapaxes(0, 1):
            mean = layer.mean(axis=0)
            _, _, axes = np.linalg.svd(layer - mean, full_matrices=False)
            parts += [layer, mean, axes[:2]]
        index[word] = {
            "preset": KOREAN_PRESET if is_korean else PRESET,
            "width": vectors.shape[-1],
            "examples": [
                {"sense": sense, "tokens": tokens, "place": tokens.index(word)}
                for sense, tokens in examples
            ],
        }
    (folder / "senses.bin").write_bytes(b"".join(part.tobytes() for part in parts))
    write_json(folder / "senses.json", index)


def build(folder):
    folder.mkdir(parents=True, exist_ok=True)
    # The Keras engine computes in float32 on every machine.
    embedder = Embedder(PRESET, engine="keras")
    write_senses(folder, embedder)
    write_tokenizer(folder)
    write_words(folder)
    export_onnx(PRESET, folder / "elmo.onnx", int8=True, overwrite=True)
    has_runtime = write_runtime(folder)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size / 1e6:7.2f} MB  {path.name}")
    return has_runtime


if __name__ == "__main__":
    build(pathlib.Path(sys.argv[1]) if sys.argv[1:] else HERE / "files")
