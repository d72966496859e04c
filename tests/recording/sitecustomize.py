"""Take up the record of the test that started this program."""

import os

import recorder

if recorder.VARIABLE in os.environ:
    recorder.start(os.environ[recorder.VARIABLE])
