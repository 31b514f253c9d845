"""Settings that every test shares."""

import os

# Most tests wait for XLA to compile small programs, not for the programs: unoptimised code halves the suite's
# time. Matrix products are library calls and do not change.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", "")  # commands under test write nothing into a home
