"""Raw text to what a biLM is trained on: tokenised sentences, a held-out part, a vocabulary."""

import collections
import concurrent.futures
import contextlib
import glob
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import tempfile
import warnings

from tqdm import tqdm

from keras_elmo.characters import BOUNDARY_TOKENS
from keras_elmo.checkpoints.files import read_lines
from keras_elmo.pretraining.text import OPENERS, open_text

UNKNOWN = "<UNK>"
# What a vocabulary starts with, in this order.
SPECIAL_TOKENS = (*(token.decode() for token in BOUNDARY_TOKENS), UNKNOWN)

TOKENIZERS = ("penn", "toktok", "whitespace")
SENTENCES = ("punkt", "lines")

# Typographic quotes, written as keyboards, SST and CoNLL have them.
_QUOTES = str.maketrans("‘’‚‛“”„‟", "''''\"\"\"\"")
# Punkt learns abbreviations from this much of each file.
_PUNKT_CHARACTERS = 3_000_000
# Lines next to each other are often of one document, so they are held out together.
_LINES_PER_BLOCK = 200


def prepare(
    inputs,
    output,
    *,
    vocabulary_size=40_000,
    heldout=0.01,
    shards=32,
    sentences="punkt",
    tokenizer="penn",
    seed=0,
    workers=1,
    progress=True,
) -> dict:
    r"""Turn raw text files into a folder of tokenised sentences.

    The folder holds ``train-00000-of-00032.txt`` and so on, a sentence a line and its
    tokens separated by spaces, every sentence in a shard drawn at random;
    ``heldout-NAME.txt`` for every input that gets one, runs of 200 lines that training
    never sees;
    ``vocab.txt``, ``<S> </S> <UNK>`` and then the most frequent tokens of the training
    part in descending count; ``prepared.json``, the counts and settings. It appears whole
    or not at all. The same inputs and settings give the same bytes.

    Args:
        inputs: Paths or glob patterns of UTF-8 text, plain, .gz, .bz2 or .xz, a
            paragraph a line. Lines are read one after another; only the distinct
            tokens and their counts stay in memory.
        output: The folder to make.
        vocabulary_size: Most tokens in ``vocab.txt``, the three special ones included.
        heldout: Share of the text to hold out, from 0 up to, not including, 1.
        shards: Number of training files.
        sentences: ``"punkt"`` finds the sentences with NLTK's Punkt, trained without
            supervision on the start of every file, so for any language that ends
            sentences with a full stop; ``"lines"`` takes every line as one.
        tokenizer: ``"penn"``, NLTK's Penn Treebank tokens with plain quotes and brackets;
            ``"toktok"``, NLTK's tokenizer for many languages; ``"whitespace"``, text that
            is tokenised already.
        seed: Of the shards and of the part held out.
        workers: Processes. With more than one, a script must guard its start with
            ``if __name__ == "__main__":``.
        progress: Whether to show a progress bar.

    Returns:
        The counts of ``prepared.json``: ``tokens``, ``sentences``, ``types``,
        ``vocabulary``, ``heldout_tokens``, ``oov_share`` (of the held-out tokens).

    Raises:
        ValueError: If a setting makes no sense, if there is no text, or it is not UTF-8.
        FileNotFoundError: If a pattern matches no file.
        FileExistsError: If ``output`` exists.
        ImportError: If NLTK is needed and missing.

    Example:

    >>> _ = pathlib.Path("raw.txt").write_text("Dogs bark. Cats don't.\n" * 500)
    >>> counts = prepare(["raw.txt"], "corpus", heldout=0, shards=2, progress=False)
    >>> sorted(p.name for p in pathlib.Path("corpus").iterdir())[:2]
    ['prepared.json', 'train-00000-of-00002.txt']

    Reference:
        Kiss and Strunk, 2006, https://aclanthology.org/J06-4003 (Punkt).
    """
    settings = {
        "vocabulary_size": vocabulary_size,
        "heldout": heldout,
        "shards": shards,
        "sentences": sentences,
        "tokenizer": tokenizer,
        "seed": seed,
    }
    _check(settings)
    output = pathlib.Path(output)
    if output.exists():
        raise FileExistsError(f"{output} exists. Remove it, or choose another folder")
    files = _files(inputs)
    rules = _splitter(sentences, files.values()), _tokenizer(tokenizer)
    output.parent.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix=output.name + ".", dir=output.parent))
    try:
        counts = _write(files, work, settings, rules, workers, progress)
        work.chmod(0o755)
        work.rename(output)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return counts


