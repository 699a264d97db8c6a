"""What an operator sees of single requests and does to them, and what a change would do."""
