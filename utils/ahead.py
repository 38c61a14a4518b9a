"""Reading before the network and writing behind it, in threads."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

READERS = 4  # threads that decode pictures beside the network


def ahead(do: Callable[[A], B], items: Iterable[A], most: int, threads: int = 1) -> Iterator[B]:
    """`do(item)` of all items, in order, while threads do up to `most` of those that come next (0: none, one by one).

    `items` are taken where the answers are, only `do` runs in threads; one thread does them in order. What `do` raises is
    raised in its place. Whatever ends it, closing included, what was begun is done and no thread is left.
    """
    waiting: deque = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            waiting.append(pool.submit(do, item))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def blocks(items: Iterable[A], size: int) -> Iterator[list[A]]:
    """Lists of `size` items, the last one may be shorter."""
    items = iter(items)
    while block := list(itertools.islice(items, size)):
        yield block
