"""What a call asks for, for whom, and what of it the scheduler has to know."""
