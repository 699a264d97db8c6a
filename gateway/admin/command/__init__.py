"""`fairlead admin`: the admin API from the shell."""
