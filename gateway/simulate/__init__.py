"""`fairlead simulate`: what a policy would do to given traffic, by the production Scheduler under a virtual clock."""
