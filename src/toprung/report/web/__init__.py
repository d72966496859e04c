"""The ladder in a browser: one HTML file with the WGSL rungs, which it verifies, times and explains on the viewer's GPU."""
