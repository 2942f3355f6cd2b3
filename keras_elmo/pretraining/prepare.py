"""Make a corpus for pretraining: tokenised sentences, a held-out part and a vocabulary."""

import collections
import concurrent.futures
import contextlib
import glob
import itertools
import multiprocessing
import os
import pathlib
import random
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from keras_elmo.formats.vocabulary import (
    SKIPPED,
    SPECIAL_TOKENS,
    read_vocabulary,
    write_vocabulary,
)
from keras_elmo.presets import TOKENIZER_FILE
from keras_elmo.text_input import OPENERS, SentenceRules, read_lines
from keras_elmo.utils.checks import FieldTable, invalid, is_number, is_whole
from keras_elmo.utils.files import PathLike, local_path, write_json

# Neighbouring lines often belong to one document, so they are held out together.
_LINES_PER_BLOCK = 200
# The held-out part of a file comes from at least this many places of the file.
_FEWEST_BLOCKS = 4

_Inputs = PathLike | Iterable[PathLike]
_Run = Callable[[Iterable[list[str]]], Iterator[list[str]]]


def prepare(
    inputs: _Inputs,
    output: PathLike,
    *,
    vocabulary_size: int = 40_000,
    vocabulary: PathLike | None = None,
    heldout_share: float = 0.01,
    heldout: _Inputs = (),
    weights: dict[str, float] | None = None,
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

    The folder appears only if everything succeeds. Equal inputs and settings give equal bytes.

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
        weights: dict. How often training reads an input in each epoch, by the file name without
            endings; 1 for other inputs. A fraction is a probability for each sentence.
        shards: int. Number of training files. Training keeps one of them in memory, at about
            15 times its size.
        sentences: str. ``"punkt"`` uses NLTK's Punkt, trained without supervision on the start
            of every file, for scripts with capitals. ``"stops"`` splits after every full stop,
            question mark or exclamation mark before a space, except in initials and numbers.
            ``"lines"`` takes every line as one sentence.
        tokenizer: str. A name of ``WordTokenizer``; ``"kiwi"`` is for Korean, ``"whitespace"``
            for tokenised text.
        seed: int. Seed of the training files and of the held-out part.
        workers: int. Number of processes. With several, a script must guard its start with
            ``if __name__ == "__main__":``.
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
    files, heldout_files = _find_files(inputs), _find_files(heldout)
    settings = {
        "vocabulary_size": vocabulary_size,
        "heldout_share": heldout_share,
        "weights": {name: _to_python(times) for name, times in (weights or {}).items()},
        "shards": shards,
        "sentences": sentences,
        "tokenizer": tokenizer,
        "seed": seed,
    }
    settings = {name: _to_python(value) for name, value in settings.items()}
    _check(settings, workers, files, heldout_files)
    given = None
    if vocabulary is not None:
        given, settings["vocabulary_size"] = read_vocabulary(vocabulary), None
    output = local_path(output).resolve()  # a link cannot be renamed over
    if output.exists():
        raise FileExistsError(f"{output} exists. Remove it, or choose another folder")
    rules = SentenceRules(sentences, tokenizer, files.values())
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f"{output.name}.") as folder:
        work = pathlib.Path(folder) / "corpus"
        work.mkdir()
        counts = _write(files, heldout_files, work, settings, given, rules, workers, progress)
        work.rename(output)
    return counts


