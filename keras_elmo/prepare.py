"""Make a corpus for pretraining: tokenised sentences, a held-out part and a vocabulary."""

import collections
import concurrent.futures
import contextlib
import functools
import glob
import itertools
import multiprocessing
import os
import pathlib
import random
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from keras_elmo.formats.vocabulary import (
    SKIPPED,
    SPECIAL_TOKENS,
    read_vocabulary,
    write_vocabulary,
)
from keras_elmo.presets import TOKENIZER_FILE
from keras_elmo.text_input import OPENERS, SentenceRules, read_lines
from keras_elmo.utils.batches import cut
from keras_elmo.utils.checks import check_whole, invalid, is_number
from keras_elmo.utils.files import PathLike, local_path, write_json

# Neighbouring lines often belong to one document, so they are held out together.
_LINES_PER_BLOCK = 200
# The held-out part of a file comes from at least this many places of the file.
_FEWEST_BLOCKS = 4
# Each worker gets this many blocks in a round, so that memory does not grow with the text.
_BLOCKS_IN_A_ROUND = 50

_append = functools.partial(open, mode="a", encoding="utf-8", newline="\n")
_Inputs = PathLike | Iterable[PathLike]
_Tokenize = Callable[[Iterable[list[str]]], Iterator[list[str]]]
_Counts = collections.Counter[str]


def prepare(
    inputs: _Inputs,
    output: PathLike,
    *,
    vocabulary_size: int = 40_000,
    vocabulary: PathLike | None = None,
    heldout_share: float = 0.01,
    heldout: _Inputs = (),
    weights: Mapping[str, float] | Iterable[tuple[str, float]] | None = None,
    shards: int = 32,
    sentences: str = "punkt",
    tokenizer: str = "penn",
    seed: int = 0,
    workers: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    r"""Make a folder of tokenised sentences from raw text files.

    The folder contains:

    - ``train-00000-of-00032.txt`` and so on: one sentence per line, with spaces between tokens.
      Each sentence goes to a random file.
    - ``heldout-NAME.txt``: the held-out part of an input, or a file of ``heldout``.
    - ``vocab.txt``: ``<S> </S> <UNK>``, then the most frequent tokens of the training part.
    - ``prepared.json``: the counts and settings.
    - ``tokenizer.json``: the tokenizer, unless the inputs are tokenised already.

    The folder appears only if everything succeeds. Equal inputs and settings give equal bytes. With
    several ``workers``, a script must guard its start with ``if __name__ == "__main__":``.

    Args:
        inputs: str, path or list. Paths or glob patterns of UTF-8 texts, plain, .gz, .bz2 or
            .xz, one paragraph per line. Only the distinct tokens and their counts stay in memory.
        output: str or path. Folder to make.
        vocabulary_size: int. Most tokens in ``vocab.txt``, with the three special tokens.
        vocabulary: str or path. Vocabulary to use instead of the most frequent tokens, for
            example the ``vocab.txt`` of the biLM to train. Its tokens are sorted by their
            frequency in the training part, because the sampled softmax draws the first ones most.
        heldout_share: float. Share of the lines of every input to hold out, 0 or more and below
            1. Whole runs of up to 200 lines are held out. If it is above 0, an input of at least
            two lines loses at least one line.
        heldout: str, path or list. Paths or glob patterns of texts to hold out whole. Text that
            also occurs in the inputs stays there.
        weights: dict, or pairs. How often training reads an input in each epoch, by the file name
            without endings; 1 for other inputs. A fraction is a probability for each sentence.
            The second file of a name has the name ``NAME-2``.
        shards: int. Number of training files. Training keeps one of them in memory, at about
            15 times its size.
        sentences: str. ``"punkt"`` uses NLTK's Punkt, trained without supervision on the start
            of every file, for scripts with capitals. ``"stops"`` splits after every full stop,
            question mark or exclamation mark before a space, except in initials and numbers.
            ``"lines"`` takes every line as one sentence.
        tokenizer: str. A name of ``WordTokenizer``; ``"kiwi"`` is for Korean, ``"whitespace"``
            for tokenised text.
        seed: int. Seed of the training files and of the held-out part.
        workers: int. Number of processes.
        progress: bool. Whether to show a progress bar.

    Returns:
        dict. The counts in ``prepared.json``: ``tokens`` and ``sentences`` of the training part
        with weights applied, ``types``, ``vocabulary``, ``heldout_tokens``, and ``oov_share`` of
        the held-out tokens.

    Raises:
        ValueError: If a setting is invalid, if there is no text, or if a text is not UTF-8.
        FileNotFoundError: If a pattern matches no file.
        FileExistsError: If ``output`` exists.
        ImportError: If NLTK or Kiwi is needed and missing.

    Examples:
        >>> _ = pathlib.Path("raw.txt").write_text("Dogs bark. Cats don't.\n" * 500)
        >>> counts = prepare(["raw.txt"], "corpus", shards=2, progress=False)
        >>> counts["sentences"], counts["heldout_tokens"]
        (495, 30)

    Reference:
        Kiss and Strunk, 2006, https://aclanthology.org/J06-4003 (Punkt).
    """
    files = _find_files(inputs)
    heldout_files = _find_files(heldout, files)
    if not (is_number(heldout_share) and 0 <= heldout_share < 1):
        expected = "prepare expects heldout_share to be 0 or more and below 1"
        raise invalid(expected, f"heldout_share={heldout_share!r}")
    weights = {name: float(times) for name, times in dict(weights or {}).items()}
    if not (weights.keys() <= files.keys() and all(is_number(x, 0) for x in weights.values())):
        expected = f"prepare expects weights above 0 for its inputs, {', '.join(files)}"
        raise invalid(expected, f"weights={weights}")
    given = None if vocabulary is None else read_vocabulary(vocabulary)
    size = check_whole("prepare", "vocabulary_size", vocabulary_size, len(SPECIAL_TOKENS) + 1)
    settings: dict[str, Any] = {
        "vocabulary_size": size if given is None else None,
        "heldout_share": float(heldout_share),
        "weights": weights,
        "shards": check_whole("prepare", "shards", shards),
        "sentences": sentences,
        "tokenizer": tokenizer,
        "seed": check_whole("prepare", "seed", seed, 0),
    }
    workers = check_whole("prepare", "workers", workers)
    output = local_path(output).resolve()  # a link cannot be renamed over
    if output.exists():
        raise FileExistsError(f"{output} exists. Remove it, or choose another folder")
    rules = SentenceRules(sentences, tokenizer, files.values())
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f"{output.name}.") as temporary:
        folder = pathlib.Path(temporary) / "corpus"
        folder.mkdir()
        with _start_workers(rules, workers) as tokenize:
            found = _write_sentences(folder, files, heldout_files, settings, tokenize, progress)
        counts = _write_vocabulary(folder, settings, given, *found)
        facts = {"settings": settings, "inputs": list(files), "heldout": list(heldout_files)}
        write_json(folder / "prepared.json", {**counts, **facts})
        if tokenizer != "whitespace":  # which leaves open how the tokens were made
            write_json(folder / TOKENIZER_FILE, {"name": tokenizer, "sentences": sentences})
        folder.rename(output)
    return counts


