"""NVIDIA's machine code: reading it, and writing registers anew."""
