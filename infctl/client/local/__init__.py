"""A whole cluster on this machine, made of the processes of a real one: what `dev` keeps and `demo` removes."""
