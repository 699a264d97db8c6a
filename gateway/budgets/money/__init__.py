"""Money: price lists, the cost of calls, and usage with its cost for other programs. It is not the service that orders
calls.
"""
