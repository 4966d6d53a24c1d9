"""Signals that are for the server: the worker outlives them. The server hands this over in front of worker.py, as one source."""

import os
import signal
import threading

# Supervisors send these to all processes of a service. They are for the server, which answers what it has accepted before it
# ends: a worker stays for that, and ends with its sockets.
FOR_THE_SERVER = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def unmoved(_number, _frame):
    """A handler, since what is ignored would be ignored by programs that the user's code starts as well."""


def outlive_signals():
    """Outlives signals for the server. The user's code may handle them otherwise, and what it forks ends by them as ever."""
    before = {number: signal.signal(number, unmoved) for number in FOR_THE_SERVER}
    for number in FOR_THE_SERVER:
        # Libraries that wait for something must not see it either.
        signal.siginterrupt(number, False)
    masks = threading.local()

    def hold():
        # Or one that is sent at once would be gone before the new process has its old handler.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_SERVER)

    def release():
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def restore():
        for number, handler in before.items():
            if signal.getsignal(number) is unmoved:
                signal.signal(number, handler)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=restore)
