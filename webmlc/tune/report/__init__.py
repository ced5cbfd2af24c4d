"""Show the results of a search: in the terminal, and on a page."""
