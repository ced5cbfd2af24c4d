"""The rows of the operator table, by family; `graph/table.py` puts them together."""
