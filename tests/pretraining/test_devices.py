"""Devices and processes that share a batch."""

import numpy as np
import pytest

from keras_elmo.pretraining import devices
from keras_elmo.pretraining.corpus import Batcher
from keras_elmo.pretraining.devices import Share, _count_replicas, current_share
from tests.conftest import only_tensorflow

pytestmark = pytest.mark.backends

KERAS = "KERAS_DISTRIBUTION_"
ADDRESSES = {f"{KERAS}JOB_ADDRESSES": "a:1, b:1"}
SLURM = {
    "SLURM_JOB_ID": "41007",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "gpu[08-09]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}


@pytest.fixture
def set_variables(monkeypatch):
    for name in (*devices._INDEX, devices._COUNT, *ADDRESSES, *SLURM, "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)

    def set_variables(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.mark.parametrize(
    "variables, count",
    [
        ({}, 1),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, 1),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 4),
        (SLURM, 3),
        (ADDRESSES, 2),
        ({f"{KERAS}JOB_ADDRESSES": "a:1", f"{KERAS}NUM_PROCESSES": "4"}, 4),
    ],
)
def test_number_of_processes(variables, count, set_variables):
    set_variables(variables)
    assert devices._count_processes() == count


@only_tensorflow
def test_processes_of_tf_config(set_variables):
    set_variables(
        {
            "TF_CONFIG": '{"cluster": {"chief": ["c:1"], "worker": ["a:1", "b:1"]}, '
            '"task": {"type": "worker", "index": 0}}'
        }
    )
    assert devices._count_processes() == 3


@only_tensorflow
@pytest.mark.parametrize(
    "text", ["{", "[]", '{"cluster": 1}', '{"cluster": {"worker": ["a", "b"]}}']
)
def test_an_incomplete_tf_config(text, set_variables):
    set_variables({"TF_CONFIG": text})
    with pytest.raises(ValueError, match="TF_CONFIG to be JSON with a cluster, .* Received: TF_CO"):
        devices._count_processes()


@only_tensorflow
def test_workers_of_tensorflow(set_variables):
    set_variables(SLURM)
    expected = {"worker": ["gpu08:21007", "gpu08:21008", "gpu09:21007"]}
    assert devices._find_workers(3) == (expected, 2)
    set_variables({"SLURMD_NODENAME": "gpu10"})
    with pytest.raises(ValueError, match="process 2 on node gpu09. Received: .*NODENAME=gpu10"):
        devices._find_workers(3)
    # Inside a Slurm job, the number from mpirun counts.
    set_variables({**ADDRESSES, "OMPI_COMM_WORLD_RANK": "1"})
    assert devices._find_workers(2) == ({"worker": ["a:1", "b:1"]}, 1)


@only_tensorflow
def test_tensorflow_needs_all_addresses(set_variables):
    with pytest.raises(ValueError, match=f"addresses of 2 processes. Received: {KERAS}JOB_ADDR"):
        devices._find_workers(2)


@pytest.mark.parametrize("variables", [{}, {f"{KERAS}PROCESS_ID": "x"}, {"PMI_RANK": "2"}])
def test_numbers_of_processes_that_do_not_fit(variables, set_variables):
    set_variables(variables)
    with pytest.raises(ValueError, match="Expected the number of this process, 0 to 1. Received"):
        devices._index(2)


def test_addresses_that_do_not_fit(set_variables):
    set_variables({**ADDRESSES, f"{KERAS}NUM_PROCESSES": "3"})
    with pytest.raises(ValueError, match="addresses of 3 processes, or of the first one. Received"):
        devices._count_processes()
    for name in (f"{KERAS}NUM_PROCESSES", "SLURM_STEP_NUM_TASKS"):
        addresses = {} if name.startswith("SLURM") else ADDRESSES
        set_variables({f"{KERAS}JOB_ADDRESSES": "", **addresses, name: "two"})
        with pytest.raises(ValueError, match=f"a number of processes. Received: {name}=two"):
            devices._count_processes()


def test_shares():
    assert current_share() == Share() and Share().is_first and Share().parts(3) == range(3)
    assert not Share(2, 1).is_first
    assert Share(2, 1, 2).parts(8) == range(4, 8)
    with pytest.raises(
        ValueError, match="number of parts that 4 devices share evenly. Received: devices=6"
    ):
        Share(2, 1, 2).parts(6)


def test_devices_of_several_processes():
    assert [_count_replicas(2, n, 4, False) for n in (None, 2, 6, 8)] == [4, 1, 3, 4]
    # A run goes on with fewer devices, each with as many parts as the rest.
    assert [_count_replicas(2, n, 4, True) for n in (8, 12, 20)] == [4, 3, 2]
    with pytest.raises(ValueError, match="Expected 10 devices. Received: 8, 4 of each of 2 proc"):
        _count_replicas(2, 10, 4, False)
    with pytest.raises(
        ValueError, match="Expected a number of devices that 2 processes share evenly. .*=3"
    ):
        _count_replicas(2, 3, 4, True)


@pytest.mark.parametrize("fixed_shapes", [False, True])
def test_a_process_makes_its_parts_of_the_same_batches(fixed_shapes):
    rng = np.random.default_rng(0)
    sentences = [list(map(str, rng.integers(0, 50, n))) for n in rng.integers(1, 12, 60)]
    settings = {"batch_tokens": 24, "devices": 4, "fixed_shapes": fixed_shapes}
    settings |= {"max_characters": 13, "widest_filter": 4}
    whole = Batcher(["<S>", "</S>", "<UNK>", "1", "7"], **settings)
    halves = [Batcher(list(whole.vocabulary), **settings, parts=p) for p in (range(2), range(2, 4))]
    encoded = whole.encode(sentences)
    batches = whole.arrange(encoded.lengths, np.random.default_rng(1))
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


def test_a_part_without_a_sentence_has_a_token_to_read():
    batcher = Batcher(["<S>", "</S>", "<UNK>", "a"], devices=2, parts=range(1, 2))
    encoded = batcher.encode([["a", "b"]])
    batch = batcher.batch(encoded, np.array([0]))
    assert batch["characters"].shape[1] == 1
    assert not batch["words"].any() and not batch["weights"].any()


@only_tensorflow
def test_tf_config_without_a_cluster_is_one_process(set_variables):
    """Services write such a TF_CONFIG for one machine."""
    set_variables({"TF_CONFIG": '{"cluster": {}, "task": {"type": "worker", "index": 0}}'})
    assert devices._count_processes() == 1
