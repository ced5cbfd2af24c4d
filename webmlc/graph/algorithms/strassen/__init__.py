"""Matrix products as Strassen's seven products of quarters."""
