"""Money: price lists, what calls cost, and usage with its cost for other programs. Not the service that orders."""
