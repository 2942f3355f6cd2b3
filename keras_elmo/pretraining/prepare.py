"""Raw text to what a biLM is trained on: tokenised sentences, a held-out part, a vocabulary."""

import collections
import concurrent.futures
import contextlib
import glob
import itertools
import json
import multiprocessing
import numbers
import os
import pathlib
import random
import shutil
import uuid
import warnings

from keras_elmo.pretraining.sentences import SentenceRules
from keras_elmo.pretraining.text_files import open_text, progress_bar
from keras_elmo.pretraining.vocabulary import (
    SPECIAL_TOKENS,
    read_vocabulary,
    write_vocabulary,
)
from keras_elmo.tokenizers.text import OPENERS
from keras_elmo.tokenizers.words import SENTENCES, TOKENIZERS

# Lines next to each other are often of one document, so they are held out together.
_LINES_PER_BLOCK = 200
# But a held-out part is of at least so many places of a file.
_FEWEST_BLOCKS = 4


def prepare(
    inputs,
    output,
    *,
    vocabulary_size=40_000,
    vocabulary=None,
    heldout_share=0.01,
    heldout=(),
    weights=None,
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
    ``heldout-NAME.txt`` for every input of which something was held out, and for every file
    of ``heldout``: what training never sees; ``vocab.txt``, ``<S> </S> <UNK>`` and then the
    most frequent tokens of the training part in descending count; ``prepared.json``, the
    counts and settings. It appears whole or not at all. The same inputs and settings give
    the same bytes.

    Args:
        inputs: Paths or glob patterns of UTF-8 text, plain, .gz, .bz2 or .xz, a
            paragraph a line. Lines are read one after another; only the distinct
            tokens and their counts stay in memory.
        output: The folder to make.
        vocabulary_size: Most tokens in ``vocab.txt``, the three special ones included.
        vocabulary: Path of a vocabulary to take instead of counting one, such as the
            ``vocab.txt`` of the biLM that is to be trained on; the most frequent tokens
            come first, which the sampled softmax draws most.
        heldout_share: Share of the lines of every input to hold out, from 0 up to, not
            including, 1: runs of 200 lines, or shorter ones where the text is short,
            drawn so that the share is met. If it is not 0, at least one line of every
            input that has two.
        heldout: Paths or glob patterns of texts to hold out whole. Nothing removes
            what they share with the inputs.
        weights: Dict from the name of an input, its file name without the endings, to
            how many times training reads it in an epoch; 1 if it is not named. A
            fraction counts as a chance for each sentence.
        shards: Number of training files.
        sentences: ``"punkt"`` finds the sentences with NLTK's Punkt, trained without
            supervision on the start of every file, so for languages that end sentences
            with a full stop and begin the next with a capital; ``"stops"`` at every full
            stop, question or exclamation mark that a space follows, but for initials and
            numbers, for scripts without capitals; ``"lines"`` takes every line as one.
        tokenizer: A name of ``WordTokenizer``: ``"penn"``, ``"toktok"``, ``"kiwi"`` for
            Korean, or ``"whitespace"`` for text that is tokenised already.
        seed: Of the shards and of the part held out.
        workers: Processes. With more than one, a script must guard its start with
            ``if __name__ == "__main__":``.
        progress: Whether to show a progress bar.

    Returns:
        The counts of ``prepared.json``: ``tokens``, ``sentences`` (of the training part,
        weights applied), ``types``, ``vocabulary``, ``heldout_tokens``, ``oov_share`` (of
        the held-out tokens).

    Raises:
        ValueError: If a setting makes no sense, if there is no text, or it is not UTF-8.
        FileNotFoundError: If a pattern matches no file.
        FileExistsError: If ``output`` exists.
        ImportError: If NLTK or Kiwi is needed and missing.

    Example:

    >>> _ = pathlib.Path("raw.txt").write_text("Dogs bark. Cats don't.\n" * 500)
    >>> counts = prepare(["raw.txt"], "corpus", shards=2, progress=False)
    >>> counts["sentences"], counts["heldout_tokens"]
    (495, 30)

    Reference:
        Kiss and Strunk, 2006, https://aclanthology.org/J06-4003 (Punkt).
    """
    files = _files(inputs)
    settings = {
        "vocabulary_size": vocabulary_size,
        "heldout_share": heldout_share,
        "weights": {name: _plain(times) for name, times in (weights or {}).items()},
        "shards": shards,
        "sentences": sentences,
        "tokenizer": tokenizer,
        "seed": seed,
    }
    settings = {name: _plain(value) for name, value in settings.items()}
    _check(settings, files)
    _check_whole("workers", workers, 1)
    given = None
    if vocabulary is not None:
        given, settings["vocabulary_size"] = read_vocabulary(vocabulary), None
    heldout_files = _files(heldout)
    if odd := sorted({os.path.realpath(f) for f in heldout_files.values()} & _real(files)):
        raise ValueError(
            f"prepare expects heldout to be other texts than the inputs. Received: {odd[0]} as both"
        )
    if heldout_share and (odd := sorted(files.keys() & heldout_files.keys())):
        raise ValueError(
            "prepare expects held-out texts of other names than the inputs, so that each has a "
            f"file of its own. Received: {odd[0]} twice. Rename {heldout_files[odd[0]]}"
        )
    output = pathlib.Path(output)
    if output.exists():
        raise FileExistsError(f"{output} exists. Remove it, or choose another folder")
    rules = SentenceRules(sentences, tokenizer, files.values())
    output.parent.mkdir(parents=True, exist_ok=True)
    work = output.with_name(f"{output.name}.{uuid.uuid4().hex[:16]}.tmp")
    work.mkdir()
    try:
        counts = _write(files, heldout_files, work, settings, given, rules, workers, progress)
        work.rename(output)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return counts


def _write(files, heldout_files, folder, settings, vocabulary, rules, workers, progress):
    draw = random.Random(settings["seed"])
    n_shards = settings["shards"]
    seen = collections.Counter()
    heldout_seen = collections.Counter()
    n_sentences = 0
    with contextlib.ExitStack() as stack:
        shards = [
            stack.enter_context(_create(folder / f"train-{i:05}-of-{n_shards:05}.txt"))
            for i in range(n_shards)
        ]
        run = stack.enter_context(_runner(rules, workers))
        for name, file in files.items():
            size, held = _plan(file, settings["heldout_share"], f"{settings['seed']} {name}")
            weight = settings["weights"].get(name, 1)
            with (
                _create(folder / f"heldout-{name}.txt") as heldout,
                progress_bar(file, progress) as bar,
            ):
                for number, sentences in enumerate(run(_blocks(file, size, bar))):
                    if number in held:
                        heldout.writelines(sentence + "\n" for sentence in sentences)
                        heldout_seen.update(_tokens(sentences))
                        continue
                    for sentence in _repeated(sentences, weight, draw):
                        shards[draw.randrange(n_shards)].write(sentence + "\n")
                        seen.update(sentence.split(" "))
                        n_sentences += 1
        for name, file in heldout_files.items():
            with (
                _create(folder / f"heldout-{name}.txt") as heldout,
                progress_bar(file, progress) as bar,
            ):
                for sentences in run(_blocks(file, _LINES_PER_BLOCK, bar)):
                    heldout.writelines(sentence + "\n" for sentence in sentences)
                    heldout_seen.update(_tokens(sentences))
    for path in folder.glob("heldout-*.txt"):
        if not path.stat().st_size:
            path.unlink()
    if not seen:
        held_out = "; all of it was held out, so lower heldout_share" if heldout_seen else ""
        raise ValueError(
            f"Expected text to train on. Received: none in {', '.join(files.values())}{held_out}"
        )
    n_tokens = seen.total()
    for token in SPECIAL_TOKENS:
        seen.pop(token, None)
    if vocabulary is None:
        most = sorted(seen.items(), key=lambda item: (-item[1], item[0]))
        kept = [token for token, _ in most[: settings["vocabulary_size"] - len(SPECIAL_TOKENS)]]
        vocabulary = [*SPECIAL_TOKENS, *kept]
    write_vocabulary(folder / "vocab.txt", vocabulary)
    known = set(vocabulary) - set(SPECIAL_TOKENS)
    n_heldout = heldout_seen.total()
    if settings["heldout_share"] and not n_heldout:
        warnings.warn(
            f"No text was held out: a share of {settings['heldout_share']} of the inputs holds no "
            "sentence. Prepare more text, or give a file to hold out, to measure perplexity",
            stacklevel=3,
        )
    unknown = sum(count for token, count in heldout_seen.items() if token not in known)
    counts = {
        "tokens": n_tokens,
        "sentences": n_sentences,
        "types": len(seen),
        "vocabulary": len(vocabulary),
        "heldout_tokens": n_heldout,
        "oov_share": unknown / n_heldout if n_heldout else None,
    }
    facts = {**counts, "settings": settings, "inputs": list(files), "heldout": list(heldout_files)}
    (folder / "prepared.json").write_text(json.dumps(facts, indent=2) + "\n")
    return counts


def _create(path):
    return open(path, "w", encoding="utf-8", newline="\n")


def _tokens(sentences):
    return itertools.chain.from_iterable(sentence.split(" ") for sentence in sentences)


def _repeated(sentences, weight, draw):
    """Yield every sentence as often as its weight says."""
    whole, chance = int(weight), weight - int(weight)
    for sentence in sentences:
        for _ in range(whole + (chance > 0 and draw.random() < chance)):
            yield sentence


def _plan(file, share, seed):
    """Return the lines of a block, and the numbers of the blocks of a file to hold out."""
    if not share:
        return _LINES_PER_BLOCK, frozenset()
    with open_text(file) as (_, text):
        lines = sum(1 for _ in text)
    wanted = max(1, round(lines * share))
    size = max(1, min(_LINES_PER_BLOCK, wanted // _FEWEST_BLOCKS))
    # The rest of the last block is trained on, or else a block: never is all held out.
    blocks = lines // size
    most = blocks if lines % size else max(0, blocks - 1)
    draw = random.Random(seed.encode("utf-8", "surrogateescape"))  # a name may be any bytes
    return size, frozenset(draw.sample(range(blocks), min(most, round(wanted / size))))


def _blocks(file, size, bar):
    """Yield the lines of a file, block by block."""
    done = 0
    with open_text(file) as (raw, text):
        while lines := list(itertools.islice(text, size)):
            bar.update(raw.tell() - done)
            done = raw.tell()
            yield lines


@contextlib.contextmanager
def _runner(rules, workers):
    """Yield a function that tokenises blocks in order, in processes if there are several."""
    if workers == 1:
        yield lambda blocks: map(rules, blocks)
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
    return _rules_of_worker(lines)


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


def _real(files):
    return {os.path.realpath(file) for file in files.values()}


def _plain(value):
    """Return a number of NumPy as one that JSON holds."""
    return value.item() if hasattr(value, "item") else value


def _check_whole(name, value, least):
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(
            f"prepare expects {name} to be a whole number, {least} or more. "
            f"Received: {name}={value!r}"
        )


def _check(settings, files):
    for name, least in (("vocabulary_size", len(SPECIAL_TOKENS) + 1), ("shards", 1), ("seed", 0)):
        _check_whole(name, settings[name], least)
    share = settings["heldout_share"]
    if not (isinstance(share, numbers.Real) and 0 <= share < 1):
        raise ValueError(
            "prepare expects heldout_share to be from 0 up to, not including, 1. "
            f"Received: heldout_share={share!r}"
        )
    for name, weight in settings["weights"].items():
        if name not in files:
            raise ValueError(
                f"prepare expects weights of its inputs, {', '.join(files)}. Received: {name!r}"
            )
        if not (isinstance(weight, numbers.Real) and 0 < weight < float("inf")):
            raise ValueError(
                f"prepare expects weights above 0. Received: a weight of {weight!r} for {name}"
            )
    for name, choices in (("sentences", SENTENCES), ("tokenizer", TOKENIZERS)):
        if settings[name] not in choices:
            raise ValueError(
                f"prepare expects {name} to be one of {', '.join(choices)}. "
                f"Received: {name}={settings[name]!r}"
            )
