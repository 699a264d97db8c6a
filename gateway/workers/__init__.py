"""Workers: several processes of one gateway on one machine, with one fair order (setting `workers`).

A parent process spawns the workers (parent.py). Worker 0 leads: it runs the Schedulers, polls the backends, and owns
the state file, the admin port and the port of metrics. All workers accept clients at one listening socket and relay.
Each worker reports facts of its requests to worker 0 over a Unix socket, and carries out worker 0's actions
(gateway/shared_order).
"""
