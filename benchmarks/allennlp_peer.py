"""Time AllenNLP 2.10.1's biLM; run by peer.py with the Python that has it (README.md).

    python allennlp_peer.py OPTIONS WEIGHTS < job.json

job.json: {"sentences": [[token, ...], ...], "single": n, "threads": n, "check": n}. The
sentences go in batches of 32 in the order given, then the first ``single`` one at a time.
Prints JSON: tokens/s of both, and for a check the layers of the first ``check`` sentences.
"""

import importlib.abc
import importlib.machinery
import json
import pathlib
import sys
import time
import types

import torch

# What AllenNLP imports at the top of its modules and its biLM never calls.
UNUSED = {"spacy", "transformers", "fairscale", "huggingface_hub", "lmdb", "torchvision"}


class Placeholder(type):
    """A class, any attribute of which is another such class."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(name, (), {"__module__": cls.__module__})


class Placeholders(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Give an empty module for each of the unused packages, and a local cached_path."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in UNUSED | {"cached_path"}:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        class Module(types.ModuleType):
            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return Placeholder(name, (), {"__module__": self.__name__})

        return Module(spec.name)

    def exec_module(self, module):
        if module.__name__ == "cached_path":
            module.cached_path = lambda path, *args, **kwargs: pathlib.Path(path)
            module.get_cache_dir = lambda: pathlib.Path.home()


def main():
    sys.meta_path.append(Placeholders())
    from allennlp.modules.elmo import _ElmoBiLm, batch_to_ids

    job = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    sentences = job["sentences"]
    model = _ElmoBiLm(sys.argv[1], sys.argv[2], requires_grad=False).eval()

    @torch.no_grad()
    def tokens_per_s(batches):
        model(batch_to_ids(batches[0]))
        start = time.perf_counter()
        for batch in batches:
            model(batch_to_ids(batch))
        return sum(len(s) for batch in batches for s in batch) / (time.perf_counter() - start)

    layers = []
    for sentence in sentences[: job["check"]]:
        # A new one each time, as it carries its state on.
        fresh = _ElmoBiLm(sys.argv[1], sys.argv[2], requires_grad=False).eval()
        with torch.no_grad():
            activations = fresh(batch_to_ids([sentence]))["activations"]
        layers.append(torch.stack(activations)[:, 0, 1:-1].tolist())
    batches = [sentences[i : i + 32] for i in range(0, len(sentences), 32)]
    result = {
        "batched": tokens_per_s(batches),
        "single": tokens_per_s([[s] for s in sentences[: job["single"]]]),
        "layers": layers,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
