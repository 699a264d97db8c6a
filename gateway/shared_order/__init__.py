"""One process's part in an order that several processes share (gateway/cluster), on its event loop.

order.py drives the Member; following.py connects to the leader, store_election.py to the store that elects;
transport.py carries frames; deciding.py decides for a pool in turns of the order; backends.py sends the state of the
leader's backends to followers; services.py answers the other questions between processes.
"""
