"""The KV tokens that the running requests of one backend will hold, by two rules, and how long their answers become."""