def _write_sentences(
    folder: pathlib.Path,
    files: dict[str, str],
    heldout_files: dict[str, str],
    settings: dict[str, Any],
    tokenize: _Tokenize,
    progress: bool,
) -> tuple[_Counts, _Counts, int]:
    """Write the sentences; count the tokens of both parts, and the sentences to train on."""
    seed, n_shards = settings["seed"], settings["shards"]
    draw = random.Random(seed)
    seen, heldout_seen = _Counts(), _Counts()
    n_sentences = 0
    with contextlib.ExitStack() as stack:
        shards = [
            stack.enter_context(_append(folder / f"train-{i:05}-of-{n_shards:05}.txt"))
            for i in range(n_shards)
        ]
        for name, file in [*files.items(), *heldout_files.items()]:
            share = settings["heldout_share"] if name in files else 0
            size, held_blocks = _choose_blocks(file, share, f"{seed} {name}")
            times = settings["weights"].get(name, 1.0)
            blocks = cut(read_lines(file, progress), size)
            for number, sentences in enumerate(tokenize(blocks)):
                if sentences and (name in heldout_files or number in held_blocks):
                    with _append(folder / f"heldout-{name}.txt") as heldout:
                        heldout.writelines(sentence + "\n" for sentence in sentences)
                    heldout_seen.update(token for s in sentences for token in s.split(" "))
                    continue
                for sentence in sentences:
                    # A fraction of the weight is the probability of one more copy.
                    for _ in range(int(times) + (times % 1 > 0 and draw.random() < times % 1)):
                        shards[draw.randrange(n_shards)].write(sentence + "\n")
                        seen.update(sentence.split(" "))
                        n_sentences += 1
    if not seen:
        hint = "All of it was held out, so lower heldout_share" if heldout_seen else ""
        raise invalid("Expected text to train on", f"none in {', '.join(files.values())}", hint)
    return seen, heldout_seen, n_sentences