def _write(
    files: dict[str, str],
    heldout_files: dict[str, str],
    folder: pathlib.Path,
    settings: dict[str, Any],
    vocabulary: list[str] | None,
    rules: SentenceRules,
    workers: int,
    progress: bool,
) -> dict[str, Any]:
    """Write all files of the folder, and return the counts."""
    seen, heldout_seen, n_sentences = _write_sentences(
        files, heldout_files, folder, settings, rules, workers, progress
    )
    if not seen:
        hint = "All of it was held out, so lower heldout_share" if heldout_seen else ""
        raise invalid("Expected text to train on", f"none in {', '.join(files.values())}", hint)
    n_tokens, n_heldout = seen.total(), heldout_seen.total()
    for token in (*SPECIAL_TOKENS, SKIPPED):
        seen.pop(token, None)
    if vocabulary is None:
        most = sorted(seen.items(), key=lambda item: (-item[1], item[0]))
        kept = [token for token, _ in most[: settings["vocabulary_size"] - len(SPECIAL_TOKENS)]]
    else:
        kept = sorted(vocabulary[len(SPECIAL_TOKENS) :], key=lambda token: -seen[token])
    vocabulary = [*SPECIAL_TOKENS, *kept]
    write_vocabulary(folder / "vocab.txt", vocabulary)
    known = set(vocabulary) - set(SPECIAL_TOKENS)
    if settings["heldout_share"] and not n_heldout:
        warnings.warn(
            f"No text was held out: a share of {settings['heldout_share']} of the inputs has no "
            "sentence. To measure perplexity, prepare more text or give a file to hold out",
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
    write_json(folder / "prepared.json", facts)
    if settings["tokenizer"] != "whitespace":  # which leaves open how the tokens were made
        tokenizer = {"name": settings["tokenizer"], "sentences": settings["sentences"]}
        write_json(folder / TOKENIZER_FILE, tokenizer)
    return counts


def _write_sentences(
    files: dict[str, str],
    heldout_files: dict[str, str],
    folder: pathlib.Path,
    settings: dict[str, Any],
    rules: SentenceRules,
    workers: int,
    progress: bool,
) -> tuple[collections.Counter[str], collections.Counter[str], int]:
    """Write the sentences; count the tokens of both parts, and the sentences to train on."""
    draw = random.Random(settings["seed"])
    n_shards = settings["shards"]
    seen: collections.Counter[str] = collections.Counter()
    heldout_seen: collections.Counter[str] = collections.Counter()
    n_sentences = 0
    with contextlib.ExitStack() as stack:
        shards = [
            stack.enter_context(_create(folder / f"train-{i:05}-of-{n_shards:05}.txt"))
            for i in range(n_shards)
        ]
        run = stack.enter_context(_start_workers(rules, workers))
        for name, file in [*files.items(), *heldout_files.items()]:
            is_heldout = file in heldout_files.values()
            share = 0 if is_heldout else settings["heldout_share"]
            size, held_blocks = _choose_blocks(file, share, f"{settings['seed']} {name}")
            weight = settings["weights"].get(name, 1)
            with _create(folder / f"heldout-{name}.txt") as heldout:
                for number, sentences in enumerate(run(_read_blocks(file, size, progress))):
                    if is_heldout or number in held_blocks:
                        heldout.writelines(sentence + "\n" for sentence in sentences)
                        for sentence in sentences:
                            heldout_seen.update(sentence.split(" "))
                        continue
                    for sentence in _repeat(sentences, weight, draw):
                        shards[draw.randrange(n_shards)].write(sentence + "\n")
                        seen.update(sentence.split(" "))
                        n_sentences += 1
    for path in folder.glob("heldout-*.txt"):
        if not path.stat().st_size:
            path.unlink()
    return seen, heldout_seen, n_sentences


def _create(path: pathlib.Path) -> TextIO:
    # An input and a held-out file may have one name: the first writes nothing then.
    return open(path, "a", encoding="utf-8", newline="\n")


def _repeat(sentences: list[str], weight: float, draw: random.Random) -> Iterator[str]:
    """Yield every sentence as often as the weight of its input requires."""
    whole, chance = int(weight), weight - int(weight)
    for sentence in sentences:
        for _ in range(whole + (chance > 0 and draw.random() < chance)):
            yield sentence


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
    draw = random.Random(seed.encode("utf-8", "surrogateescape"))  # a file name may not be UTF-8
    return size, frozenset(draw.sample(range(blocks), min(most, round(wanted / size))))


def _read_blocks(file: str, size: int, progress: bool) -> Iterator[list[str]]:
    lines = read_lines(file, progress)
    while block := list(itertools.islice(lines, size)):
        yield block


@contextlib.contextmanager
def _start_workers(rules: SentenceRules, workers: int) -> Iterator[_Run]:
    """Yield a function that tokenises blocks and keeps their order."""
    if workers == 1:
        yield lambda blocks: map(rules, blocks)
        return
    # Where the system allows it, the workers share one import of Keras.
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else None)
    if "forkserver" in methods:
        context.set_forkserver_preload([__name__])
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, _start_worker, (rules,))

    def run(blocks: Iterable[list[str]]) -> Iterator[list[str]]:
        # Submit few blocks ahead, so that memory does not grow with the text.
        ahead: collections.deque[concurrent.futures.Future] = collections.deque()
        for lines in blocks:
            ahead.append(pool.submit(_tokenize_in_worker, lines))
            if len(ahead) > 8 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    try:
        yield run
    finally:
        pool.shutdown(cancel_futures=True)


