"""One fair order over many processes: one leads and runs the Schedulers, the others send it facts and carry out its
actions.

Everything here is sans-IO: `now` is an argument in seconds of the process's own clock, messages are values. A shell
connects it to sockets, to a store for elections and to the event loop. Read `wire.py` for what is said, `member.py` for
how a process puts the parts together.
"""
