"""Settings that every test shares."""

import os
from importlib.metadata import version

# Most tests wait for XLA to compile small programs, not for the programs: unoptimised code halves the suite's
# time, and fusions emitted the older way halve it again. Matrix products are library calls and do not change.
FLAGS = ["--xla_backend_optimization_level=0"]
if version("jax").startswith("0.10."):  # tried there; XLA aborts on a flag that it does not know
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", "")  # commands under test write nothing into a home
