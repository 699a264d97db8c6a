"""What a change would do: the calls of the last hour simulated, and the shares of an edit before it is made."""
