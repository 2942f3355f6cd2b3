"""Run AllenNLP in a process of the Python that has it."""

import json
import pathlib
import subprocess


def ask_allennlp(python, options_file, weight_file, job):
    """Return the JSON object that allennlp_peer.py prints for a job."""
    script = pathlib.Path(__file__).with_name("allennlp_peer.py")
    finished = subprocess.run(
        [python, script, options_file, weight_file],
        input=json.dumps(job),
        capture_output=True,
        text=True,
    )
    if finished.returncode:
        raise RuntimeError(f"AllenNLP failed:\n{finished.stderr[-2000:]}")
    return json.loads(finished.stdout.splitlines()[-1])
