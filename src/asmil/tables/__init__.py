"""Tables that people give: their columns, the names in them, units, and types of arrays."""
