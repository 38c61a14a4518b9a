"""utils/ahead.py: the same answers in the same order, a bounded number of them in the making, nothing left behind."""

import threading
from contextlib import closing

import pytest

from utils.ahead import ahead, blocks


@pytest.mark.parametrize("most, threads", [(0, 1), (3, 1), (3, 4), (100, 4)])
def test_answers_are_those_of_map_in_order(most, threads):
    waits = [threading.Event() for _ in range(20)]

    def last_first(item):
        if threads > 1 and item % 4 < 3:  # three of four wait for the one after them
            waits[item + 1].wait(5)
        waits[item].set()
        return item * item

    assert list(ahead(last_first, range(20), most, threads)) == [i * i for i in range(20)]


def test_one_thread_does_the_items_in_order_and_apart_from_the_caller():
    done = []
    list(ahead(lambda item: done.append((item, threading.get_ident())), range(20), 5))
    assert [item for item, _ in done] == list(range(20))
    assert len({thread for _, thread in done}) == 1 and done[0][1] != threading.get_ident()


@pytest.mark.parametrize("most", [0, 1, 7])
def test_no_more_than_so_many_are_made_before_they_are_wanted(most):
    taken = []
    answers = ahead(lambda item: item, (taken.append(i) or i for i in range(100)), most, 4)
    for wanted in range(1, 50):
        next(answers)
        assert len(taken) == wanted + most
    answers.close()
    assert len(taken) == 49 + most


@pytest.mark.parametrize("most", [0, 5])
def test_errors_come_in_their_place(most):
    found = []
    with pytest.raises(ZeroDivisionError):
        for answer in ahead(lambda item: 1 / (item - 3), range(10), most):
            found.append(answer)
    assert len(found) == 3


def test_an_error_of_the_items_and_ctrl_c_leave_no_thread_and_nothing_half_done():
    done, before = [], threading.active_count()

    def items():
        yield from range(5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(ahead(done.append, items(), 8))
    assert done == list(range(5)) and threading.active_count() == before


def test_closing_ends_what_was_begun_and_the_threads():
    done, before = [], threading.active_count()
    with closing(ahead(done.append, range(100), 8, 2)) as answers:
        next(answers)
    assert sorted(done) == list(range(9)) and threading.active_count() == before


def test_blocks_are_of_one_size_but_for_the_last():
    assert list(blocks(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]] and list(blocks([], 3)) == []
