"""Which processes train together, and what each computes."""

import json

import numpy as np
import pytest

from keras_elmo.pretraining.corpus import Batcher
from keras_elmo.pretraining.devices import Share, _replicas, current_share
from keras_elmo.pretraining.hosts import Hosts, find_hosts

KERAS = "KERAS_DISTRIBUTION_"
SLURM = {"SLURM_JOB_ID": "41007", "SLURM_PROCID": "2"}


def tf_config(role, index, **cluster):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})}


@pytest.mark.parametrize(
    "environment, hosts",
    [
        ({}, Hosts()),
        ({"OMPI_COMM_WORLD_SIZE": "1", "TF_CONFIG": ""}, Hosts()),
        (tf_config("worker", 1, worker=["a:1", "b:2"]), Hosts(("a:1", "b:2"), 2, 1)),
        (tf_config("worker", 0, chief=["c:1"], worker=["a:1"]), Hosts(("c:1", "a:1"), 2, 1)),
        (tf_config("chief", 0, chief=["c:1"], worker=["a:1"]), Hosts(("c:1", "a:1"), 2, 0)),
        (
            {f"{KERAS}JOB_ADDRESSES": "a:1,b:1", f"{KERAS}PROCESS_ID": "1"},
            Hosts(("a:1", "b:1"), 2, 1),
        ),
        (
            {
                f"{KERAS}JOB_ADDRESSES": "a:1",
                f"{KERAS}NUM_PROCESSES": "4",
                "OMPI_COMM_WORLD_RANK": "3",
            },
            Hosts(("a:1",), 4, 3),
        ),
        (  # mpirun in a job of Slurm, whose number is then that of the batch script
            {
                f"{KERAS}JOB_ADDRESSES": "a:1,b:1",
                "SLURM_PROCID": "0",
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
            },
            Hosts(("a:1", "b:1"), 2, 1),
        ),
        (
            {f"{KERAS}JOB_ADDRESSES": "a:1,b:1", "JOB_COMPLETION_INDEX": "0"},
            Hosts(("a:1", "b:1"), 2, 0),
        ),
        (
            {
                "SLURM_STEP_NODELIST": "gpu[08-09,11],fat",
                "SLURM_STEP_TASKS_PER_NODE": "2,1(x3)",
                **SLURM,
            },
            Hosts(
                ("gpu08:21007", "gpu08:21008", "gpu09:21007", "gpu11:21007", "fat:21007"),
                5,
                2,
            ),
        ),
        (
            {f"{KERAS}JOB_ADDRESSES": "a:1, b:1", f"{KERAS}PROCESS_ID": "1"},
            Hosts(("a:1", "b:1"), 2, 1),
        ),
        (
            {
                "SLURM_STEP_NODELIST": "r[1-2]n[3,10]-ib,x",
                "SLURM_STEP_TASKS_PER_NODE": "1(x5)",
                **SLURM,
            },
            Hosts(tuple(f"{n}:21007" for n in "r1n3-ib r1n10-ib r2n3-ib r2n10-ib x".split()), 5, 2),
        ),
    ],
)
def test_hosts(environment, hosts):
    assert find_hosts(environment) == hosts


@pytest.mark.parametrize(
    "environment, message",
    [
        ({"TF_CONFIG": "{"}, r'Expected TF_CONFIG as \{"cluster": .* Received: TF_CONFIG=\{ '),
        (tf_config("ps", 0, worker=["a:1"]), "Expected TF_CONFIG as .* Received: "),
        (tf_config("worker", 2, worker=["a:1", "b:1"]), "Expected processes 0 to 1. .* process 2"),
        (
            {f"{KERAS}JOB_ADDRESSES": "a:1,b:1", f"{KERAS}NUM_PROCESSES": "3"},
            "addresses of 3 processes, or of the first one. Received: .*=a:1,b:1",
        ),
        ({f"{KERAS}JOB_ADDRESSES": "a:1,b:1"}, "Expected the number of this process, from 0. Rec"),
        (
            {f"{KERAS}JOB_ADDRESSES": "a:1,b:1", f"{KERAS}PROCESS_ID": "x"},
            f"Expected a whole number. Received: {KERAS}PROCESS_ID=x",
        ),
        (
            {"SLURM_STEP_NODELIST": "a[1-3]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", **SLURM},
            r"tasks of each, as .* Received: SLURM_STEP_NODELIST=a\[1-3\], .*_NODE=1\(x2\)$",
        ),
        (
            {"SLURM_STEP_NODELIST": "a[1-x]", "SLURM_STEP_TASKS_PER_NODE": "1", **SLURM},
            r"Expected the nodes of a step of Slurm .* Received: SLURM_STEP_NODELIST=a\[1-x\], ",
        ),
        (
            {
                "SLURM_STEP_NODELIST": "a[1-3]",
                "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
                "OMPI_COMM_WORLD_SIZE": "6",
                **SLURM,
            },
            f"addresses of 6 processes. Received: no {KERAS}JOB_ADDR",
        ),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, f"addresses of 2 processes. Received: no {KERAS}JOB_ADDR"),
    ],
)
def test_environments_that_do_not_fit(environment, message):
    with pytest.raises(ValueError, match=message):
        find_hosts(environment)


def test_shares():
    assert current_share() == Share() and Share().is_first and Share().parts(3) == range(3)
    assert not Share(2, 1).is_first
    assert Share(2, 1, 2).parts(8) == range(4, 8)
    with pytest.raises(ValueError, match="parts that 4 devices share evenly. Received: devices=6"):
        Share(2, 1, 2).parts(6)


def test_devices_of_several_hosts():
    two = Hosts(("a:1", "b:1"), 2, 0)
    assert [_replicas(two, n, 4, False) for n in (None, 2, 6, 8)] == [4, 1, 3, 4]
    # A run goes on with fewer devices, each with as many parts as the rest.
    assert [_replicas(two, n, 4, True) for n in (8, 12, 20)] == [4, 3, 2]
    with pytest.raises(ValueError, match="Expected 10 devices. Received: 8, 4 of each of 2 proc"):
        _replicas(two, 10, 4, False)
    with pytest.raises(ValueError, match="Expected devices that 2 processes share evenly. .*=3"):
        _replicas(two, 3, 4, True)


@pytest.mark.parametrize("fixed_shapes", [False, True])
def test_a_process_makes_its_parts_of_the_same_batches(fixed_shapes):
    rng = np.random.default_rng(0)
    sentences = [list(map(str, rng.integers(0, 50, n))) for n in rng.integers(1, 12, 60)]
    settings = {"batch_tokens": 24, "devices": 4, "fixed_shapes": fixed_shapes}
    settings |= {"max_characters": 13, "widest_filter": 4}
    whole = Batcher(["<S>", "</S>", "<UNK>", "1", "7"], **settings)
    halves = [Batcher(list(whole.vocabulary), **settings, parts=p) for p in (range(2), range(2, 4))]
    encoded = whole.encode(sentences)
    batches = whole.arrange(encoded, np.random.default_rng(1))
    assert len(batches) > 3
    for rows in batches:
        batch = whole.batch(encoded, rows)
        parts = [half.batch(encoded, rows) for half in halves]
        for name, array in batch.items():
            if fixed_shapes or name != "characters":
                joined = np.concatenate([part[name] for part in parts])
                np.testing.assert_array_equal(joined, array, err_msg=name)
        # Without fixed shapes each host pads its own distinct tokens.
        assert all(part["characters"].shape[0] == 2 for part in parts)
