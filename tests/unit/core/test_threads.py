import threading
import time

from cadenza.core.threads import AtomicContainer, AtomicInt, LockedResource, TracedLock


def run_in_threads(count: int, work) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_locked_resource_gives_its_value_to_one_thread_at_a_time():
    resource = LockedResource([0])

    def count_slowly():
        for _ in range(100):
            with resource as inner:
                seen = inner[0]
                time.sleep(0.0)  # lets another thread in that may come in
                inner[0] = seen + 1

    run_in_threads(4, count_slowly)
    assert resource.swap([3]) == [400]
    with resource as inner:
        assert inner == [3]


def test_atomic_container_take_leaves_none():
    container = AtomicContainer()
    assert container.read() is None
    container.set(5)
    assert container.read() == 5
    assert container.take() == 5
    assert container.take() is None
    assert AtomicContainer("initial").read() == "initial"


def test_atomic_int_operations_return_the_number_before():
    number = AtomicInt(5)
    same = number
    number += 3
    number -= 1
    assert number is same
    assert number.read() == 7
    assert number.increment() == 7
    assert number.increment(2) == 8
    assert number.swap(100) == 10
    assert number.read() == 100


def test_atomic_int_loses_no_increment_between_threads():
    number, seen = AtomicInt(), []
    run_in_threads(4, lambda: seen.extend(number.increment() for _ in range(500)))
    assert number.read() == 2000
    assert sorted(seen) == list(range(2000))


def test_traced_lock_sums_the_time_it_was_held(clock):
    lock = TracedLock()
    for held in (2.0, 3.0):
        with lock:
            clock.now += held
        clock.now += 10.0
    assert lock.held_s == 5.0
    assert lock.blocked_s == 0.0


def test_traced_lock_sums_the_time_threads_waited(clock):
    class SlowLock:
        def __enter__(self):
            clock.now += 4.0

        def __exit__(self, *details):
            return None

    lock = TracedLock(SlowLock)
    with lock:
        clock.now += 1.0
    with lock:
        pass
    assert lock.blocked_s == 8.0
    assert lock.held_s == 1.0
