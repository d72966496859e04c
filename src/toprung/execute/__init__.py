"""Execution: products that are selected, compiled and put into queues."""
