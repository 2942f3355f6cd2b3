"""Layer representations of many sentences in one hdf5 file, written in parts.

The layout is that of bilm-tf and AllenNLP: a dataset for each line of the input, named
by its index from 0, ``(layers, tokens, width)`` or ``(tokens, width)``. Beside them
stands ``sentences``, the lines as strings.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil

import h5py
import numpy as np

from keras_elmo.formats.hdf5 import open_hdf5
from keras_elmo.tokenizers.text import split_tokens
from keras_elmo.utils.file_lock import locked
from keras_elmo.utils.files import atomic_write, digest_of, holds_files

# A part ends where it would exceed either.
SENTENCES_IN_A_PART = 2000
TOKENS_IN_A_PART = 50_000

_REMEDY = "Remove it, or run without resume (--resume) to replace it"
_NOT_IN_HDF5 = re.compile("[\0\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class Part:
    """Some lines of the input that are embedded together.

    Attributes:
        number: From 0.
        start: Index of its first line in the input.
        lines: The lines, without their ends.
        sentences: Their tokens.
        already_written: Whether an earlier run has embedded it.
    """

    number: int
    start: int
    lines: list[str]
    sentences: list[list[str]]
    already_written: bool

    @property
    def tokens(self) -> int:
        """Return the number of tokens."""
        return sum(map(len, self.sentences))


class LayerFileWriter:
    """Write a file of layers in parts that outlive an interruption.

    The parts stand in a folder beside the output, ``OUTPUT.parts``, until ``finish``;
    each is written to a temporary name and renamed, and so is the output. A second file
    beside each part keeps the SHA-256 of what it was made from and of itself, so that a
    damaged one is known before it is read. ``with`` locks the output, ``OUTPUT.lock``.

    Args:
        output_file: Path of the hdf5 file.
        settings: Dict for JSON: all that the arrays depend on, except for the lines.
        resume: Whether to go on with the parts of an earlier run, or to take a finished
            file for what it is.
        compression: Of ``h5py``: None, ``"gzip"`` or ``"lzf"``.

    Raises:
        OSError: On entering, if another process writes the output, or if the output of
            an earlier run or its folder is damaged; if a file cannot be written.
        ValueError: On entering, if there are parts of an earlier run and ``resume`` is
            False, if an earlier run had other settings, or if the folder holds other files.

    Example:

    >>> with LayerFileWriter("layers.hdf5", {"layers": "top"}) as writer:
    ...     for part in writer.parts(["a b", "c"]):
    ...         writer.write(part, enumerate([np.zeros((2, 6)), np.zeros((1, 6))]))
    ...     writer.finish()
    """

    def __init__(self, output_file, settings, resume=False, compression=None):
        self._output = pathlib.Path(output_file)
        self._folder = self._output.with_name(self._output.name + ".parts")
        bounds = {"sentences": SENTENCES_IN_A_PART, "tokens": TOKENS_IN_A_PART}
        self._settings = json.loads(json.dumps({**settings, "part": bounds}))
        self._resume = resume
        self._compression = compression
        self._is_finished = False
        self._parts = []

    def __enter__(self):
        if not self._output.parent.is_dir():
            raise FileNotFoundError(f"There is no folder {self._output.parent} for the output")
        with contextlib.ExitStack() as stack:
            lock = self._output.with_name(self._output.name + ".lock")
            stack.enter_context(locked(lock, f"writes {self._output}"))
            if self._resume and self._output.exists() and not self._folder.exists():
                self._check_finished()
            else:
                self._claim_folder()
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._exit.close()

    def parts(self, lines):
        """Cut the input into parts, and tell which of them are still to be written.

        Args:
            lines: Iterable of strings without line ends, tokens between spaces.

        Yields:
            ``Part``s, in order.

        Raises:
            ValueError: If a line cannot be kept in hdf5, or if what an earlier run wrote
                is of other lines.
            OSError: If what an earlier run wrote is damaged.
        """
        start = 0
        for number, part_lines in enumerate(_cut(lines)):
            _check_lines(part_lines, start)
            sentences = [split_tokens(line) for line in part_lines]
            if self._is_finished:
                already_written = self._check_finished_lines(part_lines, start)
            else:
                already_written = self._check_part(number, part_lines)
                self._parts.append(self._part_file(number))
            yield Part(number, start, part_lines, sentences, already_written)
            start += len(part_lines)
        if self._is_finished and start != self._finished_count:
            raise self._of_other_lines()

    def write(self, part, arrays) -> None:
        """Write a part.

        Args:
            part: Of ``parts``.
            arrays: Iterable of pairs, the index of a sentence in the part and its array,
                each index once, in any order. One array is in memory at a time.
        """
        path = self._part_file(part.number)
        with atomic_write(path, path.with_suffix(".json")) as (temporary, proof):
            with h5py.File(temporary, "w") as file:
                file["sentences"] = np.array(part.lines, h5py.string_dtype())
                for i, array in arrays:
                    kind = self._compression if array.size else None
                    file.create_dataset(str(part.start + i), data=array, compression=kind)
            proof.write_text(
                json.dumps({"made_from": self._key(part.lines), "sha256": digest_of(temporary)})
            )

    def finish(self) -> None:
        """Put the parts together, once all of them are there."""
        if self._is_finished:
            return
        merged = self._folder / "merged.hdf5"
        with h5py.File(merged, "w") as whole:
            whole.attrs["settings"] = json.dumps(self._settings)
            lines = whole.create_dataset("sentences", (0,), h5py.string_dtype(), maxshape=(None,))
            for part in self._parts:
                with open_hdf5(part, kind="Part", remedy="Remove it, and resume") as file:
                    for name in file.names():
                        if name != "sentences":
                            file.copy(name, whole)
                    sentences, start = file.read_strings("sentences"), len(lines)
                    lines.resize(start + len(sentences), axis=0)
                    lines[start:] = sentences
        os.replace(merged, self._output)
        for path in self._parts:  # the settings last: without them the rest is a stranger's
            path.unlink()
            path.with_suffix(".json").unlink()
        shutil.rmtree(self._folder)

    def _part_file(self, number):
        return self._folder / f"{number:08}.hdf5"

    def _key(self, lines):
        return hashlib.sha256("\n".join([json.dumps(self._settings), *lines]).encode()).hexdigest()

    def _claim_folder(self):
        """Make the folder of the parts, or check that an earlier one can be continued."""
        stored = self._folder / "settings.json"
        if stored.exists():
            if not self._resume:
                raise ValueError(
                    f"{self._folder} holds the parts of a run that did not finish. Resume it "
                    "(resume=True, --resume), or remove the folder"
                )
            earlier = _read_json(stored, f"Remove {self._folder} to start anew")
            if earlier != self._settings:
                raise ValueError(
                    f"{self._folder} holds the parts of a run with other settings. "
                    f"Expected: {earlier}. Received: {self._settings}"
                )
            return
        self._folder.mkdir(exist_ok=True)
        # Whatever is in there would go with the folder in the end.
        if holds_files(self._folder):
            raise ValueError(
                f"{self._folder}, where the parts would go, holds files that are no parts of "
                "such a run. Remove it, or choose another output"
            )
        with atomic_write(stored) as (temporary,):
            temporary.write_text(json.dumps(self._settings))

    def _check_part(self, number, lines):
        """Return whether an earlier run wrote this part; raise if it is damaged or another."""
        path = self._part_file(number)
        proof_file = path.with_suffix(".json")
        if not (path.exists() and proof_file.exists()):
            return False
        remedy = f"Remove {path} and resume: it will be computed again"
        proof = _read_json(proof_file, remedy)
        if not isinstance(proof, dict) or proof.keys() != {"made_from", "sha256"}:
            raise OSError(f"{proof_file} is damaged. {remedy}")
        if proof["made_from"] != self._key(lines):
            raise ValueError(
                f"{path} holds other lines or settings than these. Was the input changed? "
                f"Remove {self._folder} to start anew"
            )
        if proof["sha256"] != digest_of(path):
            raise OSError(f"{path} is damaged: it is not the file that was written. {remedy}")
        return True

    def _check_finished(self):
        with self._open_finished() as file:
            names = file.names()
            settings, count = None, -1
            if "sentences" in names and "settings" in file.attributes():
                settings = json.loads(file.attribute("settings"))
                count = file.declared("sentences").shape[0]
        if settings != self._settings or len(names) != count + 1:
            raise ValueError(
                f"{self._output} is there, and not what this run would make. Expected its "
                f"settings: {self._settings}. Received: {settings}. {_REMEDY}"
            )
        self._is_finished, self._finished_count = True, count

    def _check_finished_lines(self, lines, start):
        with self._open_finished() as file:
            finished = file.read_strings("sentences", start, start + len(lines))
        if finished != lines:
            raise self._of_other_lines()
        return True

    def _open_finished(self):
        return open_hdf5(self._output, kind="Layer file", remedy=_REMEDY)

    def _of_other_lines(self):
        return ValueError(
            f"{self._output} is finished, and holds other lines than these. Was the input "
            f"changed? {_REMEDY}"
        )


def _cut(lines):
    """Yield lists of lines within the bounds of a part; a line beyond them is alone."""
    part, tokens = [], 0
    for line in lines:
        more = len(split_tokens(line))
        if part and (len(part) == SENTENCES_IN_A_PART or tokens + more > TOKENS_IN_A_PART):
            yield part
            part, tokens = [], 0
        part.append(line)
        tokens += more
    if part:
        yield part


def _check_lines(lines, start):
    for i, line in enumerate(lines, start=start + 1):
        if wrong := _NOT_IN_HDF5.search(line):
            raise ValueError(
                "The file of layers keeps the sentences, and hdf5 strings hold no NUL character "
                f"and no lone surrogate. Received: {wrong[0]!r} in line {i}"
            )


def _read_json(path, remedy):
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise OSError(f"{path} is damaged: it is not JSON ({error}). {remedy}") from error
