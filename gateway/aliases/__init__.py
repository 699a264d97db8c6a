"""Model names that clients use, and what they stand for."""