def _write_vocabulary(
    folder: pathlib.Path,
    settings: dict[str, Any],
    given: list[str] | None,
    seen: _Counts,
    heldout_seen: _Counts,
    n_sentences: int,
) -> dict[str, Any]:
    """Write the given vocabulary, or the most frequent tokens; return the counts."""
    n_tokens, n_heldout = seen.total(), heldout_seen.total()
    for token in (*SPECIAL_TOKENS, SKIPPED):
        seen.pop(token, None)
    n_special = len(SPECIAL_TOKENS)
    if given is None:
        most = sorted(seen, key=lambda token: (-seen[token], token))
        known = most[: settings["vocabulary_size"] - n_special]
    else:
        known = sorted(given[n_special:], key=lambda token: -seen[token])
    write_vocabulary(folder / "vocab.txt", [*SPECIAL_TOKENS, *known])
    if settings["heldout_share"] and not n_heldout:
        warnings.warn(
            f"No text was held out: a share of {settings['heldout_share']} of the inputs has no "
            "sentence. To measure perplexity, prepare more text or give a file to hold out",
            stacklevel=3,
        )
    n_unknown = n_heldout - sum(heldout_seen[token] for token in known)
    return {
        "tokens": n_tokens,
        "sentences": n_sentences,
        "types": len(seen),
        "vocabulary": n_special + len(known),
        "heldout_tokens": n_heldout,
        "oov_share": n_unknown / n_heldout if n_heldout else None,
    }


def _choose_blocks(file: str, share: float, seed: str) -> tuple[int, frozenset[int]]:
    """Return the number of lines of a block, and the numbers of the blocks to hold out."""
    if not share:
        return _LINES_PER_BLOCK, frozenset()
    lines = sum(1 for _ in read_lines(file))
    wanted = max(1, round(lines * share))
    size = max(1, min(_LINES_PER_BLOCK, wanted // _FEWEST_BLOCKS))
    # Keep the incomplete last block for training, or else one block.
    blocks = lines // size
    most = blocks if lines % size else max(0, blocks - 1)
    draw = random.Random(seed.encode("utf-8", "surrogateescape"))  # a name may not be UTF-8
    chosen = draw.sample(range(blocks), min(most, round(wanted / size)))
    return size, frozenset(chosen)


@contextlib.contextmanager
def _start_workers(rules: SentenceRules, workers: int) -> Iterator[_Tokenize]:
    """Yield a function that tokenises blocks and keeps their order."""
    if workers == 1:
        yield lambda blocks: map(rules, blocks)
        return
    context = multiprocessing.get_context("spawn")  # threads of the caller do not survive a fork
    settings = workers, context, _start_worker, (rules,)
    with concurrent.futures.ProcessPoolExecutor(*settings) as pool:
        size = _BLOCKS_IN_A_ROUND * workers
        yield lambda blocks: itertools.chain.from_iterable(
            pool.map(_tokenize_in_worker, some) for some in cut(blocks, size)
        )


_rules_of_worker: SentenceRules


def _start_worker(rules: SentenceRules) -> None:
    global _rules_of_worker
    _rules_of_worker = rules
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent acts


def _tokenize_in_worker(lines: list[str]) -> list[str]:
    return _rules_of_worker(lines)


def _find_files(patterns: _Inputs, inputs: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the files that match paths and patterns, by short names that ``inputs`` lack."""
    inputs = inputs or {}
    files: dict[str, str] = {}  # by real path: another name would get another held-out part
    for pattern in [patterns] if isinstance(patterns, PathLike) else patterns:
        path = str(local_path(pattern))
        found = [path] if os.path.isfile(path) else sorted(glob.glob(path, recursive=True))
        matches = [match for match in found if os.path.isfile(match)]
        if not matches:
            raise FileNotFoundError(f"No file matches {path}. Pass files, as in 'FOLDER/*.txt'")
        for match in matches:
            files.setdefault(os.path.realpath(match), match)
    if both := files.keys() & map(os.path.realpath, inputs.values()):
        expected = "prepare expects heldout to be other files than the inputs"
        raise invalid(expected, f"{both.pop()} as both")
    named: dict[str, str] = {}
    for file in files.values():
        ending = ".txt" if file.lower().endswith(tuple(OPENERS)) else ""
        stem = name = pathlib.Path(file).stem.removesuffix(ending)
        copies = itertools.count(2)
        while name in named or name in inputs:
            name = f"{stem}-{next(copies)}"
        named[name] = file
    return named
