"""Threads take turns, and a fork leaves nobody's turn behind."""

import os
import threading

from cadenza.stream.thread_lock import ThreadLock


def test_lock_that_a_thread_held_at_a_fork_is_free_in_the_new_process() -> None:
    lock, held, release = ThreadLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock.here():
            held.set()
            release.wait(90)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(90)
    child = os.fork()
    if not child:
        os._exit(0 if lock.here().acquire(timeout=800) else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    release.set()
    thread.join()
    assert code == 0
