"""One process's part in an order that several processes share (gateway/cluster), on its event loop.

order.py drives the Member; transport.py carries frames; dispatching.py is a pool's Dispatcher over it; backends.py
tells followers of the leader's backends; services.py and sharing.py are what processes ask each other besides.
"""
