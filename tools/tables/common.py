"""What the makers of tables share."""

NOTHING = "Not measured yet."
"""A table of records that are not there."""
