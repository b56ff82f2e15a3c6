"""Several threads on one model get the numbers that one thread gets, whatever they measure."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.measure.test_torch_state import assert_equal, expected_tables, measure

FAST = [
    *(
        "Sensitivity",
        "Bounds",
        "Attention",
        "Attribution",
        "Collapse",
        "HeadScores",
        "Evaluation",
    ),
    *("AttentionVariation", "Faithfulness", "Patching"),
]


@pytest.mark.parametrize(
    ("threads", "names"), [(2, FAST[:3]), pytest.param(3, FAST, marks=pytest.mark.slow)]
)
def test_measurements_at_once_give_the_numbers_of_one_after_the_other(
    threads: int, names: list[str]
) -> None:
    """Each thread measures every name once, and begins at another one."""
    for name in names:
        expected_tables(name)
    barrier = threading.Barrier(threads)

    def run(first: int) -> None:
        barrier.wait()
        for name in names[first:] + names[:first]:
            assert_equal(measure(name), expected_tables(name))

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(run, len(names) * number // threads) for number in range(threads)]:
            done.result()
