"""What the command line's commands do; imported only when one runs."""