def _write(files, folder, settings, rules, workers, progress):
    draw = random.Random(settings["seed"])
    n_shards = settings["shards"]
    seen = collections.Counter()
    heldout_seen = collections.Counter()
    n_sentences = 0
    with contextlib.ExitStack() as stack:

        def create(name):
            return stack.enter_context(open(folder / name, "w", encoding="utf-8", newline="\n"))

        shards = [create(f"train-{i:05}-of-{n_shards:05}.txt") for i in range(n_shards)]
        bar = stack.enter_context(
            tqdm(
                total=sum(os.path.getsize(file) for file in files.values()),
                unit="B",
                unit_scale=True,
                desc="preparing",
                disable=not progress,
            )
        )
        run = stack.enter_context(_runner(rules, workers))
        for name, file in files.items():
            # One draw a block, so that the held-out part does not depend on the tokenizer.
            held = random.Random(f"{settings['seed']} {name}")
            for sentences in run(_blocks(file, bar)):
                if held.random() < settings["heldout"]:
                    _append(folder / f"heldout-{name}.txt", sentences)
                    for sentence in sentences:
                        heldout_seen.update(sentence.split(" "))
                    continue
                for sentence in sentences:
                    shards[draw.randrange(n_shards)].write(sentence + "\n")
                    seen.update(sentence.split(" "))
                n_sentences += len(sentences)
    if not seen:
        held_out = "; all of it was held out, so lower heldout" if heldout_seen else ""
        raise ValueError(
            f"Expected text to train on. Received: none in {', '.join(files.values())}{held_out}"
        )
    n_tokens = seen.total()
    for token in SPECIAL_TOKENS:
        seen.pop(token, None)
    most = sorted(seen.items(), key=lambda item: (-item[1], item[0]))
    kept = [token for token, _ in most[: settings["vocabulary_size"] - len(SPECIAL_TOKENS)]]
    write_vocabulary(folder / "vocab.txt", [*SPECIAL_TOKENS, *kept])
    known = set(kept)
    n_heldout = heldout_seen.total()
    if settings["heldout"] and not n_heldout:
        warnings.warn(
            f"No text was held out: a share of {settings['heldout']} of so little text, in runs of "
            f"{_LINES_PER_BLOCK} lines, came to none. Prepare it with more to measure perplexity",
            stacklevel=3,
        )
    unknown = sum(count for token, count in heldout_seen.items() if token not in known)
    counts = {
        "tokens": n_tokens,
        "sentences": n_sentences,
        "types": len(seen),
        "vocabulary": len(kept) + len(SPECIAL_TOKENS),
        "heldout_tokens": n_heldout,
        "oov_share": unknown / n_heldout if n_heldout else None,
    }
    facts = {**counts, "settings": settings, "inputs": list(files)}
    (folder / "prepared.json").write_text(json.dumps(facts, indent=2) + "\n")
    return counts


def _append(path, sentences):
    """Append sentences; a file that gets none is not made."""
    if sentences:
        with open(path, "a", encoding="utf-8", newline="\n") as file:
            file.writelines(sentence + "\n" for sentence in sentences)


