"""``toprung report``: one HTML page, with everything in it, from stored measurements."""
