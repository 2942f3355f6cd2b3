import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keras_elmo.utils.batches import cut, group_by_length, token_batches


@given(st.lists(st.integers(0, 9)), st.integers(1, 5), st.integers(0, 12))
def test_cut(items, most_items, most_size):
    parts = list(cut(items, int, most_items, most_size))
    assert [item for part in parts for item in part] == items
    for part, following in zip(parts, [*parts[1:], None]):
        assert len(part) == 1 or (len(part) <= most_items and sum(part) <= most_size)
        if following:  # The part had no room for the next item.
            assert len(part) == most_items or sum(part) + following[0] > most_size


@given(st.lists(st.integers(0, 20)), st.randoms())
def test_group_by_length_keeps_the_order_of_equal_lengths(lengths, random):
    order = list(range(len(lengths)))
    random.shuffle(order)
    batches = group_by_length(np.array(lengths, int), lambda n: 1 + n % 3, np.array(order, int))
    found = [int(i) for batch in batches for i in batch]
    assert found == sorted(order, key=lambda i: -lengths[i])
    assert all(len(batch) == 1 + lengths[batch[0]] % 3 for batch in batches[:-1])


@given(st.lists(st.integers(2, 50), max_size=300))
def test_token_batches_leave_a_window_of_padding(lengths):
    found = []
    for batch, width in token_batches(np.array(lengths, int), 7, 50):
        assert all(min(lengths[i] + 7, 50) <= width for i in batch)
        found += batch.tolist()
    assert sorted(found) == list(range(len(lengths)))
