"""What `launch/bench.py` measures: a file for each kind of benchmark."""