_rules_of_worker: SentenceRules


def _start_worker(rules: SentenceRules) -> None:
    global _rules_of_worker
    _rules_of_worker = rules
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent acts


def _tokenize_in_worker(lines: list[str]) -> list[str]:
    return _rules_of_worker(lines)


def _find_files(inputs: _Inputs) -> dict[str, str]:
    """Return the files that match paths and patterns, by unique short names."""
    files: dict[str, str] = {}
    seen = set()
    for pattern in [inputs] if isinstance(inputs, PathLike) else inputs:
        pattern = os.path.expanduser(pattern)
        found = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
        matches = [match for match in sorted(found) if os.path.isfile(match)]
        if not matches:
            is_folder = os.path.isdir(pattern)
            inside = os.path.join(pattern, "*.txt")
            hint = f", a folder. Pass its files, for example '{inside}'" if is_folder else ""
            raise FileNotFoundError(f"No file matches {pattern}{hint}")
        for match in matches:
            real, path = os.path.realpath(match), pathlib.Path(match)
            if real in seen:  # another name of a file would get another held-out part
                continue
            seen.add(real)
            stem = path.stem
            if path.suffix.lower() in OPENERS:
                stem = stem.removesuffix(".txt")
            name, n = stem, 1
            while name in files:
                n += 1
                name = f"{stem}-{n}"
            files[name] = match
    return files


def _to_python(value: Any) -> Any:
    """Convert a NumPy number to a Python number, for JSON."""
    return value.item() if hasattr(value, "item") else value


_CHECKS: FieldTable = [
    ("vocabulary_size", lambda x: is_whole(x, len(SPECIAL_TOKENS) + 1), "whole, 4 or more"),
    ("shards workers", lambda x: is_whole(x, 1), "whole, 1 or more"),
    ("seed", is_whole, "whole, 0 or more"),
    ("heldout_share", lambda x: is_number(x) and 0 <= x < 1, "0 or more and below 1"),
]


def _check(
    settings: dict[str, Any], workers: int, files: dict[str, str], heldout_files: dict[str, str]
) -> None:
    values = {**settings, "workers": workers}
    for names, is_valid, expected in _CHECKS:
        for name in names.split():
            if not is_valid(values[name]):
                raise invalid(f"prepare expects {name} to be {expected}", f"{name}={values[name]}")
    for name, weight in settings["weights"].items():
        if name not in files:
            raise invalid(f"prepare expects weights for its inputs, {', '.join(files)}", repr(name))
        if not is_number(weight, above=0):
            raise invalid("prepare expects weights above 0", f"a weight of {weight!r} for {name}")
    real = {os.path.realpath(file) for file in files.values()}
    if both := sorted(real & {os.path.realpath(file) for file in heldout_files.values()}):
        raise invalid(
            "prepare expects heldout to be other files than the inputs", f"{both[0]} as both"
        )
    both = sorted(files.keys() & heldout_files.keys())
    if settings["heldout_share"] and both:
        raise invalid(
            "prepare expects heldout files to have other names than the inputs, because both "
            "write heldout-NAME.txt",
            f"{both[0]} twice",
            f"Rename {heldout_files[both[0]]}",
        )