def write_vocabulary(path, tokens) -> None:
    """Write a vocabulary, a token a line."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(token + "\n" for token in tokens)


def read_vocabulary(path) -> list[str]:
    """Read a vocabulary.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is not UTF-8, does not start with ``<S> </S> <UNK>``, or holds a
            token twice.
    """
    tokens = read_lines(path)
    if tuple(tokens[:3]) != SPECIAL_TOKENS:
        raise ValueError(
            f"Vocabulary {path} must start with the lines <S>, </S> and <UNK>. "
            f"Received: {tokens[:3]}"
        )
    if len(set(tokens)) != len(tokens):
        [(token, _)] = collections.Counter(tokens).most_common(1)
        raise ValueError(f"Vocabulary {path} must hold every token once. Received twice: {token!r}")
    return tokens


def _blocks(file, bar):
    """Yield the lines of a file, block by block."""
    done = 0
    with open_text(file) as (raw, text):
        while lines := list(itertools.islice(text, _LINES_PER_BLOCK)):
            bar.update(raw.tell() - done)
            done = raw.tell()
            yield lines


def _tokenised(lines, rules):
    """Return the tokenised sentences of a block of lines, each one string."""
    split, tokenize = rules
    sentences = []
    for line in lines:
        for sentence in split(line.strip().translate(_QUOTES)):
            if tokens := tokenize(sentence):
                sentences.append(" ".join(tokens))
    return sentences


@contextlib.contextmanager
def _runner(rules, workers):
    """Yield a function that tokenises blocks in order, in processes if there are several."""
    if workers == 1:
        yield lambda blocks: (_tokenised(lines, rules) for lines in blocks)
        return
    with concurrent.futures.ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_keep_rules,
        initargs=(rules,),
    ) as pool:

        def run(blocks):
            # A bounded number of blocks ahead, so that memory does not grow with the text.
            ahead = collections.deque()
            for lines in blocks:
                ahead.append(pool.submit(_tokenised_by_worker, lines))
                if len(ahead) > 8 * workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

        yield run


_rules_of_worker = None


def _keep_rules(rules):
    global _rules_of_worker
    _rules_of_worker = rules


def _tokenised_by_worker(lines):
    return _tokenised(lines, _rules_of_worker)


def _splitter(sentences, files):
    if sentences == "lines":
        return _whole
    nltk = _nltk()
    trainer = nltk.tokenize.punkt.PunktTrainer()
    for file in files:
        with open_text(file) as (_, text):
            start = text.read(_PUNKT_CHARACTERS)
        trainer.train(start.translate(_QUOTES), finalize=False)
    trainer.finalize_training()
    return nltk.tokenize.punkt.PunktSentenceTokenizer(trainer.get_params()).tokenize


def _tokenizer(tokenizer):
    if tokenizer == "whitespace":
        return str.split
    nltk = _nltk()
    if tokenizer == "toktok":
        return _Toktok(nltk.tokenize.toktok.ToktokTokenizer())
    return _Penn(nltk.tokenize.NLTKWordTokenizer())


class _Penn:
    """Penn Treebank tokens, but for double quotes, which stay as they are written."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, sentence):
        tokens = self.tokenizer.tokenize(sentence)
        return ['"' if token in ("``", "''") else token for token in tokens]


class _Toktok:
    """Toktok's tokens, but as the text has them, where it writes two of them as entities."""

    written = {"&amp;": "&", "&#124;": "|"}

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, sentence):
        return [self.written.get(token, token) for token in self.tokenizer.tokenize(sentence)]


def _whole(line):
    return [line]


def _nltk():
    try:
        import nltk.tokenize.punkt
        import nltk.tokenize.toktok
    except ImportError as error:
        raise ImportError(
            "Preparing raw text needs NLTK: pip install 'keras-elmo[pretrain]'. Text that is "
            "tokenised already needs sentences='lines', tokenizer='whitespace' instead"
        ) from error
    return nltk


def _files(inputs):
    """Return the files behind paths and patterns, by a short name each."""
    files, seen = {}, set()
    for pattern in [inputs] if isinstance(inputs, str | os.PathLike) else inputs:
        pattern = os.fspath(pattern)
        matches = [pattern] if os.path.isfile(pattern) else sorted(glob.glob(pattern))
        matches = [match for match in matches if os.path.isfile(match)]
        if not matches:
            raise FileNotFoundError(f"No file matches {pattern}")
        for match in matches:
            real = os.path.realpath(match)
            if real in seen:  # each reading would hold out another part
                continue
            seen.add(real)
            stem = pathlib.Path(match).name.removesuffix(pathlib.Path(match).suffix)
            if pathlib.Path(match).suffix.lower() in OPENERS:
                stem = stem.removesuffix(".txt")
            name, n = stem, 1
            while name in files:
                n += 1
                name = f"{stem}-{n}"
            files[name] = match
    return files


def _check(settings):
    for name, least in (("vocabulary_size", len(SPECIAL_TOKENS) + 1), ("shards", 1)):
        value = settings[name]
        if not isinstance(value, int) or value < least:
            raise ValueError(
                f"prepare expects {name} to be a whole number, {least} or more. "
                f"Received: {name}={value!r}"
            )
    if not 0 <= settings["heldout"] < 1:
        raise ValueError(
            "prepare expects heldout to be a share from 0 up to, not including, 1. "
            f"Received: heldout={settings['heldout']!r}"
        )
    for name, choices in (("sentences", SENTENCES), ("tokenizer", TOKENIZERS)):
        if settings[name] not in choices:
            raise ValueError(
                f"prepare expects {name} to be one of {', '.join(choices)}. "
                f"Received: {name}={settings[name]!r}"
            )
