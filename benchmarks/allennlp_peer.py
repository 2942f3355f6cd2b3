"""Time the biLM of AllenNLP 2.10.1. peer.py runs this with the Python that has AllenNLP.

    python allennlp_peer.py OPTIONS WEIGHTS < job.json

job.json is {"sentences": [[token, ...], ...], "single": n, "threads": n, "check": n}. The script
times all sentences in batches of 32, in the order given, then the first ``single`` sentences one
at a time. It prints JSON: tokens/s of both, and the layers of the first ``check`` sentences.
README.md says how to install AllenNLP.
"""

import importlib.abc
import importlib.machinery
import json
import pathlib
import sys
import time
import types

import torch

# AllenNLP imports these packages at the top of its modules, but its biLM never calls them.
UNUSED = {"spacy", "transformers", "fairscale", "huggingface_hub", "lmdb", "torchvision"}


class Placeholder(type):
    """A class whose every attribute is again a placeholder class."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(name, (), {"__module__": cls.__module__})


class Placeholders(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import placeholders for the unused packages, and a cached_path that takes local paths."""

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
        # AllenNLP's biLM keeps its state between calls, so each sentence needs a new one.
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
