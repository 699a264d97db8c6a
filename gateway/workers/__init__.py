"""Workers: several processes of one gateway on one machine, with one fair order (setting `workers`).

A parent spawns them (parent.py). Worker 0 leads: it runs the Schedulers, asks the backends, and owns the state file,
the admin port and the port of metrics. All of them accept clients at one listening socket and relay. Each tells worker
0 the facts of its requests over a Unix socket, and carries out its actions (gateway/shared_order).
"""
