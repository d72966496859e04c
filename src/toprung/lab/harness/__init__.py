"""The harness: competitors, measuring, records."""
