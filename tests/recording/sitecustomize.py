"""Take up the record of the test that started this program."""

import os
import sys

import recorder

if recorder.VARIABLE in os.environ:
    recorder.start(os.environ[recorder.VARIABLE])
del sys.modules["recorder"]  # a tests/run.py of another tree imports its own
