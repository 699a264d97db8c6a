"""Money: price lists, the cost of calls, and usage with its cost for other programs. Money is independent of the
service units that order requests.
"""
